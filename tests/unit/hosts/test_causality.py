"""Which blueprints would let earlier positions of a causal model see later ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from simic.contracts.errors import ConfigError
from simic.contracts.state import LayerKind
from simic.hosts.custom import Layer, ModuleHost, Samples
from simic.hosts.custom.causality import looking_ahead
from simic.hosts.custom.host import CustomHost
from simic.hosts.custom.inspect import inspect_module
from simic.hosts.interfaces import Blueprint, Site
from simic.hosts.plugins import blueprint_names, load_blueprint

WORDS, WIDTH = 7, 6
ALL = {name: load_blueprint(name) for name in blueprint_names()}
MIXING = ["attention", "gate", "norm"]
"""Blueprints for sequences that mix positions."""


class Reader(nn.Module):
    """Classes of positions from words [B, T], in which the named body mixes positions or not."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(WORDS, WIDTH), body, nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.words(words)))
        return logits


class Recurrent(nn.Module):
    """The outputs of a GRU, in one direction or both."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        width = WIDTH if is_causal else WIDTH // 2
        self.inner = nn.GRU(WIDTH, width, batch_first=True, bidirectional=not is_causal)

    def forward(self, h: Tensor) -> Tensor:
        outputs: Tensor = self.inner(h)[0]
        return outputs


class Attending(nn.Module):
    """Self-attention, with the mask of a language model or without."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.inner, self.is_causal = nn.MultiheadAttention(WIDTH, 2, batch_first=True), is_causal

    def forward(self, h: Tensor) -> Tensor:
        mask = torch.full((h.shape[1],) * 2, -torch.inf).triu(1) if self.is_causal else None
        outputs: Tensor = self.inner(h, h, h, attn_mask=mask)[0]
        return h + outputs


class Convolution(nn.Module):
    """A convolution over positions that sees two earlier ones, or one on either side."""

    def __init__(self, *, is_causal: bool) -> None:
        super().__init__()
        self.inner, self.sides = nn.Conv1d(WIDTH, WIDTH, 3), (2, 0) if is_causal else (1, 1)

    def forward(self, h: Tensor) -> Tensor:
        outputs: Tensor = self.inner(pad(h.transpose(1, 2), self.sides)).transpose(1, 2)
        return outputs


BODIES: dict[str, Callable[..., nn.Module]] = {
    "recurrent": Recurrent,
    "attention": Attending,
    "convolution": Convolution,
}


def samples(positions: int = 8, count: int = 40) -> Samples:
    """Words and their successors."""
    words = torch.randint(WORDS, (count, positions + 1), generator=torch.Generator().manual_seed(0))
    return Samples(words[:, :-1], words[:, 1:])


def host_of(model: nn.Module, given: Samples, slots: Sequence[str] = ("body",), axis: int | None = None) -> CustomHost:
    layers = (*(Layer(name, has_slot=True, feature_axis=axis) for name in slots), Layer("head", LayerKind.HEAD))
    spec = ModuleHost(model, layers, given, given, given)
    return CustomHost(0, spec, model, inspect_module(model, spec, 0, "here"), {})


def left_out(host: CustomHost, blueprints: dict[str, Blueprint] | None = None) -> list[str]:
    return sorted(looking_ahead(host, ALL if blueprints is None else blueprints))


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("body", BODIES)
def test_what_mixes_positions_is_left_out_of_a_causal_model_alone(body: str, is_causal: bool) -> None:
    torch.manual_seed(0)
    host = host_of(Reader(BODIES[body](is_causal=is_causal)), samples())
    before = torch.get_rng_state()
    assert left_out(host) == (MIXING if is_causal else [])
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(part._forward_hooks for part in host.module.modules())


@pytest.mark.parametrize("positions", [2, 3, 64])
def test_short_and_long_sequences_are_alike(positions: int) -> None:
    torch.manual_seed(0)
    assert left_out(host_of(Reader(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())), samples(positions))) == MIXING


