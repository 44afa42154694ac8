"""Which optimiser a plan's rates are for, given by a name, a class or an instance; and how a plan builds it.

Torch's classes are known by their names, so that plans need no torch; building an optimiser loads it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from evenstep.arguments import require_choice, require_number, shown
from evenstep.errors import InputError, PlanError
from evenstep.planning.decay import decay_kind, is_decoupled, warn_if_normalised
from evenstep.planning.groups import param_groups, spares_some
from evenstep.planning.unwrap import is_sharded
from evenstep.rules import OPTIMIZERS, Optimizer

if TYPE_CHECKING:
    from evenstep.planning.plan import Plan

_NAMES: Mapping[str, Optimizer] = {
    **{"sgd": "sgd", "momentum": "momentum", "adam": "adam", "adamw": "adam"},
    **{"muon": "muon", "lion": "lion"},
}
OPTIMIZER_NAMES = tuple(_NAMES)
# Torch's classes, by the steps they take; SGD with momentum is 'momentum'.
_KINDS: Mapping[str, Optimizer] = {
    "SGD": "sgd",
    "Adam": "adam",
    "AdamW": "adam",
    "NAdam": "adam",
    "Muon": "muon",
    "Lion": "lion",
}
# The class and settings that a bare name stands for: those that a search trains with.
_USUAL: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {"momentum": 0.9, "nesterov": True}),
    "adam": ("AdamW", {"weight_decay": 0.0}),
    "muon": ("Muon", {"weight_decay": 0.0}),
    "lion": ("Lion", {"weight_decay": 0.0}),
}
_OURS = "evenstep.optim"  # its Muon also steps kernels, and torch has no Lion
_HOMES = {"Muon": _OURS, "Lion": _OURS}
_IN_TORCH = tuple(name for name in _KINDS if name != "Lion")
_CLASS = "class"  # a keyword of Python, so no setting has this name
_OWN = ("params", "lr")  # set by the plan
_ALWAYS_KEPT = ("momentum", "nesterov", "weight_decay", "betas", "eps")  # torch's defaults may change


class HasGroups(Protocol):
    """Stand for an instance of a torch optimiser."""

    param_groups: list[dict[str, Any]]


@dataclass(frozen=True)
class OptimizerChoice:
    """Hold the optimiser that rates are for: the kind of its steps, and its class and settings if they were given.

    `options` are plain values: the settings, and torch's name of the class as `class`. Without a class they override
    the settings that the bare name stands for.
    """

    name: Optimizer
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def class_name(self) -> str:
        """The name of the class in torch.optim."""
        return str(self.options.get(_CLASS, _USUAL[self.name][0]))

    @property
    def settings(self) -> dict[str, Any]:
        """All arguments of the class besides the groups."""
        given = {name: value for name, value in self.options.items() if name != _CLASS}
        return given if _CLASS in self.options else {**_USUAL[self.name][1], **given}

    @property
    def decouples_decay(self) -> bool:
        """Whether weight decay is separate from the gradient, as in AdamW."""
        return is_decoupled(self.class_name, self.settings)

    def changed(self, **options: Any) -> OptimizerChoice:
        """Return the choice with other settings; None leaves a setting as it is."""
        return replace(self, options={**self.options, **{n: v for n, v in options.items() if v is not None}})

    def __str__(self) -> str:
        """Return the name, and the class and settings if they were given."""
        settings = [f"{name} {_worded(value)}" for name, value in self.options.items() if name != _CLASS]
        words = ", ".join([self.options[_CLASS], *settings] if _CLASS in self.options else settings)
        return f"'{self.name}' ({words})" if words else f"'{self.name}'"


OptimizerLike: TypeAlias = (
    Literal["sgd", "momentum", "adam", "adamw", "muon", "lion"] | Callable[..., Any] | HasGroups | OptimizerChoice
)


def optimizer_choice(given: OptimizerLike) -> OptimizerChoice:
    """Return the optimiser that a name, a class of torch.optim, a partial of one, or an instance stands for.

    Classes of `evenstep.optim` work too; `torch.optim.Muon`, which only steps matrices, stands for the Muon there.
    A class stands for an instance with its defaults. Learning rates in any of them are ignored: the plan sets them.

    >>> optimizer_choice("adamw").name
    'adam'
    >>> from torch.optim import SGD
    >>> str(optimizer_choice(partial(SGD, momentum=0.95)))
    "'momentum' (SGD, momentum 0.95, weight_decay 0, nesterov False)"
    """
    if isinstance(given, OptimizerChoice):
        return given
    if isinstance(given, str):
        return OptimizerChoice(_NAMES[require_choice("optimizer", given.lower(), _NAMES)])
    factory = given.func if isinstance(given, partial) else given
    kind = factory if isinstance(factory, type) else type(factory)
    groups: Any = getattr(factory, "param_groups", None)
    if not isinstance(factory, type) and not isinstance(groups, list):
        raise InputError(
            f"optimizer is {shown(given)}; give one of {', '.join(_NAMES)}, a class such as torch.optim.AdamW, or an "
            "instance of one"
        )
    name = _name_in_torch(kind)
    if name is None or not (_is_torchs(kind) or _is_ours(kind)) or name != kind.__name__:
        raise InputError(_no_rates_for(kind, name))
    if isinstance(given, partial):
        values = _defaults(kind) | _of_partial(given, kind)
    elif isinstance(factory, type):
        values = _defaults(kind)
    else:
        values = _of_groups(groups, kind)
    if name == "Muon" and not _is_ours(kind):
        values, kind = _of_torchs_muon(values), _class_of(name)
    usual = _defaults(kind)
    plain = {name: _plain(name, value) for name, value in values.items()}
    settings = {n: v for n, v in plain.items() if n in _ALWAYS_KEPT or v != usual.get(n)}
    return OptimizerChoice(_kind(name, settings.get("momentum", 0.0)), {_CLASS: name, **settings})


def choice_from(name: object, options: object) -> OptimizerChoice:
    """Return a choice read from plain values, or raise a ValueError if they do not describe one."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer is {name!r}")
    if not isinstance(options, Mapping) or not all(isinstance(key, str) for key in options):
        raise ValueError(f"optimizer_options is {options!r}")
    kind = options.get(_CLASS)
    if kind is not None and (not isinstance(kind, str) or kind not in _KINDS):
        raise ValueError(f"class of optimizer_options is {kind!r}")
    values = {n: tuple(v) if isinstance(v, list | tuple) else v for n, v in options.items()}
    read = OptimizerChoice(_NAMES[str(name)], {n: v if n == _CLASS else _plain(n, v) for n, v in values.items()})
    if _kind(read.class_name, read.settings.get("momentum", 0.0)) != name:
        raise ValueError(f"optimizer_options is {options!r}, but optimizer is {name!r}")
    return read


