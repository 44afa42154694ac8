"""Plan a network, compare the computed signals with a forward pass, and correct those that are far off."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from evenstep.errors import InputError
from evenstep.graph import Edge, Graph, Vertex
from evenstep.graph.model import vertices_whose_paths_meet
from evenstep.graph.operators import Average, Measured, Recurrent
from evenstep.init import Network
from evenstep.module.measuring import Measurement, can_run, is_large, measure
from evenstep.module.nodes import place_of
from evenstep.module.ops import moves_entries, op_name
from evenstep.module.reading import Reading
from evenstep.planning import Plan
from evenstep.signal import Signal, deviations

FACTOR = 2.0  # if measured and computed second moments differ by more, the measured one counts
_PART = 1.25  # if such a factor has built up over many vertices, one with a larger factor than this contributes to it
_FEW, _ERRORS = 8, 4.0  # too few entries to judge by, and standard errors that may be chance
_ROUNDS = 3  # a correction changes the layers after it, which may then be far off in another way


@dataclass(frozen=True, slots=True)
class _Deviation:
    """Name a vertex whose second moment is `ratio` times the one computed from its measured sources.

    This is `expected` after an average, whose positions are computed as independent.
    """

    vertex: str
    ratio: float
    expected: bool = False

    @property
    def can_be_corrected(self) -> bool:
        """Whether a factor turns the computed second moment into the measured one."""
        return 0 < self.ratio < math.inf


def planned_as_measured(
    reading: Reading, make: Callable[[Graph], tuple[Plan, Network]], *, insist: bool | None = None
) -> Plan:
    """Return the plan of a module, with every vertex compared with a forward pass; as computed if none can run.

    A large forward pass runs only if `insist` is True.
    """
    plan, network = make(reading.graph)
    if network.init.keeps:  # nothing is drawn, and nothing can be corrected
        return plan
    if not can_run(reading):
        if insist:
            raise InputError(
                "measure is True, but the module cannot be run: its tensors are on the device 'meta' and have no "
                "values, or its loops depend on the data; leave measure out"
            )
        return plan
    if insist is None and is_large(reading):
        return plan
    remarks = _Remarks(reading)
    for turn in range(_ROUNDS + 1):
        try:
            measured = measure(reading, plan)
        except Exception as error:
            lines = str(error).strip().splitlines()
            reason = f"{type(error).__name__}{': ' + lines[0][:200] if lines else ''}"
            return plan.with_measured({}, (f"the network could not be run to measure its signals ({reason})",))
        far_off = list(_far_off(network.signal, measured))
        for deviation in far_off:
            remarks.note(plan.graph, deviation, at_last=turn == _ROUNDS)
        correctable = [deviation for deviation in far_off if deviation.can_be_corrected]
        if not correctable or turn == _ROUNDS:
            break
        plan, network = make(_corrected(plan.graph, correctable))
    means = {vertex: statistics.fmean(m.second_moment for m in each.draws) for vertex, each in measured.items()}
    return plan.with_measured({v: second for v, second in means.items() if math.isfinite(second)}, remarks.lines())


def _far_off(signal: Signal, measured: Mapping[str, Measurement]) -> Iterator[_Deviation]:
    """Yield the vertices whose measured second moment differs from the computed one by more than chance allows.

    A mean square over n entries has a relative standard error of sqrt(2 / n).
    """
    draws = len(next(iter(measured.values())).draws) if measured else 0
    ratios = [deviations(signal, {v: m.draws[draw] for v, m in measured.items()}) for draw in range(draws)]
    steering = vertices_whose_paths_meet(signal.graph, lambda edge: edge.steers, forward=True, every=True)
    inputs = set(signal.graph.inputs)
    for vertex in signal.graph.vertices:
        if vertex.name in inputs or not ratios or any(vertex.name not in of_draw for of_draw in ratios):
            continue
        incoming = signal.graph.incoming[vertex.name]
        if vertex.name in steering and all(edge.weight is None for edge in incoming):
            continue  # it decides where signals go, and no weight is drawn for its size
        ratio = statistics.median(of_draw[vertex.name] for of_draw in ratios)
        averages = _averages(signal.graph, vertex)
        # How alike positions are depends on the data, but they are more alike than those of noise: averages keep more.
        if averages and (ratio < 1 or any(average.correlated for average in averages)):
            continue
        if measured[vertex.name].entries < _FEW:
            continue
        chance = 1.0 + _ERRORS * math.sqrt(2.0 / measured[vertex.name].entries)
        computed = signal.vertices[vertex.name].second_moment
        seen = statistics.median(moments.second_moment for moments in measured[vertex.name].draws)
        in_all = seen / computed if computed > 0 else 1.0
        far = not 1 / (FACTOR * chance) <= ratio <= FACTOR * chance
        if ratio > 1:
            far |= in_all > FACTOR * chance and ratio > _PART * chance
        else:
            far |= in_all < 1 / (FACTOR * chance) and ratio < 1 / (_PART * chance)
        if far:
            yield _Deviation(vertex.name, ratio, expected=bool(averages))


def _averages(graph: Graph, vertex: Vertex) -> list[Average]:
    """Return the averages over positions on the edges into a vertex."""
    operators = (operator for edge in graph.incoming[vertex.name] for operator in edge.operators)
    return [operator for operator in operators if isinstance(operator, Average)]


def _corrected(graph: Graph, far_off: list[_Deviation]) -> Graph:
    """Return the graph with measured factors on the edges into the vertices that are far off."""
    ratios = {deviation.vertex: deviation.ratio for deviation in far_off}
    seen: set[str] = set()

    def corrected(edge: Edge) -> Edge:
        if edge.target not in ratios or edge.steers:
            return edge
        if graph.merge[edge.target] == "product" and edge.target in seen:  # corrected in one factor
            return edge
        seen.add(edge.target)
        measured = Measured(float(f"{math.sqrt(ratios[edge.target]):.3g}"))  # not known more exactly
        # The error is in what the weight reads, unless there are operators after it or inside it.
        ends = edge.weight is None or edge.after or isinstance(edge.weight, Recurrent)
        operators = (*edge.operators, measured) if ends else (*edge.before, measured, edge.weight)
        return replace(edge, operators=tuple(o for o in operators if o is not None))

    return replace(graph, edges=tuple(map(corrected, graph.edges)))


# In words


class _Remarks:
    """Collect deviations, and write one line for all that come after the same operators."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.noted: dict[str, dict[str, _Deviation]] = {}
        self.left: dict[str, _Deviation] = {}  # vertices that are still far off at the end

    def note(self, graph: Graph, deviation: _Deviation, *, at_last: bool = False) -> None:
        if deviation.expected:
            return
        if at_last:
            self.left[deviation.vertex] = deviation
        names = list(dict.fromkeys(_operators_before(self.reading, graph, deviation.vertex)))[:4]
        self.noted.setdefault(" and ".join(names), {}).setdefault(deviation.vertex, deviation)

    def lines(self) -> tuple[str, ...]:
        return tuple(self._line(names, list(noted.values())) for names, noted in self.noted.items())

    def _line(self, names: str, noted: list[_Deviation]) -> str:
        first, more = noted[0], len(noted) - 1
        place = place_of(self.reading.makers[first.vertex].node)
        if not first.can_be_corrected:
            what = "is zero, though the computed one is not" if first.ratio == 0 else "is not finite, or not zero"
            return f"at '{first.vertex}' the signal {what}, after {names} in {place}; the plan uses the computed value"
        left = [self.left[deviation.vertex] for deviation in noted if deviation.vertex in self.left]
        end = "the plan uses the measured value"
        if left:
            end += f", and '{left[0].vertex}' is still off by a factor of {left[0].ratio:.3g}"
        others = f", and at {more} more {'vertex' if more == 1 else 'vertices'}" if more else ""
        return (
            f"at '{first.vertex}' the signal's second moment is {first.ratio:.3g} times the computed one, after "
            f"{names} in {place}{others}; {end}"
        )


def _operators_before(reading: Reading, graph: Graph, vertex: str) -> list[str]:
    """Return the names of the operators that made a vertex's signal, back to the vertices before it.

    The vertex's own operator comes last; it is left out if it is a weight and there are others.
    """
    node = reading.makers[vertex].node
    known = {vertex.name for vertex in graph.vertices}
    ends = {maker.node for vertex, maker in reading.makers.items() if vertex in known} - {node}
    names: list[str] = []
    moves: list[str] = []
    queue, seen = [node], {node}
    while queue:
        current = queue.pop()
        for argument in current.all_input_nodes:
            made = argument.meta.get("val")
            if argument in seen or argument in ends or argument.op != "call_function":
                continue
            if not isinstance(made, Tensor) or not made.is_floating_point() or not argument.all_input_nodes:
                continue
            seen.add(argument)
            queue.append(argument)
            name = op_name(argument.target)
            if name.startswith("aten."):
                (moves if moves_entries(name) else names).append(name)
    last = op_name(node.target)
    weighs = all(edge.weight is not None for edge in graph.incoming[vertex])
    return (names or moves) if (names or moves) and weighs else [*names, last]
