"""Check that wrong input is refused before anything is trained, and that right input may come in several forms."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import evenstep as es
from evenstep.search import LocalEngine
from evenstep.search.tensors import as_tensors
from tests.search import plain

torch.set_num_threads(1)

INPUTS, LABELS = plain.images(24)


class NoTraining:
    """An engine that must not be reached."""

    def run(self, *_: Any) -> Any:
        raise AssertionError("training began")

    def close(self) -> None: ...


def search(make: Any = plain.mlp, data: Any = (INPUTS, LABELS), **options: Any) -> es.LRSearch:
    return es.search_lr(make, data, **{"engine": NoTraining(), **options})


def changed(tensor: Tensor, value: float) -> Tensor:
    other = tensor.clone()
    other.view(-1)[7] = value
    return other


# Data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"data is NoneType; give a pair"),
        (INPUTS, r"data is Tensor without targets; give \(inputs, targets\)"),
        ((INPUTS,), r"holds 1 tensor and no target; give \(inputs, targets\)"),
        ((INPUTS, LABELS, LABELS[:-1]), r"give tensors of one length"),
        ({"x": INPUTS, "words": "many"}, r"'words' of dict holds str; give tensors only, or leave that entry out"),
        ((INPUTS.numpy(), LABELS.numpy()), r"give a pair of tensors"),
        ((INPUTS, LABELS[:-1]), r"\(24, 2, 6, 6\).*\(23,\).*as many targets as inputs"),
        ((INPUTS, torch.tensor(1)), r"as many targets as inputs"),
        ((INPUTS[:0], LABELS[:0]), r"data is empty; give at least one example"),
        ((changed(INPUTS, math.nan), LABELS), r"the inputs hold values that are not finite; clean"),
        ((changed(INPUTS, math.inf), LABELS), r"the inputs hold values that are not finite; clean"),
        ((INPUTS, changed(torch.ones(24), math.nan)), r"the targets hold values that are not finite; clean"),
        ((INPUTS, changed(torch.ones(24), -math.inf)), r"the targets hold values that are not finite; clean"),
        (TensorDataset(INPUTS[:0], LABELS[:0]), r"data is empty"),
        (DataLoader(TensorDataset(changed(INPUTS, math.nan), LABELS)), r"inputs hold values that are not finite"),
    ],
)
def test_wrong_data_is_refused(data: Any, message: str) -> None:
    with pytest.raises(es.InputError, match=message):
        search(data=data)


class Pairs(Dataset[tuple[Any, int]]):
    def __init__(self, as_numpy: bool = False) -> None:
        self.as_numpy = as_numpy

    def __len__(self) -> int:
        return len(INPUTS)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if index >= len(self):
            raise IndexError
        return (INPUTS[index].numpy() if self.as_numpy else INPUTS[index]), int(LABELS[index])


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(zip(INPUTS, LABELS, strict=True))


class EmptyStream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(())


@pytest.mark.parametrize(
    "data",
    [
        [INPUTS, LABELS],
        TensorDataset(INPUTS, LABELS),
        Pairs(),
        Pairs(as_numpy=True),
        DataLoader(TensorDataset(INPUTS, LABELS), batch_size=5, shuffle=True, drop_last=True),
        DataLoader(Pairs(), batch_size=7),
        DataLoader(Stream(), batch_size=5),
    ],
    ids=["list", "tensors", "pairs", "numpy", "loader", "loader of pairs", "loader of a stream"],
)
def test_every_form_of_data_is_the_same_data(data: Any) -> None:
    state = torch.random.get_rng_state()
    (inputs, targets), loss = as_tensors(data)
    assert torch.equal(state, torch.random.get_rng_state())
    assert isinstance(inputs, Tensor)
    assert isinstance(targets, Tensor)
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(targets, LABELS)
    assert loss is F.cross_entropy
    assert targets.dtype == torch.int64


def test_a_stream_without_a_loader_and_an_empty_one_are_refused() -> None:
    with pytest.raises(es.InputError, match=r"Stream has no length; give a map-style Dataset, a DataLoader"):
        search(data=Stream())
    with pytest.raises(es.InputError, match="data is empty"):
        search(data=DataLoader(EmptyStream(), batch_size=2))


def test_examples_of_different_shapes_are_refused_in_words() -> None:
    class Ragged(Pairs):
        def __getitem__(self, index: int) -> tuple[Any, int]:
            return torch.zeros(index + 1), 0

    with pytest.raises(es.InputError, match="Ragged"):
        search(data=Ragged())


def test_more_inputs_than_a_model_takes_are_refused_in_words() -> None:
    with pytest.raises(
        es.EvenstepError, match=r"(too many|takes 2) positional arguments.*; give inputs as its forward takes them"
    ):
        search(data=TensorDataset(INPUTS, LABELS, LABELS))


# Network and loss


def unreduced(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (unreduced, r"the loss returned \(24,\) for a batch; return one number"),
        (lambda output, target: float(output.sum()), r"the loss returned float for a batch; return one number"),
        (F.mse_loss, r"do not fit the data \(inputs \(24, 2, 6, 6\), targets \(24,\)"),
        (lambda output, target: F.cross_entropy(output, target)[None], r"the loss returned \(1,\)"),
        (lambda output, target: None, r"the loss returned NoneType"),
    ],
)
def test_a_loss_that_is_no_single_number_is_refused(loss: Any, message: str) -> None:
    with pytest.raises(es.InputError, match=message):
        search(loss=loss)


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(72, 3).double().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x.flatten(1))
        return result


@pytest.mark.parametrize("make", [Frozen, nn.Flatten])
def test_a_model_without_trainable_parameters_is_refused(make: Any) -> None:
    with pytest.raises(es.EvenstepError, match=r"no trainable parameters|nothing to train"):
        search(make)


def test_a_function_that_returns_no_module_is_refused() -> None:
    with pytest.raises(es.InputError, match=r"make_model returned str; return a torch\.nn\.Module"):
        search(lambda: "model")


def test_labels_outside_the_classes_are_refused() -> None:
    with pytest.raises(es.InputError, match="do not fit the data"):
        search(data=(INPUTS, LABELS + 7))


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": []}, "the grid is empty; give at least one learning rate"),
        ({"grid": [0.1, -0.2]}, r"grid .*-0\.2; give a finite number above 0"),
        ({"grid": [0.0]}, r"grid .*0\.0; give"),
        ({"grid": [math.nan]}, "grid .*nan; give"),
        ({"grid": [math.inf]}, "grid .*inf; give"),
        ({"grid": ["0.1"]}, r"grid .*'0\.1'; give"),
        ({"start": -1.0}, r"start .*-1\.0; give"),
        ({"start": True}, "start .*True; give"),
        ({"seeds": 0}, "seeds is 0; give a whole number from 1 up"),
        ({"seeds": True}, "seeds is True"),
        ({"steps": 0}, "steps is 0; give a whole number from 1 up"),
        ({"epochs": 1.5}, r"epochs is 1\.5"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"momentum": -0.1}, r"momentum is -0\.1"),
        ({"weight_decay": math.nan}, "weight_decay is nan"),
        ({"optimizer": "lamb"}, "optimizer is 'lamb'; choose one of"),
        ({"init": "magic"}, "init is 'magic'"),
        ({"engine": "cluster"}, "engine is 'cluster'; choose 'local' or 'ray'"),
        ({"engine": 3}, "engine is 3; choose 'local' or 'ray'"),
        ({"on_failure": "ignore"}, "on_failure is 'ignore'; choose one of raise, return"),
    ],
)
def test_wrong_options_are_named_with_their_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(es.InputError, match=message):
        search(**options)


def test_numbers_of_numpy_are_numbers() -> None:
    options: dict[str, Any] = {"seeds": 1, "steps": 2, "on_failure": "return", "engine": LocalEngine(workers=1)}
    ours = search(grid=[0.01, 0.02], **options)
    assert search(grid=np.array([0.01, 0.02]), **options).losses == ours.losses


def test_a_loader_says_how_many_examples_a_step_takes() -> None:
    loader = DataLoader(TensorDataset(INPUTS, LABELS), batch_size=2)
    options: dict[str, Any] = {"epochs": 1, "grid": [0.1], "seeds": 1, "on_failure": "return"}
    found = es.search_lr(plain.mlp, loader, **options)
    assert found.losses == es.search_lr(plain.mlp, (INPUTS, LABELS), batch_size=2, **options).losses
    assert found.losses != es.search_lr(plain.mlp, (INPUTS, LABELS), **options).losses
    with pytest.raises(es.InputError, match="batch_size is 3, but the DataLoader's is 2; leave batch_size out"):
        es.search_lr(plain.mlp, loader, batch_size=3, **options)


@pytest.mark.parametrize("name", [3, "", "  "])
def test_a_name_is_a_few_words(name: Any, tmp_path: Path) -> None:
    with pytest.raises(es.InputError, match=r"name is .* give a few words that stand for the model and the loss"):
        search(name=name)
    options: dict[str, Any] = {"grid": [0.1], "epochs": 1, "seeds": 1, "on_failure": "return"}
    options["engine"] = LocalEngine(workers=1)
    assert search(name="a few words", store=tmp_path / "s.db", **options).grid == (0.1,)
