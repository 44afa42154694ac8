"""Our rule: each path counts by the share of second moment that it carries, and every weight takes an even step."""

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

    depth = E[(L + a)^2] (E[shared] + a), a the `depth_offset`, over walks from the last vertex back to the input that
    pick each summand by its share of second moment: a walk is L long, and two walks share a part. In a chain they share
    all, and depth is (L + a)^3. Adam, whose steps do not shrink where paths average out, has E[(L + a)^3] instead.
    size = (copies + w q_out / q_base) / (1 + w), with q_out the last vertex's second moment, `copies` how often skips
    bring one field there, in mean square, and w the `moment_weight`; it is one where the initialisation undoes growth,
    as `conserve` does.
    `docs/theory.md` derives all this.
    """

    # Readout and last activation, which move as well. Settled on chains, which are reported too.
    depth_offset: float = 2.0
    # x and y of SGD, with and without momentum: derived.
    depth_power: float = 0.5
    size_power: float = 0.5
    # Adam's step does not grow with the gradient. x settled on chains, y on the families fit-*.
    adam_depth_power: float = 0.4
    adam_size_power: float = 0.25
    # Second moment that fresh weights made, against copies of one field. Settled on the families fit-*.
    moment_weight: float = 0.35
    # A kernel of side k counts as 1 + kernel_length (k - 1) layers. Settled on chains of convolutions (fit-cnn).
    kernel_length: float = 1.0
    # What is left of the length of a path upstream of a batch norm. Settled on families with batch norm, those reported
    # among them.
    batch_norm_depth_decay: float = 0.84
    # What an average over all positions leaves of a field's variance between examples, at least: positions of one image
    # are alike. Measured on feature maps of photographs (`results/averages`).
    pooled_variance_floor: float = 0.1
    name: str = "weighted"
    layerwise: bool = True

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the topology's factor, what kernels add to it, and every parameter's own."""
        (score, with_kernels), (base_score, base_with_kernels) = (
            self._scores(one, base, optimizer, (0.0, self.kernel_length)) for one in (network, base)
        )
        topology = Factor("topology", base_score / score, f"score of the base {base_score:.4g} / here {score:.4g}")
        own = even_steps(network, base, optimizer, pooled_variance_floor=self.pooled_variance_floor)
        if not (network.live.convolutions or base.live.convolutions):
            return RateFactors((topology,), own)
        longer, base_longer = with_kernels / score, base_with_kernels / base_score
        kernel = Factor(
            "kernel", base_longer / longer, f"kernels lengthen paths: base {base_longer:.4g} / here {longer:.4g}"
        )
        return RateFactors((topology, kernel), own)

    def score(self, network: Network, base: Network | None = None, optimizer: Optimizer = "sgd") -> float:
        """Return depth^x size^y of a network, averaged over its heads; without a base q_base is one."""
        (score,) = self._scores(network, base, optimizer, (self.kernel_length,))
        return score

    def _scores(
        self, network: Network, base: Network | None, optimizer: Optimizer, kernel_lengths: Sequence[float]
    ) -> list[float]:
        """Return the score for each way to count kernels."""
        heads, signal = network.roles.heads, network.signal
        x, y = self.depth_power, self.size_power
        if steps_by_rate(optimizer):
            x, y = self.adam_depth_power, self.adam_size_power
        sizes = [1.0] * len(heads)
        if not network.init.undoes_growth:
            of_base = [base.signal.vertices[head.vertex].second_moment for head in base.roles.heads] if base else [1.0]
            usual, ends = _mean(of_base), [signal.vertices[head.vertex] for head in heads]
            weight = self.moment_weight
            sizes = [((at.copies + weight * at.second_moment / usual) / (1 + weight)) ** y for at in ends]
        counted = walk_statistics(
            signal,
            [head.vertex for head in heads],
            kernel_lengths=kernel_lengths,
            batch_norm_decay=self.batch_norm_depth_decay,
        )
        return [
            _mean(
                [
                    self._depth(back, head.remaining_depth, optimizer) ** x * size
                    for back, head, size in zip(of_heads, heads, sizes, strict=True)
                ]
            )
            for of_heads in counted
        ]

    def _depth(self, back: WalkStatistics, to_come: int, optimizer: Optimizer) -> float:
        """Return what depth costs at a head, the activations still to come included."""
        offset = self.depth_offset + to_come
        if steps_by_rate(optimizer):
            return back.third_moment(offset)
        return back.second_moment(offset) * (back.shared + offset)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
