"""``simic snapshots``: what it prints, what it does, and what it ends with."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.builders.reports import BLUEPRINTS, episode
from support.homes.lineage import FIRST, REJECTED, SECOND, make_history
from support.homes.pipeline import NOW, curate_all, land
from support.servers.forked_commands import run_command

from simic.cli.snapshots import export
from simic.contracts.errors import ConfigError
from simic.runtime.home import Home


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, list[str]]:
    home = Home(tmp_path_factory.mktemp("history"))
    return home, [manifest.digest for manifest in make_history(home)]


@pytest.fixture(autouse=True)
def _at_home(history: tuple[Home, list[str]], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SIMIC_HOME", str(history[0].root))
    yield


def simic(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run_command("snapshots", *map(str, arguments))


def answer(*arguments: object) -> Any:
    done = simic(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_list_names_readers_for_people_and_programs(history: tuple[Home, list[str]]) -> None:
    digests = history[1]
    found = answer("list")
    assert [snapshot["digest"] for snapshot in found["snapshots"]] == digests
    assert {use["policy"]: use["standing"] for use in found["snapshots"][0]["used_by"]} == {
        FIRST: "unjudged",
        SECOND: "champion",
        REJECTED: "rejected",
    }
    lines = simic("list").stdout.splitlines()
    (middle,) = [line for line in lines if digests[1][:12] in line]
    assert f"{SECOND[:12]} (champion)" in middle
    assert f"{SECOND[:12]} (champion); policies trained from these: 1 rejected" in " ".join(" ".join(lines).split())


def test_diff_takes_beginnings_of_digests_and_ends_well_also_if_they_differ(
    history: tuple[Home, list[str]],
) -> None:
    first, second, _ = history[1]
    found = answer("diff", first[:8], second[:8], "--examples", 3)
    assert (found["a"], found["b"]) == (first, second)
    assert found["rows"] == {"only_a": 0, "only_b": 160, "changed": 0, "same": 485}
    assert len(found["episodes_only_b"]) == 3
    done = simic("diff", first[:8], second[:8])
    assert done.returncode == 0
    assert "learned" in done.stdout and "160" in done.stdout
    assert "the same snapshot" in simic("diff", first, first).stdout


def test_what_is_not_there_is_a_usage_error_that_names_what_is(history: tuple[Home, list[str]]) -> None:
    done = simic("diff", "0000", history[1][0])
    assert done.returncode == 2
    assert history[1][0][:16] in done.stderr
    assert simic("pin", "nothex").returncode == 2
    assert simic("export", history[1][0], "--format", "csv", "--out", "x").returncode == 2
    assert simic("export", history[1][0], "--format", "pyg", "--out", "x", "--split", "all").returncode == 2
    assert simic("prune").returncode == 2


def test_verify_is_0_when_whole_and_1_with_the_damage_named(history: tuple[Home, list[str]], tmp_path: Path) -> None:
    home, digests = history
    assert [check["damage"] for check in answer("verify")] == [[], [], []]
    path = home.snapshots / digests[1][:16] / "episodes.parquet"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1])
        done = simic("verify", "--json")
        assert done.returncode == 1
        assert [bool(check["damage"]) for check in json.loads(done.stdout)] == [
            check["folder"] == digests[1][:16] for check in json.loads(done.stdout)
        ]
        assert digests[1][:16] in done.stderr
        assert "episodes.parquet: expected" in simic("verify", digests[1][:6]).stdout
        assert simic("verify", digests[0][:6]).returncode == 0
    finally:
        path.write_bytes(content)


def test_a_pinned_snapshot_survives_pruning(history: tuple[Home, list[str]]) -> None:
    """All three have readers here, so only what a pin and a rejection decide can be seen: none may go."""
    first, _, third = history[1]
    assert answer("pin", third[:8], "--reason", "figure 3")["is_pinned"]
    assert answer("list")["snapshots"][2]["pinned_because"] == "figure 3"
    plan = answer("prune", "--keep", 1, "--also-rejected")
    assert plan["is_dry_run"]
    kept = {item["digest"]: item["kept_because"] for item in plan["snapshots"]}
    assert "pinned: figure 3" in kept[third]
    assert kept[first] == [f"policy {FIRST[:12]} (unjudged)", f"policy {SECOND[:12]} (champion)"]
    assert not answer("unpin", third[:8])["is_pinned"]
    assert not answer("list")["snapshots"][2]["is_pinned"]


def test_pruning_shows_progress_only_where_something_goes_and_its_sizes_add_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    for key in range(3):
        land(home, episode(key), name=f"k{key}")
        curate_all(home, clock=lambda key=key: NOW.replace(hour=10 + key))
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path))
    sizes = [item["size_bytes"] for item in answer("prune", "--keep", 1)["snapshots"]]
    plan = simic("prune", "--keep", 1)
    assert plan.stderr == "", "a dry run makes no progress"
    shown = [float(line.split()[1]) for line in plan.stdout.splitlines() if line.split()[2:3] == ["yes"]]
    assert shown == [round(size / 1e6, 2) for size in sizes[:2]]
    assert f"would free {sum(sizes[:2]) / 1e6:.2f} MB" in plan.stdout
    done = simic("prune", "--keep", 1, "--yes")
    assert [line.split(" in ")[0] for line in done.stderr.splitlines()] == ["prune: 0/2", "prune: 2/2"]
    again = simic("prune", "--keep", 1, "--yes")
    assert (again.returncode, again.stderr) == (0, "")
    assert "freed 0.00 MB" in again.stdout


def test_people_see_one_length_of_a_digest_and_programs_all_of_it(history: tuple[Home, list[str]]) -> None:
    first, second, _ = history[1]
    for words in (
        ("diff", first, second, "--examples", 0),
        ("pin", second),
        ("unpin", second),
        ("list",),
        ("prune", "--keep", "1"),
    ):
        shown = simic(*words).stdout
        lengths = {len(word) for word in re.findall("[0-9a-f]{8,}", shown)}
        assert lengths == {12}, shown
    assert answer("pin", second)["snapshot"] == second
    assert not answer("unpin", second)["is_pinned"]


def test_export_writes_a_folder_once(
    history: tuple[Home, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simic.hosts.plugins.blueprint_names", lambda: BLUEPRINTS)
    first, _, third = history[1]
    export(first[:8], tmp_path / "pyg", "pyg", as_json=True)
    printed = capsys.readouterr()
    card = json.loads(printed.out)
    assert (card["snapshot"], card["split"], card["format"]) == (first, "train", "pyg")
    assert json.loads((tmp_path / "pyg" / "card.json").read_bytes()) == card
    assert f"{card['episodes']}/{card['episodes']}" in printed.err, "progress"
    with pytest.raises(ConfigError, match="exists already"):
        export(first[:8], tmp_path / "pyg", "pyg")
    export(third[:8], tmp_path / "minari", "minari", split="test")
    assert f"{tmp_path}/minari/README.md" in capsys.readouterr().out
    held = answer("list")["snapshots"][2]["episodes"]["test"]
    assert json.loads((tmp_path / "minari" / "card.json").read_bytes())["episodes"] == held


def test_an_empty_home_says_what_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path / "empty"))
    Home(tmp_path / "empty").create()
    assert "simic curate" in simic("list").stdout
    assert answer("verify") == []
    assert answer("prune", "--keep", 3)["snapshots"] == []
