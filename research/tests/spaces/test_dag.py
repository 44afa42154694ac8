"""Check the DAG networks against a slow evaluation in numpy that shares no code with them."""

import itertools
import pickle
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from evenstep.errors import EvenstepError, GraphError, InputError
from evenstep_research.spaces import ACTIVATIONS, DagCNN, DagMLP

Array = npt.NDArray[np.float64]

CODES = (
    "1",  # no weight at all between stem and readout
    "2",
    "2_02_002",  # chain
    "2_12_112",
    "2_22_222",
    "2_20_102",  # 0 -> 1 and no way on from 1
    "0_22_212",  # nothing reaches 1
    "1_11_221_2101",
)
SLOW_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda z: np.where(z > 0, z, 0.0),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "tanh": np.tanh,
}


def slow_linear(weights: dict[str, Array], name: str, x: Array) -> Array:
    product: Array = np.einsum("oi,bi->bo", weights[f"{name}.weight"], x)
    return product + weights.get(f"{name}.bias", np.zeros(1))


def slow_conv(weights: dict[str, Array], name: str, x: Array) -> Array:
    kernel = weights[f"{name}.weight"]
    size = kernel.shape[-1]
    batch, _, height, width = x.shape
    out = np.zeros((batch, kernel.shape[0], height, width))
    for row, column, i, j in itertools.product(range(height), range(width), range(size), range(size)):
        y, z = row + i - size // 2, column + j - size // 2
        if 0 <= y < height and 0 <= z < width:
            out[:, :, row, column] += x[:, :, y, z] @ kernel[:, :, i, j].T
    bias = weights.get(f"{name}.bias", np.zeros(kernel.shape[0]))
    return out + bias[:, None, None]


def slow_norm(weights: dict[str, Array], vertex: int, x: Array, *, norm: str) -> Array:
    if norm == "none":
        return x
    space = tuple(range(2, x.ndim))
    axes = (0, *space) if norm == "batch" else (1, *space)
    centred = x - x.mean(axis=axes, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=axes, keepdims=True) + 1e-5)
    shape = (-1, *(1 for _ in space))
    gain, bias = (weights[f"norms.{vertex}.{kind}"].reshape(shape) for kind in ("weight", "bias"))
    return np.asarray(scaled * gain + bias)


def slow_forward(
    model: nn.Module, x: Tensor, *, code: str, order: str, norm: str = "none", activation: str = "relu"
) -> Array:
    """Evaluate a code by recursion from the output, so that dead edges are never asked for."""
    weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    rows = code.split("_")
    conv = weights["stem.weight"].ndim == 4
    layer = slow_conv if conv else slow_linear
    act = SLOW_ACTIVATIONS[activation]
    data = x.numpy() if conv else x.numpy().reshape(len(x), -1)

    def reachable(vertex: int) -> bool:
        return vertex == 0 or any(d != "0" and reachable(s) for s, d in enumerate(rows[vertex - 1]))

    def field(vertex: int) -> Array:
        if vertex == 0:
            stem = layer(weights, "stem", data)
            return stem if order == "pre" else act(stem)
        total = np.zeros(1)
        for source, digit in enumerate(rows[vertex - 1]):
            if digit == "0" or not reachable(source):
                continue
            if digit == "1":
                total = total + field(source)
            elif order == "pre":
                activated = act(slow_norm(weights, source, field(source), norm=norm))
                total = total + layer(weights, f"edges.{source}_{vertex}", activated)
            else:
                total = total + act(layer(weights, f"edges.{source}_{vertex}", field(source)))
        return total

    last = field(len(rows))
    if order == "pre":
        last = act(slow_norm(weights, len(rows), last, norm=norm))
    return slow_linear(weights, "readout", last.mean(axis=(2, 3)) if conv else last)


