"""What the model card says of training seeds, of further sets and of the evidence of each criterion."""

from __future__ import annotations

import pytest
from support.builders.judged_candidates import judged
from support.builders.judged_karns import judged_karn
from support.builders.validation_reports import trials_of

from simic.contracts.results.receipts import Provenance
from simic.contracts.settings.run import RunConfig
from simic.contracts.settings.safety import StopCause, TrainingStop
from simic.contracts.settings.training import TrainConfig
from simic.registry.mlflow_run import CandidateRecord
from simic.registry.model_card import model_card
from simic.runtime.home import Home
from simic.validation.training_seeds import choose, row_of

GAINS = (2.0, 5.5, 3.0)
STOP = TrainingStop(cause=StopCause.COLLAPSED, phase="vtrace", updates=9, planned_updates=90, detail="it collapsed")


def seeds_of(evidence: CandidateRecord) -> str:
    (line,) = [line for line in model_card(evidence).splitlines() if "Another seed gives" in line]
    return line


def several(place: Home, *, stopped: bool = False) -> CandidateRecord:
    """A candidate of seed 4 that was chosen among trainings with the seeds 3, 4 and 5."""
    evidence, run = judged(place, seed=4), Provenance("0.1.0+0", "c" * 64, 3)
    others = [evidence.training.model_copy(update={"seed": seed, "digest": f"{seed}" * 64}) for seed in (3, 5)]
    trained = [others[0], evidence.training, others[1]]
    rows = {"wait": 50.0, **{row_of(one): 50.0 + gain for one, gain in zip(trained, GAINS, strict=True)}}
    if stopped:
        trained[2] = trained[2].model_copy(update={"stopped": STOP})
    begun = evidence.training.started_at
    choice = choose(trained, trials_of(rows, RunConfig(), run, 20), "trials/x.json", begun, run)
    return evidence._replace(choice=choice, config=RunConfig(train=TrainConfig(seeds=3)))


def test_several_training_seeds_are_told_with_the_choice_among_them(place: Home) -> None:
    told = seeds_of(several(place))
    assert "One training seed" not in told
    assert "3 training seeds: the policy of seed 4 was chosen" in told
    assert "on 20 validation hosts of set benchmark. The gains there are +2.0 to +5.5 points" in told


def test_trainings_that_ended_early_are_counted(place: Home) -> None:
    told = seeds_of(several(place, stopped=True))
    assert "3 training seeds (1 ended early as hopeless)" in told
    assert "+2.0 to +5.5 points" in told


def test_a_policy_of_several_seeds_that_no_receipt_chose_is_not_called_the_only_one(place: Home) -> None:
    told = seeds_of(several(place)._replace(choice=None))
    assert "`train.seeds` is 3, and no receipt says that this policy was chosen" in told


@pytest.mark.parametrize("model", ["policy", "Karn"])
def test_one_training_seed_is_told_as_such(place: Home, model: str) -> None:
    evidence = judged(place) if model == "policy" else judged_karn(place, "a" * 64)
    assert seeds_of(evidence) == f"- One training seed. Another seed gives another {model}."
    if model == "Karn":
        assert seeds_of(evidence._replace(config=RunConfig(train=TrainConfig(seeds=3)))) == seeds_of(evidence)


def test_further_sets_are_told_with_their_gains_and_are_not_called_unknown(place: Home) -> None:
    evidence, run = judged(place), Provenance("0.1.0+0", "c" * 64, 3)
    tried = trials_of({"wait": 50.0, "candidate": 52.5}, RunConfig(), run, 20, set_name="varied")
    validation = evidence.validation.model_copy(update={"further": [tried]})
    card = model_card(evidence._replace(validation=validation))
    assert "Gain over never growing on 20 held-out hosts of set varied: 2.5 [" in card
    assert "- Judged on hosts of benchmark and varied with" in card


def test_each_criterion_is_told_with_its_evidence(place: Home) -> None:
    """A lower bound alone would seem to contradict the mean among the figures."""
    evidence = judged(place)
    (told,) = [line for line in model_card(evidence).splitlines() if line.startswith("| return_over_wait |")]
    (criterion,) = [one for one in evidence.gate.criteria if one.name == "return_over_wait"]
    assert criterion.evidence
    assert told.endswith(f"| {criterion.evidence} |")
