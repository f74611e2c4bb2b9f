"""The identity of the simulation covers its code, plug-ins and settings, and the digest of the code costs no torch."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from simic.contracts.settings.run import WorldConfig
from simic.hosts import world_identity as identity
from simic.hosts.world_identity import world_digest, world_identity
from simic.runtime import plugin_folder


def test_the_world_digest_is_that_of_the_sources_and_costs_no_torch() -> None:
    program = (
        "import sys; from simic.hosts.world_identity import world_digest; print(world_digest());"
        "assert 'torch' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == world_digest()
    assert len(world_digest()) == 64


@pytest.mark.parametrize("seen", ["code", "plug-in"])
def test_another_source_or_plug_in_is_another_world(seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = world_digest.__wrapped__()
    if seen == "code":
        monkeypatch.setattr(identity, "tree_digest", lambda root, packages: f"{root.name}/{packages}")
    else:
        point = EntryPoint("another", "elsewhere:BLUEPRINT", "simic.blueprints")
        monkeypatch.setattr(
            plugin_folder, "_installed", lambda group: {"another": point} if group in point.group else {}
        )
    assert world_digest.__wrapped__() != here
    assert world_digest() == here


def test_a_plug_in_whose_source_changed_is_another_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editable install keeps its version while its code changes; it is read, and not imported, to tell."""
    module = tmp_path / "edited_plugin.py"
    module.write_text("raise RuntimeError\n")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("mine", "edited_plugin:BLUEPRINT", "simic.blueprints")
    monkeypatch.setattr(plugin_folder, "_installed", lambda group: {"mine": point} if group == point.group else {})
    before = world_digest.__wrapped__()
    assert world_digest.__wrapped__() == before
    module.write_text("raise RuntimeError  # edited\n")
    assert world_digest.__wrapped__() != before


def test_more_threads_than_keep_the_bits_are_another_world() -> None:
    one, two, three = (world_identity(WorldConfig(threads=threads)) for threads in (1, 2, 3))
    assert one == two != three
