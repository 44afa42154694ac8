"""`conserve`: every vertex carries second moment one, wherever the graph allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from evenstep.graph import Edge, Graph
from evenstep.graph.operators import Recurrent
from evenstep.graph.roles import Head
from evenstep.init.initialisation import DrawnInitialisation, Sizes, rescaled_to_unit
from evenstep.signal import IncomingWeights, VertexSignal

_SMALLEST_VARIANCE = 1e-12  # where bisection begins: as good as nothing


@dataclass(frozen=True)
class Conserve(DrawnInitialisation):
    """Give every weight that meets at a vertex the same output variance, so that the vertex carries second moment one.

    What skips bring counts first. Where they leave less than the weights' part by number, the weights get that part
    and the vertex grows: no size of theirs could shrink a skip. An activation after a weight reads a variance of
    `max_preactivation_variance` at most, and where no variance up to that conserves the second moment,
    `fallback_preactivation_variance`.

    Of a head of second moment one a readout makes `readout_second_moment`, and one that reads more than the base's
    `readout_base_fan_in` units less by the ratio: in wide networks outputs start small, as muP has it.
    """

    name: str = field(default="conserve", kw_only=True)
    max_preactivation_variance: float = 8.0  # ReLU needs 2, SiLU 2.4; here bounded activations are saturated
    fallback_preactivation_variance: float = 1.0  # a unit Gaussian, which bounded activations are made for
    # As torch draws linear layers. Settled on the development set of `evenstep study real`.
    readout_second_moment: float = 1 / 3
    readout_base_fan_in: float | None = None  # None: the network's own

    @property
    def undoes_growth(self) -> bool:
        """True: a weight's part of a vertex does not grow with what the weight reads."""
        return True

    def relative_to(self, readout_fan_in: float | None) -> Conserve:
        """Return the initialisation with the base's width of readouts, unless it has one."""
        return self if self.readout_base_fan_in is not None else replace(self, readout_base_fan_in=readout_fan_in)

    def readout_size(self, fan_in: int) -> float:
        """Return fan_in * var(W) of a readout that reads second moment one."""
        return self.readout_second_moment * min((self.readout_base_fan_in or fan_in) / fan_in, 1.0)

    def readout_words(self) -> str:
        """Say how a readout that reads second moment one starts."""
        at = "" if self.readout_base_fan_in is None else f" from {self.readout_base_fan_in:.4g} units, as the base's"
        return f"readout, makes {self.readout_second_moment:.3g} of second moment one{at}"

    def size_hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:  # noqa: ARG002
        """Size weights so that the vertex carries second moment one."""
        count = len(incoming.edges)
        carried = incoming.other_moments.second_moment
        goal = max(1.0, carried + count / incoming.in_degree)
        variance: float | None = 1.0
        if any(isinstance(edge.weight, Recurrent) for edge in incoming.edges):
            pass
        elif not any(edge.after for edge in incoming.edges):
            variance = (goal - carried) / count
        else:
            variance = self._solve(incoming, goal)
        if variance is None:
            variance_words = "a unit Gaussian" if self.fallback_preactivation_variance == 1.0 else "a Gaussian"
            why = f"{variance_words} into an activation that cannot conserve the second moment"
            variance = self.fallback_preactivation_variance
        elif count == 1 and incoming.in_degree == 1:
            why = "conserves the second moment"
        elif goal == 1.0:
            why = f"conserves the second moment over {incoming.in_degree} summands"
        else:
            why = f"1/{incoming.in_degree} of the second moment beside what skips bring"
        sizes = [variance / read if read > 0 else 1.0 for read in incoming.reads]
        return sizes, [why if read > 0 else "reads nothing: 1/fan_in" for read in incoming.reads]

    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:
        """Size a readout by what a head of second moment one would show it."""
        assert edge.weight is not None
        if read <= 0:
            return super().size_readout(graph, head, edge, read, at)
        moments = rescaled_to_unit(at)
        for between in head.edges_to_readout:
            moments = between.moments(moments)
        shown = edge.weight.gain * edge.second_moment_read(moments)
        why = f"{self.readout_words()} over the last vertex's size"
        return self.readout_size(edge.weight.fan_in) * shown / read, why

    def _solve(self, incoming: IncomingWeights, goal: float) -> float | None:
        """Find by bisection the common variance of matrix products that gives a sum of activations its second moment.

        None where no variance in reach does: bounded activations (tanh, sigmoid) stay below the goal however large
        their weights, and those that do not vanish at zero (sigmoid, softplus) may exceed it however small.
        """
        kinds: dict[object, tuple[Edge, int]] = {}
        for edge in incoming.edges:
            kinds[edge.after] = (edge, kinds.get(edge.after, (edge, 0))[1] + 1)

        def second_moment(variance: float) -> float:
            mean, spread = incoming.other_moments
            for edge, count in kinds.values():
                one = edge.moments_delivered(variance)
                mean += count * one.mean
                spread += count * one.variance
            return spread + mean**2

        low, high = _SMALLEST_VARIANCE, self.max_preactivation_variance
        if not second_moment(low) < goal <= second_moment(high):
            return None
        for _ in range(100):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if second_moment(middle) < goal else (low, middle)
            if high / low < 1 + 1e-12:
                break
        return math.sqrt(low * high)