def test_the_default_device_of_the_owner_changes_nothing() -> None:
    host = host_of(Reader(nn.Identity()), samples())
    torch.set_default_device("meta")
    try:
        assert left_out(host) == MIXING
    finally:
        torch.set_default_device(None)


def test_one_class_per_sequence_lies_outside_of_it() -> None:
    class Last(Reader):
        def forward(self, words: Tensor) -> Tensor:
            return super().forward(words)[:, -1]

    given = samples()
    assert left_out(host_of(Last(Recurrent(is_causal=True)), Samples(given.inputs, given.labels[:, -1]))) == []


class Shown(nn.Module):
    """Classes of positions from numbers [B, T, F] through maps [B, C, T, F] or sequences [B, C, T]."""

    def __init__(self, *, is_flat: bool) -> None:
        super().__init__()
        self.is_flat = is_flat
        self.body: nn.Module = nn.Conv1d(4, WIDTH, 1) if is_flat else nn.Conv2d(1, WIDTH, (1, 3), padding=(0, 1))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x.transpose(1, 2) if self.is_flat else x.unsqueeze(1))
        logits: Tensor = self.head(h.transpose(1, 2) if self.is_flat else h.mean(dim=3).transpose(1, 2))
        return logits


def test_an_axis_of_a_map_may_be_that_of_the_positions() -> None:
    torch.manual_seed(0)
    given = Samples(torch.randn(40, 8, 4), samples().labels)
    assert left_out(host_of(Shown(is_flat=False), given)) == ["conv3x3", "depthwise", "gate", "norm"]


@pytest.mark.parametrize(
    ("axis", "remaining"), [(1, ["bottleneck", "dense", "dropout", "heavy", "low_rank"]), (None, ["dropout"])]
)
def test_positions_that_are_taken_for_features_are_positions(axis: int | None, remaining: list[str]) -> None:
    """The output [B, C, T] of a convolution, whose last axis is that of the features if nobody says otherwise."""
    torch.manual_seed(0)
    host = host_of(Shown(is_flat=True), Samples(torch.randn(40, 8, 4), samples().labels), axis=axis)
    suiting = {name: one for name, one in ALL.items() if one.suits(host.layout.topology.sites[0])}
    assert sorted(set(suiting) - set(left_out(host, suiting))) == remaining


class Lone(Blueprint):
    """Shifts every feature by a number."""

    def parameters(self, site: Site, /) -> int:
        return site.width

    def birth(self, normals: Tensor, _site: Site, /) -> Tensor:
        return torch.zeros_like(normals)

    def delta(self, parameters: Tensor, h: Tensor, _noise: Tensor | None, /) -> Tensor:
        return parameters.view(len(parameters), *[1] * (h.dim() - 2), -1).expand_as(h)


class Shift(Lone):
    """Adds what lies some places ahead or behind; with noise only if ``is_noisy``."""

    def __init__(self, ahead: int, *, is_noisy: bool = False) -> None:
        self.ahead, self.is_noisy = ahead, is_noisy

    def delta(self, parameters: Tensor, h: Tensor, noise: Tensor | None, /) -> Tensor:
        weight = super().delta(parameters, h, None)
        if self.is_noisy and noise is None:
            return weight
        other = h[:, :, self.ahead :] if self.ahead > 0 else h[:, :, : self.ahead]
        sides = (0, self.ahead) if self.ahead > 0 else (-self.ahead, 0)
        return weight * pad(other, (0, 0, *sides))


class Broken(Lone):
    def delta(self, _parameters: Tensor, _h: Tensor, _noise: Tensor | None, /) -> Tensor:
        raise RuntimeError("no such thing")


def test_blueprints_of_other_packages_are_tried_out() -> None:
    host = host_of(Reader(nn.Identity()), samples())
    others: dict[str, Blueprint] = {"next": Shift(1), "far": Shift(5), "before": Shift(-1), "lone": Lone()}
    others["noisy"] = Shift(1, is_noisy=True)
    assert left_out(host, others) == ["far", "next", "noisy"]
    with pytest.raises(ConfigError, match=r"blueprint Broken fails on Site\(width=6, space=\(8,\)\): no such thing"):
        left_out(host, {"broken": Broken()})


