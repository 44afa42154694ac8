"""Every example runs, and does what it is an example of."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

import evenstep as es

torch.set_num_threads(1)

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "networks")
# Other people's packages warn of one another; what they say does not depend on us.
foreign = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the example that a test is named after, imported as a script's neighbours would be."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.function.__name__.removeprefix("test_").split("__")[0])


def test_every_example_has_a_test_and_a_place_in_the_docs() -> None:
    tested = {name.removeprefix("test_").split("__")[0] for name in globals() if name.startswith("test_")}
    page = (ROOT / "docs" / "integrations.md").read_text()
    assert EXAMPLES
    for name in EXAMPLES:
        assert name in tested, f"examples/{name}.py has no test"
        assert f"examples/{name}.py" in page, f"docs/integrations.md does not name examples/{name}.py"


def plain_training(steps: int, batch: int | None = None) -> tuple[nn.Module, list[float]]:
    """Train the shared network as the examples do, without what they are examples of."""
    networks = sys.modules["networks"]
    inputs, targets = networks.data()
    model = networks.Residual()
    plan = es.plan(model, inputs[:2], base=0.2, optimizer="momentum")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.SGD(plan.param_groups(model), momentum=0.9, nesterov=True)
    losses = []
    for _ in range(steps):
        for x, y in zip(inputs.split(batch or len(inputs)), targets.split(batch or len(inputs)), strict=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


@foreign
def test_lightning_module(example: ModuleType) -> None:
    logged = example.main(epochs=3)
    # What the cosine leaves of the base's rate at the start of the third of three epochs.
    assert logged["base_lr"] == pytest.approx(0.2 * (1 + math.cos(2 * math.pi / 3)) / 2)
    assert logged["loss_epoch"] < 0.8 * math.log(4)


@foreign
def test_lightning_module__the_callback_guards(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        example.Classifier,
        "configure_optimizers",
        lambda self: torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9),
    )
    with pytest.raises(es.PlanError, match=r"all parameters have the same learning rate 0\.1"):
        example.main(epochs=1)


@foreign
def test_huggingface_trainer(example: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    step = example.PlannedTrainer.training_step

    def checked(self: Any, *arguments: Any, **options: Any) -> Any:
        seen.append(es.check_groups(self.model, self.plan, self.optimizer))
        return step(self, *arguments, **options)

    monkeypatch.setattr(example.PlannedTrainer, "training_step", checked)
    trainer, losses = example.main(steps=8)
    # The Trainer's own warm-up and decay, of the plan's base: groups kept their ratios at every step.
    assert seen == pytest.approx([0.002 * share for share in (0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6)])
    assert len({group["initial_lr"] for group in trainer.optimizer.param_groups}) > 1
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {
        0.0,
        0.01,
    }  # none on biases and norms
    assert losses[-1] < losses[0]


@foreign
def test_accelerate_loop(example: ModuleType) -> None:
    assert example.main(epochs=3) == pytest.approx(plain_training(3, batch=32)[1], rel=1e-4)


def test_timm_groups(example: ModuleType) -> None:
    model, plan, optimizer = example.main()
    assert es.check_groups(model, plan, optimizer) == pytest.approx(0.2)
    for group in optimizer.param_groups:
        assert {p.ndim > 1 for p in group["params"]} == {group["weight_decay"] > 0}


@foreign
def test_optuna_study(example: ModuleType) -> None:
    study = example.main(trials=8)
    assert len(study.trials) == 8
    shapes = {(t.params["width"], t.params["depth"]): t.user_attrs["lr_scale"] for t in study.trials}
    assert len({round(scale, 9) for scale in shapes.values()}) > 2  # a plan of its own for every shape
    assert study.best_value < math.log(4)


@foreign
def test_tensorboard_curves(example: ModuleType, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    search = example.main(tmp_path)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("search/lr")] == pytest.approx(search.grid)
    finite = [loss for loss in search.mean_losses if math.isfinite(loss)]
    assert [event.value for event in events.Scalars("search/loss")] == pytest.approx(finite)
    assert "readout.weight" in events.Tensors("plan/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "_hparams_/session_start_info" in events.PluginTagToContent("hparams")


def test_compiled(example: ModuleType) -> None:
    # Not inductor, the default: it compiles for half a minute, and needs a C++ compiler.
    assert example.main(backend="eager", steps=4) == pytest.approx(plain_training(4)[1], rel=1e-5)


needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo: no processes on a CPU"
)


@needs_gloo
def test_distributed(example: ModuleType) -> None:
    replicas = example.main(world=2, steps=3)
    alone, _ = plain_training(3)
    for name, weight in alone.state_dict().items():
        assert torch.equal(replicas[0][name], replicas[1][name])
        torch.testing.assert_close(replicas[0][name], weight, rtol=1e-4, atol=1e-6)


@needs_gloo
@pytest.mark.skipif(
    tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6), reason="this torch has no fully_shard"
)
def test_sharded(example: ModuleType) -> None:
    whole = example.main(world=2, steps=3)
    alone, _ = plain_training(3)
    assert set(whole) == set(alone.state_dict())
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(whole[name], weight, rtol=1e-4, atol=1e-6)
