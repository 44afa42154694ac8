"""Check the demo's numbers against plain torch loops, its words against hand-made results, and its record."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import evenstep as es
from evenstep.demo import MARKS, Demo, Measured, draw, measure, sentences
from evenstep.demo.data import digits, text
from evenstep.demo.measuring import BATCH_SIZE, DEFAULT_RATE, GRID, loss_of_text
from evenstep.demo.networks import KINDS, LENGTH, VOCABULARY, Chain, Kind, LanguageModel
from evenstep.demo.words import rows, summary, table
from evenstep.errors import EvenstepError, InputError
from evenstep.report.marks import filled
from evenstep.search.recipe import CosineSchedule, Recipe
from evenstep.search.replicas import order

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "results" / "demo" / "record.json"
STEPS = 20
KIND = Kind("plain chain", "digits", (2,), Chain, stacked=True)
TEXT_KIND = Kind("tied transformer", "text", (1,), LanguageModel, stacked=False)


def plain_loop(model: nn.Module, optimizer: torch.optim.Optimizer, data: tuple[Tensor, Tensor], loss: Any) -> float:
    """Train as anyone would; return the mean loss of the last tenth of the steps."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, CosineSchedule(STEPS))
    losses = []
    for index in order(len(data[0]), Recipe(batch_size=BATCH_SIZE, steps=STEPS)):
        optimizer.zero_grad()
        value = loss(model(data[0][index]), data[1][index])
        value.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(value.detach()))
    return sum(losses[-2:]) / 2


