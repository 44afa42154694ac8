"""Run a network once and record what each module takes and returns, and how the results depend on each other.

Dependence comes from autograd's graph, which knows views, changes in place and everything else in a forward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_map

from evenstep.search.randomness import copied, own_randomness

Place = int | str  # of an argument: its position or keyword


class Flow(NamedTuple):
    """Hold the shape and type of a tensor that a module takes or returns, and what computed it."""

    shape: torch.Size
    dtype: torch.dtype
    maker: Node | None

    def like(self, other: Flow) -> bool:
        """Say whether two tensors can replace each other."""
        return self.shape == other.shape and self.dtype == other.dtype


@dataclass(frozen=True)
class Call:
    """Hold one call of a module: the tensors among its arguments and results, as a `Flow` each."""

    taken: Mapping[Place, Flow]
    returned: Any


@dataclass(frozen=True)
class Recording:
    """Hold the calls of one run by module name, in the order in which modules began, and the graph of results.

    `sources` maps each node to the nodes that it is computed from, `users` to those that are computed from it.
    """

    calls: Mapping[str, tuple[Call, ...]]
    sources: Mapping[Node, tuple[Node, ...]]
    users: Mapping[Node, tuple[Node, ...]]
    results: tuple[Node, ...]

    def carries_alone(self, into: Flow, out: Flow, besides: tuple[Flow, ...]) -> bool:
        """Say whether everything that the network computes from `into`, or from its sources, passes through `out`.

        Otherwise something else reads the stream: a residual branch's input is added later, or a query's input is also
        the key's, and without the module the stream would meet itself. Other modules may read the module's other inputs
        (an encoder's output), and a concatenation keeps its parts apart, so a U-Net's skips do no harm.
        """
        if into.maker is None or out.maker is None or into.maker is out.maker:
            return False
        above = reached(out.maker, self.users)
        if not above.intersection(self.results):
            return False
        stop = {flow.maker for flow in besides} - {into.maker}
        before = reached(into.maker, self.sources, stop)
        seen: set[Node | None] = {out.maker, *stop}
        left = list(self.results)
        while left:
            node = left.pop()
            if node in seen:
                continue
            if node in before:
                return False
            seen.add(node)
            sources = self.sources.get(node, ())
            if "CatBackward" in node.name():
                sources = tuple(source for source in sources if source in above) or sources
            left += sources
        return True


def reached(
    start: Node, steps: Mapping[Node, tuple[Node, ...]], stop: Collection[Node | None] = frozenset()
) -> set[Node]:
    """Return a node and all nodes that follow from it."""
    seen: set[Node] = set()
    left = [start]
    while left:
        node = left.pop()
        if node not in seen and node not in stop:
            seen.add(node)
            left += steps.get(node, ())
    return seen


def record(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Recording:
    """Run a copy of a network in its current mode, and return what its modules did.

    Dependence is followed from the inputs if the network allows it. A network that asks for gradients itself, as
    wav2vec2 does for its first features, gets inputs without gradients.
    """
    try:
        return _recorded(model, args, kwargs, follow=True)
    except RuntimeError:
        return _recorded(model, args, kwargs, follow=False)


def _recorded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, follow: bool) -> Recording:
    model = copied(model)
    for parameter in model.parameters():  # frozen parts pass the stream on too
        if parameter.is_floating_point():
            parameter.requires_grad_()
    open_calls: list[tuple[str, dict[Place, Flow]]] = []
    calls: dict[str, list[Call]] = {}
    for name, module in model.named_modules():
        _watch(module, name, open_calls, calls)
    output = run(model, args, kwargs, follow=follow)
    results = tuple({flow.maker: None for flow in flows_of(_as_flows(output)) if flow.maker is not None})
    sources = _graph(results)
    users: dict[Node, list[Node]] = {}
    for node, makers in sources.items():
        for maker in makers:
            users.setdefault(maker, []).append(node)
    made = {name: tuple(each) for name, each in calls.items()}
    return Recording(made, sources, {node: tuple(each) for node, each in users.items()}, results)


def run(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, follow: bool = False) -> Any:
    """Return a network's output on copies of its inputs, with gradients; random states stay as they were."""

    def fresh(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        given = value.detach()
        return given.requires_grad_().clone() if follow and given.is_floating_point() else given.clone()

    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    with own_randomness(0, device), torch.enable_grad():
        given_args, given_kwargs = tree_map(fresh, (args, kwargs))
        return model(*given_args, **given_kwargs)


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the named parts of an output, or nothing if it is not a known container."""
    if isinstance(value, Mapping):
        yield from ((str(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(place), part) for place, part in enumerate(value))
    elif is_dataclass(value) and not isinstance(value, type):
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))


def _watch(
    module: nn.Module,
    name: str,
    open_calls: list[tuple[str, dict[Place, Flow]]],
    calls: dict[str, list[Call]],
) -> None:
    def before(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Before the call, because changing an argument in place changes what computed it.
        given: list[tuple[Place, Any]] = [*enumerate(args), *kwargs.items()]
        taken = {place: _flow(value) for place, value in given if isinstance(value, Tensor)}
        calls.setdefault(name, [])
        open_calls.append((name, taken))

    def after(_module: nn.Module, _args: Any, _kwargs: Any, output: Any) -> None:
        while open_calls:
            opened, taken = open_calls.pop()
            if opened == name:
                calls[name].append(Call(taken, _as_flows(output)))
                return

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, with_kwargs=True)


def _flow(tensor: Tensor) -> Flow:
    return Flow(tensor.shape, tensor.dtype, tensor.grad_fn)


def _as_flows(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _flow(value)
    if type(value) in (list, tuple):
        return type(value)(_as_flows(part) for part in value)
    if isinstance(value, Mapping) or is_dataclass(value):
        return {name: _as_flows(part) for name, part in parts_of(value)}
    return value


def flows_of(value: Any) -> Iterator[Flow]:
    """Yield the tensors that a module returned, in order."""
    if isinstance(value, Flow):
        yield value
        return
    for _, part in parts_of(value):
        yield from flows_of(part)


def _graph(results: tuple[Node, ...]) -> dict[Node, tuple[Node, ...]]:
    """Return what each node is computed from, without leaves: a tied table is not a path from readout to stem."""
    graph: dict[Node, tuple[Node, ...]] = {}
    left = list(results)
    while left:
        node = left.pop()
        if node in graph:
            continue
        sources = (source for source, _ in node.next_functions if source is not None)
        graph[node] = tuple(source for source in sources if "AccumulateGrad" not in source.name())
        left += graph[node]
    return graph
