"""The mixin of the Hugging Face Trainer in real trainings."""

from __future__ import annotations

import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Trainer, TrainingArguments

import evenstep as es
from evenstep.integrations.huggingface import PlannedTrainer

torch.set_num_threads(1)
# Other people's packages warn of one another; what they say does not depend on us.
pytestmark = pytest.mark.filterwarnings("ignore", "error::evenstep.PlanWarning")

GENERATOR = torch.Generator().manual_seed(0)
EXAMPLES = [
    {"x": torch.randn(8, generator=GENERATOR), "labels": torch.randint(3, (), generator=GENERATOR)} for _ in range(64)
]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.middle = nn.Linear(8, 32), nn.LayerNorm(32), nn.Linear(32, 32)
        self.readout = nn.Linear(32, 3)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.readout(torch.relu(self.middle(torch.relu(self.norm(self.stem(x))))))
        return {"logits": logits} if labels is None else {"loss": functional.cross_entropy(logits, labels), "y": logits}


def model_and_plan(*, base: float | None = 0.01, optimizer: Any = "adam", seed: int = 0) -> tuple[nn.Module, es.Plan]:
    torch.manual_seed(seed)
    model = Network()
    plan = es.plan(model, torch.zeros(2, 8), base=base, optimizer=optimizer)
    es.initialize_(model, plan)
    return model, plan


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    return TrainingArguments(
        **{
            "output_dir": str(folder),
            "max_steps": 8,
            "per_device_train_batch_size": 16,
            "warmup_steps": 2,
            "logging_steps": 1,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
            "use_cpu": True,
            "dataloader_pin_memory": False,
            **options,
        }
    )


def trainer(folder: Path, plan: es.Plan, model: nn.Module, kind: Any = PlannedTrainer, **options: Any) -> Any:
    return kind(plan=plan, model=model, args=arguments(folder, **options), train_dataset=EXAMPLES)


def logged(trained: Any, name: str) -> list[float]:
    return [log[name] for log in trained.state.log_history if name in log]


class Watched(PlannedTrainer):
    """Keep the base's rate of every step."""

    def training_step(self, *arguments: Any, **options: Any) -> Any:
        assert self.model is not None
        assert self.optimizer is not None
        self.seen = [*getattr(self, "seen", ()), es.check_groups(self.model, self.plan, self.optimizer)]
        return super().training_step(*arguments, **options)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [("linear", (0, 1 / 2, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6)), ("constant_with_warmup", (0, 1 / 2, *[1] * 6))],
)
def test_the_groups_are_the_plans_at_every_step(tmp_path: Path, schedule: str, factors: tuple[float, ...]) -> None:
    model, plan = model_and_plan()
    trained = trainer(tmp_path, plan, model, Watched, lr_scheduler_type=schedule, weight_decay=0.1)
    trained.train()
    assert trained.seen == pytest.approx([0.01 * factor for factor in factors])
    decay = {name: group["weight_decay"] for name, group in named_groups(trained.optimizer, model).items()}
    assert {name for name, value in decay.items() if value} == {"stem.weight", "middle.weight", "readout.weight"}
    assert set(decay.values()) == {0.0, 0.1}
    rates = {name: group["initial_lr"] for name, group in named_groups(trained.optimizer, model).items()}
    assert rates == pytest.approx({p.name: 0.01 * p.lr_scale for p in plan})
    assert len(set(rates.values())) > 1


def named_groups(optimizer: Any, model: nn.Module) -> dict[str, Any]:
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    return {name: groups[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["adam", "momentum", "muon"])
def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path, optimizer: str) -> None:
    model, plan = model_and_plan(optimizer=optimizer)
    whole = trainer(tmp_path, plan, model, save_strategy="steps", save_steps=4)
    whole.train()

    again, plan = model_and_plan(optimizer=optimizer, seed=7)  # drawn anew, as a script that starts again does
    rest = trainer(tmp_path, plan, again)
    rest.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert logged(rest, "loss")[-4:] == pytest.approx(logged(whole, "loss")[-4:], rel=1e-4)
    assert rest.state.global_step == 8
    for name, weight in model.named_parameters():
        torch.testing.assert_close(dict(again.named_parameters())[name], weight)


