"""``simic proof``: what it asks for, and the page, the plot and the JSON that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.builders.proofs import proof_training, proof_trial

from simic.app.comparisons.proof import ProofRequest
from simic.app.container import Container
from simic.cli.proof import proof
from simic.cli.proof_page import page, summary
from simic.contracts.errors import ConfigError
from simic.contracts.results.proof import Proof, ProofSet
from simic.contracts.settings.run import TrialConfig
from simic.validation.proof import Tried, compare


def compared(*searched: str) -> ProofSet:
    wait = proof_trial("wait", [50, 60, 52, 62])
    oracle = proof_trial("oracle", [60, 64, 62, 66])
    rejected = proof_training(0).model_copy(update={"accepted": False, "failed_criteria": ["return_over_blind"]})
    met = [
        Tried(rejected, proof_trial("learned", [56, 62, 58, 64]).model_copy(update={"illegal_actions": 5})),
        Tried(proof_training(1), proof_trial("learned", [58, 64, 60, 66]).model_copy(update={"governor_events": 7})),
        Tried(proof_training(2, failure="a policy that never commits"), wait),
    ]
    unmet = [Tried(proof_training(seed, ["gain"]), proof_trial("x", [60, 62], ["gain", "gain"])) for seed in range(3)]
    baselines = {"wait": wait, "oracle": oracle, **{name: proof_trial(name, [62, 66, 64, 68]) for name in searched}}
    return compare(baselines, met, {"gain": unmet}, TrialConfig(bootstrap_samples=200), ["symptom"])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, home: Path) -> list[ProofRequest]:
    requests: list[ProofRequest] = []

    def stand_in(container: Container, request: ProofRequest) -> Proof:
        requests.append(request)
        return Proof(
            code_version="0.1.0+test", profile=request.profile, config_digest=container.provenance.config_digest,
            command=request.command, seeds=list(request.seeds), hosts_per_family=request.hosts, confidence=0.95,
            trainings=6, episodes=1234, sets=[compared(*request.searched)],
        )  # fmt: skip

    monkeypatch.setattr("simic.app.comparisons.proof.prove", stand_in)
    return requests


def test_the_page_says_what_was_measured_and_how_to_measure_it_again(
    asked: list[ProofRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proof.md"
    proof(sets=["benchmark", "benchmark"], seeds=3, hosts=2, without=["gain"], seed=4, out=out)
    (request,) = asked
    assert (request.sets, request.also, request.seeds, request.left_out) == (("benchmark",), (), (4, 5, 6), ("gain",))
    text = out.read_text("utf-8")
    assert text.startswith("# Proof of runs on benchmark, families left out in turn\n")
    assert (
        f"simic proof --set benchmark --seeds 3 --hosts 2 --without gain --profile default --seed 4 --out {out}" in text
    )
    assert "](proof.png)" in text
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "1,234 episodes" in text
    assert "| learned | 59.3 | +3.3 [" in text, "gains of 4, 6 and 0"
    assert "| wait | 56.0 | - | +3.3 [" in text
    assert "| learned | 118.7 % | 59.3 % | +3.3 [" in text, "validation, test and test over wait"
    assert "| 25.0 % | 29.7 % | 25.0 % | 12.5 % |" in text, "8 parameters kept in hosts of 32, and compute"
    assert "| controller | rent x 0 | rent x 0.25 | rent x 1 | rent x 4 | rent x 16 |" in text
    assert "| learned | +4.2 [" in text, "without the rent, which the builder makes a quarter of the return"
    assert "| epochs | - | 59.3 | +0.0 [+0.0, +0.0] | 59.3 % |" in text, "nothing was kept, so nothing differs"
    assert "no tree in the plan book of set benchmark" in text
    assert "The gate accepted 1 of 3 policies" in text
    assert "Seed 0 did not pass: return_over_blind." in text
    assert "Seed 2 failed: a policy that never commits." in text
    endings = [line.rsplit("|", 3)[1:3] for line in text.splitlines() if " rejected |" in line or " accepted |" in line]
    assert endings[:2] == [[" 5 ", " 0 "], [" 0 ", " 7 "]], "illegal actions and aborted episodes of each policy"
    assert "varies from +0.0 to +6.0, with a standard deviation of 3.06" in text
    assert "| gain | 2 | +0.0 [+0.0, +0.0] | +2.0 [" in text
    shown = " ".join(capsys.readouterr().out.split())
    assert "Families left out of the training" in shown
    assert "Cost and accuracy" in shown and "rent x 16" in shown
    assert f"wrote {out}" in shown


def test_one_training_seed_and_an_oracle_that_may_gain_nothing_are_told() -> None:
    wait, one = proof_trial("wait", [50, 60, 52, 62]), Tried(proof_training(0), proof_trial("x", [56, 62, 58, 64]))
    sure, unsure = proof_trial("oracle", [60, 64, 62, 66]), proof_trial("oracle", [40, 64, 62, 60])
    config = TrialConfig(bootstrap_samples=200)
    told = [summary(compare({"wait": wait, "oracle": oracle}, [one], {}, config, [])) for oracle in (sure, unsure)]
    assert [text.split(". ")[-1] for text in told] == ["One training seed: the intervals are over hosts alone."] * 2
    assert "of what the oracle gains" in told[0]
    assert "No share of the oracle's gain is told" in told[1]


@pytest.mark.parametrize(("confidence", "shown"), [(0.95, "95 %"), (0.995, "99.5 %")])
def test_the_page_shows_the_confidence_as_it_is(confidence: float, shown: str) -> None:
    proof_set = compared()
    report = Proof(
        code_version="0.1.0+test", profile="quick", config_digest="c" * 64, command="simic proof", seeds=[0, 1, 2],
        hosts_per_family=2, confidence=confidence, trainings=3, episodes=9, sets=[proof_set],
    )  # fmt: skip
    assert f"Student's {shown} intervals" in page(report, None)


def test_every_family_of_every_set_is_left_out_if_asked_and_json_has_all(
    asked: list[ProofRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof(sets=["benchmark"], leave_one_out=True, also=["varied"], out=tmp_path / "proof.md", as_json=True)
    (request,) = asked
    assert (request.left_out, request.also, request.hosts, request.is_fresh) == (None, ("varied",), 64, False)
    assert "--leave-one-out --also varied" in request.command
    found = json.loads(capsys.readouterr().out)
    assert found["sets"][0]["over"]["wait"]["mean"] == pytest.approx(10 / 3)
    assert found["sets"][0]["seeds"][2]["policy_digest"] is None


def test_arms_that_search_are_marked_and_stand_in_a_table_of_their_own(
    asked: list[ProofRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "proof.md"
    proof(sets=["benchmark"], seeds=3, hosts=2, without=["gain"], arm=["hindsight", "simulate"], out=out)
    (request,) = asked
    assert request.searched == ("simulate", "hindsight")
    text = out.read_text("utf-8")
    assert "--arm simulate --arm hindsight --profile" in text
    assert "| hindsight | 55.0* | +9.0 [" in text, "the builder's returns by test are 10 lower"
    assert "| controller | episodes | by test, over wait | share of hindsight |" in text
    assert "| learned | 1 | +3.3 [" in text
    assert "By test accuracy they have 37 % [" in text, "of hindsight's gain over `wait`"
    assert "over hindsight*" in text
    assert "Scored by test accuracy" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match="--arm oracle: expected simulate or hindsight"):
        proof(seeds=1, hosts=2, arm=["oracle"], out=out)


def test_a_page_has_the_ending_of_a_page(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.md, found .*proof\.png"):
        proof(seeds=1, hosts=2, out=tmp_path / "proof.png")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"without": ["nosy"]}, "no set of this proof has a family nosy; its families: cap, select, gain, noisy, fine"),
        ({"also": ["benchmark"]}, "--also benchmark: the policies are tried on their own set anyway"),
        ({"sets": ["noisy"], "without": ["noisy"]}, "no family is left"),
        ({"also": ["benchmrk"]}, "Did you mean 'benchmark'"),
        ({"override": ['world.without=["noisy"]']}, "world.without is set"),
        ({"also": ["match"]}, "no plan book for set 'match'"),
    ],
)
def test_what_cannot_be_proved_is_refused_before_a_host_is_grown(
    home: Path, tmp_path: Path, options: dict[str, list[str]], message: str
) -> None:
    """A set without the plan book that it needs is among them."""
    with pytest.raises(ConfigError, match=message):
        proof(seeds=1, hosts=2, out=tmp_path / "proof.md", **options)
    assert not (home / "data" / "proof").exists()
    assert not (tmp_path / "proof.md").exists()


@pytest.mark.parametrize("options", [{"sets": ["varyed"]}, {"also": ["varyed"]}])
def test_a_set_that_does_not_exist_makes_no_home(home: Path, tmp_path: Path, options: dict[str, list[str]]) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'varied'"):
        proof(seeds=1, hosts=2, out=tmp_path / "proof.md", **options)
    assert not home.exists()


def test_lf82_the_first_table_of_the_readme_is_that_of_the_proof() -> None:
    """Return, gain, accuracy and parameters of every controller; the gain of the learned ones is over seeds too."""
    root = Path(__file__).parents[3]
    page = (root / "docs" / "proof.md").read_text("utf-8").partition("## benchmark\n")[2]
    proved = {cells[0]: (*cells[1:3], *cells[4:]) for cells in _rows(page.partition("training seed")[0])[2:]}
    first = (root / "README.md").read_text("utf-8").partition("## The first result\n")[2].partition("\n## ")[0]
    table = first[first.index("| controller |") :].partition("\n\n")[0]
    shown = {cells[0].split("`")[1]: (*cells[1:3], *cells[-2:]) for cells in _rows(table)[2:]}
    assert "training seeds" in first
    assert shown == {"candidate" if name == "learned" else name: figures for name, figures in proved.items()}


def _rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