@pytest.mark.parametrize(("chunk", "most"), [(2, 2), (4, 4), (256, 8)])
def test_passes_are_no_larger_than_those_of_measurements(chunk: int, most: int) -> None:
    host = host_of(Reader(nn.Identity()), samples())
    host.chunk = chunk
    sizes: list[int] = []
    host.module.register_forward_pre_hook(lambda _module, arguments: sizes.append(len(arguments[0])))
    assert left_out(host) == MIXING
    assert max(sizes) == most


class Case(NamedTuple):
    """A causal model, and its samples."""

    model: nn.Module
    given: Samples
    slots: Sequence[str] = ("body",)


class Shifted(Reader):
    """Reads no word before it has said it."""

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(pad(words[:, :-1], (1, 0)))


class Cut(Reader):
    """Gives fewer positions than it reads."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(Recurrent(is_causal=True))
        self.first, self.last = first, last

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words)[:, self.first : self.last]


class Late(Reader):
    """Begins with a body that gives zeros."""

    def __init__(self) -> None:
        last = nn.Linear(WIDTH, WIDTH)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        super().__init__(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), last))

    def forward(self, words: Tensor) -> Tensor:
        h = self.words(words)
        logits: Tensor = self.head(h + self.body(h))
        return logits


class Transformed(nn.Module):
    """A long convolution over earlier positions by a Fourier transform, which rounds everywhere."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(positions, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        size = 2 * h.shape[1]
        product = torch.fft.rfft(h, size, dim=1) * torch.fft.rfft(self.kernel, size, dim=0)
        return torch.fft.irfft(product, size, dim=1)[:, : h.shape[1]]


class Banned(Reader):
    """Allows a word nowhere, by a logit that is very low."""

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(words) - 1e9 * one_hot(torch.tensor(0), WORDS)


class Prefixed(Attending):
    """Reads the first words in both directions, and the others as a language model."""

    def __init__(self, source: int) -> None:
        super().__init__(is_causal=True)
        self.source = source

    def forward(self, h: Tensor) -> Tensor:
        mask = torch.full((h.shape[1],) * 2, -torch.inf).triu(1)
        mask[:, : self.source] = 0.0
        outputs: Tensor = self.inner(h, h, h, attn_mask=mask)[0]
        return h + outputs


