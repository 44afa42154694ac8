"""Write a search's picture to a file."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from evenstep.search import LRSearch


def draw_search(search: LRSearch, path: Path) -> None:
    """Write the picture of a finished search: loss over learning rate, every seed, the rate and its interval."""
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    search.plot(figure.subplots())
    figure.savefig(path, dpi=130)
