"""`conserve`: every vertex has second moment one, wherever the graph allows it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from evenstep.errors import InputError
from evenstep.graph import Edge, Graph
from evenstep.graph.operators import Average, Recurrent
from evenstep.graph.residual import Joined
from evenstep.graph.roles import Head
from evenstep.init.initialisation import DrawnInitialisation, Sizes, rescaled_to_unit
from evenstep.signal import IncomingWeights, VertexSignal

_SMALLEST_VARIANCE = 1e-12  # the lower end of the bisection, practically zero


@dataclass(frozen=True)
class Conserve(DrawnInitialisation):
    """Give all weights that meet at a vertex the same output variance, such that the vertex has second moment one.

    The second moment that skips carry counts first. If they leave less than the weights' share by number, the weights
    get that share and the vertex grows: no weight could shrink a skip. An activation after a weight reads a variance of
    at most `max_preactivation_variance`; if no variance up to that conserves the second moment, it reads
    `fallback_preactivation_variance`.

    Skips would let a stream grow with every branch that it is joined by. So a branch is multiplied by n^-`branch_power`
    on a stream of n additions: all branches together add what one of them would. A factor that makes a branch start
    smaller anyway counts towards that, and so does one that makes the skip smaller, which leaves room for the branch.

    If the last vertex has second moment one, a readout's output has `readout_second_moment`, divided by the ratio if
    the readout reads more than the base's `readout_base_fan_in` units: outputs of wide networks start small, as in muP.
    What all examples have in common carries no information, so a readout of an average over positions is larger in
    proportion to what the average leaves of the variance between examples, at least `pooled_variance_floor`.
    """

    name: str = field(default="conserve", kw_only=True)
    max_preactivation_variance: float = 8.0  # ReLU needs 2, SiLU 2.4; at 8 bounded activations are saturated
    fallback_preactivation_variance: float = 1.0  # bounded activations are designed for unit Gaussians
    # As torch draws linear layers. Chosen on the development set of `evenstep study real`.
    readout_second_moment: float = 1 / 3
    readout_base_fan_in: float | None = None  # None: the readout's own fan_in
    # Squares of independent branches add up. Zero leaves branches as large as their sums make them.
    branch_power: float = 0.5
    # The least share of a field's variance between examples that an average over all positions keeps: positions of one
    # image are alike. Measured on feature maps of photographs (`results/averages`).
    pooled_variance_floor: float = 0.1

    @property
    def undoes_growth(self) -> bool:
        """True: a weight's output does not grow with its input."""
        return True

    def __post_init__(self) -> None:
        """Refuse a share of the variance that is none."""
        super().__post_init__()
        if not 0 < self.pooled_variance_floor <= 1:
            raise InputError(
                f"pooled_variance_floor is {self.pooled_variance_floor!r}; give a share above 0, at most 1"
            )

    def relative_to(self, readout_fan_in: float | None) -> Conserve:
        """Return the initialisation with the base's readout width, unless it has one already."""
        return self if self.readout_base_fan_in is not None else replace(self, readout_base_fan_in=readout_fan_in)

    def branch_scale(self, joined: Joined) -> float:
        """Return n^-`branch_power` on a stream of n additions; less is needed where less is added or carried."""
        assert joined.carried is not None
        missing = max(1.0 - joined.carried**2, 0.0)  # what the branch may add without growth
        adds = joined.scale**2 * max(joined.share, missing)
        allowed = missing + joined.share * math.pow(joined.additions, -2 * self.branch_power)
        return math.sqrt(min(allowed / adds, 1.0)) if adds else 1.0

    def variance_left(self, head: Head) -> float:
        """Return the share of the variance between examples that averages leave in what a readout reads."""
        averages = (o for edge in head.edges_to_readout for o in edge.operators if isinstance(o, Average))
        left = math.prod(average.variance_kept for average in averages)
        return left if left == 1.0 else max(left, self.pooled_variance_floor)

    def readout_size(self, fan_in: int) -> float:
        """Return fan_in * var(W) of a readout whose input has second moment one."""
        return self.readout_second_moment * min((self.readout_base_fan_in or fan_in) / fan_in, 1.0)

    def readout_words(self) -> str:
        """Say how a readout whose input has second moment one starts."""
        width = "" if self.readout_base_fan_in is None else f" at the base's {self.readout_base_fan_in:.4g} units"
        return f"readout: turns second moment 1 into {self.readout_second_moment:.3g}{width}"

    def size_hidden(self, graph: Graph, incoming: IncomingWeights) -> Sizes:  # noqa: ARG002
        """Size weights so that the vertex has second moment one."""
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
            why = f"feeds {variance_words} to an activation that cannot conserve the second moment"
            variance = self.fallback_preactivation_variance
        elif count == 1 and incoming.in_degree == 1:
            why = "conserves the second moment"
        elif goal == 1.0:
            why = f"conserves the second moment over {incoming.in_degree} summands"
        else:
            why = f"adds 1/{incoming.in_degree} to the second moment that skips carry"
        sizes = [variance / read if read > 0 else 1.0 for read in incoming.reads]
        return sizes, [why if read > 0 else "reads no signal: variance 1/fan_in" for read in incoming.reads]

    def size_readout(self, graph: Graph, head: Head, edge: Edge, read: float, at: VertexSignal) -> tuple[float, str]:
        """Size a readout by the second moment that it would read if the last vertex had second moment one."""
        assert edge.weight is not None
        if read <= 0:
            return super().size_readout(graph, head, edge, read, at)
        moments = rescaled_to_unit(at)
        for between in head.edges_to_readout:
            moments = between.moments(moments)
        read_at_unit = edge.weight.gain * edge.second_moment_read(moments)
        why, left = f"{self.readout_words()}, whatever the last vertex's size", self.variance_left(head)
        if left < 1:
            why += f"; it reads an average that leaves {left:.4g} of the variance between examples"
        return self.readout_size(edge.weight.fan_in) * read_at_unit / read / left, why

    def _solve(self, incoming: IncomingWeights, goal: float) -> float | None:
        """Find by bisection the common variance of pre-activations at which the sum's second moment is the goal.

        None if no allowed variance does: bounded activations (tanh, sigmoid) stay below the goal however large their
        weights are, and those that are not zero at zero (sigmoid, softplus) may exceed it however small.
        """
        kinds: dict[object, tuple[Edge, int]] = {}
        for edge in incoming.edges:
            kinds[edge.after] = (edge, kinds.get(edge.after, (edge, 0))[1] + 1)

        def second_moment(variance: float) -> float:
            mean, spread = incoming.other_moments
            for edge, count in kinds.values():
                moments = edge.moments_delivered(variance)
                mean += count * moments.mean
                spread += count * moments.variance
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