@pytest.mark.parametrize("kind", [KIND, TEXT_KIND], ids=lambda kind: kind.name)
def test_both_ways_are_what_plain_loops_of_torch_give(kind: Kind) -> None:
    made = measure(steps=STEPS, kinds=[kind], workers=1)
    network, plan = made.networks[0], next(iter(made.plans.values()))
    data, loss = (digits(), functional.cross_entropy) if kind is KIND else (text(), loss_of_text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind.make(kind.depths[0])
    plain = plain_loop(model, torch.optim.AdamW(model.parameters(), DEFAULT_RATE), data, loss)
    assert network.default == pytest.approx(plain, rel=2e-3)
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    assert network.plan == pytest.approx(plain_loop(model, plan.optimizer(model), data, loss), rel=2e-3)


def test_workers_and_repeats_change_nothing() -> None:
    runs = [measure(steps=STEPS, kinds=[KIND], workers=workers) for workers in (1, 1, 2)]
    assert runs[0].networks[0].one_rate == runs[1].networks[0].one_rate == runs[2].networks[0].one_rate
    assert runs[0].networks[0].planned == runs[1].networks[0].planned == runs[2].networks[0].planned


def test_what_a_worker_raises_is_raised_here_and_no_worker_is_left() -> None:
    import multiprocessing

    unfit = Kind("nothing", "digits", (1, 2), nn.Linear, stacked=False)  # type: ignore[arg-type]
    with pytest.raises(TypeError):  # before any worker starts
        measure(steps=STEPS, kinds=[unfit], workers=2)
    frozen = Kind("frozen", "digits", (1, 2), _frozen, stacked=False)
    with pytest.raises(EvenstepError, match="no trainable parameters"):
        measure(steps=STEPS, kinds=[frozen], workers=2)
    assert not multiprocessing.active_children()


def _frozen(depth: int) -> nn.Module:
    return Chain(depth).requires_grad_(False)


def test_all_kinds_run_on_their_data_and_tied_weights_are_one() -> None:
    for kind in KINDS:
        inputs, targets = (digits if kind.data == "digits" else text)()
        output = kind.maker(kind.depths[0])()(inputs[:3])
        assert output.shape == ((3, 10) if kind.data == "digits" else (3, LENGTH, VOCABULARY))
        assert int(targets.max()) < output.shape[-1]
    model = LanguageModel(1)
    assert model.readout.weight is model.embedding.weight
    x, y = text()
    assert torch.equal(x[:, 1:], y[:, :-1]), "targets are the bytes that follow"


def test_a_language_model_does_not_see_what_follows() -> None:
    model = LanguageModel(2)
    tokens = text()[0][:1].clone()
    before = model(tokens)
    tokens[0, -1] = (tokens[0, -1] + 1) % VOCABULARY
    assert torch.allclose(before[:, :-1], model(tokens)[:, :-1], atol=1e-6)


def network(depth: int, *, tuned: float, default: float, plan: float, base: float = 0.003) -> Measured:
    one_rate = dict.fromkeys(GRID, (9.0,)) | {0.016: (tuned,), DEFAULT_RATE: (default,)}
    planned = dict.fromkeys(GRID, (8.0,)) | {base: (plan,), 0.004: (plan - 0.25,)}
    return Measured("chain", depth, 1, one_rate, planned, base, ("a base",), 1.0, 3.0)


def by_hand() -> Demo:
    return Demo((network(2, tuned=1.0, default=2.0, plan=0.5), network(4, tuned=1.0, default=1.5, plan=1.25)), 20, 1)


def test_the_sentences_count_and_average_as_by_hand() -> None:
    first, lost, regret, cost = sentences(by_hand())
    assert "default rate on 2 of 2 networks, by 0.88 nats" in first  # (1.5 + 0.25) / 2
    assert "on 1 of 2, by 0.12 nats" in first  # (0.5 - 0.25) / 2
    assert lost == "It loses to the tuned rate on chain, depth 4 (+0.250)."
    assert "0.25 nats above the best multiples" in regret
    assert "1.0 s" in cost
    assert "3.0 s" in cost


def test_what_is_lost_is_marked() -> None:
    assert rows(by_hand()) == [
        ("chain, depth 2", "1.000 at 0.016", "2.000", "0.500", "-0.500"),
        ("chain, depth 4", "1.000 at 0.016", "1.500", "1.250", "+0.250 lost"),
    ]


def test_a_plan_that_diverges_is_lost_and_said() -> None:
    demo = Demo((network(2, tuned=1.0, default=math.inf, plan=math.inf),), 20, 1)
    assert rows(demo)[0][2:] == ("diverged", "diverged", "– lost")
    assert "on 0 of 1" in sentences(demo)[0]


def record(demo: Demo) -> dict[str, Any]:
    origin = {"device": "a CPU", "versions": {"torch": "2.0"}, "commit": "abc"}
    known = {"config": demo.config(), "results": demo.results(), "provenance": origin}
    return dict(json.loads(json.dumps(known)))


def test_a_record_gives_the_same_demo(tmp_path: Path) -> None:
    demo = Demo((network(2, tuned=1.0, default=math.inf, plan=0.5),), 20, 1)
    again = Demo.from_record(record(demo))
    assert again.networks == demo.networks
    draw(again, tmp_path / "again.png")
    draw(demo, tmp_path / "first.png")
    assert (tmp_path / "again.png").read_bytes() == (tmp_path / "first.png").read_bytes()
    page = filled("<!-- demo table -->\nold\n<!-- end -->\n", MARKS, record(demo))
    assert "| chain, depth 2 | 1.000 at 0.016 | diverged | 0.500 | -0.500 |" in page
    assert "a CPU, torch 2.0, commit abc" in page
    assert "old" not in page


@pytest.mark.parametrize("broken", [{}, {"config": {}, "results": [{}]}, {"config": {"steps": 1}, "results": 3}])
def test_another_record_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not the demo's"):
        Demo.from_record(broken)


@pytest.mark.parametrize("asked", [{"steps": 3}, {"seeds": 0}, {"workers": 0}])
def test_bad_numbers_are_refused(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(asked))):
        measure(**asked)


def test_the_picture_is_drawn_from_the_record(tmp_path: Path) -> None:
    from matplotlib.image import imread

    known = json.loads(RECORD.read_text())
    draw(Demo.from_record(known), tmp_path / "demo.png")
    drawn, kept = imread(tmp_path / "demo.png"), imread(ROOT / "docs" / "images" / "evenstep-demo.png")
    assert drawn.shape == kept.shape
    assert float(abs(drawn - kept).mean()) < 0.002  # fonts may differ by a hair
    assert {(row["kind"], row["depth"]) for row in known["results"]} == {(k.name, d) for k in KINDS for d in k.depths}
    assert table(known).count("\n") > len(known["results"])
    assert summary(known)


def test_the_readme_shows_what_the_record_says() -> None:
    readme, known = (ROOT / "README.md").read_text(), json.loads(RECORD.read_text())
    if any(f"<!-- {name} -->" in readme for name in MARKS):
        assert filled(readme, MARKS, known) == readme
