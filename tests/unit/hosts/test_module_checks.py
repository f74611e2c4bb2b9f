"""A host that cannot be grown honestly is refused by name, before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.fakes.custom_hosts import LAYERS, Toy, ToyFamily, blobs, grown_modules, install
from torch import nn

from simic.contracts.errors import ConfigError, DatasetError
from simic.hosts.custom import Layer, ModuleHost, Samples

GOOD = blobs(1, 30)
ONE_CLASS = Samples(GOOD.inputs, torch.zeros(30, dtype=torch.int64))
HOLED = Samples(GOOD.inputs.masked_fill(torch.arange(30)[:, None] >= 28, torch.nan), GOOD.labels)
EMPTY = Samples(GOOD.inputs[:0], GOOD.labels[:0])


def refused(monkeypatch: pytest.MonkeyPatch, error: type[Exception], message: str, **changes: Any) -> None:
    install(monkeypatch, {"toy": ToyFamily(**changes)})
    with pytest.raises(error, match=f"family 'toy', host 5.*{message}"):
        grown_modules([5])


@pytest.mark.parametrize("part", ["train", "validation", "test"])
@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (ONE_CLASS, "expected at least two classes, all 30 labels are 0"),
        (HOLED, "found NaN or infinity in 2 of 30 samples"),
        (EMPTY, "expected at least one sample, found none"),
        (Samples(GOOD.inputs, GOOD.labels[:29]), "30 inputs and 29 labels"),
        (Samples(GOOD.inputs, GOOD.labels + 1), r"3 logits, so labels must lie in \[0, 3\), found 1 to 3"),
        (Samples(GOOD.inputs, GOOD.labels - 1), r"must lie in \[0, 3\), found -1 to 1"),
        (Samples(GOOD.inputs, GOOD.labels.double()), "labels must be int64"),
        (Samples(GOOD.inputs.numpy(), GOOD.labels), "must be tensors, found ndarray"),
    ],
)
def test_a_part_that_cannot_teach_or_judge(
    part: str, samples: Samples, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, DatasetError, f"{part}: .*{message}", **{part: samples})


def test_parts_must_look_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Samples(GOOD.inputs.double(), GOOD.labels)
    refused(monkeypatch, DatasetError, r"test: expected inputs torch.float32 \[n, 4\] as in train", test=other)
    other = Samples(GOOD.inputs, GOOD.labels.float())
    refused(monkeypatch, DatasetError, r"test: expected labels torch.int64 \['n'\] as in train", test=other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch must be positive"),
        ({"learning_rate": -0.1}, "learning_rate must be positive"),
        ({"learning_rate": float("nan")}, "learning_rate must be positive"),
        ({"clip_norm": float("inf")}, "clip_norm must be positive and finite"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), found 1.0"),
        ({"layers": (*LAYERS, Layer("blok"))}, "no layer 'blok'; did you mean 'block'"),
        ({"layers": (*LAYERS, Layer(""))}, "no layer ''"),
        ({"layers": (*LAYERS[:2], LAYERS[1])}, "name one submodule more than once"),
        ({"layers": (LAYERS[2],)}, "no layer has a slot"),
        ({"layers": ()}, "no layer has a slot"),
        ({"layers": ("stem",)}, "expected a Layer with a LayerKind, found 'stem'"),
        ({"layers": (LAYERS[0]._replace(kind="STEM"),)}, "expected a Layer with a LayerKind"),
        ({"module": nn.ReLU}, "no parameter to train"),
        ({"module": lambda: 3}, "found int"),
    ],
)
def test_settings_and_layers_that_make_no_sense(
    changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch, ConfigError, message, **changes)


def test_a_module_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    refused(monkeypatch, ConfigError, "lies on meta; hosts train on the CPU", module=lambda: Toy().to("meta"))


def test_what_is_no_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(ToyFamily):
        def host(self, key: int) -> ModuleHost:
            return Toy()  # type: ignore[return-value]

    install(monkeypatch, {"toy": Wrong()})
    with pytest.raises(ConfigError, match="must return a ModuleHost"):
        grown_modules([5])


def test_few_samples_are_one_batch_and_the_rest_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for batch, steps, size in ((1000, 1, 45), (10, 4, 10)):
        install(monkeypatch, {"toy": ToyFamily(batch=batch)})
        host = grown_modules([5])._hosts.hosts[0]
        assert (host.steps, host.batch) == (steps, size)
