"""Run a module's program with weights drawn as planned, and measure the signal at every vertex.

The module does not change: its program runs on separate values, and only the sizes are kept.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from evenstep.graph.operators import Moments
from evenstep.module.apply import draw_
from evenstep.module.reading import TRANSPARENT, Maker, Reading
from evenstep.module.threads import threads
from evenstep.planning import ParameterPlan, Plan

# The largest forward pass that runs by default, in multiplications by parameters: about a second's worth, plus for each
# node of a program as many as a core does in the time that it takes to read the node.
_ALWAYS, _FOR_EVERY_NODE = 1e9, 5e7
_FEW_ENTRIES = 2.0**21  # of all parameters: networks as small as this are drawn several times over
_DRAWS = 5
_MANY_ENTRIES = 2**16  # of one parameter: its products sum so many terms that any numbers of the right size will do


@dataclass(frozen=True, slots=True)
class Measurement:
    """Hold the moments at one vertex in several draws, and the number of entries of each draw."""

    draws: tuple[Moments, ...]
    entries: int


def can_run(reading: Reading) -> bool:
    """Return whether a program can run: tensors on the device 'meta' have no values, and loops may not end."""
    if any("while_loop" in str(node.target) for node in reading.program.graph.nodes):
        return False
    values = (*reading.program.tensors.values(), *reading.program.examples)
    tensors = [value for value in values if isinstance(value, Tensor)]
    return not any(tensor.is_meta for tensor in tensors)


def forward_size(reading: Reading) -> float:
    """Return the approximate number of multiplications by parameters in a forward pass."""
    program, total = reading.program, 0.0
    sizes = {
        given.name: program.tensors[given.target].shape
        for given in program.inputs
        if given.kind == "parameter" and given.target in program.tensors
    }
    for node in program.graph.nodes:
        result = node.meta.get("val")
        if node.op != "call_function" or not isinstance(result, Tensor):
            continue
        shapes = [sizes[n.name] for n in node.all_input_nodes if n.name in sizes and len(sizes[n.name]) > 1]
        if "embedding" not in str(node.target):
            total += sum(result.numel() * math.prod(shape[1:]) for shape in shapes)
    return total


def is_large(reading: Reading) -> bool:
    """Return whether a forward pass would take much longer than reading the network did."""
    return forward_size(reading) > _ALWAYS + _FOR_EVERY_NODE * len(reading.program.graph.nodes)


def measure(reading: Reading, plan: Plan) -> dict[str, Measurement]:
    """Return the measured signal at every vertex for standard Gaussian inputs and weights drawn as planned.

    Small networks are drawn several times. The seeds are fixed, so a plan always gives the same result.
    """
    if sum(math.prod(p.shape) for p in plan.graph.parameters) >= _FEW_ENTRIES:
        draws = [_draw(reading, plan, 0)]
    else:
        with threads(1, torch.device("cpu")):  # several threads only slow such a small network down
            draws = [_draw(reading, plan, seed) for seed in range(_DRAWS)]
    return {
        vertex: Measurement(tuple(draw[vertex][0] for draw in draws), draws[0][vertex][1])
        for vertex in draws[0]
        if all(vertex in draw for draw in draws)
    }


def _draw(reading: Reading, plan: Plan, seed: int) -> dict[str, tuple[Moments, int]]:
    watched: dict[fx.Node, list[tuple[str, Maker]]] = {}
    for vertex, maker in reading.makers.items():
        watched.setdefault(maker.node, []).append((vertex, maker))
    seen: dict[str, tuple[Moments, int]] = {}

    def see(node: fx.Node, result: Any) -> None:
        for vertex, maker in watched.get(node, ()):
            value = result
            for place in maker.place:
                value = value[place]
            if isinstance(value, Tensor) and value.is_floating_point() and value.numel():
                seen[vertex] = _moments(value), value.numel()

    devices = {value.device for value in reading.program.tensors.values() if value.device.type == "cuda"}
    with torch.no_grad(), torch.random.fork_rng(devices=[device.index for device in devices]):
        torch.manual_seed(seed)  # for draws of the network itself, such as dropout
        forward = _Forward(reading.program.graph_module, see)
        forward.run(*_arguments(reading, plan, seed))
    return seen


def _moments(value: Tensor) -> Moments:
    numbers = value.detach().float()
    mean = float(numbers.mean())
    second = float(numbers.square().mean())
    return Moments(mean, max(second - mean**2, 0.0) if math.isfinite(second) else math.inf)


class _Later:
    """Draw a parameter when it is first needed, so that a large network is never in memory twice."""

    def __init__(self, make: Callable[[], Tensor]) -> None:
        self.make = make


class _Forward(fx.Interpreter):
    """Run a program node by node and show every result."""

    def __init__(self, module: fx.GraphModule, see: Callable[[fx.Node, Any], None]) -> None:
        super().__init__(module)
        self.see = see
        self.extra_traceback = False

    def run_node(self, n: fx.Node) -> Any:
        """Run a node, then show its result."""
        for argument in n.all_input_nodes:
            value = self.env[argument]
            if isinstance(value, _Later):
                self.env[argument] = value.make()
        result = super().run_node(n)
        if n.op == "output":
            return result
        self.see(n, result)
        return result

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run graphs inside operators that only set a mode around them like any other graph."""
        if str(target) in TRANSPARENT:
            place = next(i for i, value in enumerate(args) if isinstance(value, fx.GraphModule))
            return _Forward(args[place], self.see).run(*args[place + 1 :])
        return super().call_function(target, _by_batch(target, args), kwargs)


