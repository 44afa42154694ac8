"""What does not fit is said with what to give, whichever way in was taken."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import evenstep as es
from evenstep.planning import optimizer_choice
from evenstep.search import LocalEngine
from evenstep.search.tensors import as_tensors, example_of

torch.set_num_threads(1)
INPUTS = torch.randn(48, 8, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[:, 0] > 0).long()
TOKENS = torch.randint(1, 7, (32, 6), generator=torch.Generator().manual_seed(1))


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


class Two(nn.Module):
    """Returns its logits among other things."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.body, self.kind = classifier(), kind

    def forward(self, x: Tensor) -> Any:
        logits = self.body(x)
        return {"tuple": (logits, x), "logits": {"logits": logits}, "scores": {"scores": logits}}[self.kind]


class PerToken(nn.Module):
    """Logits with classes last, as language models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.readout = nn.Embedding(7, 8), nn.Linear(8, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.readout(F.relu(self.table(tokens)))
        return logits


class OnMeta(nn.Sequential):
    def __init__(self) -> None:
        with torch.device("meta"):
            super().__init__(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def through_auto(make: Any, data: Any) -> Any:
    return es.auto_plan(make(), data, batch_size=16, train_steps=32, engine=LocalEngine(workers=1), progress=False)


def through_search(make: Any, data: Any) -> Any:
    options: dict[str, Any] = {"steps": 4, "seeds": 1, "grid": [0.1], "on_failure": "return"}
    return es.search_lr(make, data, batch_size=16, engine=LocalEngine(workers=1), **options)


CE = re.escape("torch.nn.functional.cross_entropy")


@pytest.mark.parametrize("way", [through_auto, through_search])
@pytest.mark.parametrize(
    ("make", "data", "message"),
    [
        (classifier, (INPUTS, LABELS + 6), r"has 3 outputs.* target of example 0 is \d; give labels from 0 to 2"),
        (classifier, (INPUTS.double(), LABELS), r"are torch\.float64 and .* torch\.float32: give inputs\.float\(\)"),
        (lambda: classifier().double(), (INPUTS, LABELS), r"parameters torch\.float64: give inputs\.double\(\)"),
        (
            classifier,
            ((INPUTS > 0).byte(), LABELS),
            r"are torch\.uint8 and .* torch\.float32: give inputs\.float\(\)",
        ),
        (partial(Two, "tuple"), (INPUTS, LABELS), rf"Two returns a tuple.*loss=.*{CE}\(output\[0\], target\)"),
        (partial(Two, "logits"), (INPUTS, LABELS), rf"a dict.*loss=lambda .*{CE}\(output\['logits'\], target\)"),
        (partial(Two, "scores"), (INPUTS, LABELS), rf"a dict.*loss=lambda .*{CE}\(output\['scores'\], target\)"),
        (
            PerToken,
            (TOKENS, TOKENS.roll(-1, 1)),
            rf"logits \((16|4), 6, 7\) .*\((16|4), 6\).*loss=.*{CE}\(output\.flatten\(0, 1\), target\.flatten\(\)\)",
        ),
        (OnMeta, (INPUTS, LABELS), r"'0\.weight' of OnMeta is on the device 'meta'.*to_empty.*initialise"),
        (
            classifier,
            (INPUTS[:, :5], LABELS),
            r"does not run on a batch of the data \(\(16, 5\) torch.float32\)",
        ),
    ],
    ids=["labels", "doubles", "floats", "bytes", "tuple", "logits", "scores", "per token", "meta", "width"],
)
def test_what_does_not_fit_is_said_with_what_to_give(way: Any, make: Any, data: Any, message: str) -> None:
    with pytest.raises(es.EvenstepError, match=message) as raised:
        way(make, data)
    assert "\n" not in str(raised.value)


def test_what_is_said_to_give_is_right() -> None:
    def tokens(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten())

    pair = (TOKENS, TOKENS.roll(-1, 1))
    options: dict[str, Any] = {"steps": 4, "seeds": 1, "grid": [0.1], "batch_size": 16, "on_failure": "return"}
    options["engine"] = LocalEngine(workers=1)
    es.search_lr(PerToken, pair, loss=tokens, **options)
    es.search_lr(
        partial(Two, "tuple"),
        (INPUTS, LABELS),
        loss=lambda output, target: F.cross_entropy(output[0], target),
        **options,
    )


@pytest.mark.parametrize("square", [False, True])
def test_logits_with_classes_in_the_middle_are_what_the_cross_entropy_takes(square: bool) -> None:
    class Middle(PerToken):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens).transpose(1, 2)

    tokens = torch.cat([TOKENS, TOKENS[:, :1]], 1) if square else TOKENS
    through_search(Middle, (tokens, tokens.roll(-1, 1)))


def test_a_plan_of_a_network_on_meta_is_not_refined() -> None:
    plan = es.plan(OnMeta(), torch.zeros(2, 8, device="meta"), base=0.1, optimizer="sgd")
    with pytest.raises(es.InputError, match=r"'0\.weight' of OnMeta is on the device 'meta'"):
        es.refine(OnMeta(), plan, (INPUTS, LABELS), engine=LocalEngine(workers=1))


@pytest.mark.parametrize("betas", [(0.9, 0.9, 0.9), (0.9,), 0.9])
def test_betas_that_are_no_pair_are_refused_where_they_are_given(betas: Any) -> None:
    with pytest.raises(es.InputError, match=r"betas of the optimizer is .*; give a pair of numbers"):
        optimizer_choice(partial(torch.optim.AdamW, betas=betas))
    listed: Any = [0.9, 0.95]
    assert optimizer_choice(partial(torch.optim.AdamW, betas=listed)).settings["betas"] == (0.9, 0.95)


# Models that do not run on two rows of a batch


class Packed(nn.Module):
    """As long as the longest row, which two rows need not hold."""

    def __init__(self, *, whole: bool = False) -> None:
        super().__init__()
        self.table, self.cell, self.readout = nn.Embedding(7, 8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 7)
        self.whole = whole

    def forward(self, tokens: Tensor, tags: Tensor) -> dict[str, Tensor]:
        lengths = (tokens != 0).sum(1)
        packed = pack_padded_sequence(self.table(tokens), lengths, batch_first=True, enforce_sorted=False)
        length = tokens.shape[1] if self.whole else None
        states, _ = pad_packed_sequence(self.cell(packed)[0], batch_first=True, total_length=length)
        logits = self.readout(states)
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), tags.flatten())}


class InBatch(nn.Module):
    """Holds each example against seven others, as contrastive models do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.readout = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        if len(x) < 8:
            raise ValueError(f"{len(x)} examples are too few")
        z: Tensor = self.readout(F.relu(self.second(F.relu(self.first(x)))))
        return z


