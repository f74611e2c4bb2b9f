"""The examples of docs/api.md run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.builders.deciding_policies import SIGNER, sealed_decider
from support.builders.published_policies import Publisher, sealed_by_digest
from support.builders.reports import episodes
from support.homes.pipeline import curate_all, land

from simic.catalogue.contract_schemas import example_of
from simic.contracts.state import LayerNode
from simic.controllers.features import feature_names
from simic.runtime.home import Home
from simic.trust.keys import Keyring

PAGE = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_examples_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    sealed_decider(tmp_path / "policy")
    Keyring(tmp_path / "keys").trust(SIGNER.public_bytes)
    places = Home(tmp_path / "home")
    places.create()
    land(places, episodes(range(4)))
    curate_all(places)
    publisher = Publisher(tmp_path / "production")
    publisher.publish(1, sealed_by_digest(publisher.home.policies, 0))
    (tmp_path / "report.json").write_text(json.dumps(example_of("FieldReport")))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 7
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - the text of our own page
    assert len(names["several"]) == 3  # type: ignore[arg-type]
    assert names["steps"].num_rows > 0  # type: ignore[attr-defined]
    assert names["update"].version == "1.0.1"  # type: ignore[attr-defined]
    assert [layer.kind.value for layer in names["growing"].state.graph.layers] == ["STEM", "HEAD"]  # type: ignore[attr-defined]
    assert isinstance(names["network"][3], torch.nn.Sequential), "the page shows a seed that was kept"  # type: ignore[index]
    check_resumption(names)
    assert len(list((tmp_path / "spool").rglob("*.jsonl.zst"))) == 1


def test_every_measurement_of_a_layer_that_is_no_field_of_the_state_is_explained() -> None:
    names = {name.removesuffix("_valid").partition("=")[0] for name in feature_names([])["layer"]}
    derived = names - set(LayerNode.model_fields)
    assert derived == {"spread", "spread_rise", "dimension", "depth"}
    assert all(f"`{name}`" in PAGE.read_text("utf-8") for name in derived)


def check_resumption(names: Any) -> None:
    """The page saves a live seed, which is kept after the resume; a training without a break ends with equal bits."""
    assert names["saved"]["grower"]["seeds"], "the page saves a seed that lives"
    model, optimizer, grower = names["start"]()
    names["train"](model, optimizer, grower, range(12))
    whole, resumed = grower.finalize().state_dict(), names["resumed"].state_dict()
    assert "1.1.weight" in resumed
    assert list(whole) == list(resumed)
    assert all(torch.equal(one, resumed[name]) for name, one in whole.items())
