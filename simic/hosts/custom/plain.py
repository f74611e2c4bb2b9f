"""Plain modules of grown networks: a kept seed as a graph of tensor operations, behind the layer in whose slot it grew.

Such a module needs no package but PyTorch: it can be copied, trained, saved as a state dict or whole, and exported.
It computes in the type and on the device of its parameters, also within ``torch.autocast``, as a seed does that grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from math import gcd, prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from simic.contracts.errors import ConfigError
from simic.hosts.custom.autocast import without_autocast
from simic.hosts.custom.forward import ActiveSeed, LayerHook, forked_rng, grow_output, preserve_state
from simic.hosts.interfaces import Blueprint

__all__ = ["append_seed", "check_replaceable", "plain_seed"]

_ATEN = torch.ops.aten


def plain_seed(blueprint: Blueprint, parameters: nn.Parameter, alpha: float, hook: LayerHook) -> fx.GraphModule:
    """Return a module that maps a layer's output [B, ...] to that of the layer with its seed, for any B and strides.

    ``weight`` of the module is ``parameters`` [1, P], the same object.

    Raises:
        ConfigError: if the module does not compute what the seed does, because ``delta`` of the blueprint is no
            function of tensors for any B.
    """

    def grow(weight: Tensor, output: Tensor) -> Tensor:
        return grow_output(hook, ActiveSeed(blueprint, weight, alpha), output)

    shape, device = hook.shape, parameters.device
    try:
        example = torch.zeros(_traced_samples([*shape, *parameters.shape]), *shape, device=device)
        few = torch.linspace(-2.0, 2.0, 3 * prod(shape), device=device).view(3, *shape)
        turned = few.transpose(0, -1).contiguous().transpose(0, -1)
        with without_autocast(device):
            module = _traced(grow, parameters, example)
            with torch.no_grad():
                torch.testing.assert_close(module(turned), grow(parameters, turned), equal_nan=True)
    except (RuntimeError, AssertionError) as error:
        cause = str(error).partition("\n")[0].rstrip(".!")
        raise ConfigError(
            f"the seed behind {hook.name!r}: expected a graph of tensor operations with equal outputs, found: {cause}. "
            f"Let delta of its blueprint ({type(blueprint).__name__}) compute with tensors alone, for any number of "
            "samples"
        ) from error
    return module


def _traced_samples(sizes: Sequence[int]) -> int:
    """Return a batch size that no size equals, divides or is a multiple of, and that is not the 3 of the check.

    The trace takes sizes that are equal in its example for one symbol. The example has as few samples as that allows,
    because a seed may have many millions of parameters and a layer a large output.
    """
    return next(samples for samples in count(4) if all(gcd(samples, size) == 1 for size in sizes if size))


def _traced(grow: Callable[[Tensor, Tensor], Tensor], parameters: nn.Parameter, example: Tensor) -> fx.GraphModule:
    """Return ``grow`` as a graph of the layer's output, with ``parameters`` as its ``weight``."""
    trace = make_fx(grow, _IN_PLACE, tracing_mode="symbolic", _allow_non_fake_inputs=True)
    module = trace(parameters.detach(), example)
    module.register_parameter("weight", parameters)
    weight, output = (node for node in module.graph.nodes if node.op == "placeholder")
    with module.graph.inserting_before(weight):
        own = module.graph.get_attr("weight")
    weight.replace_all_uses_with(own)
    with module.graph.inserting_after(output):
        # The graph holds views that fit the strides of the example, and not those of a transposed output.
        h = same = module.graph.call_function(_ATEN.contiguous.default, (output,))
    if own.users:  # a seed without parameters has no type of its own
        with module.graph.inserting_after(same):
            h = module.graph.call_function(_ATEN.type_as.default, (same, own))
    output.replace_all_uses_with(h, delete_user_cb=lambda user: user is not same)
    module.graph.erase_node(weight)
    _keep_type_and_device(module.graph, output, h)
    module.graph.eliminate_dead_code()
    # A graph of its own, because torch.load traces a module again with the tracer of its graph, and that of make_fx
    # fails in a process that has not traced.
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    for node in graph.nodes:
        # Values of the example and annotations as text, neither of which can be pickled.
        node.type = None
        node.meta.clear()
    return fx.GraphModule(module, graph, class_name="KeptSeed")


