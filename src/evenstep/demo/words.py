"""The demo's words: a few sentences, the rows of its table, and the table in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evenstep.demo.measuring import GRID, Demo, Measured, best_rate, mean
from evenstep.report.marks import Marks
from evenstep.report.table import markdown_table

HEAD = ("network", "one rate, tuned", "AdamW 0.001", "evenstep", "difference")


def sentences(demo: Demo) -> list[str]:
    """Return the results in plain sentences."""
    networks, count = demo.networks, len(demo.networks)
    lost = [network for network in networks if not network.plan < network.tuned]
    plan_seconds, tuning_seconds = (
        sum(getattr(network, name) for network in networks) / count for name in ("plan_seconds", "tuning_seconds")
    )
    lines = [
        f"evenstep ends lower than AdamW's default rate on {_won(networks, 'default')} of {count} networks, by "
        f"{_gain(networks, 'default')} on average, and lower than the best of {len(GRID)} single rates, tuned in "
        f"hindsight for each network, on {_won(networks, 'tuned')} of {count}, by {_gain(networks, 'tuned')} on "
        "average.",
        f"The plans' own rates end {_plan_regret(networks):.2f} nats above the best multiples of the plans on average.",
        f"A plan took {plan_seconds:.1f} s on average, with its search; tuning one rate took {len(GRID)} trainings, "
        f"{tuning_seconds:.1f} s.",
    ]
    if lost:
        names = ", ".join(f"{network.name} ({_signed(network.plan - network.tuned)})" for network in lost)
        lines.insert(1, f"It loses to the tuned rate on {names}.")
    return lines


def rows(demo: Demo) -> list[tuple[str, ...]]:
    """Return the table's rows, a text for each column of `HEAD`."""
    return [
        (
            network.name,
            f"{_loss(network.tuned)} at {network.tuned_rate:.2g}",
            _loss(network.default),
            _loss(network.plan),
            _signed(network.plan - network.tuned) + ("" if network.plan < network.tuned else " lost"),
        )
        for network in demo.networks
    ]


def table(record: Mapping[str, Any]) -> str:
    """Return a record's table in Markdown, and on what it was measured."""
    demo = Demo.from_record(record)
    origin = record["provenance"]
    measured = (
        f"Training loss after {demo.steps} steps, {demo.seeds} seed{'s' if demo.seeds > 1 else ''}; "
        f"{origin['device']}, torch {origin['versions']['torch']}, commit {origin['commit'] or 'unknown'}."
    )
    return f"{markdown_table(HEAD, rows(demo))}\n\n{measured}"


def summary(record: Mapping[str, Any]) -> str:
    """Return a record's sentences as a paragraph."""
    return " ".join(sentences(Demo.from_record(record)))


MARKS: Marks = {"demo table": table, "demo summary": summary}  # what a page can show


def title(demo: Demo) -> str:
    """Return the table's title."""
    seeds = "" if demo.seeds == 1 else f", means of {demo.seeds} seeds"
    return f"training loss after {demo.steps} steps{seeds}"


def _won(networks: tuple[Measured, ...], rival: str) -> int:
    return sum(network.plan < getattr(network, rival) for network in networks)


def _gain(networks: tuple[Measured, ...], rival: str) -> str:
    gains = [getattr(network, rival) - network.plan for network in networks]
    finite = [gain for gain in gains if math.isfinite(gain)]
    if not finite:
        return "no finite number"
    average = f"{sum(finite) / len(finite):.2f} nats"
    return average if len(finite) == len(gains) else f"{average} (of those that stay finite)"


def _plan_regret(networks: tuple[Measured, ...]) -> float:
    """Return how far plans end above their best multiples, on average."""
    return sum(network.plan - mean(network.planned[best_rate(network.planned)]) for network in networks) / len(networks)


def _loss(loss: float) -> str:
    return f"{loss:.3f}" if math.isfinite(loss) else "diverged"


def _signed(difference: float) -> str:
    return f"{difference:+.3f}" if math.isfinite(difference) else "–"
