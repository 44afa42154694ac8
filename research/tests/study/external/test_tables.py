"""Check what is read of the tables' files, and what is refused: the file, the line, the value and the remedy."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from evenstep.errors import InputError
from evenstep_research.study.external.tables import fingerprints, read_fantastic, read_steplaw, read_tables
from research.tests.study.external.made_up import HEAD, SMALL, write_fantastic, write_steplaw

LINE = "16,64,2,1,0.01,8,100,2.5"


def test_cells_are_trainings_that_differ_in_their_rate_alone(tmp_path: Path) -> None:
    path = tmp_path / "steplaw_dense.csv"
    write_steplaw(path)
    text = path.read_text()
    path.write_text(text + "16,64,2,1,0.01,8,999,2.5\n" * 5)  # one rate five times over is no curve
    (table,) = read_steplaw(path)
    assert [(cell.shape, cell.batch, cell.steps) for cell in table.cells] == [
        (shape, batch, 100) for shape in SMALL[:2] for batch in (8, 32)
    ]
    assert math.exp(table.cells[3].curve.best("measured")) == pytest.approx(0.01 / 4**0.25)
    assert (table.optimizer, table.knows_batch, table.knows_steps) == ("adam", True, True)


def test_sweeps_of_a_rate_by_size_and_length(tmp_path: Path) -> None:
    path = tmp_path / "fantastic.csv"
    write_fantastic(path)
    adamw, muon = read_fantastic(path)
    assert [(cell.shape.width, cell.group, len(cell.curve.losses)) for cell in adamw.cells] == [
        (512, "1", 3),
        (768, "1", 1),
        (768, "2", 1),
    ]
    assert adamw.cells[0].curve.losses == (3.1, 3.0, 7.1)
    assert (adamw.optimizer, muon.optimizer) == ("adam", "muon")
    assert not adamw.knows_batch
    assert not adamw.knows_steps


def test_a_folder_is_read_whatever_it_holds_of_the_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds none of the tables; give one that holds any of steplaw_dense\.csv"):
        read_tables(tmp_path)
    write_fantastic(tmp_path / "fantastic.csv")
    assert [table.name for table in read_tables(tmp_path)] == ["Fantastic, adamw", "Fantastic, muon"]
    write_steplaw(tmp_path / "steplaw_dense.csv")
    assert len(read_tables(tmp_path)) == 3
    assert set(fingerprints(tmp_path)) == {"steplaw_dense.csv", "fantastic.csv"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD.replace(",loss", ",lost") + f"\n{LINE}\n", "has no column 'loss'; it needs width, layers"),
        ("", "has no column 'width', 'layers'"),
        (
            f"{HEAD}\n{LINE}\n{LINE.replace('0.01', 'fast')}\n",
            r"lr in line 3 of .* is 'fast'; give a finite number above",
        ),
        (f"{HEAD}\n{LINE.replace('2.5', 'nan')}\n", "loss in line 2 of .* is 'nan'"),
        (f"{HEAD}\n{LINE.replace('0.01', '-0.01')}\n", "lr in line 2 of .* is '-0.01'"),
        (f"{HEAD}\n{LINE.replace('16,', '16.5,', 1)}\n", "width in line 2 of .* is '16.5'; give a whole number"),
        (f"{HEAD}\n{LINE.rpartition(',')[0]}\n", "loss in line 2 of .* is ''"),
        (f"{HEAD}\n{LINE}\n", "has 0 cells of 4 rates or more; two are the least"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "steplaw_dense.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_steplaw(path)


def test_what_is_wrong_with_a_sweep_is_said(tmp_path: Path) -> None:
    path = tmp_path / "fantastic.csv"
    write_fantastic(path)
    text = path.read_text()
    path.write_text(text.replace("adamw,130m,1,Baseline", "adamw,7b,1,Baseline"))
    with pytest.raises(InputError, match=r"size in line 2 of .* is '7b'; choose one of 130m, 300m, 520m, 1\.2b"):
        read_fantastic(path)
    path.write_text(text.splitlines()[0] + "\nlion,130m,1,Baseline,,2.9,0.001\n")
    with pytest.raises(InputError, match="has no sweep of adamw or muon"):
        read_fantastic(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"cannot be read .*; give a CSV file in UTF-8"):
        read_fantastic(path)
