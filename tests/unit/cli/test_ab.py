"""``simic ab``: how recipes are named, what cannot be compared, and what the page says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.builders.profiles import write_tiny_profile
from support.homes.pipeline import NOW

from simic.app.comparisons.recipe_trial import RecipeRequest
from simic.app.comparisons.recipes import judging_config, newest_policy
from simic.app.container import Container
from simic.cli.ab import ab
from simic.cli.main import app
from simic.cli.recipes import is_recipe, parse_recipe, parse_recipes
from simic.contracts.controllers import ControllerSpec
from simic.contracts.errors import ConfigError
from simic.contracts.results.receipts import TrainingReport
from simic.contracts.results.recipes import RecipeArm, RecipeComparison, RecipePolicy, RecipeTraining
from simic.contracts.settings.run import TrialConfig
from simic.contracts.splits import Split
from simic.runtime.home import Home
from simic.runtime.settings import config_digest, load_profile
from simic.validation.comparison_plot import panels_of
from simic.validation.recipes import Judging, compare_recipes, least_p

FAILURE = "never commits"
LEARNED = {"policy_digest": "a" * 64, "failure": None, "episodes": 0}


def _found(request: RecipeRequest, container: Container) -> RecipeComparison:
    """Two recipes on four hosts; the second gains a point less with every seed."""
    seeds = len(request.seeds)
    names = [recipe.name for recipe in request.recipes]
    hosts = np.array([50.0, 60.0, 52.0, 62.0])
    returns = {name: hosts - at + np.arange(seeds)[:, None] / 10 for at, name in enumerate(names)}
    judging = Judging("benchmark", ("cap", "gain") * 2, TrialConfig(bootstrap_samples=200))
    pairs = compare_recipes(returns, judging, is_against_first=request.is_against_first)
    return RecipeComparison(
        **container.provenance._asdict(), started_at=NOW, finished_at=NOW, set="benchmark", seeds=list(request.seeds),
        hosts_per_family=request.hosts, first_key=10, snapshot_digest=None, trials="trials/x.json", policies=[],
        least_p=least_p(seeds, len(pairs)), pairs=pairs, is_against_first=request.is_against_first,
        recipes=[
            RecipeArm(
                name=recipe.name, profile=recipe.profile, overrides=list(recipe.overrides), settings={"s": recipe.name},
                config_digest=config_digest(recipe.config), mean_return=56.0 - at, over_wait=6.0 - at, spread=0.5,
                test_accuracy=0.5, parameters=8, extra_compute=0.25, train_s=1.5,
                policies=[
                    RecipePolicy(
                        seed=seed, controller="wait", policy_digest=None, failure=FAILURE, mean_return=56.0,
                        train_s=1.5, episodes=9,
                    )
                    for seed in request.seeds
                ],
            )
            for at, recipe in enumerate(request.recipes)
        ],
    )  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[RecipeRequest]:
    requests: list[RecipeRequest] = []

    def stand_in(container: Container, request: RecipeRequest) -> RecipeComparison:
        requests.append(request)
        return _found(request, container)

    monkeypatch.setattr("simic.app.comparisons.recipe_trial.compare", stand_in)
    return requests


def test_the_page_has_verdict_costs_and_failures(
    asked: list[RecipeRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ab(["quick", "quick -o train.distil_passes=2"], seeds=4, hosts=2, seed=3, plot=tmp_path / "ab.png")
    (request,) = asked
    assert (request.seeds, request.hosts, request.snapshot) == ((3, 4, 5, 6), 2, None)
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 training seeds from 3 on, 2 hosts of each family of set benchmark" in shown
    assert "better +1.0 [" in shown and "0.0286 1.00 +1.00" in shown
    assert "quick: seed 4 failed: never commits" in shown
    assert "seed 6" in shown
    assert "cannot show a difference" not in shown
    assert (tmp_path / "ab.png").read_bytes().startswith(b"\x89PNG")


def test_the_figure_has_a_panel_per_pair_and_a_row_per_training_seed_and_family(tmp_path: Path) -> None:
    recipes = parse_recipes(["quick", "quick -o train.distil_passes=2"], None)
    request = RecipeRequest(recipes, (3, 4), 2, Split.TEST, None, is_against_first=False, is_fresh=False)
    (panel,) = panels_of(_found(request, Container(Home(tmp_path / "home"), recipes[0].config, 3)))
    assert panel.title == "quick\nminus quick train.distil_passes=2\nno difference shown"
    assert [name for name, _ in panel.rows] == ["all trainings", "seed 3", "seed 4", "cap", "gain"]
    assert all(one.mean == pytest.approx(1.0) for _, one in panel.rows)


def test_too_few_seeds_are_said_to_be_too_few(asked: list[RecipeRequest], capsys: pytest.CaptureFixture[str]) -> None:
    ab(["quick", "quick -o train.distil_passes=2", "default -o 'collect.further=[]'"], seeds=4, hosts=2)
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 training seeds cannot show a difference: the smallest adjusted p is 0.09" in shown
    assert asked[0].recipes[2].name == "default collect.further=[]"


def test_a_page_has_the_tables_the_plot_and_the_command(
    asked: list[RecipeRequest], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = write_tiny_profile(tmp_path / "a|b.toml")
    ab(["quick", "default", f"'{named}'"], seeds=5, hosts=2, against_first=True, out=tmp_path / "ablations.md")
    assert asked[0].is_against_first
    assert "ablations.md" in "".join(capsys.readouterr().out.split())
    text = (tmp_path / "ablations.md").read_text()
    assert "simic ab quick default" in text and "--seeds 5 --hosts 2 --seed 0 --against-first --out" in text
    assert "| default | quick | worse | -1.0 [" in text
    assert "| quick | default |" not in text, "only differences to the first recipe"
    assert "a\\|b" in text, "a name cannot add a column"
    assert "(ablations.png)" in text and (tmp_path / "ablations.png").is_file()
    assert "quick: seed 2 failed: never commits" in text
    with pytest.raises(ConfigError, match=r"ends in \.md"):
        ab(["quick", "default"], seeds=4, hosts=2, out=tmp_path / "ablations.txt")


def test_a_page_holds_text_of_others_as_text_and_a_command_that_makes_it_again(
    asked: list[RecipeRequest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failure = "no ```\n\n# Verdict\n<img src=http://host/x>"
    monkeypatch.setattr(f"{__name__}.FAILURE", failure)
    out, plot = tmp_path / "page.md", tmp_path / "a (b) c.png"
    arguments = {"seeds": 4, "hosts": 2, "split": Split.TEST, "override": ["world.workers=1", "train.average=0.5"]}
    ab([str(write_tiny_profile(tmp_path / "a```b.toml")), "quick"], out=out, plot=plot, **arguments)
    text = out.read_text()
    assert "seed 2 failed: no ```  # Verdict &lt;img src=http://host/x>" in text
    assert "\n# Verdict" not in text
    assert "(a%20%28b%29%20c.png)" in text
    found = re.search(r"^````\n(.*)\n````$", text, re.MULTILINE)
    assert found is not None, "the backticks in the command do not end its fence"
    out.unlink()
    plot.unlink()
    app(shlex.split(found[1])[1:], standalone_mode=False)
    assert asked[0] == asked[1]
    assert plot.is_file() and out.read_text() == text


def test_trainings_of_another_pytorch_are_refused_or_made_again(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Every training fails, so the real trials grow hosts without a policy, and there is no verdict."""
    trained: list[str] = []

    def fail(container: Container, *_: object) -> dict[str, Any]:
        trained.append(container.home.root.name)
        return {"policy_digest": None, "karn_digest": None, "failure": "never commits", "episodes": 0}

    monkeypatch.setattr("simic.app.comparisons.recipe_trial.learn", fail)
    profile = write_tiny_profile(tmp_path / "tiny.toml")
    recipes = [str(profile), f"{profile} -o train.distil_passes=3"]
    ab(recipes, seeds=2, hosts=2)
    ab(recipes, seeds=2, hosts=2)
    (warning, _) = [one.getMessage() for one in caplog.records if "cannot show" in one.getMessage()]
    assert warning.endswith("between 2 recipes: the least adjusted p is 0.33. --seeds 4 can")
    assert len(trained) == 4, "the second comparison uses the trainings of the first"
    assert "no verdict, all 2 trainings of tiny and of tiny train.distil_passes=3" in " ".join(
        capsys.readouterr().out.split()
    )
    monkeypatch.setattr("torch.__version__", "9.9.9")
    with pytest.raises(ConfigError, match=r"expected torch_version 9.9.9, found \d.*--fresh"):
        ab(recipes, seeds=2, hosts=2)
    assert len(trained) == 4
    ab(recipes, seeds=2, hosts=2, fresh=True)
    assert len(trained) == 8
    (path, *_) = Home(home).ab.glob("*.json")
    assert RecipeTraining.model_validate_json(path.read_bytes()).torch_version == "9.9.9"