def _keep_type_and_device(graph: fx.Graph, output: fx.Node, h: fx.Node) -> None:
    """Let a graph give the type of the layer's output, and compute in the type and on the device of ``h``."""
    with graph.inserting_after(h):
        device = graph.call_function(getattr, (h, "device"))
    for node in list(graph.nodes):
        if node.kwargs.get("device") is not None:
            node.update_kwarg("device", device)
        if node.target in _CAST:
            with graph.inserting_after(node):
                same = graph.call_function(_ATEN.type_as.default, (node, h))
            node.replace_all_uses_with(same, delete_user_cb=lambda user, same=same: user is not same)
    (last,) = graph.find_nodes(op="output")
    with graph.inserting_before(last):
        last.args = (graph.call_function(_ATEN.type_as.default, (last.args[0], output)),)


def _mm(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1]).addmm_(left, right, beta=0)


def _bmm(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], left.shape[1], right.shape[2]).baddbmm_(left, right, beta=0)


def _addmm(onto: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _copy(onto, left.shape[0], right.shape[1]).addmm_(left, right, beta=beta, alpha=alpha)


def _baddbmm(onto: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    shape = left.shape[0], left.shape[1], right.shape[2]
    return _copy(onto, *shape).baddbmm_(left, right, beta=beta, alpha=alpha)


def _copy(onto: Tensor, *shape: int) -> Tensor:
    return onto.expand(shape).clone(memory_format=torch.contiguous_format)


_IN_PLACE: dict[torch._ops.OpOverload, Callable[..., Tensor]] = {
    _ATEN.mm.default: _mm,
    _ATEN.bmm.default: _bmm,
    _ATEN.addmm.default: _addmm,
    _ATEN.baddbmm.default: _baddbmm,
}
"""Matrix products that write into a tensor of their own, which autocast leaves in the type of that tensor. A graph
cannot disable autocast: it has no ``with``."""
_CAST = (_ATEN.convolution.default, _ATEN.mv.default, _ATEN.addmv.default, _ATEN.addr.default, _ATEN.addbmm.default)
"""Operations without such a form; their results are cast back, because products in place mix no types."""


def append_seed(network: nn.Module, layer: str, seed: nn.Module) -> None:
    """Replace a layer of ``network`` by the sequence of the layer and ``seed``, under every name that it has.

    Both are in the mode of the layer, whose own parts keep theirs.
    """
    old = network.get_submodule(layer)
    new = nn.Sequential(old, seed.train(old.training))
    new.training = old.training
    _replace(network, old, new)


def check_replaceable(network: nn.Module, layers: Sequence[str], inputs: Tensor, who: str) -> None:
    """Check that a sequence of layer and seed can take the place of each layer; ``network`` is not changed.

    Raises:
        ConfigError: if the network then fails on ``inputs`` [B, ...], gives something else, or does not run through the
            sequence.
    """
    before = _evaluated(network, inputs)
    for layer in layers:
        old, last = network.get_submodule(layer), _Counter()
        new = nn.Sequential(old, last)
        try:
            _replace(network, old, new)
            after = _evaluated(network, inputs)
            with preserve_state(network, training=True), forked_rng(inputs.device), torch.no_grad():
                network(inputs.clone())
        except (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{who}: a kept seed needs a torch.nn.Sequential in the place of {layer!r}, with which the model "
                f"fails: {str(error) or type(error).__name__}. Choose a submodule that gets one tensor and of which no "
                "attribute is read"
            ) from error
        finally:
            _replace(network, new, old)
        if last.calls < 2:
            raise ConfigError(f"{who}: the model does not call {layer!r} by a name under which it can be replaced")
        # A model that gives something else in each pass, as with a generator of its own, tells nothing here.
        if not _are_close(before, after) and _are_close(before, _evaluated(network, inputs)):
            raise ConfigError(
                f"{who}: a kept seed needs a torch.nn.Sequential in the place of {layer!r}, with which the model gives "
                "other outputs, as if it asks for the type of its layers. Choose a submodule that it only calls"
            )


@torch.no_grad()
def _evaluated(network: nn.Module, inputs: Tensor) -> Any:
    """Return what the network gives in evaluation mode; neither it nor a generator is changed."""
    # Buffers are restored by their names, so a layer is replaced before and put back after.
    with preserve_state(network, training=False), forked_rng(inputs.device):
        return network(inputs.clone())


def _are_close(one: Any, other: Any) -> bool:
    """Return whether outputs are equal up to what fused passes round otherwise; only tensors are compared."""
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return True
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


class _Counter(nn.Module):
    """Returns its input and counts the calls; a hook would keep modules of torch from their fused passes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x


def _replace(network: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` in every place of ``old``, except inside ``new``."""
    parts = [part for part in network.modules() if part is not new]
    for part in parts:
        # named_children leaves out a second name of the same module.
        for name, child in list(part._modules.items()):  # noqa: SLF001
            if child is old:
                part.add_module(name, new)
