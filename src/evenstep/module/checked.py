"""A plan whose computed signals were held against a forward pass, and corrected where they are far off."""

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

FACTOR = 2.0  # between measured and computed second moments, beyond which what was measured counts
_PART = 1.25  # of such a factor that has built up over many vertices: beyond this one has a part in it
_FEW, _ERRORS = 8, 4.0  # entries that say nothing, and standard errors that may be chance
_ROUNDS = 3  # a correction changes what comes after it, which may then be far off in another way


@dataclass(frozen=True, slots=True)
class _Deviation:
    """Name a vertex that carries `ratio` times what was computed from what arrives there.

    It is `expected` to after an average, which is computed for positions that have nothing in common.
    """

    vertex: str
    ratio: float
    expected: bool = False

    @property
    def can_be_corrected(self) -> bool:
        """Whether a factor makes what was computed what was measured."""
        return 0 < self.ratio < math.inf


def planned_as_measured(
    reading: Reading, make: Callable[[Graph], tuple[Plan, Network]], *, insist: bool | None = None
) -> Plan:
    """Return the plan of what was read, every vertex held against one forward pass; as computed where none can run.

    A forward pass too large to run unasked is left out unless `insist`ed on.
    """
    plan, network = make(reading.graph)
    if network.init.keeps:  # nothing is drawn, and nothing can be corrected
        return plan
    if not can_run(reading):
        if insist:
            raise InputError(
                "measure is True but the module cannot be run: its tensors are on the device 'meta' and have no "
                "values, or it loops until its data say otherwise; leave measure out"
            )
        return plan
    if insist is None and is_large(reading):
        return plan
    remarks = _Remarks(reading)
    for turn in range(_ROUNDS + 1):
        try:
            measured = measure(reading, plan)
        except Exception as error:
            said = str(error).strip().splitlines()
            reason = f"{type(error).__name__}{': ' + said[0][:200] if said else ''}"
            return plan.with_measured({}, (f"the network could not be run to measure its signals ({reason})",))
        far_off = list(_far_off(network.signal, measured))
        for deviation in far_off:
            remarks.note(plan.graph, deviation, at_last=turn == _ROUNDS)
        correctable = [deviation for deviation in far_off if deviation.can_be_corrected]
        if not correctable or turn == _ROUNDS:
            break
        plan, network = make(_corrected(plan.graph, correctable))
    seen = {vertex: statistics.fmean(m.second_moment for m in found.draws) for vertex, found in measured.items()}
    return plan.with_measured({v: second for v, second in seen.items() if math.isfinite(second)}, remarks.lines())


def _far_off(signal: Signal, measured: Mapping[str, Measurement]) -> Iterator[_Deviation]:
    """Yield the vertices whose second moment is not what was computed, by more than chance allows.

    Of so many entries a mean square is known to a relative error of sqrt(2 / entries).
    """
    draws = len(next(iter(measured.values())).draws) if measured else 0
    ratios = [deviations(signal, {v: m.draws[draw] for v, m in measured.items()}) for draw in range(draws)]
    steering = vertices_whose_paths_meet(signal.graph, lambda edge: edge.steers, forward=True, every=True)
    inputs = set(signal.graph.inputs)
    for vertex in signal.graph.vertices:
        if vertex.name in inputs or not ratios or any(vertex.name not in found for found in ratios):
            continue
        incoming = signal.graph.incoming[vertex.name]
        if vertex.name in steering and all(edge.weight is None for edge in incoming):
            continue  # says where signals go, and no weight is drawn for its size
        ratio = statistics.median(found[vertex.name] for found in ratios)
        averages = _averages(signal.graph, vertex)
        # How alike positions are, data say; they are more so than those of noise, so no average leaves less than here.
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
    """Return the averages over positions by which a signal arrives at a vertex."""
    operators = (operator for edge in graph.incoming[vertex.name] for operator in edge.operators)
    return [operator for operator in operators if isinstance(operator, Average)]


def _corrected(graph: Graph, far_off: list[_Deviation]) -> Graph:
    """Return the graph with what was measured after the edges that lead to the vertices."""
    ratios = {deviation.vertex: deviation.ratio for deviation in far_off}
    seen: set[str] = set()

    def corrected(edge: Edge) -> Edge:
        if edge.target not in ratios or edge.steers:
            return edge
        if graph.merge[edge.target] == "product" and edge.target in seen:  # one factor of a product bears it all
            return edge
        seen.add(edge.target)
        measured = Measured(float(f"{math.sqrt(ratios[edge.target]):.3g}"))  # known no better than that
        # What a weight reads is what is wrong, unless something happens after it or in it.
        ends = edge.weight is None or edge.after or isinstance(edge.weight, Recurrent)
        operators = (*edge.operators, measured) if ends else (*edge.before, measured, edge.weight)
        return replace(edge, operators=tuple(o for o in operators if o is not None))

    return replace(graph, edges=tuple(map(corrected, graph.edges)))


# In words


class _Remarks:
    """Collect deviations: one line for all that come after the same operators."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.noted: dict[str, dict[str, _Deviation]] = {}
        self.left: dict[str, _Deviation] = {}  # what is far off in the end

    def note(self, graph: Graph, deviation: _Deviation, *, at_last: bool = False) -> None:
        if deviation.expected:
            return
        if at_last:
            self.left[deviation.vertex] = deviation
        names = list(dict.fromkeys(_operators_before(self.reading, graph, deviation.vertex)))[:4]
        self.noted.setdefault(" and ".join(names), {}).setdefault(deviation.vertex, deviation)

    def lines(self) -> tuple[str, ...]:
        return tuple(self._line(names, list(found.values())) for names, found in self.noted.items())

    def _line(self, names: str, found: list[_Deviation]) -> str:
        first, more = found[0], len(found) - 1
        place = place_of(self.reading.makers[first.vertex].node)
        if not first.can_be_corrected:
            what = "vanishes, though something was computed" if first.ratio == 0 else "is not finite, or not nothing"
            return f"at '{first.vertex}' the signal {what}, after {names} in {place}; the plan goes on as computed"
        left = [self.left[deviation.vertex] for deviation in found if deviation.vertex in self.left]
        end = (
            f"the plan goes on from what was measured, and is still {left[0].ratio:.3g} times off at '{left[0].vertex}'"
            if left
            else "the plan goes on from what was measured"
        )
        others = f", and so far off at {more} more {'vertex' if more == 1 else 'vertices'}" if more else ""
        return (
            f"at '{first.vertex}' the signal measures {first.ratio:.3g} times what was computed, after {names} in "
            f"{place}{others}; {end}"
        )


def _operators_before(reading: Reading, graph: Graph, vertex: str) -> list[str]:
    """Return the names of the operators that made what a vertex carries, back to the vertices before it.

    The last one comes last, and not at all if it is a weight and there are others.
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
    own = op_name(node.target)
    weighs = all(edge.weight is not None for edge in graph.incoming[vertex])
    return (names or moves) if (names or moves) and weighs else [*names, own]
