"""The leaderboard: every rule, batch rule and length rule on every table, and the reference of a fitted law."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from evenstep.errors import EvenstepError
from evenstep.rules import OPTIMIZERS, RULES, Optimizer, Rule
from evenstep.rules.batch import BATCH_RULES, BatchPower, BatchRule
from evenstep.rules.length import LENGTH, LengthRule
from evenstep_research.study.external.curves import Numbers
from evenstep_research.study.external.fitted_law import fitted_powers, law_transfers
from evenstep_research.study.external.scoring import TableScores, scores, worst_octaves
from evenstep_research.study.external.shapes import Shape
from evenstep_research.study.external.tables import Table
from evenstep_research.study.external.transfers import batch_transfers, length_transfers, no_transfers, shape_transfers

NONE = "none"
# Between the root and none, where fits to language models' sweeps lie: shown beside the rules, and none of them.
SOFT = BatchPower(0.3, 0.3, name="power 0.3")
STUDY_BATCH_RULES: Mapping[str, BatchRule] = {**BATCH_RULES, SOFT.name: SOFT}
STUDY_LENGTH_RULES: Mapping[str, LengthRule] = {LENGTH.name: LENGTH}


@dataclass(frozen=True)
class Entry:
    """Hold what one choice of rules costs on a table; `octaves` are the worst for every shape, from all bases."""

    rule: str
    batch: str
    length: str
    scores: TableScores
    octaves: Mapping[Shape, float]


@dataclass(frozen=True)
class Board:
    """Hold all that is said of one table.

    `factors` are rules' factors of the rate for every shape from the smallest; `powers` those of fitted laws by name;
    `left_out` says which rules were not scored, and why.
    """

    table: Table
    entries: tuple[Entry, ...] = ()
    references: Mapping[str, TableScores] = field(default_factory=dict)
    powers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    factors: Mapping[str, Mapping[Shape, float]] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    def entry(self, rule: str, batch: str, length: str) -> Entry | None:
        """Return the entry of a choice, None where it was not scored."""
        wanted = (rule, batch, length)
        return next((entry for entry in self.entries if (entry.rule, entry.batch, entry.length) == wanted), None)


def boards(tables: Sequence[Table], rules: Mapping[str, Rule] = RULES) -> tuple[Board, ...]:
    """Return the boards of tables: every rule by its name."""
    return tuple(board(table, rules) for table in tables)


def board(table: Table, rules: Mapping[str, Rule] = RULES) -> Board:
    """Return the board of one table; rules are scored with every batch and length rule that the table can tell."""
    laws = dict(_laws(table))
    powers = {name: fitted_powers(table, sizes) for name, sizes in laws.items()}
    references = {name: scores(table, law_transfers(table, of_law)) for name, of_law in powers.items()}
    if table.optimizer not in OPTIMIZERS:
        why = f"evenstep plans for {', '.join(OPTIMIZERS)}, and not yet for {table.optimizer}"
        return Board(table, references=references, powers=powers, left_out=dict.fromkeys(rules, why))
    optimizer = cast(Optimizer, table.optimizer)
    batches, lengths = dict(_batches(table, optimizer)), dict(_lengths(table))
    first = {cell.shape: index for index, cell in reversed(list(enumerate(table.cells)))}
    shapes = sorted(first)
    entries: list[Entry] = []
    factors: dict[str, Mapping[Shape, float]] = {}
    left_out: dict[str, str] = {}
    for name, rule in rules.items():
        try:
            between_shapes = shape_transfers(table, rule, optimizer)
        except EvenstepError as error:
            left_out[name] = str(error)
            continue
        factors[name] = {shape: math.exp(between_shapes[first[shapes[0]], first[shape]]) for shape in shapes}
        entries += [
            _entry(table, (name, batch, length), between_shapes + between_batches + between_lengths)
            for batch, between_batches in batches.items()
            for length, between_lengths in lengths.items()
        ]
    return Board(table, tuple(entries), references, powers, factors, left_out)


def _entry(table: Table, names: tuple[str, str, str], transfers: Numbers) -> Entry:
    return Entry(*names, scores(table, transfers), worst_octaves(table, transfers))


def _laws(table: Table) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the laws that can be fitted to a table: their names, and the sizes they know."""
    known = ("width", "depth", *(("batch",) if table.knows_batch else ()))
    yield "fitted law", known
    if table.knows_steps:
        yield "fitted law with steps", (*known, "steps")


def _batches(table: Table, optimizer: Optimizer) -> Iterator[tuple[str, Numbers]]:
    """Yield what batch rules say of a table; of rules that say the same for an optimiser, the first."""
    yield NONE, no_transfers(table)
    if not table.knows_batch:
        return
    before = [no_transfers(table)]
    for name, rule in STUDY_BATCH_RULES.items():
        transfers = batch_transfers(table, rule, optimizer)
        if not any(np.array_equal(transfers, other) for other in before):
            before.append(transfers)
            yield name, transfers


def _lengths(table: Table) -> Iterator[tuple[str, Numbers]]:
    """Yield what length rules say of a table."""
    yield NONE, no_transfers(table)
    if table.knows_steps:
        for name, rule in STUDY_LENGTH_RULES.items():
            yield name, length_transfers(table, rule)
