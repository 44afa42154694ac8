"""Boards and targets as plain values, for a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from evenstep_research.study.external.leaderboard import Board
from evenstep_research.study.external.scoring import TableScores
from evenstep_research.study.external.shapes import Shape
from evenstep_research.study.external.targets import Target


def results_of(boards: Sequence[Board], asked: Sequence[Target]) -> dict[str, Any]:
    """Return all that was found."""
    return {
        "targets": [asdict(target) | {"reached": target.reached} for target in asked],
        "tables": [_of_board(board) for board in boards],
    }


def _of_board(board: Board) -> dict[str, Any]:
    table = board.table
    shapes = sorted({cell.shape for cell in table.cells})
    return {
        "name": table.name,
        "optimizer": table.optimizer,
        "best_by": table.best_by,
        "cells": len(table.cells),
        "runs": sum(len(cell.curve.losses) for cell in table.cells),
        "shapes": [_of_shape(board, shape) for shape in shapes],
        "references": [
            {"name": name, "powers": dict(board.powers[name]), **_of_scores(scores)}
            for name, scores in board.references.items()
        ],
        "rows": [
            {
                "rule": entry.rule,
                "batch": entry.batch,
                "length": entry.length,
                **_of_scores(entry.scores),
                "worst_octaves_by_shape": list(entry.octaves.values()),
            }
            for entry in board.entries
        ],
        "left_out": dict(board.left_out),
    }


def _of_shape(board: Board, shape: Shape) -> dict[str, Any]:
    """Return a shape: its sizes, the best rates of its cells, and rules' factors from the smallest shape."""
    cells = [cell for cell in board.table.cells if cell.shape == shape]
    factors: Mapping[str, float] = {name: of_shapes[shape] for name, of_shapes in board.factors.items()}
    return {
        **asdict(shape),
        "cells": len(cells),
        "best_rates": sorted(float(f"{math.exp(cell.curve.best(board.table.best_by)):.4g}") for cell in cells),
        "factors": dict(factors),
    }


def _of_scores(scores: TableScores) -> dict[str, Any]:
    return {name: asdict(score) for name, score in vars(scores).items()}
