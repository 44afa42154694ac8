"""Check that what is measured is written at once, read back the same, and never measured again."""

import json
import math
from pathlib import Path

import pytest

from evenstep.errors import StoreError
from evenstep.graph import dag_mlp_graph
from evenstep.planning import plan_graph
from evenstep_research.study.transfer.families import Architecture, FamilySetting
from evenstep_research.study.transfer.ledger import MeasurementLedger, _network
from evenstep_research.study.transfer.measure import Curve, Known, Measured, TransferTraining
from evenstep_research.study.transfer.rivals import Attempt

SETTING, TRAINING = FamilySetting(), TransferTraining()
NETWORK = Architecture("a", "2_02")
CURVE: Curve = {0.5: (1.0, math.inf), 1.0: (2.0, 2.5)}
ATTEMPTS = {"range test": Attempt(0.1, (1.0, math.inf), 100), "prodigy": Attempt(None, (1.5, 1.5), 0)}


def measured(curve: Curve, attempts: dict[str, Attempt] | None = None) -> Measured:
    return Measured(NETWORK, "ok", 0.5, curve, {}, attempts or {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    ledger = MeasurementLedger(tmp_path / "l.jsonl", "digits", "tf32")
    ledger.note(SETTING, measured({0.5: CURVE[0.5]}), TRAINING)
    ledger.note(SETTING, measured(CURVE, ATTEMPTS), TRAINING)
    ledger.note(SETTING, measured(CURVE, ATTEMPTS), TRAINING)  # nothing new
    return tmp_path / "l.jsonl"


def opened(path: Path, *, data: str = "digits") -> MeasurementLedger:
    return MeasurementLedger(path, data)


def test_what_was_noted_is_known_again_and_written_once(path: Path) -> None:
    assert len(path.read_text().splitlines()) == 2
    assert opened(path).known(SETTING, NETWORK, TRAINING) == Known(CURVE, ATTEMPTS)
    assert [one.precision for one in opened(path).origin(SETTING, NETWORK, TRAINING)] == ["tf32"]


def test_another_name_is_the_same_network_and_anything_else_another(path: Path) -> None:
    assert opened(path).known(SETTING, Architecture("b", "2_02"), TRAINING).curve == CURVE
    nothing = Known()
    assert opened(path).known(SETTING, Architecture("a", "2_12"), TRAINING) == nothing
    assert opened(path).known(SETTING, Architecture("a", "2_02", kernel_size=5), TRAINING) == nothing
    assert opened(path).known(SETTING, Architecture("a", "2_02", width=64), TRAINING) == nothing
    assert opened(path).known(FamilySetting(width=64), NETWORK, TRAINING) == nothing
    assert opened(path).known(FamilySetting(classes=100), NETWORK, TRAINING) == nothing
    assert opened(path).known(FamilySetting(rates="one"), NETWORK, TRAINING) == nothing
    assert opened(path, data="cifar10").known(SETTING, NETWORK, TRAINING) == nothing
    assert opened(path).known(SETTING, NETWORK, TransferTraining(epochs=2)) == nothing
    assert opened(path).known(SETTING, NETWORK, TransferTraining(base_seeds=5)).curve == CURVE
    other = plan_graph(dag_mlp_graph("2_02"), rule="mup", init="he")
    with pytest.MonkeyPatch.context() as patch:  # a change of rules is another start, under the same name
        patch.setattr("evenstep_research.study.transfer.ledger.layered", lambda *_: other)
        _network.cache_clear()
        assert opened(path).known(SETTING, NETWORK, TRAINING) == nothing
    _network.cache_clear()
    assert opened(path).origin(FamilySetting(width=64), NETWORK, TRAINING) == set()


def test_more_seeds_at_a_rate_add_to_what_is_known_and_fewer_change_nothing(path: Path) -> None:
    ledger = opened(path)
    ledger.note(SETTING, measured({0.5: (1.0, math.inf, 3.0), 1.0: (2.0,)}), TransferTraining(seeds=3))
    for again in (ledger, opened(path)):
        assert again.known(SETTING, NETWORK, TransferTraining(seeds=3)).curve == {
            0.5: (1.0, math.inf, 3.0),
            1.0: (2.0, 2.5),
        }
        assert again.known(SETTING, NETWORK, TransferTraining(seeds=1)).curve == {0.5: (1.0,), 1.0: (2.0,)}
        assert again.known(SETTING, NETWORK, TRAINING.of_bases).curve[0.5] == (1.0, math.inf, 3.0)
    assert json.loads(path.read_text().splitlines()[-1])["curve"] == [[0.5, [1.0, None, 3.0]]]


def test_every_cut_of_the_last_line_is_dropped_and_the_ledger_goes_on(path: Path) -> None:
    whole = path.read_text()
    first = whole.index("\n") + 1
    for cut in (first + 1, first + 40, (first + len(whole)) // 2, len(whole) - 2):
        path.write_text(whole[:cut])
        ledger = opened(path)
        assert ledger.known(SETTING, NETWORK, TRAINING) == Known({0.5: CURVE[0.5]}, {})
        assert path.read_text() == whole[:cut]  # whoever only reads cannot know that nobody is writing it
        ledger.note(SETTING, measured(CURVE, ATTEMPTS), TRAINING)
        assert path.read_text()[:first] == whole[:first]
        assert len(path.read_text().splitlines()) == 2
        assert opened(path).known(SETTING, NETWORK, TRAINING) == Known(CURVE, ATTEMPTS)


def test_a_last_line_that_lacks_its_end_only_is_kept_and_not_joined_to_the_next(path: Path) -> None:
    path.write_text(path.read_text()[:-1])
    ledger = opened(path)
    assert ledger.known(SETTING, NETWORK, TRAINING).curve == CURVE
    ledger.note(SETTING, measured({2.0: (3.0, 3.0)}), TRAINING)
    assert opened(path).known(SETTING, NETWORK, TRAINING).curve == {**CURVE, 2.0: (3.0, 3.0)}


@pytest.mark.parametrize(
    "bad", ["{", "3", "[]", "null", '{"key": "k"}', '{"key": "k", "curve": [[1]], "provenance": {}}', "\u00e9"]
)
def test_a_bad_line_in_the_middle_is_named_and_nothing_is_changed(path: Path, bad: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], bad, lines[1], ""]))
    before = path.read_text()
    with pytest.raises(StoreError, match=r"line 2 of the ledger '.*l\.jsonl' cannot be read; remove that line"):
        opened(path)
    assert path.read_text() == before


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00" * 10)
    for path in (tmp_path, tmp_path / "bytes"):
        with pytest.raises(StoreError, match="cannot be read"):
            opened(path)
    with pytest.raises(StoreError, match="cannot be written"):
        opened(tmp_path / "nowhere" / "l.jsonl").note(SETTING, measured(CURVE), TRAINING)


def test_lines_say_where_they_were_measured(path: Path) -> None:
    for line in path.read_text().splitlines():
        where = json.loads(line)["provenance"]
        assert {"versions", "device", "commit", "precision"} <= set(where)
