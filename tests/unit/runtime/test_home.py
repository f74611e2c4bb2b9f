"""The home: where it is found, what it holds, and what it refuses."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from simic.runtime.home import Home, resolve_home
from simic.runtime.private_files import private_directory


def test_the_environment_names_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path / "elsewhere"))
    assert resolve_home() == Home(tmp_path / "elsewhere")


def test_a_relative_home_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIMIC_HOME", "here")
    assert resolve_home().root == tmp_path / "here"
    assert resolve_home().tracking_uri == f"sqlite:///{tmp_path}/here/mlruns/mlflow.db"


@pytest.mark.parametrize(
    ("pyproject", "is_found"),
    [('[project]\nname = "simic"\n', True), ('[project]\nname = "other"\n', False), ("not toml", False)],
)
def test_without_it_the_checkout_around_is_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pyproject: str, is_found: bool
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(pyproject)
    monkeypatch.delenv("SIMIC_HOME")
    monkeypatch.chdir(inner)
    assert resolve_home().root == (tmp_path if is_found else inner)


def test_a_home_within_a_checkout_comes_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "simic"\n')
    Home(tmp_path).create()
    trial = Home(tmp_path / "trial")
    trial.create()
    monkeypatch.delenv("SIMIC_HOME")
    monkeypatch.chdir(trial.root)
    assert resolve_home() == trial
    monkeypatch.chdir(trial.data)
    assert resolve_home() == Home(tmp_path), "only the folder itself is looked at"


def test_an_empty_variable_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "simic"\n')
    (tmp_path / "inner").mkdir()
    monkeypatch.setenv("SIMIC_HOME", "")
    monkeypatch.chdir(tmp_path / "inner")
    assert resolve_home().root == tmp_path


def test_the_store_of_parts_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMIC_HOME", str(tmp_path))
    assert resolve_home().lake_url is None
    monkeypatch.setenv("SIMIC_LAKE_URL", "s3://bucket/lake")
    assert resolve_home() == Home(tmp_path, "s3://bucket/lake")
    monkeypatch.delenv("SIMIC_HOME")
    monkeypatch.chdir(tmp_path)
    assert resolve_home().lake_url == "s3://bucket/lake"
    monkeypatch.setenv("SIMIC_LAKE_URL", "")
    assert resolve_home().lake_url is None


def test_create_makes_every_directory_and_keeps_the_key_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    home.create()
    for path in (
        home.spool, home.experience, home.ledger, home.quarantine, home.snapshots, home.policies,
        home.receipts, home.runs, home.outbox, home.locks, home.tmp, home.artifacts, home.prefect,
    ):  # fmt: skip
        assert path.is_dir()
        assert path.is_relative_to(home.root)
    assert stat.S_IMODE(home.keys.stat().st_mode) == 0o700
    assert os.path.commonpath([home.tmp, home.experience]) == str(home.data)


def added_to_git(root: Path) -> set[str]:
    """Return what ``git add --all`` would add below a folder, which becomes a repository."""
    subprocess.run(["git", "init", "--quiet", str(root)], check=True)
    command = ["git", "-C", str(root), "add", "--all", "--dry-run"]
    added = subprocess.run(command, check=True, capture_output=True, text=True)
    return {line.removeprefix("add '").removesuffix("'") for line in added.stdout.splitlines()}


def test_git_ignores_what_a_home_holds(tmp_path: Path) -> None:
    """Such as the signing key of a home within a repository, which ``git add .`` would commit."""
    home = Home(tmp_path / "trial")
    home.create()
    private_directory(home.root / ".run")
    for path in (home.keys, home.prefect, home.root / ".run", home.mlruns, home.experience, home.root):
        (path / "own").write_text("secret")
    assert added_to_git(tmp_path) == {"trial/own"}


def test_git_ignores_no_file_of_others_in_a_folder_that_a_home_did_not_make(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.data.mkdir()
    (home.data / "table.csv").write_text("1")
    (home.data / ".gitignore").write_text("*.tmp")
    home.create()
    (home.keys / "signing.key").write_text("secret")
    (home.prefect / "login").write_text("secret")
    assert added_to_git(tmp_path) == {"data/.gitignore", "data/table.csv"}
