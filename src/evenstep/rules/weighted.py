"""Our rule: each path counts by the share of second moment that it carries."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.rules.network import Factor, Network, Optimizer
from evenstep.rules.signal import VertexSignal

# Powers of depth and of size: Adam's step does not grow with the gradient, so it feels the size half as much.
POWERS: dict[Optimizer, tuple[float, float]] = {"sgd": (0.5, 0.5), "momentum": (0.5, 0.5), "adam": (0.4, 0.25)}


@dataclass(frozen=True)
class Weighted:
    """Scale by 1 / (depth^x size^y), relative to the base, with x and y the optimiser's powers.

    depth = E[(L + a)^2] (E[shared] + a), a the `depth_offset`, over walks from the last vertex back to the input that
    pick each summand by its share of second moment: a walk is L long, in activations, a kernel of side k counting as k
    weights, and two walks share a part. In a chain they share all, and depth is (L + a)^3. Adam, whose steps do not
    shrink where paths average out, has E[(L + a)^3] instead. size = copies + moment_weight q_out / q_base, with q_out
    the last vertex's second moment and `copies` how often skips bring one field there, in mean square.
    `docs/theory.md` says how the constants were settled.
    """

    depth_offset: float = 2.0
    moment_weight: float = 0.35
    name: str = "weighted"
    layerwise: bool = True

    def score(self, network: Network, base: Network | None = None, optimizer: Optimizer = "sgd") -> float:
        """Return depth^x size^y of a network, averaged over its heads; without a base q_base is one."""
        usual = _mean([at.second_moment for at, _, _ in _ends(base)]) if base else 1.0
        x, y = POWERS[optimizer]
        return _mean(
            [
                self._depth(at, shared, depth, optimizer) ** x
                * (at.copies + self.moment_weight * at.second_moment / usual) ** y
                for at, shared, depth in _ends(network)
            ]
        )

    def _depth(self, at: VertexSignal, shared: float, depth: int, optimizer: Optimizer) -> float:
        """Return what depth costs at a head, the activations still to come included."""
        offset = self.depth_offset + depth
        if optimizer == "adam":
            return at.cubed_depth(offset)
        return at.squared_depth(offset) * (shared + offset)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> tuple[Factor, ...]:
        """Return the topology's factor, and with convolutions what it takes more that each counts as k layers."""
        score, base_score = (self.score(one.as_matrices, base, optimizer) for one in (network, base))
        topology = Factor("topology", base_score / score, f"weighted: {base_score:.4g}/{score:.4g}")
        if not (network.live.convolutions or base.live.convolutions):
            return (topology,)
        longer, base_longer = (
            self.score(one, base, optimizer) / self.score(one.as_matrices, base, optimizer) for one in (network, base)
        )
        why = f"longer paths: {base_longer:.4g}/{longer:.4g}"
        return topology, Factor("kernel", base_longer / longer, why)


def _ends(network: Network) -> list[tuple[VertexSignal, float, int]]:
    """Return the signal at every head, the length two walks share there, and the activations still to come."""
    signal = network.initialisation.signal
    return [(signal.vertices[head.vertex], signal.shared[head.vertex], head.depth) for head in network.roles.heads]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