def build_optimizer(
    model: Any,
    plan: Plan,
    *,
    lr: float | None = None,
    decay: str | None = None,
    even_decay: bool = False,
    no_decay: bool | None = None,
    **options: Any,
) -> Any:
    """Return the torch optimiser that a plan is for, built from the plan's groups of a module."""
    choice = choice_from(plan.optimizer_name, plan.optimizer_options)
    kind = _class_of(choice.class_name)
    settings = {**choice.settings, **options}
    known = _defaults(kind)
    if unknown := [name for name in settings if name not in known]:
        raise InputError(
            f"{kind.__name__} has no option '{unknown[0]}'; choose from {', '.join(known)}, lr, decay, even_decay and "
            "no_decay"
        )
    how, given = decay_kind(decay, even_decay=even_decay), settings.get("weight_decay")
    warn_if_normalised(how, choice.class_name, given, settings)
    spared = spares_some(plan, no_decay, given)
    of_groups: dict[str, Any] = {
        name: settings[name] for name in ("weight_decay", "eps", "betas") if plan.scales(name) and name in settings
    }
    if how != "coupled" or spared:
        of_groups["weight_decay"] = given
    groups = param_groups(model, plan, lr=lr, decay=how, no_decay=spared, **of_groups)
    if plan.optimizer_name == "muon" and any(is_sharded(p) for group in groups for p in group["params"]):
        raise PlanError(
            "the model's parameters are sharded, but Muon needs whole matrices; plan with optimizer='adam', or do not "
            "shard the model"
        )
    try:
        built = kind(groups, lr=plan.base if lr is None else lr, **settings)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        home = _HOMES.get(choice.class_name, "torch.optim")
        raise InputError(f"{home}.{kind.__name__} refuses {settings}: {reason}; give other options") from error
    require_kind(plan, built)
    return built


def require_kind(plan: Plan, optimizer: HasGroups) -> None:
    """Refuse an optimiser whose steps a plan's rates are not made for; accept one that is not from torch."""
    name, words = _name_in_torch(type(optimizer)), type(optimizer).__name__
    if name is None:
        return
    if name == "Muon" and any(
        g.get("adjust_lr_fn", "match_rms_adamw") != "match_rms_adamw" for g in optimizer.param_groups
    ):
        raise PlanError(
            "the optimizer is torch's Muon without adjust_lr_fn='match_rms_adamw', but the plan's rates are for steps "
            "of that size; give that argument, or build the optimizer with plan.optimizer(model)"
        )
    momenta = {float(group.get("momentum", 0.0)) for group in optimizer.param_groups} or {0.0}
    if len({momentum > 0 for momentum in momenta}) > 1:
        return
    kind = _kind(name, max(momenta))
    if name == "SGD":
        words += f" with momentum {max(momenta):g}" if kind == "momentum" else " without momentum"
    if kind != plan.optimizer_name:
        raise PlanError(
            f"the optimizer is {words}, but the plan is for '{plan.optimizer_name}', whose rates have another size; "
            f"plan, and search the base, with optimizer='{kind}'"
        )