def rows(longest: int) -> dict[str, Tensor]:
    tokens = TOKENS.clone()
    tokens[:, 4:] = 0
    tokens[longest, :] = TOKENS[longest, :]
    return {"tokens": tokens, "tags": tokens}


def test_a_model_that_does_not_run_on_two_rows_gets_a_batch() -> None:
    (inputs, _), _ = as_tensors(rows(longest=5))
    assert example_of(inputs, Packed(), batch=16)["tokens"].shape == (16, 6)
    assert example_of(inputs, Packed(whole=True), batch=16)["tokens"].shape == (2, 6)
    with pytest.raises(es.TraceError, match=r"Packed does not run on a batch of the data \(\(4, 6\) .*batch_size"):
        example_of(inputs, Packed(), batch=4)


def test_a_model_of_whole_batches_goes_through_the_three_lines() -> None:
    def spread(output: Tensor) -> Tensor:
        return F.cross_entropy(output @ output.T / 4, torch.arange(len(output)))

    options: dict[str, Any] = {"train_steps": 32, "engine": LocalEngine(workers=1), "progress": False}
    plan = es.auto_plan(InBatch(), INPUTS[:, None].flatten(1), loss=spread, batch_size=16, **options)
    assert plan.base is not None


class Trimmed(PerToken):
    """Cuts its output after the longest row, without a cell."""

    def forward(self, tokens: Tensor, tags: Tensor) -> Any:  # type: ignore[override]
        logits = super().forward(tokens[:, : int((tokens != 0).sum(1).max())])
        return {"logits": logits, "loss": F.cross_entropy(logits.flatten(0, 1), tags.flatten())}


@pytest.mark.filterwarnings("ignore::evenstep.PlanWarning", "ignore::evenstep.SearchWarning")
def test_a_later_batch_without_its_longest_row_says_what_to_do() -> None:
    with pytest.raises(
        es.InputError, match=r"to match target batch_size .*; examples are padded to the longest length .*total"
    ):
        through_search(Trimmed, rows(longest=5))