def test_a_checkpoint_of_other_rates_is_named(tmp_path: Path) -> None:
    model, plan = model_and_plan()
    trainer(tmp_path, plan, model, save_strategy="steps", save_steps=4).train()
    model, plan = model_and_plan(base=0.001)
    resumed = trainer(tmp_path, plan, model)
    with pytest.warns(es.PlanWarning, match=r"trained at 10 times the plan's rates"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))


def test_a_scheduler_that_makes_rates_alike_is_refused(tmp_path: Path) -> None:
    model, plan = model_and_plan()
    options: dict[str, Any] = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "eval_steps": 1}
    floored = PlannedTrainer(
        plan=plan,
        model=model,
        args=arguments(tmp_path, **options, lr_scheduler_kwargs={"min_lr": 0.001, "patience": 0}),
        train_dataset=EXAMPLES,
        eval_dataset=EXAMPLES,
    )
    with pytest.raises(es.PlanError, match="ReduceLROnPlateau changes the ratios of rates"):
        floored.train()


def test_a_second_training_starts_at_the_plans_rates_again(tmp_path: Path) -> None:
    model, plan = model_and_plan()
    trained = trainer(tmp_path, plan, model, Watched)
    trained.train()
    first, trained.seen = trained.seen, []
    trained.train()
    assert trained.seen == pytest.approx(first)


def test_it_goes_before_other_trainers(tmp_path: Path) -> None:
    class Doubled(Trainer):
        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            return 2 * super().compute_loss(*arguments, **options)

    class Both(PlannedTrainer, Doubled):
        pass

    losses = []
    for kind in (PlannedTrainer, Both):
        model, plan = model_and_plan()
        trained = trainer(tmp_path, plan, model, kind, max_steps=1)
        trained.train()
        assert {round(g["initial_lr"], 9) for g in trained.optimizer.param_groups} == {
            round(0.01 * p.lr_scale, 9) for p in plan
        }
        losses.append(logged(trained, "loss")[0])
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-3)


def test_arguments_that_are_not_read_are_named(tmp_path: Path) -> None:
    model, plan = model_and_plan()
    with pytest.warns(es.PlanWarning, match=r"learning_rate=0\.002, adam_beta2=0\.95 are ignored"):
        trainer(tmp_path, plan, model, learning_rate=0.002, adam_beta2=0.95).create_optimizer()
    model, plan = model_and_plan(optimizer=partial(torch.optim.AdamW, betas=(0.9, 0.95), weight_decay=0.2))
    with warnings.catch_warnings():
        warnings.simplefilter("error", es.PlanWarning)
        optimizer = trainer(tmp_path, plan, model, learning_rate=0.01).create_optimizer()
    assert {group["betas"] for group in optimizer.param_groups} == {(0.9, 0.95)}
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0, 0.2}  # the plan's


def test_the_learning_rate_is_read_where_the_plan_has_none(tmp_path: Path) -> None:
    model, plan = model_and_plan(base=None)
    optimizer = trainer(tmp_path, plan, model, learning_rate=0.02).create_optimizer()
    assert es.check_groups(model, plan, optimizer) == pytest.approx(0.02)


def test_an_optimizer_of_ones_own_has_to_be_the_plans(tmp_path: Path) -> None:
    model, plan = model_and_plan()
    for optimizer, fits in ((plan.optimizer(model), True), (torch.optim.AdamW(model.parameters()), False)):
        given = PlannedTrainer(
            plan=plan, model=model, args=arguments(tmp_path), train_dataset=EXAMPLES, optimizers=(optimizer, None)
        )
        if fits:
            given.train()
        else:
            with pytest.raises(es.PlanError, match="the same learning rate"):
                given.train()


def test_a_class_of_optimizers_besides_the_plan_is_refused(tmp_path: Path) -> None:
    model, plan = model_and_plan()
    given = PlannedTrainer(
        plan=plan,
        model=model,
        args=arguments(tmp_path),
        train_dataset=EXAMPLES,
        optimizer_cls_and_kwargs=(torch.optim.SGD, {"lr": 0.1}),
    )
    with pytest.raises(es.InputError, match=r"optimizer_cls_and_kwargs is .*SGD.*; leave it out"):
        given.create_optimizer()


def test_what_is_no_plan_is_named(tmp_path: Path) -> None:
    with pytest.raises(es.InputError, match="the plan is 'adam'; give what"):
        trainer(tmp_path, "adam", Network())  # type: ignore[arg-type]
