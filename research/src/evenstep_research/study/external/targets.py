"""What we ask of our own rule on the tables, and whether it is so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evenstep.rules.batch import BATCH
from evenstep_research.study.external.leaderboard import NONE, Board, Entry
from evenstep_research.study.external.scoring import Score

OURS = "weighted"
ROUNDING = 1e-9  # of rates that lie an octave apart


@dataclass(frozen=True)
class Target:
    """Hold one thing that is asked: a number at most `limit`, or below it; None where it cannot be measured yet."""

    what: str
    limit: float | None
    measured: float | None
    note: str = ""
    below: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether it is so."""
        if self.limit is None or self.measured is None:
            return None
        if self.below:
            return self.measured < self.limit
        return self.measured <= self.limit + ROUNDING


@dataclass(frozen=True)
class Way:
    """Name one of the two ways to score a table, and what is asked of it."""

    words: str
    score: Callable[[Entry], Score]
    limit: float


WAYS = (
    Way("one offset for the table", lambda entry: entry.scores.by_offset, 0.0042),
    Way("every cell once the base", lambda entry: entry.scores.by_bases, 0.0078),
)


def targets(boards: Sequence[Board]) -> tuple[Target, ...]:
    """Return all that is asked of the tables at hand."""
    return tuple(target for board in boards for target in _of_board(board))


def _of_board(board: Board) -> Iterator[Target]:
    if board.table.knows_batch:
        yield from _of_regret(board)
    else:
        yield _of_octaves(board)


def _of_regret(board: Board) -> Iterator[Target]:
    """Yield what is asked of regrets: a limit, and to be below every other rule.

    Others count with our batch rule and with none, as most were published: the better of both.
    """
    for way in WAYS:
        what = f"{board.table.name}, {way.words}: mean regret of `{OURS}`, batch rule `{BATCH.name}`"
        ours = board.entry(OURS, BATCH.name, NONE)
        measured = None if ours is None else way.score(ours).mean_regret
        yield Target(what, way.limit, measured, _best_batch(board, way))
        rivals = [
            (regret, entry)
            for entry in board.entries
            if entry.rule != OURS and entry.batch in (BATCH.name, NONE) and entry.length == NONE
            for regret in (way.score(entry).mean_regret,)
            if regret is not None
        ]
        if rivals:
            least, nearest = min(rivals, key=lambda rival: rival[0])
            note = f"the nearest is `{nearest.rule}`, batch rule `{nearest.batch}`"
            yield Target(f"{what}, below every other rule", least, measured, note, below=True)


def _best_batch(board: Board, way: Way) -> str:
    """Say which batch and length rule would have been best for our rule: in hindsight, so for no claim."""
    entries = [entry for entry in board.entries if entry.rule == OURS]
    if not entries:
        return ""
    best = min(entries, key=lambda entry: way.score(entry).mean_regret or 0.0)
    regret = way.score(best).mean_regret
    return f"in hindsight, batch `{best.batch}`, length `{best.length}`: {regret:.4f}"


def _of_octaves(board: Board) -> Target:
    what = f"{board.table.name}: octaves from the best rate at the worst width, `{OURS}`"
    ours = board.entry(OURS, NONE, NONE)
    if ours is None:
        return Target(what, 1.0, None, board.left_out.get(OURS, "not scored"))
    widths = "; ".join(f"{shape.width}: {octaves:.2f}" for shape, octaves in ours.octaves.items())
    return Target(what, 1.0, max(ours.octaves.values(), default=None), f"by width, {widths}")