def _kind(class_name: str, momentum: object) -> Optimizer:
    return "momentum" if class_name == "SGD" and require_number("momentum", momentum) > 0 else _KINDS[class_name]


def _name_in_torch(kind: type) -> str | None:
    """Return the name of the closest class with known rates that a class is or derives from."""
    return next((c.__name__ for c in kind.__mro__ if (_is_torchs(c) or _is_ours(c)) and c.__name__ in _KINDS), None)


def _is_torchs(kind: type) -> bool:
    return f"{kind.__module__}.".startswith("torch.optim.")


def _is_ours(kind: type) -> bool:
    return kind.__module__ == _OURS


def _class_of(name: str) -> Any:
    """Return the optimiser class of this name: torch's, or this package's if that does more."""
    return getattr(import_module(_HOMES.get(name, "torch.optim")), name)


def _of_torchs_muon(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of torch's Muon as those of this package's, whose steps have AdamW's size."""
    if values.get("adjust_lr_fn") not in (None, "match_rms_adamw"):
        raise InputError(
            f"the optimizer has adjust_lr_fn={shown(values['adjust_lr_fn'])}, but a plan's rates for Muon need "
            "'match_rms_adamw', which gives steps of AdamW's size; give that, or leave adjust_lr_fn out"
        )
    renamed = {"ns_eps" if name == "eps" else name: value for name, value in values.items()}
    return {name: value for name, value in renamed.items() if name != "adjust_lr_fn"}


def _no_rates_for(kind: type, like: str | None) -> str:
    if like is not None:
        names = "'sgd' or 'momentum'" if like == "SGD" else "'adam'"
        return (
            f"optimizer is {kind.__name__}, which derives from torch's {like}; plan with optimizer={names} and build "
            "it from plan.param_groups(model)"
        )
    return (
        f"optimizer is {kind.__name__}, which no rule has rates for; plan with optimizer='adam', 'momentum', 'sgd', "
        f"'muon' or 'lion', or give one of torch.optim's {', '.join(_IN_TORCH)}"
    )


def _defaults(kind: type) -> dict[str, Any]:
    """Return the settings of a class, with their defaults."""
    return {name: p.default for name, p in inspect.signature(kind).parameters.items() if name not in _OWN}


def _of_partial(given: partial[Any], kind: type) -> dict[str, Any]:
    """Return the settings that a partial call of a class gives."""
    known = _defaults(kind)
    settings = {name: value for name, value in given.keywords.items() if name != "lr"}
    if given.args or (unknown := [name for name in settings if name not in known]):
        odd = shown(given.args[0]) if given.args else f"'{unknown[0]}'"
        raise InputError(
            f"optimizer is a partial {kind.__name__} with {odd}; give it only options by name, from {', '.join(known)}"
        )
    return settings


def _of_groups(groups: Iterable[Mapping[str, Any]], kind: type) -> dict[str, Any]:
    """Return the settings of an instance, which all its groups have to share."""
    settings = {}
    for name in _defaults(kind):
        values = [group[name] for group in groups if name in group]
        if odd := [value for value in values if value != values[0]]:
            raise InputError(
                f"the optimizer's groups differ in {name}: {shown(values[0])} and {shown(odd[0])}; plan for the class, "
                f"optimizer=torch.optim.{kind.__name__}, and set {name} in the groups of plan.param_groups(model)"
            )
        if values:
            settings[name] = values[0]
    return settings


def _plain(name: str, value: Any) -> Any:
    """Return a setting as a plain value: pairs as tuples, tensors with one number as numbers."""
    if name == "betas" and (not isinstance(value, list | tuple) or len(value) != 2):
        raise InputError(f"betas of the optimizer is {shown(value)}; give a pair of numbers, such as (0.9, 0.999)")
    if value is None or isinstance(value, bool | str):
        return value
    return tuple(_number(name, part) for part in value) if isinstance(value, list | tuple) else _number(name, value)


def _number(name: str, value: Any) -> float:
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        value = value.item()
    remedy = ", or a pair of them if the optimizer takes one"
    return require_number(f"{name} of the optimizer", value, remedy=remedy)


def _worded(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_worded, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