@pytest.mark.parametrize(("against_first", "pairs"), [(False, ["ab", "ac", "bc"]), (True, ["ba", "ca"])])
def test_the_policies_of_one_seed_are_compared_in_the_pairs_that_were_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *,
    against_first: bool,
    pairs: list[str],
) -> None:
    """Baselines stand for the policies, which are grown on real hosts."""
    names = iter(["random", "blind", "explore"])
    monkeypatch.setattr("simic.app.comparisons.recipe_trial.learn", lambda *_: LEARNED)
    monkeypatch.setattr("simic.app.comparisons.recipe_trial.spec_of", lambda _: ControllerSpec(name=next(names)))
    recipes = [str(write_tiny_profile(tmp_path / f"{name}.toml")) for name in "abc"]
    ab(recipes, seeds=1, hosts=2, against_first=against_first, as_json=True)
    found = RecipeComparison.model_validate_json(capsys.readouterr().out)
    assert [one.controller[0] + one.against[0] for one in found.policies] == pairs
    assert found.is_against_first is against_first
    returns = {one.name: one.mean_return for one in found.recipes}
    for one in found.policies:
        difference = returns[one.controller[0]] - returns[one.against[0]]
        assert one.difference.mean == pytest.approx(difference)
        assert difference


def test_a_recipe_is_what_simic_run_gets(tmp_path: Path) -> None:
    path = write_tiny_profile(tmp_path / "with space.toml")
    ours, same, other = parse_recipes([str(path), str(path), "quick --override train.average=0.5"], ["world.workers=1"])
    assert [one.name for one in (ours, same, other)] == ["with space", "with space (2)", "quick train.average=0.5"]
    assert other.overrides == ("world.workers=1", "train.average=0.5")
    wanted = load_profile("quick", {"world.workers": 1, "train.average": 0.5})
    assert config_digest(other.config) == config_digest(wanted)
    assert [is_recipe(text) for text in ("quick", f"'{path}' -o a=b", "wait", "tamiyo/2")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("recipes", "options", "message"),
    [
        (["quick"], {}, "2 or more recipes, found 1"),
        (["quick", "quik"], {}, "did you mean quick"),
        (["quick", "quick train.average=0.5"], {}, "after the profile"),
        (["quick", "quick -o 'x"], {}, "close the quotes"),
        (["quick", "quick -o train.averge=0.5"], {}, "did you mean train.average"),
        (["quick", "quick -o world.horizon=9"], {}, "differ in world.horizon: 20 and 9"),
        (["quick", "quick -o world.threads=3"], {}, "differ in world.threads: not set and 3"),
        (["quick -o world.threads=3", "quick"], {}, "differ in world.threads: 3 and not set"),
        (["quick", "quick -o curate.reward.rent=9"], {}, "differ in curate.reward.rent: 3.0 and 9"),
        (["quick", "quick -o world.set=varied"], {}, "name the set of the judging hosts with --set"),
        (["quick", "quick -o train.objective=nothing"], {}, "nothing"),
        (["quick", "quick -o world.set=match"], {"world_set": "benchmark"}, "no plan book for set 'match'"),
        (["quick", "quick"], {"plot": Path("x.jpg")}, "png file"),
        (["quick", "quick"], {"snapshot": "abcd"}, "abcd"),
        (["quick", "quick"], {"start": "champion"}, "--start needs --snapshot"),
        (["quick", "quick -o train.lora.rank=4"], {}, "starts from nothing"),
        (
            ["quick", "quick -o train.average=0"],
            {"override": ["trial.land=true"], "split": Split.VALIDATION},
            "only episodes on test hosts",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    home: Path, recipes: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ab(recipes, seeds=2, hosts=2, **options)
    assert not (home / "data" / "ab").exists()


def test_recipes_may_train_on_other_sets_families_and_rewards_than_those_that_judge() -> None:
    texts = ["quick", "quick -o world.set=varied -o curate.reward.family=sparse", "quick -o 'world.without=[\"gain\"]'"]
    config = judging_config(parse_recipes(texts, None), "noisy")
    assert (config.world.set, config.world.without) == ("noisy", ())


def test_the_newest_policy_of_a_recipe_has_exactly_its_settings(home: Path) -> None:
    Home(home).create()
    (ours, other) = parse_recipes(["quick", "quick -o train.average=0.5"], None)
    container = Container(Home(home), ours.config, 0)
    for digest, config in (("a" * 64, ours.config), ("b" * 64, other.config), ("c" * 64, ours.config)):
        container.save_receipt(_trained(digest, config_digest(config)))
    assert newest_policy(container, ours.config, ours.name) == "c" * 64
    (several,) = {parse_recipe("quick -o train.seeds=2")}
    with pytest.raises(ConfigError, match=r"no policy was trained with recipe quick train\.seeds=2"):
        newest_policy(container, several.config, several.name)
    assert newest_policy(container, other.config, other.name) == "b" * 64
    (_, third) = parse_recipes(["quick", "quick -o train.average=0.4"], None)
    with pytest.raises(ConfigError, match=r"no policy was trained with recipe quick train.average=0.4"):
        newest_policy(container, third.config, third.name)


def _trained(digest: str, configuration: str) -> TrainingReport:
    return TrainingReport(
        code_version="0.1.0+test", config_digest=configuration, seed=0, started_at=NOW, finished_at=NOW, digest=digest,
        path=f"data/policies/{digest}", snapshot_digest="d" * 64, start_digest=None, updates=1, episodes=1, passes=1.0,
        metrics={}, curves_path="data/curves/x.jsonl",
    )  # fmt: skip