def shake_(model: nn.Module, generator: torch.Generator) -> None:
    """Draw every parameter anew, norms too: gains of one and biases of zero would hide mistakes."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) / 2)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("order", "norm", "activation", "bias"),
    [
        ("pre", "none", "relu", True),
        ("pre", "none", "tanh", False),
        ("pre", "batch", "relu", True),
        ("pre", "layer", "silu", False),
        ("post", "none", "relu", True),
        ("post", "none", "silu", False),
    ],
)
def test_mlp_equals_the_slow_evaluation(code: str, order: str, norm: str, activation: str, bias: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    model = DagMLP(
        code, width=5, inputs=12, classes=3, order=order, norm=norm, activation=activation, bias=bias
    ).double()
    shake_(model, generator)
    x = torch.randn(6, 3, 2, 2, generator=generator, dtype=torch.float64)
    expected = slow_forward(model, x, code=code, order=order, norm=norm, activation=activation)
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize(
    ("order", "norm", "kernel_size"),
    [("pre", "none", 1), ("pre", "batch", 3), ("pre", "layer", 5), ("post", "none", 3)],
)
def test_cnn_equals_the_slow_evaluation(code: str, order: str, norm: str, kernel_size: int) -> None:
    generator = torch.Generator().manual_seed(2)
    model = DagCNN(code, width=4, channels=2, classes=3, kernel_size=kernel_size, order=order, norm=norm).double()
    shake_(model, generator)
    x = torch.randn(3, 2, 4, 5, generator=generator, dtype=torch.float64)
    expected = slow_forward(model, x, code=code, order=order, norm=norm)
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-9, atol=1e-9)


def test_every_activation_is_the_named_one() -> None:
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    for name, slow in SLOW_ACTIVATIONS.items():
        np.testing.assert_allclose(ACTIVATIONS[name](x).numpy(), slow(x.numpy()), atol=1e-12)
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), nn.GELU()(x))


@pytest.mark.parametrize(
    ("code", "edges"),
    [
        ("2_12_112", ["0_1", "1_2", "2_3"]),
        ("2_20_102", ["0_2", "2_3"]),
        ("0_22_212", ["0_2", "0_3", "2_3"]),
        ("1_11_111", []),
    ],
)
@pytest.mark.parametrize("make", [DagMLP, DagCNN])
def test_only_live_weights_become_layers(make: type[DagMLP | DagCNN], code: str, edges: list[str]) -> None:
    model = make(code, width=4)
    assert list(model.edges) == edges
    names = [name for name, _ in model.named_parameters()]
    layers = ["stem", *(f"edges.{edge}" for edge in edges), "readout"]
    assert names == [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


def test_every_live_parameter_gets_a_gradient() -> None:
    model = DagMLP("2_20_102", width=8, inputs=6, norm="layer")
    model(torch.randn(4, 6, generator=torch.Generator().manual_seed(3))).square().sum().backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_norms_stand_at_the_sources_of_weights_and_at_the_last_vertex() -> None:
    # 0 feeds weights, 1 only skips, 2 a weight, 3 the readout.
    model = DagMLP("2_21_112", width=4, inputs=4, norm="batch")
    assert list(model.norms) == ["0", "2", "3"]
    assert list(DagMLP("2_21_112", width=4, inputs=4).norms) == []


def test_a_norm_runs_once_however_many_weights_leave_its_vertex() -> None:
    model = DagMLP("2_22_222", width=4, inputs=4, norm="batch")
    model(torch.randn(8, 4, generator=torch.Generator().manual_seed(4)))
    counts = {name: int(value) for name, value in model.named_buffers() if "num_batches" in name}
    assert counts == {f"norms.{vertex}.num_batches_tracked": 1 for vertex in range(4)}


def test_bias_false_leaves_only_the_biases_of_norms() -> None:
    model = DagCNN("2_12", width=4, norm="layer", bias=False)
    biases = [name for name, _ in model.named_parameters() if name.endswith("bias")]
    assert biases == ["norms.0.bias", "norms.1.bias", "norms.2.bias"]


def test_the_defaults_fit_cifar() -> None:
    x = torch.zeros(2, 3, 32, 32)
    assert DagMLP("2_12_112")(x).shape == (2, 10)
    assert DagCNN("2_12_112", width=8)(x).shape == (2, 10)


def test_a_model_survives_pickling() -> None:
    model = DagMLP("2_12_112", width=4, inputs=4)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(5))
    assert torch.equal(pickle.loads(pickle.dumps(model))(x), model(x))


@pytest.mark.parametrize(
    ("make", "mentions"),
    [
        (lambda: DagMLP("2", width=0), ("width", "0", "at least 1")),
        (lambda: DagMLP("2", width=True), ("width", "True")),
        (lambda: DagMLP("2", inputs=-3), ("inputs", "-3")),
        (lambda: DagMLP("2", classes=2.5), ("classes", "2.5")),  # type: ignore[arg-type]
        (lambda: DagMLP("2", order="mid"), ("order", "'mid'", "pre, post")),
        (lambda: DagMLP("2", norm="group"), ("norm", "'group'", "none, batch, layer")),
        (lambda: DagMLP("2", activation="selu"), ("activation", "'selu'", "relu")),
        (lambda: DagMLP("2", order="post", norm="batch"), ("norm", "'batch'", "order 'pre'")),
        (lambda: DagCNN("2", kernel_size=4), ("kernel_size", "4", "odd")),
        (lambda: DagCNN("2", kernel_size=0), ("kernel_size", "0")),
        (lambda: DagCNN("2", channels=0), ("channels", "0")),
    ],
)
def test_bad_options_name_the_thing_the_value_and_the_remedy(
    make: Callable[[], nn.Module], mentions: tuple[str, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert all(word in str(caught.value) for word in mentions), str(caught.value)


@pytest.mark.parametrize("code", ["", "3", "2_1", "2_120", "a", "2__2"])
def test_malformed_codes_raise(code: str) -> None:
    with pytest.raises(EvenstepError):
        DagMLP(code, width=4, inputs=4)


@pytest.mark.parametrize("code", ["0", "2_00", "0_02"])
def test_a_code_without_a_live_path_raises(code: str) -> None:
    with pytest.raises(GraphError):
        DagMLP(code, width=4, inputs=4)
