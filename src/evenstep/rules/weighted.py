"""Our rule: each path counts by the share of second moment that it carries, and every layer by what it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from evenstep.graph.fields import require_valid_fields
from evenstep.graph.model import vertices_whose_paths_meet
from evenstep.graph.operators import STANDARD_GAUSSIAN, Average, Recurrent
from evenstep.init import Network
from evenstep.rules.layers import Layer, for_every_layer
from evenstep.rules.rule import Factor, Optimizer, RateFactors
from evenstep.rules.width import hidden_width, width_factor
from evenstep.signal import WalkStatistics, walk_statistics


@dataclass(frozen=True)
class Weighted:
    """Scale by 1 / (depth^x size^y) for the whole network, and each layer by its width and by what it reads.

    depth = E[(L + a)^2] (E[shared] + a), a the `depth_offset`, over walks from the last vertex back to the input that
    pick each summand by its share of second moment: a walk is L long, and two walks share a part. In a chain they share
    all, and depth is (L + a)^3. Adam, whose steps do not shrink where paths average out, has E[(L + a)^3] instead.
    size = copies + moment_weight q_out / q_base, with q_out the last vertex's second moment and `copies` how often
    skips bring one field there, in mean square. `docs/theory.md` derives all this.
    """

    # Readout and last activation, which move as well. Settled on chains, which are reported too.
    depth_offset: float = 2.0
    # Second moment that fresh weights made, against copies of one field. Settled on the families fit-*.
    moment_weight: float = 0.35
    # x and y of SGD, with and without momentum: derived.
    depth_power: float = 0.5
    size_power: float = 0.5
    # Adam's step does not grow with the gradient. x settled on chains, y on the families fit-*.
    adam_depth_power: float = 0.4
    adam_size_power: float = 0.25
    # The power of what a layer reads, 1 for SGD: derived from the same.
    adam_read_power: float = 0.5
    # A kernel of side k counts as 1 + kernel_length (k - 1) layers. Settled on chains of convolutions (fit-cnn).
    kernel_length: float = 1.0
    # What is left of the length of a path upstream of a batch norm. Settled on families with batch norm, those reported
    # among them.
    batch_norm_depth_decay: float = 0.84
    # What an average over all positions leaves of a field's variance between examples, at least: positions of one image
    # are alike. Measured on feature maps of photographs (`results/averages`).
    pooled_variance_floor: float = 0.1
    # Upper limit on the rate of a readout of averages, relative to the network's: narrow ones are at their limit there.
    # Settled on one base cell of NAS-Bench-201.
    max_readout_scale: float = 2.0
    # What an input layer counts as reading at least, of the base's width. Settled on the families fit-*.
    min_input_fan_in: float = 1 / 8
    name: str = "weighted"
    layerwise: bool = True

    def __post_init__(self) -> None:
        require_valid_fields(self)

    def factors(self, network: Network, base: Network, optimizer: Optimizer) -> RateFactors:
        """Return the topology's factor, what kernels add to it, and every layer's own."""
        (score, with_kernels), (base_score, base_with_kernels) = (
            self._scores(one, base, optimizer, (0.0, self.kernel_length)) for one in (network, base)
        )
        topology = Factor("topology", base_score / score, f"score of the base {base_score:.4g} / here {score:.4g}")
        own = self._of_layers(network, base, optimizer)
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
        usual = 1.0
        if base is not None:
            usual = _mean([base.signal.vertices[head.vertex].second_moment for head in base.roles.heads])
        x, y = self.depth_power, self.size_power
        if optimizer == "adam":
            x, y = self.adam_depth_power, self.adam_size_power
        heads, signal = network.roles.heads, network.signal
        ends = [signal.vertices[head.vertex] for head in heads]
        sizes = [(at.copies + self.moment_weight * at.second_moment / usual) ** y for at in ends]
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
        return back.third_moment(offset) if optimizer == "adam" else back.second_moment(offset) * (back.shared + offset)

    def _of_layers(self, network: Network, base: Network, optimizer: Optimizer) -> Mapping[str, tuple[Factor, ...]]:
        width, growth, pooled = hidden_width(base), input_growth(network), self.pooled_variance(network)

        @cache
        def by_width(layer: Layer) -> tuple[Factor, ...]:
            return (width_factor(layer, width, optimizer, floor=self.min_input_fan_in),)

        def factors(layer: Layer, edge_index: int) -> tuple[Factor, ...]:
            known = by_width(layer)
            if edge_index in growth:
                known = (*known, self._read_factor(growth[edge_index], optimizer))
            if edge_index in pooled:
                known = (*known, self._average_factor(pooled[edge_index], known[0].value, optimizer))
            return known

        return for_every_layer(network, factors)

    def _read_factor(self, growth: float, optimizer: Optimizer) -> Factor:
        """Slow down a layer that reads a field grown before a norm."""
        return Factor("read", growth ** -self._read_power(optimizer), f"what it reads has grown {growth:.4g}-fold")

    def _average_factor(self, left: float, by_width: float, optimizer: Optimizer) -> Factor:
        """Speed up a readout that reads averages, of which little varies."""
        faster, most = left ** -self._read_power(optimizer), max(1.0, self.max_readout_scale / by_width)
        limit = f", rate {self.max_readout_scale:g} at most" if faster > most else ""
        return Factor("average", min(faster, most), f"leaves {left:.4g}{limit}")

    def _read_power(self, optimizer: Optimizer) -> float:
        return self.adam_read_power if optimizer == "adam" else 1.0

    def pooled_variance(self, network: Network) -> Mapping[int, float]:
        """Return the part of a normalised field's variance that an average leaves for a readout, by edge index.

        What examples have in common says nothing: a readout tells them apart by what varies, and its step goes with
        that. Applies only to readouts with a norm on every path from the input: without norms the rule was settled with
        readouts at their plain factor.
        """
        normed = vertices_whose_paths_meet(network.live, lambda edge: edge.normalises, forward=False, every=True)
        found = {}
        for head in network.roles.heads:
            if head.edge_index is None or head.vertex not in normed:
                continue
            left = 1.0
            for between in head.edges_to_readout:
                for operator in between.operators:
                    left *= operator.variance_kept if isinstance(operator, Average) else 1.0
            if left < 1:
                found[head.edge_index] = max(left, self.pooled_variance_floor)
        return found


def input_growth(network: Network) -> Mapping[int, float]:
    """Return the factor by which a step on a weight overshoots, by edge index; factors of one are left out.

    A later norm makes a step count relative to the field that it normalises. A weight's step is proportional to the
    second moment that the weight reads, over that of the vertex where it lands. Where skips let a field grow,
    `conserve` draws smaller weights to read it, and their rates have to be smaller too. Applies only to weights with a
    norm on every path to the output: elsewhere the network's own factor takes account of fields that grow.
    """
    graph, signal = network.live, network.signal
    normed = vertices_whose_paths_meet(graph, lambda edge: edge.normalises, forward=True, every=True)
    if not normed:
        return {}
    found = {}
    for edge_index in network.roles.positions:
        edge = graph.edges[edge_index]
        if edge.target not in normed or isinstance(edge.weight, Recurrent):
            continue
        usual = edge.second_moment_read(STANDARD_GAUSSIAN) * signal.vertices[edge.target].second_moment
        if usual > 0 and (grown := signal.reads[edge_index] / usual) > 1 + 1e-9:
            found[edge_index] = grown
    return found


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
