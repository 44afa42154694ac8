"""Plans as tables on a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from evenstep.planning import Plan
from evenstep.planning.words import own_words, rate_words, shared_words, training_words


def print_plan(plan: Plan) -> None:
    """Print what each parameter got and why, then what all of them share."""
    # A terminal folds long reasons into its width; a file or pipe gets whole lines.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    rate = "" if plan.base is None else "lr"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("parameter", no_wrap=True)
    for title in ("std", "lr_scale", rate):
        if title:
            table.add_column(title, justify="right", no_wrap=True)
    table.add_column("reason")
    for p in plan.parameters:
        shown = [p.name, "kept" if p.kept else f"{p.std:.4g}", rate_words(p, p.lr_scale)]
        if plan.base is not None:
            shown.append(rate_words(p, plan.base * p.lr_scale))
        table.add_row(*shown, own_words(plan, p, start=True))
    console.print(table)
    console.print(f"\nrule {plan.rule}, init {plan.init}, optimizer {plan.optimizer_name}; {plan.path_count} paths")
    for line in (training_words(plan), *plan.history):
        if not line:
            continue
        console.print(line, highlight=False, markup=False)
    console.print(f"all rates: {shared_words(plan)}", highlight=False)
