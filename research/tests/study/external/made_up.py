"""Tables made up of curves that are known."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

from evenstep_research.study.external.curves import Curve
from evenstep_research.study.external.shapes import Shape
from evenstep_research.study.external.tables import Cell, Table

SMALL = tuple(Shape(width, 1, 4 * width, 2) for width in (16, 32, 64))
HEAD = "width,ffn_width,heads,layers,lr,batch_sequences,steps,loss"


def bowl(log_best: float, *, step: float = math.log(2) / 2, count: int = 9) -> Curve:
    """Return a parabola over rates with its bottom, of loss 2, at one of them."""
    offsets = [(index - count // 2) * step for index in range(count)]
    return Curve.of((math.exp(log_best + offset), 2 + offset**2) for offset in offsets)


def table(log_best: Callable[[Shape, float, int], float], *, optimizer: str = "adam") -> Table:
    """Return a table of small shapes, batches and lengths whose best rates follow a law."""
    cells = [
        Cell(shape, bowl(log_best(shape, batch, steps)), batch, steps)
        for shape in SMALL
        for batch in (8.0, 32.0)
        for steps in (2000, 8000)
    ]
    return Table("made up", optimizer, tuple(cells))


def noisy_table(seed: int, *, groups: int = 1) -> Table:
    """Return a table without any law: curves of random rates and losses, one of a single rate."""
    draw = random.Random(seed)
    cells = [Cell(SMALL[0], Curve.of([(1e-3, 3.0)]), 8.0, 100, "0")]
    for index in range(7):
        rates = [1e-4 * 2 ** draw.uniform(0, 8) for _ in range(draw.randint(2, 6))]
        curve = Curve.of((rate, 2 + draw.random()) for rate in rates)
        cells.append(Cell(SMALL[index % 3], curve, 8.0, 100, str(index % groups)))
    return Table("noise", "adam", tuple(cells), draw.choice(["parabola", "measured"]))


def write_steplaw(path: Path, *, shapes: tuple[Shape, ...] = SMALL[:2]) -> None:
    """Write a file like Step Law's: best rates go with one over the width and the fourth root of the batch."""
    lines = [HEAD]
    for shape in shapes:
        for batch in (8, 32):
            curve = bowl(math.log(1e-2 * 16 / shape.width * (batch / 8) ** 0.25))
            lines += [
                f"{shape.width},{shape.ffn_width},{shape.heads},{shape.layers},{math.exp(rate)},{batch},100,{loss}"
                for rate, loss in zip(curve.log_rates, curve.losses, strict=True)
            ]
    path.write_text("\n".join(lines) + "\n")


def write_fantastic(path: Path) -> None:
    """Write a file like that of Fantastic: two sizes of AdamW, one of Muon, and rows that are left alone."""
    path.write_text(
        "optimizer,size,chinchilla,changed,value,loss,lr\n"
        "adamw,130m,1,Baseline,,3.0,0.008\n"
        "adamw,130m,1,learning_rate,0.004,3.1,0.004\n"
        "adamw,130m,1,learning_rate,0.016,7.1,\n"  # its rate stands in `value`
        "adamw,130m,1,beta1,0.95,2.0,0.008\n"
        "adamw,300m,1,Baseline,,2.8,0.004\n"
        "adamw,300m,1,learning_rate,0.008,,\n"  # a run without a loss
        "adamw,300m,2,Baseline,,2.7,0.002\n"
        "muon,130m,1,Baseline,,2.9,0.016\n"
        "lion,130m,1,Baseline,,2.9,0.001\n"
    )
