"""Our rule: each path counts by the share of second moment that it carries, and every weight takes even steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.graph.fields import require_valid_fields
from evenstep.init import Network
from evenstep.rules.even import even_steps
from evenstep.rules.rule import Factor, Optimizer, RateFactors, steps_by_rate
from evenstep.signal import WalkStatistics, walk_statistics


@dataclass(frozen=True)
class Weighted:
    """Scale by 1 / (depth^x size^y) for the whole network, and each parameter by its own size (`even_steps`).

    depth = E[(L + a)^2] (E[shared] + a), where a is `depth_offset`, over random walks from the last vertex back to the
    input that pick each summand by its share of second moment: L is a walk's length, and `shared` the length that two
    walks have in common. In a chain that is all of it, and depth is (L + a)^3. Adam's steps do not shrink when paths
    average out, so its depth is E[(L + a)^3].
    size = (copies + w q_out / q_base) / (1 + w), where q_out is the last vertex's second moment, `copies` the mean
    square of the number of copies of a field that skips bring there, and w is `moment_weight`. It is one if the
    initialisation compensates for growth, as `conserve` does.
    `docs/theory.md` derives all this.
    """

    # Stands for the readout and the last activation, which move as well. Chosen on chains, which are also reported.
    depth_offset: float = 2.0
    # x and y for SGD, with and without momentum: derived.
    depth_power: float = 0.5
    size_power: float = 0.5
    # x and y for Adam, whose step does not grow with the gradient. x chosen on chains, y on the families fit-*.
    adam_depth_power: float = 0.4
    adam_size_power: float = 0.25
    # How much second moment made by fresh weights costs, relative to copies of one field. Chosen on the families fit-*.
    moment_weight: float = 0.35
    # A kernel of side k counts as 1 + kernel_length (k - 1) layers. Chosen on chains of convolutions (fit-cnn).
    kernel_length: float = 1.0
    # The factor of path lengths before a batch norm. Chosen on families with batch norm, including reported ones.
    batch_norm_depth_decay: float = 0.84
    name: str = "weighted"
    layerwise: bool = True

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the topology's factor, the kernels' factor, and each parameter's own."""
        (score, with_kernels), (base_score, base_with_kernels) = (
            self._scores(scored, base, optimizer, (0.0, self.kernel_length)) for scored in (network, base)
        )
        words = f"depth score: base's {base_score:.4g} / this network's {score:.4g}"
        topology = Factor("topology", base_score / score, words)
        own = even_steps(network, base, optimizer)
        if not (network.live.convolutions or base.live.convolutions):
            return RateFactors((topology,), own)
        longer, base_longer = with_kernels / score, base_with_kernels / base_score
        words = f"kernels multiply the score: base's by {base_longer:.4g} / this network's by {longer:.4g}"
        kernel = Factor("kernel", base_longer / longer, words)
        return RateFactors((topology, kernel), own)

    def score(self, network: Network, base: Network | None = None, optimizer: Optimizer = "sgd") -> float:
        """Return depth^x size^y of a network, averaged over its heads; without a base, q_base is one."""
        (score,) = self._scores(network, base, optimizer, (self.kernel_length,))
        return score

    def _scores(
        self, network: Network, base: Network | None, optimizer: Optimizer, kernel_lengths: Sequence[float]
    ) -> list[float]:
        """Return the score for each `kernel_length`."""
        heads, signal = network.roles.heads, network.signal
        x, y = self.depth_power, self.size_power
        if steps_by_rate(optimizer):
            x, y = self.adam_depth_power, self.adam_size_power
        sizes = [1.0] * len(heads)
        if not network.init.undoes_growth:
            of_base = [base.signal.vertices[head.vertex].second_moment for head in base.roles.heads] if base else [1.0]
            q_base, ends = _mean(of_base), [signal.vertices[head.vertex] for head in heads]
            weight = self.moment_weight
            sizes = [((end.copies + weight * end.second_moment / q_base) / (1 + weight)) ** y for end in ends]
        statistics = walk_statistics(
            signal,
            [head.vertex for head in heads],
            kernel_lengths=kernel_lengths,
            batch_norm_decay=self.batch_norm_depth_decay,
        )
        return [
            _mean(
                [
                    self._depth(walks, head.remaining_depth, optimizer) ** x * size
                    for walks, head, size in zip(of_heads, heads, sizes, strict=True)
                ]
            )
            for of_heads in statistics
        ]

    def _depth(self, walks: WalkStatistics, remaining_depth: int, optimizer: Optimizer) -> float:
        """Return the depth at a head, including the activations between it and the output."""
        offset = self.depth_offset + remaining_depth
        if steps_by_rate(optimizer):
            return walks.third_moment(offset)
        return walks.second_moment(offset) * (walks.shared + offset)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