def _by_batch(target: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Make batch norms use the batch's statistics in eval mode too: before training there are no others.

    The arguments are input, weight, bias, running mean, running variance, and whether the batch counts.
    """
    if "aten.batch_norm." not in str(target) or args[0].numel() == args[0].shape[1]:
        return args
    return (*args[:5], True, *args[6:])


# The program's inputs


def _arguments(reading: Reading, plan: Plan, seed: int) -> list[Any]:
    program = reading.program
    examples, alone = iter(program.examples), sum(isinstance(value, Tensor) for value in program.examples) == 1
    planned = {parameter.name: parameter for parameter in plan.parameters}
    rows = _table_rows(reading)
    arguments: list[Any] = []
    for name, kind, target in program.inputs:
        if kind == "input":
            arguments.append(_shown(next(examples), rows.get(name), _generator(name, seed), alone=alone))
        elif kind == "parameter":
            canonical = reading.own_names.get(target, target)
            arguments.append(_parameter(program.tensors[target], planned.get(canonical), canonical, seed))
        else:
            value = program.tensors[target]
            # A clone, because batch norms write into their buffers.
            arguments.append(value.clone() if isinstance(value, Tensor) else value)
    return arguments


def _parameter(tensor: Tensor, planned: ParameterPlan | None, name: str, seed: int) -> Any:
    if planned is None or planned.kept:
        return tensor.detach()

    def make() -> Tensor:
        drawn = torch.empty_like(tensor, requires_grad=False)
        if drawn.numel() < _MANY_ENTRIES or drawn.device.type != "cpu":
            draw_(drawn, planned.mean, planned.std, _generator(name, seed))
            return drawn
        half_width = math.sqrt(3.0) * planned.std
        return drawn.uniform_(planned.mean - half_width, planned.mean + half_width, generator=_generator(name, seed))

    return _Later(make)


def _generator(name: str, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)


def _shown(value: Any, rows: int | None, generator: torch.Generator, *, alone: bool) -> Any:
    """Return an input's values for the run: standard Gaussians for data; masks and indices as they are.

    If all indices are equal, as in an example of zeros, they are drawn from the rows of the table that they look up.
    """
    if not isinstance(value, Tensor):
        return value
    value = value.clone()  # the network may change its inputs in place
    constant = value.numel() < 2 or bool((value == value.flatten()[0]).all())
    if value.is_floating_point():
        zeros_and_ones = not constant and bool(((value == 0) | (value == 1)).all())
        mask = not alone and (zeros_and_ones or not bool(value.isfinite().all()))
        drawn = torch.randn(value.shape, generator=generator).to(value)
        return value if mask else drawn
    if constant and rows and not value.is_complex() and value.dtype != torch.bool:
        return torch.randint(rows, value.shape, generator=generator).to(value)
    return value


def _table_rows(reading: Reading) -> Mapping[str, int]:
    """Return, for every input that directly looks up tables, the number of rows of the smallest one."""
    rows: dict[str, int] = {}
    for node in reading.program.graph.nodes:
        if "embedding" not in str(node.target) or len(node.args) < 2:
            continue
        table, index = node.args[:2]
        if "embedding_bag" in str(node.target) or not isinstance(index, fx.Node):
            continue
        while index.op == "call_function" and isinstance(index.args[0], fx.Node) and _keeps_entries(index):
            index = index.args[0]
        shape: Sequence[int] = table.meta["val"].shape
        if index.op == "placeholder":
            rows[index.name] = min(rows.get(index.name, shape[0]), shape[0])
    return rows


def _keeps_entries(node: fx.Node) -> bool:
    return any(f"aten.{name}." in str(node.target) for name in ("view", "reshape", "to", "_to_copy", "slice", "clone"))
