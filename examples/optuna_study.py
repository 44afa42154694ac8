"""Optuna: candidates of any shape share one suggested learning rate, the base's; each gets its own by its plan."""

from __future__ import annotations

import optuna
import torch
from torch.nn import functional

import evenstep as es
from networks import Residual, data


def objective(trial: optuna.Trial) -> float:
    """Train one candidate; its shape changes its rates, so the base's rate is worth learning over all candidates."""
    inputs, targets = data()
    base = trial.suggest_float("base_lr", 1e-3, 1.0, log=True)
    model = Residual(width=trial.suggest_categorical("width", [16, 32, 64]), depth=trial.suggest_int("depth", 1, 6))
    plan = es.plan(model, inputs[:2], base=base, optimizer="sgd")
    es.initialize_(model, plan, generator=torch.Generator().manual_seed(0))
    trial.set_user_attr("lr_scale", plan.lr_scale)
    optimizer = torch.optim.SGD(plan.param_groups(model))
    for x, y in zip(inputs.split(32), targets.split(32), strict=True):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        loss = float(functional.cross_entropy(model(inputs), targets))
    return loss if loss < 100 else 100.0  # an infinite loss would fail the trial


def main(trials: int = 12) -> optuna.Study:
    """Search rate and shape together."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    print(main().best_params)