class Forecast(nn.Module):
    """Numbers of a series from those before, [B, T, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(2, WIDTH), Recurrent(is_causal=True)), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        numbers: Tensor = self.head(self.body(x))
        return numbers


def _cases() -> dict[str, Case]:
    words, labels = samples()
    padded = words.clone()
    padded[:, 5:] = 0
    forecast = Forecast()
    nn.init.zeros_(forecast.head.weight)
    series = one_hot(words, WORDS)[..., :2].float() + 0.1 * torch.randn(*words.shape, 2)
    steps = torch.cat([words, labels[:, -1:]], dim=1)
    target = labels.clone()
    target[:, :4] = -100
    return {
        "shifted inputs": Case(Shifted(nn.Identity()), Samples(words, words)),
        "one input more": Case(Cut(0, -1), Samples(steps, labels)),
        "a long prefix": Case(Cut(6, 8), Samples(words, labels[:, -2:])),
        "padded inputs": Case(Reader(nn.Identity()), Samples(padded, labels)),
        "a body of zeros": Case(Late(), Samples(words, labels)),
        "two slots": Case(Reader(Recurrent(is_causal=True)), Samples(words, labels), ["words", "body"]),
        "as many features": Case(Reader(nn.Tanh()), Samples(words[:, :WIDTH], labels[:, :WIDTH])),
        "numbers": Case(Forecast(), Samples(series[:, :-1], series[:, 1:])),
        "numbers that do not depend on anything yet": Case(forecast, Samples(series[:, :-1], series[:, 1:])),
        "rounding": Case(Reader(Transformed(8)), Samples(words, labels)),
        "a source without labels": Case(Reader(Prefixed(5)), Samples(words, target)),
    }


@pytest.mark.parametrize("name", _cases())
def test_a_causal_model_is_known_however_it_reads(name: str) -> None:
    torch.manual_seed(0)
    case = _cases()[name]
    assert left_out(host_of(*case)) == MIXING


class Patches(nn.Module):
    """Classes of a fourth as many places on each axis, each from a few on either side."""

    def __init__(self, convolution: Callable[..., nn.Module], channels: int) -> None:
        super().__init__()
        self.stem = convolution(channels, WIDTH, 3, 2, 1)
        self.body = nn.Sequential(convolution(WIDTH, WIDTH, 3, 2, 1), nn.Tanh())
        self.head = convolution(WIDTH, WORDS, 1)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.stem(x).relu())).movedim(1, -1)
        return logits


class ReadPatches(Patches):
    """The same of words [B, L]."""

    def __init__(self) -> None:
        super().__init__(nn.Conv1d, WIDTH)
        self.words = nn.Embedding(WORDS, WIDTH)

    def forward(self, words: Tensor) -> Tensor:
        return super().forward(self.words(words).transpose(1, 2))


class Channels(nn.Module):
    """From series [B, L, C] a number for each channel, from it alone: the next one, or as many as there were."""

    def __init__(self, length: int, ahead: int) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(length, WIDTH), nn.ReLU()), nn.Linear(WIDTH, ahead)

    def forward(self, x: Tensor) -> Tensor:
        numbers: Tensor = self.head(self.body(x.transpose(1, 2))).transpose(1, 2)
        return numbers[:, 0] if numbers.shape[1] == 1 else numbers


def _orderless() -> dict[str, Case]:
    series = torch.randn(40, 24, 5)
    return {
        "an image": Case(Patches(nn.Conv2d, 3), Samples(torch.randn(8, 3, 64, 64), torch.randint(WORDS, (8, 16, 16)))),
        "a signal": Case(Patches(nn.Conv1d, 1), Samples(torch.randn(8, 1, 400), torch.randint(WORDS, (8, 100)))),
        "a text": Case(ReadPatches(), Samples(torch.randint(WORDS, (40, 64)), torch.randint(WORDS, (40, 16)))),
        "channels": Case(Channels(24, 1), Samples(series, series[:, -1] * 0.5)),
        "channels over time": Case(Channels(24, 24), Samples(series, series.flip(1))),
        "channels first": Case(
            nn.Sequential(OrderedDict(body=nn.Linear(24, WIDTH), head=nn.Linear(WIDTH, 24))),
            Samples(series.transpose(1, 2), series.flip(1).transpose(1, 2)),
        ),
    }


@pytest.mark.parametrize("name", _orderless())
def test_images_channels_and_what_a_stride_shortens_have_no_order(name: str) -> None:
    torch.manual_seed(0)
    model, given, slots = _orderless()[name]
    assert left_out(host_of(model, given, slots, axis=1 if isinstance(model, Patches) else None)) == []


def test_equal_samples_show_nothing() -> None:
    given = samples()
    assert left_out(host_of(Reader(nn.Identity()), Samples(given.inputs[:1].expand(40, 8), given.labels))) == []


def test_a_low_logit_that_never_changes_hides_no_later_input() -> None:
    """Nothing is left out of a model that reads in both directions, however large its constants are."""
    torch.manual_seed(0)
    assert left_out(host_of(Banned(Attending(is_causal=False)), samples())) == []


def test_a_model_for_which_nothing_remains_is_refused_with_the_reason() -> None:
    host = host_of(Reader(nn.Identity()), samples())
    chosen = {name: ALL[name] for name in ("norm", "conv3x3", "gate")}
    message = (
        r"none of the blueprints norm, conv3x3, gate can grow in every one of Site\(width=6, space=\(8,\)\): this "
        "model is causal, and norm, gate would let earlier positions see later ones"
    )
    with pytest.raises(ConfigError, match=message):
        looking_ahead(host, chosen)
