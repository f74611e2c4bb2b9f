"""A run's key is plain data, and its log says what each stage counted and why something was left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.builders.judged_candidates import decision
from support.builders.reports import episodes
from support.homes.pipeline import land

from simic.app.container import Container
from simic.app.runs import RunKey, describe, open_container, open_run, open_run_in
from simic.contracts.errors import ConfigError, ResourceLimitError, TransientError
from simic.runtime.home import Home
from simic.runtime.progress import NoProgress
from simic.runtime.settings import load_profile


def test_the_log_of_an_ingest_counts_what_landed_and_names_each_reason_for_a_refusal(tmp_path: Path) -> None:
    receipt = land(Home(tmp_path), episodes(range(2)))
    refused = {"quarantined": 3, "reasons": {"depth": 1, "contradiction": 2}, "landed": 1200, "duplicate": 5}
    assert describe(receipt.model_copy(update=refused)) == (
        "1,200 landed, 3 refused (2 contradiction, 1 depth), 5 duplicate"
    )


def test_the_log_of_a_rejection_names_the_criteria_that_failed() -> None:
    assert describe(decision("1" * 64, accepted=False)).startswith("rejected: ")
    assert "return_over_wait is -5, needs > 0" in describe(decision("1" * 64, accepted=False))
    assert describe(decision("1" * 64)).startswith("accepted: ")


def test_stages_of_a_run_work_with_the_settings_it_began_with(home: Path) -> None:
    """Whatever becomes of the file of the profile meanwhile; and a key survives being stored as JSON."""
    profile = home.parent / "own.toml"
    profile.write_text("[collect]\nepisodes = 7\n")
    with open_run(str(profile), 3, {"gate.require_plan_book": False}) as run:
        profile.write_text("[collect]\nepisodes = 8\n")
        key = RunKey.model_validate_json(run.key.model_dump_json())
        assert key == run.key
        container = open_container(key, NoProgress())
        assert (container.config.collect.episodes, container.seed) == (7, 3)
        assert container.provenance.seed == 3


def test_a_transient_error_leaves_a_run_open_and_the_next_one_resumes_it(home: Path) -> None:
    with pytest.raises(TransientError), open_run("quick", 0, {}) as run:
        token = run.key.token
        raise TransientError("the disk is busy")
    with pytest.raises(KeyError), open_run("quick", 0, {}) as run:
        assert run.key.token == token
        raise KeyError("a bug")
    with open_run("quick", 0, {}) as run:
        assert run.key.token != token
        assert run.key.config == load_profile("quick")
        assert (run.key.earlier_runs, run.key.champion, run.needs_own_experience) == (1, None, True)


def test_a_run_that_reached_a_limit_of_its_training_goes_on_with_a_higher_one(home: Path) -> None:
    with pytest.raises(ResourceLimitError), open_run("quick", 0, {"train.max_hours": 1.0}) as run:
        token = run.key.token
        raise ResourceLimitError("training has taken 1.01 hours")
    with open_run("quick", 0, {"train.max_hours": 48.0}) as run:
        assert (run.key.token, run.key.config.train.max_hours) == (token, 48.0)


def test_an_unknown_objective_is_refused_before_a_run_begins(home: Path) -> None:
    """Only the stage of training loads it, after all hosts are grown, and a distillation never does."""
    for start in ("scratch", "distil"):
        with (
            pytest.raises(ConfigError, match="did you mean 'fitted_q'"),
            open_run("quick", 0, {"train.objective": "fited_q", "train.start": start}),
        ):
            pass
    assert not (home / "data" / "ledger" / "runs.jsonl").exists()


def test_an_unknown_criterion_is_refused_before_a_run_begins(home: Path) -> None:
    """Only the judgement loads the criteria, after all hosts are grown and the policy is trained."""
    asked = {"gate.without": ["return_over_heuristic"]}
    with pytest.raises(ConfigError, match="a line of criterion return_over,"), open_run("quick", 0, asked):
        pass
    assert not (home / "data" / "ledger" / "runs.jsonl").exists()
    container = Container(Home(home), load_profile("quick", asked), 0)
    with open_run_in(container, "quick", has_gate=False):
        pass


def test_a_run_that_reports_judge_grows_nothing(home: Path) -> None:
    with open_run("quick", 0, {"gate.evidence": "reports", "trial.also_sets": ["benchmark", "varied"]}) as run:
        assert not run.needs_own_experience
        assert (len(run.rounds), run.further_sets) == (0, ())
