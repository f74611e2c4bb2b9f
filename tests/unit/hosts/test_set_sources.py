"""A plan book depends on the hosts of its own set, not on those of others."""

from __future__ import annotations

from pathlib import Path

import pytest

from simic.contracts.rewards import RewardConfig
from simic.contracts.settings.run import WorldConfig
from simic.hosts import set_sources as module
from simic.hosts import shipped_sets
from simic.hosts.host_sets import HostSet
from simic.hosts.set_sources import set_sources
from simic.validation.baselines import plan_book


def optional(set_name: str) -> set[str]:
    """The files of families and trunks that a set uses."""
    return {path.removeprefix("hosts/") for path in set_sources(set_name) if path.count("/") == 2 and is_optional(path)}


def is_optional(path: str) -> bool:
    return path.split("/")[1] in ("families", "trunks")


def test_a_set_depends_on_its_families_on_what_they_import_and_on_its_trunk() -> None:
    five = {f"families/{name}.py" for name in ("cap", "select", "gain", "noisy", "fine")}
    assert optional("compound") == {*five, "families/both.py", "trunks/mlp.py"}
    assert {"families/_shape.py", "families/_region.py", "trunks/plain.py", "trunks/mlp.py"} <= optional("shapes")
    assert "trunks/cnn.py" not in optional("shapes")
    assert {"trunks/plain_cnn.py", "trunks/cnn.py"} <= optional("maps")


def test_a_family_alone_depends_on_itself_on_what_it_imports_and_on_all_trunks() -> None:
    trunks = {f"trunks/{name}.py" for name in ("__init__", "cnn", "mlp", "normed", "normed_cnn", "plain", "plain_cnn")}
    assert optional("both") == {"families/both.py", "families/gain.py", "families/select.py", *trunks}
    assert optional("family_of_another_package") == trunks


def test_all_else_of_the_package_counts_but_the_table_of_sets() -> None:
    root = Path(shipped_sets.__file__).parent
    all_files = {path.relative_to(root.parent).as_posix() for path in root.rglob("*.py")}
    left_out = all_files - set(set_sources("trunks"))
    assert {path for path in left_out if not is_optional(path)} == {"hosts/shipped_sets.py"}


def test_stacked_hosts_depend_on_no_file_of_hosts_that_are_modules() -> None:
    of_modules = {path for path in set_sources("trunks") if path.startswith("hosts/custom/")}
    assert of_modules
    assert set(set_sources("own_cnn")) >= of_modules
    for name in ("benchmark", "varied", "compound", "images", "shapes", "maps"):
        assert of_modules.isdisjoint(set_sources(name))


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A copy of the package whose files a test may edit."""
    import shutil

    package = Path(shipped_sets.__file__).parents[1]
    for part in ("hosts", "contracts", "numerics", "controllers"):
        shutil.copytree(package / part, tmp_path / part)
    monkeypatch.setattr(module, "_PACKAGE", tmp_path / "hosts")
    own = plan_book.tree_digest
    monkeypatch.setattr(plan_book, "tree_digest", lambda _root, parts: own(tmp_path, parts))
    return tmp_path / "hosts"


def searched(set_name: str = "benchmark") -> str:
    return plan_book.searched_world(WorldConfig(set=set_name), RewardConfig())


@pytest.mark.parametrize("file", ["families/cap.py", "trunks/mlp.py", "lifecycle.py", "batched/training.py"])
def test_a_change_of_what_a_set_uses_outdates_its_book(digests: Path, file: str) -> None:
    before = searched()
    (digests / file).write_text("# other\n" + (digests / file).read_text("utf-8"), "utf-8")
    assert searched() != before


@pytest.mark.parametrize(
    "file", ["families/match.py", "families/new.py", "trunks/cnn.py", "custom/attached.py", "shipped_sets.py"]
)
def test_a_change_of_other_hosts_does_not(digests: Path, file: str) -> None:
    before = searched()
    (digests / file).write_text("# other\n", "utf-8")
    assert searched() == before


def test_another_row_of_the_table_outdates_the_book_of_that_set(monkeypatch: pytest.MonkeyPatch) -> None:
    before, other = searched(), searched("varied")
    families = shipped_sets.SETS["benchmark"].families
    monkeypatch.setitem(shipped_sets.SETS, "benchmark", HostSet(families, seeds_max=2))
    assert searched() != before
    assert searched("varied") == other
