"""What rounds the numbers of trials: another of it makes another judgement."""

from __future__ import annotations

import pytest
import torch

from simic.validation.arithmetic import arithmetic


def test_another_accelerator_is_another_processor_where_hosts_grow_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = {}
    for name in ("one", "other"):
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda name=name: name)
        found[name] = [arithmetic(device) for device in ("cpu", "cuda")]
    assert found["one"][0] == found["other"][0]
    assert found["one"][1] != found["other"][1]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert arithmetic("cuda") == arithmetic("cpu")
