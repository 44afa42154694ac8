"""Move a plan to another batch size and number of steps by named rules; warn if it is used elsewhere unmoved."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from evenstep.arguments import require_number, shown
from evenstep.errors import InputError, PlanWarning, warn
from evenstep.rules.batch import BatchRule, MovesAdam, batch_rule
from evenstep.rules.length import LengthRule, length_rule
from evenstep.rules.rule import Factor, product
from evenstep.rules.training import UNKNOWN, Training, moved

if TYPE_CHECKING:
    from evenstep.planning.plan import Plan

TORCH_BETAS = (0.9, 0.999)  # of torch's Adam, AdamW and NAdam
_ROUNDING = 1e-9  # of a beta: a 1 - beta this close to one counts as one
_WORDS = {"batch_size": "batch size", "steps": "number of steps"}


class _Move(NamedTuple):
    """Hold the factors of a move: of all rates, of 1 - beta and of Adam's epsilon."""

    rates: tuple[Factor, ...] = ()
    betas: tuple[Factor, ...] = ()
    eps: tuple[Factor, ...] = ()


def moved_to(plan: Plan, to: Training, *, batch: str | BatchRule, length: str | LengthRule) -> Plan:
    """Return a plan moved from the training it is for to another; sizes that `to` does not know stay.

    If these rules alone have moved the plan before, the new move replaces the old one, so moving twice equals moving
    once.
    """
    rules = batch_rule(batch), length_rule(length)
    if to == UNKNOWN:
        raise InputError("neither batch_size nor steps is given; give the training to which to move the plan")
    _require_known(plan, to)
    place = plan.training.changed(to)
    if place == plan.training:
        return plan
    earlier = _Move(*map(_of_moves, (plan.factors, plan.beta_factors, plan.eps_factors)))
    if plan.searched.knows(plan.training) and earlier == _move(plan, plan.searched, plan.training, *rules):
        changed = _with(plan, _move(plan, plan.searched, place, *rules), instead_of=earlier)
    else:
        changed = _with(plan, _move(plan, plan.training, place, *rules), instead_of=_Move())
    changed = replace(changed, training=place)
    _require_in_range(changed)
    return changed


def _move(plan: Plan, start: Training, to: Training, batch: BatchRule, length: LengthRule) -> _Move:
    rates = moved(plan.optimizer_name, start, to, batch=batch, length=length)
    if not isinstance(batch, MovesAdam) or start.batch_size == to.batch_size:
        return _Move(rates)
    assert start.batch_size is not None
    assert to.batch_size is not None
    adam = batch.settings(to.batch_size, searched=start.batch_size, optimizer=plan.optimizer_name)
    return _Move(rates, adam.betas, adam.eps)


def _of_moves(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    """Return the factors that moves have written, in the order that a single move writes them."""
    return tuple(factor for name in ("length", "batch") for factor in factors if factor.name == name)


def _with(plan: Plan, move: _Move, *, instead_of: _Move) -> Plan:
    """Return a plan with the factors of one move in place of those of another."""

    def changed(factors: tuple[Factor, ...], old: tuple[Factor, ...], new: tuple[Factor, ...]) -> tuple[Factor, ...]:
        return (*(factor for factor in factors if factor not in old), *new)

    rates = changed(plan.factors, instead_of.rates, move.rates)
    eps = changed(plan.eps_factors, instead_of.eps, move.eps)
    shared = len(plan.eps_factors)
    parameters = (
        replace(p, factors=(*rates, *plan.own_factors(p)), eps_factors=(*eps, *p.eps_factors[shared:]))
        for p in plan.parameters
    )
    betas = changed(plan.beta_factors, instead_of.betas, move.betas)
    return replace(plan, factors=rates, eps_factors=eps, beta_factors=betas, parameters=tuple(parameters))


def _require_known(plan: Plan, to: Training) -> None:
    """Refuse to move a plan whose own batch size, or number of steps, is not known."""
    for name, words in _WORDS.items():
        if getattr(to, name) is not None and getattr(plan.training, name) is None:
            raise InputError(
                f"the plan does not know the {words} that its base was searched with, so it cannot be moved to "
                f"{name}={getattr(to, name)}; give it to the plan: evenstep.plan(..., base=..., {name}=...), or "
                f"--base-{name.replace('_', '-')} on the command line"
            )


def _require_in_range(plan: Plan) -> None:
    """Refuse a move that gives numbers no training can use."""
    for parameter in plan.parameters:
        if not 0 < product(parameter.factors) < math.inf:
            raise InputError(
                f"moving the plan to {plan.training} makes the rate of '{parameter.name}' zero or infinite; move it "
                "less far"
            )
    if plan.beta_factors:
        moved_betas(plan, plan.optimizer_options.get("betas"))


def moved_betas(plan: Plan, betas: Any = None) -> tuple[float, ...]:
    """Return Adam's betas as the plan moves them, with 1 - beta times a factor; torch's betas are the default."""
    if betas is None:
        betas = TORCH_BETAS
    if not isinstance(betas, list | tuple) or len(betas) != 2:
        raise InputError(f"betas is {shown(betas)}; give a pair of numbers, such as {TORCH_BETAS}")
    scale = product(plan.beta_factors)
    for beta in betas:
        remaining = 1 - require_number("a number of betas", beta, least=0, below=1)
        if remaining * scale > 1 - _ROUNDING:
            limit = "" if plan.batch_size is None else f" below {plan.batch_size / (remaining * scale):.4g}"
            raise InputError(
                f"the batch rule multiplies 1 - beta by {scale:.4g}, so for a beta of {beta:g} it would become "
                f"{remaining * scale:.4g}, not below 1; move the plan to batches{limit}, or by another rule: "
                "batch_rule='root'"
            )
    return tuple(float(f"{1 - (1 - beta) * scale:.12g}") for beta in betas)


def warn_if_elsewhere(plan: Plan, used: Training) -> None:
    """Warn if a plan is used at another batch size or number of steps than its own, or if it does not know its own."""
    for name, words in _WORDS.items():
        if getattr(used, name) is not None and getattr(plan.training, name) is None:
            warn(
                f"the plan does not know the {words} it is for, but is used at {name}={getattr(used, name)}; give it "
                f"the {words} of the base's search: evenstep.plan(..., base=..., {name}=...)",
                PlanWarning,
            )
    known = Training(**{n: getattr(used, n) for n in _WORDS if getattr(plan.training, n) is not None})
    if plan.training.changed(known) == plan.training:
        return
    other = {n: getattr(known, n) for n in _WORDS if getattr(known, n) not in (None, getattr(plan.training, n))}
    planned_for = Training(**{n: getattr(plan.training, n) for n in other})
    arguments = ", ".join(f"{n}={value}" for n, value in other.items())
    warn(
        f"the plan is for {planned_for}, but is used for {Training(**other)}, which needs other rates; move it by a "
        f"rule: plan.at({arguments})",
        PlanWarning,
    )
