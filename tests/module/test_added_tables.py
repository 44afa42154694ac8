"""Tables that are added to a signal: they are drawn no larger than it, and what is meant to be small stays so."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import evenstep as es

pytestmark = pytest.mark.filterwarnings("ignore:.* of all parameter values are kept as they are:evenstep.PlanWarning")

WORDS, LENGTH, WIDTH = 50, 24, 64


class Words(nn.Module):
    """Words and their places, a residual branch, and a readout that may be tied to the table of words."""

    def __init__(self, std: float, *, tied: bool, looked_up: bool, mean: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH) if looked_up else None
        self.table = None if looked_up else nn.Parameter(torch.zeros(1, LENGTH, WIDTH))
        nn.init.normal_(self.places.weight if self.places else self.table, mean, std)  # type: ignore[arg-type]
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.readout = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.readout.weight = self.words.weight

    def stream(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what words and places bring."""
        places = self.table if self.places is None else self.places(torch.arange(tokens.shape[1]))
        assert places is not None
        return self.words(tokens), places

    def forward(self, tokens: Tensor) -> Tensor:
        words, places = self.stream(tokens)
        stream = words + places
        logits: Tensor = self.readout(stream + self.layer(torch.relu(self.norm(stream))))
        return logits


def tokens() -> Tensor:
    return torch.randint(WORDS, (64, LENGTH), generator=torch.Generator().manual_seed(0))


def planned(model: Words, init: str = "conserve") -> es.Plan:
    own = es.trace(model, tokens())
    return es.plan(model, tokens(), base=0.01, optimizer="adam", init=init, base_graph=own)


def table_of(plan: es.Plan) -> es.ParameterPlan:
    return next(p for p in plan if p.name in ("table", "places.weight"))


def rms(tensor: Tensor) -> float:
    return float(tensor.detach().pow(2).mean().sqrt())


@pytest.mark.parametrize("looked_up", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_a_table_that_starts_at_random_does_not_drown_what_it_is_added_to(tied: bool, looked_up: bool) -> None:
    torch.manual_seed(0)
    model = Words(1.0, tied=tied, looked_up=looked_up)
    plan = planned(model)
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(1))
    words, places = model.stream(tokens())
    assert rms(places) == pytest.approx(rms(words), rel=0.1)
    assert rms(words) < 1 / math.sqrt(3 * WIDTH) if tied else rms(words) == pytest.approx(1 / math.sqrt(2), rel=0.1)
    measured = {v.name: v.measured for v in plan.vertices if v.measured is not None and v.name != "readout"}
    assert all(0.8 < ratio < 1.25 for ratio in measured.values())
    assert plan["words.weight"].lr_scale == pytest.approx(table_of(plan).lr_scale, rel=0.5)


@pytest.mark.parametrize("looked_up", [True, False])
def test_a_table_that_is_smaller_than_the_signal_stays(looked_up: bool) -> None:
    torch.manual_seed(0)
    plan = planned(Words(0.02, tied=False, looked_up=looked_up))
    assert table_of(plan).kept
    assert table_of(plan).std == pytest.approx(0.02, rel=0.1)


def test_a_table_that_is_kept_frozen_or_meant_as_a_constant_stays() -> None:
    torch.manual_seed(0)
    frozen, constant = (Words(1.0, tied=True, looked_up=False, mean=mean) for mean in (0.0, 3.0))
    assert frozen.table is not None
    frozen.table.requires_grad_(False)
    assert table_of(planned(Words(1.0, tied=True, looked_up=False), init="keep")).kept
    assert "table" not in planned(frozen)
    assert table_of(planned(constant)).kept


def test_a_plan_with_such_a_table_reads_itself_back() -> None:
    torch.manual_seed(0)
    plan = planned(Words(1.0, tied=True, looked_up=True))
    assert es.Plan.from_json(plan.to_json()) == plan
    assert "no larger than the signal" in table_of(plan).init_reason
