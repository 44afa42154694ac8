"""Check batch rules: their powers by optimiser, and what they refuse."""

import pytest

from evenstep.errors import InputError
from evenstep.rules.batch import BATCH, BATCH_RULES, AdamFactors, BatchPower, MovesAdam, batch_rule
from evenstep.rules.rule import Optimizer


@pytest.mark.parametrize(
    ("name", "optimizer", "value"),
    [
        ("fourth-root", "adam", 3**0.5),
        ("fourth-root", "muon", 3**0.5),
        ("root-linear", "adam", 3.0),
        ("root-linear", "sgd", 9.0),
        ("root-linear", "momentum", 9.0),
        ("root", "momentum", 3.0),
        ("linear", "adam", 9.0),
        ("none", "sgd", 1.0),
        ("sde", "adam", 3.0),
        ("sde", "sgd", 9.0),
    ],
)
def test_a_batch_nine_times_as_large(name: str, optimizer: Optimizer, value: float) -> None:
    factor = batch_rule(name).factor(576, searched=64, optimizer=optimizer)
    assert factor.value == pytest.approx(value)
    assert (factor.name, factor.why) == ("batch", "from batches of 64 to 576")
    back = batch_rule(name).factor(64, searched=576, optimizer=optimizer)
    assert back.value * factor.value == pytest.approx(1)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum"])
def test_the_default_lowers_the_rates_of_sgd_and_does_not_raise_them(optimizer: Optimizer) -> None:
    assert BATCH.factor(576, searched=64, optimizer=optimizer).value == 1.0
    assert BATCH.factor(64, searched=576, optimizer=optimizer).value == pytest.approx(3**-0.5)
    assert BatchPower(sgd_rises=True).factor(576, searched=64, optimizer=optimizer).value == pytest.approx(3**0.5)


def test_the_default_is_the_first_of_the_names() -> None:
    assert batch_rule("fourth-root") is BATCH
    assert list(BATCH_RULES) == ["fourth-root", "root", "root-linear", "linear", "none", "sde"]
    assert batch_rule(own := BatchPower(0.3, 0.3, name="own")) is own


def test_sde_moves_adams_settings_as_published() -> None:
    """Malladi et al. 2022, definition 5.2: 1 - beta goes with k, epsilon with 1 / sqrt(k), at k times the batch."""
    moved = batch_rule("sde")
    assert isinstance(moved, MovesAdam)
    settings = moved.settings(576, searched=64, optimizer="adam")
    assert [factor.value for factor in (*settings.betas, *settings.eps)] == pytest.approx([9.0, 1 / 3])
    assert moved.settings(576, searched=64, optimizer="sgd") == AdamFactors()
    for optimizer in ("momentum", "muon", "lion"):
        with pytest.raises(
            InputError, match=f"derived for Adam and for SGD without momentum.*'{optimizer}'.*'fourth-root'"
        ):
            moved.settings(576, searched=64, optimizer=optimizer)
    assert not any(isinstance(rule, MovesAdam) for name, rule in BATCH_RULES.items() if name != "sde")


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="batch rule is 'cubic'; choose one of fourth-root, root, root-linear"):
        batch_rule("cubic")
    with pytest.raises(InputError, match=r"adam_power of fourth-root is -1\.0; give a number from 0 up"):
        BatchPower(-1.0)
    with pytest.raises(InputError, match="batch is 0; give a finite number above 0"):
        BATCH.factor(0, searched=64, optimizer="adam")
    with pytest.raises(InputError, match="searched is nan"):
        BATCH.factor(64, searched=float("nan"), optimizer="adam")
