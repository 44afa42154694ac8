"""Build the networks of NAS-Bench-201 (the topology space of NATS-Bench)."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from evenstep.graph.codes import Wiring, parse_nasbench201_code
from evenstep_research.spaces.dag import require_positive


class _ConvNorm(nn.Module):
    """Compute norm(conv(x)), or norm(conv(relu(x))): (batch, c, H, W) to (batch, d, H/stride, W/stride)."""

    def __init__(self, c: int, d: int, *, kernel_size: int, stride: int = 1, relu: bool = True) -> None:
        super().__init__()
        self.relu = relu
        self.conv = nn.Conv2d(c, d, kernel_size, stride=stride, padding=kernel_size // 2, bias=False)
        self.norm = nn.BatchNorm2d(d)

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(self.conv(F.relu(x) if self.relu else x))
        return normed


_OPS: Mapping[str, Callable[[int], nn.Module]] = MappingProxyType(
    {
        "skip_connect": lambda _: nn.Identity(),
        "avg_pool_3x3": lambda _: nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        "nor_conv_1x1": lambda channels: _ConvNorm(channels, channels, kernel_size=1),
        "nor_conv_3x3": lambda channels: _ConvNorm(channels, channels, kernel_size=3),
    }
)


class _Cell(nn.Module):
    """Run one cell: x_t = sum over edges op_st(x_s), (batch, channels, H, W) to the same shape."""

    def __init__(self, wiring: Wiring, live: Wiring, *, channels: int) -> None:
        super().__init__()
        edges = sorted(wiring.edges, key=lambda edge: (edge.target, edge.source))
        self.edges = nn.ModuleDict({f"{edge.source}_{edge.target}": _OPS[edge.op](channels) for edge in edges})
        self._run = sorted((edge.target, edge.source) for edge in live.edges)
        self._last = live.vertex_count - 1

    def forward(self, x: Tensor) -> Tensor:
        fields = {0: x}
        for target, source in self._run:
            term = self.edges[f"{source}_{target}"](fields[source])
            fields[target] = fields[target] + term if target in fields else term
        return fields[self._last]


class _Reduction(nn.Module):
    """Halve the image and double the channels: x -> shortcut(x) + second(first(x))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = _ConvNorm(channels, 2 * channels, kernel_size=3, stride=2)
        self.second = _ConvNorm(2 * channels, 2 * channels, kernel_size=3)
        self.shortcut = nn.Sequential(
            OrderedDict(pool=nn.AvgPool2d(2, stride=2), conv=nn.Conv2d(channels, 2 * channels, 1, bias=False))
        )

    def forward(self, x: Tensor) -> Tensor:
        reduced: Tensor = self.shortcut(x) + self.second(self.first(x))
        return reduced


@final
class NasBench201(nn.Module):
    """Build the network of a NAS-Bench-201 cell: stem, `stages` of `cells` equal cells, mean, linear.

    Maps (batch, 3, H, W) to (batch, classes); H and W divisible by 2 ** (stages - 1). Between stages a
    residual block doubles the channels and halves the image. `code` is '|nor_conv_3x3~0|+|...|' or its
    digits, '3_24_440'.

    Only live edges, those on a path from the cell's input to its output, become layers. The benchmark's
    own parameter counts include the convolutions of dead edges: `keep_dead=True` builds them too, so that
    the counts agree, but never runs them. (In the original an edge out of a vertex that nothing reaches
    does run, on zeros, and so adds its norm's bias, which starts at zero.)

    >>> sum(parameter.numel() for parameter in NasBench201("3_34_131").parameters())
    802426
    """

    def __init__(
        self,
        code: str,
        *,
        channels: int = 16,
        cells: int = 5,
        stages: int = 3,
        classes: int = 10,
        keep_dead: bool = False,
    ) -> None:
        require_positive("channels", channels)
        require_positive("cells", cells)
        require_positive("stages", stages)
        require_positive("classes", classes)
        super().__init__()
        wiring = parse_nasbench201_code(code)
        live = wiring.live()
        built = wiring if keep_dead else live
        self.code = code
        self.wiring = live

        self.stem = _ConvNorm(3, channels, kernel_size=3, relu=False)
        blocks: list[nn.Module] = []
        width = channels
        for stage in range(stages):
            if stage > 0:
                blocks.append(_Reduction(width))
                width *= 2
            blocks.extend(_Cell(built, live, channels=width) for _ in range(cells))
        self.cells = nn.ModuleList(blocks)
        self.norm = nn.BatchNorm2d(width)
        self.readout = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, 3, H, W) to logits of shape (batch, classes)."""
        x = self.stem(x)
        for cell in self.cells:
            x = cell(x)
        logits: Tensor = self.readout(F.relu(self.norm(x)).mean(dim=(2, 3)))
        return logits
