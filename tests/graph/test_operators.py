"""Check every operator's arithmetic against samples: what leaves it, how copies pass, and how small changes grow."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from evenstep.errors import GraphError
from evenstep.graph import Edge
from evenstep.graph.operators import (
    OPERATORS,
    STANDARD_GAUSSIAN,
    Activation,
    Average,
    ConcatBlock,
    Contraction,
    Dropout,
    Gate,
    LogSoftmax,
    Maximum,
    Measured,
    Moments,
    Norm,
    Offset,
    Operator,
    Padding,
    Recurrent,
    RMSNorm,
    RunningSum,
    Scale,
    Slice,
    Steer,
    Unknown,
    Weight,
    moments_of,
    operator_of,
    slope_of,
)

Array = npt.NDArray[np.float64]
COUNT = 400_000


def samples(moments: Moments, window: int = 1, seed: int = 0) -> Array:
    draw = np.random.default_rng(seed).standard_normal((COUNT // window, window))
    return moments.mean + math.sqrt(moments.variance) * draw


def chance(count: int, part: float) -> Array:
    """Return ones and zeros, ones in the given part, the same at every call."""
    return (np.random.default_rng(1).random(count) < part).astype(float)


def silu(z: Array) -> Array:
    result: Array = z / (1 + np.exp(-z))
    return result


# Operator, its window, and what it does to rows of a window's entries.
Apply = Callable[[Array], Array]
CASES: dict[str, tuple[Operator, int, Apply]] = {
    "scale": (Scale(-1.5), 1, lambda z: -1.5 * z[:, 0]),
    "open gate": (Gate(0.5), 1, lambda z: 0.5 * z[:, 0]),
    "inverse gate": (Gate(-4.0, inverse=True), 1, lambda z: -z[:, 0] / 4),
    "relu": (Activation("relu"), 1, lambda z: np.maximum(z[:, 0], 0)),
    "silu": (Activation("silu"), 1, lambda z: silu(z[:, 0])),
    "tanh": (Activation("tanh"), 1, lambda z: np.tanh(z[:, 0])),
    "mean square": (Activation("square", 8, depth=0), 8, lambda z: (z**2).mean(axis=1)),
    "norm": (Norm(), 1, lambda z: (z[:, 0] - z.mean()) / z.std()),
    "rms norm": (RMSNorm(), 1, lambda z: z[:, 0] / math.sqrt((z**2).mean())),
    "average": (Average(4), 4, lambda z: z.mean(axis=1)),
    "average of neighbours": (Average(4, correlated=True), 1, lambda z: z[:, 0]),
    "slice": (Slice(), 1, lambda z: z[:, 0]),
    "maximum": (Maximum(4), 4, lambda z: z.max(axis=1)),
    "concat_block": (ConcatBlock(0.25), 1, lambda z: z[:, 0]),
    "contraction": (Contraction(9), 1, lambda z: z[:, 0]),
    "unknown": (Unknown("lib.op"), 1, lambda z: z[:, 0]),
    "measured": (Measured(3.0), 1, lambda z: 3 * z[:, 0]),
    "dropout": (Dropout(0.2), 1, lambda z: z[:, 0] * chance(len(z), 0.8) / 0.8),
    "offset": (Offset(0.5, 2.0), 1, lambda z: z[:, 0] + 0.5 + 2 * samples(STANDARD_GAUSSIAN, seed=2)[: len(z), 0]),
    "padding": (Padding(0.25), 1, lambda z: z[:, 0] * chance(len(z), 0.25)),
    "running sum": (RunningSum(16), 16, lambda z: z.cumsum(axis=1).ravel()),
    "log softmax": (LogSoftmax(500), 500, lambda z: (z - np.log(np.exp(z).sum(axis=1, keepdims=True))).ravel()),
}


@pytest.mark.parametrize("given", [STANDARD_GAUSSIAN, Moments(0.0, 2.5), Moments(0.7, 0.6)], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_what_leaves_an_operator_has_the_moments_it_says(name: str, given: Moments) -> None:
    operator, window, apply = CASES[name]
    values = apply(samples(given, window))
    moments = operator.moments(given)
    scale = math.sqrt(moments.second_moment)
    assert values.mean() == pytest.approx(moments.mean, abs=0.01 * scale)
    assert (values**2).mean() == pytest.approx(moments.second_moment, rel=0.03)


@pytest.mark.parametrize("given", [STANDARD_GAUSSIAN, Moments(0.0, 2.5), Moments(0.7, 0.6)], ids=str)
@pytest.mark.parametrize("name", [name for name in CASES if name not in ("norm", "rms norm")])
def test_small_changes_grow_by_the_slope(name: str, given: Moments) -> None:
    operator, window, apply = CASES[name]
    values, small = samples(given, window), 1e-4
    changed = apply(values + small * samples(STANDARD_GAUSSIAN, window, seed=1))
    assert ((changed - apply(values)) ** 2).mean() / small**2 == pytest.approx(operator.slope(given), rel=0.05)


@pytest.mark.parametrize("norm", [Norm(), RMSNorm()])
def test_norms_divide_changes_by_what_they_divide_the_signal_by(norm: Norm) -> None:
    given = Moments(0.5, 2.0)
    assert norm.slope(given) == pytest.approx(1 / (2.0 if norm.op == "norm" else 2.25))
    assert norm.slope(Moments(0.0, 0.0)) == 0.0
    assert norm.moments(Moments(0.0, 0.0)) == Moments(0.0, 0.0)


@pytest.mark.parametrize("name", CASES)
def test_copies_pass_with_the_amplitude_of_what_they_have_in_common(name: str) -> None:
    """Two positions of one field: what an operator passes of it is the projection on the field, where it is linear."""
    operator, window, apply = CASES[name]
    if isinstance(operator, Padding):  # side by side squares of amplitudes add
        assert operator.copy_amplitude() ** 2 == operator.kept
        return
    if operator.op in ("activation", "norm", "rms_norm", "maximum", "slice", "running_sum", "log_softmax"):
        assert operator.copy_amplitude() == 0.0
        return
    values = samples(STANDARD_GAUSSIAN, window)
    assert (apply(values) * values[:, 0]).mean() == pytest.approx(operator.copy_amplitude(), abs=0.01)


def test_every_operator_is_covered_or_is_a_weight_or_steers() -> None:
    covered = {type(operator) for operator, _, _ in CASES.values()}
    assert covered | {Weight, Recurrent, Steer} == set(OPERATORS.values())


def test_what_steers_brings_nothing() -> None:
    assert Steer().moments(Moments(1.0, 3.0)) == Moments(0.0, 0.0)
    assert (Steer().copy_amplitude(), Steer().slope(STANDARD_GAUSSIAN)) == (0.0, 0.0)


def test_operators_in_a_row_are_folded_one_after_the_other() -> None:
    operators = (Activation("relu"), Scale(3.0), Average(4))
    values = 3 * np.maximum(samples(STANDARD_GAUSSIAN, 4), 0)
    folded = moments_of(operators, STANDARD_GAUSSIAN)
    assert values.mean(axis=1).mean() == pytest.approx(folded.mean, rel=0.01)
    assert (values.mean(axis=1) ** 2).mean() == pytest.approx(folded.second_moment, rel=0.01)
    assert slope_of(operators, STANDARD_GAUSSIAN) == pytest.approx(0.5 * 9 / 4, rel=1e-2)


def test_a_gate_keeps_its_depth() -> None:
    assert Gate(2.0, depth=3).started == Scale(2.0, depth=3)
    assert Gate(2.0, depth=3).opened == Scale(1.0, depth=3)


@pytest.mark.parametrize(
    ("size", "inverse", "opened", "started"),
    [(0.3, False, 1.0, 0.3), (-0.3, False, -1.0, -0.3), (0.3, True, 1.0, 1 / 0.3), (1e-4, False, 1.0, 1e-4)]
    + [(None, False, 1.0, 1.0), (0.0, False, 1.0, 1e-6)],
)
def test_a_gate_is_open_for_drawing_and_starts_as_it_is(
    size: float | None, inverse: bool, opened: float, started: float
) -> None:
    gate = Gate(size, inverse)
    assert (gate.opened.factor, gate.started.factor) == pytest.approx((opened, started))


# Weights


def test_units_leave_kernel_positions_out() -> None:
    kernel = Weight(3 * 9, 8 * 9, kernel_size=3.0, kernel_axes=2)
    assert (kernel.taps, kernel.units_in, kernel.units_out, kernel.slides) == (9, 3, 8, True)
    patches = Weight(3 * 16, 8, kernel_size=4.0, kernel_axes=2, patches=True)
    assert (patches.units_in, patches.units_out, patches.slides) == (3, 8, False)
    assert not Weight(12, 8).slides


def test_a_kernel_is_as_long_as_its_side_and_patches_are_not() -> None:
    kernel = Weight(27, 72, kernel_size=3.0, kernel_axes=2)
    edge = Edge("x", "y", (Activation("relu"), kernel))
    assert [edge.length(weight) for weight in (0.0, 1.0, 0.5)] == [1.0, 3.0, 2.0]
    assert edge.depth == 1
    assert replace(kernel, patches=True).length(1.0) == 0.0


def test_an_edge_is_read_before_its_weight_and_delivers_after_it() -> None:
    edge = Edge("x", "y", (Activation("relu"), Weight(4, 4, gain=0.5), Activation("tanh")))
    assert (edge.before, edge.after) == ((Activation("relu"),), (Activation("tanh"),))
    assert edge.second_moment_read(STANDARD_GAUSSIAN) == pytest.approx(0.5)
    values = np.tanh(samples(Moments(0.0, 2.0)))
    assert (values**2).mean() == pytest.approx(edge.moments_delivered(2.0).second_moment, rel=0.01)
    assert edge.words() == "relu, then weight, then tanh"
    assert Edge("x", "y").words() == "identity"


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_a_recurrent_block_delivers_what_a_simulated_cell_does(kind: str) -> None:
    generator = np.random.default_rng(3)

    def draw() -> Array:
        return generator.standard_normal(100_000)

    def sigmoid(z: Array) -> Array:
        result: Array = 1 / (1 + np.exp(-z))
        return result

    state, cell = np.zeros(100_000), np.zeros(100_000)
    for _ in range(60):
        spread = math.sqrt(1 + (state**2).mean())
        if kind == "lstm":
            cell = sigmoid(spread * draw()) * cell + sigmoid(spread * draw()) * np.tanh(spread * draw())
            state = sigmoid(spread * draw()) * np.tanh(cell)
        elif kind == "gru":
            update = sigmoid(spread * draw())
            state = update * state + (1 - update) * np.tanh(spread * draw())
        else:
            state = np.tanh(spread * draw())
    assert Recurrent(kind=kind).output_moments(7.0).second_moment == pytest.approx((state**2).mean(), rel=0.03)


def test_two_weights_on_one_edge_are_refused() -> None:
    with pytest.raises(GraphError, match=r"edge x->y has two weights.*vertex between"):
        Edge("x", "y", (Weight(), Weight()))


# Plain values


@pytest.mark.parametrize(
    "operator",
    [operator for operator, _, _ in CASES.values()]
    + [Weight(27, 72, 3.0, 2, 4, 0.75, True), Recurrent(4, 8, kind="gru"), Steer(depth=1)],
    ids=lambda operator: operator.words(),
)
def test_an_operator_survives_plain_values(operator: Operator) -> None:
    assert operator_of(operator.to_dict()) == operator


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"op": "convolve"}, "'convolve'; choose one of"),
        ({}, "operator None"),
        ({"op": "weight", "fan_in": -1}, "fan_in .* is -1; give a whole number"),
        ({"op": "weight", "patches": 1}, "patches .* is 1; give true or false"),
        ({"op": "scale", "factor": "2"}, "factor .* is '2'; give a number"),
        ({"op": "activation", "name": 3}, "name .* is 3; give a text"),
        ({"op": "weight", "kernel_size": -3.0}, "kernel_size .* is -3.0; give a number from 1 up"),
        ({"op": "weight", "gain": -1.0}, "gain .* is -1.0; give a number from 0 up"),
        ({"op": "average", "window": 0}, "window .* is 0; give a number from 1 up"),
        ({"op": "gate", "size": "1"}, "size .* is '1'; give a number, or nothing"),
        ({"op": "concat_block", "fraction": 5.0}, "fraction .* is 5.0; give a number up to 1"),
        ({"op": "recurrent", "kind": "foo"}, "kind 'foo'; choose one of lstm"),
    ],
)
def test_damaged_operators_are_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(GraphError, match=words):
        operator_of(values)
