"""The plan as a value: an initialisation and a learning rate for every trainable parameter, each with its reason."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from evenstep.arguments import shown
from evenstep.errors import EvenstepError, PlanError
from evenstep.graph import Graph
from evenstep.planning.by_hand import frozen, scaled
from evenstep.planning.concerns import concerns
from evenstep.planning.decay import Decay
from evenstep.planning.groups import param_groups
from evenstep.planning.html import plan_html
from evenstep.planning.moving import moved_to, warn_if_elsewhere
from evenstep.planning.optimizers import build_optimizer, choice_from
from evenstep.planning.plain_values import check_values, is_number, require
from evenstep.planning.text import format_plan
from evenstep.planning.words import format_reason
from evenstep.rules import Factor, Optimizer
from evenstep.rules.batch import BATCH, BatchRule
from evenstep.rules.length import LENGTH, LengthRule
from evenstep.rules.rule import product
from evenstep.rules.training import UNKNOWN, Training

FORMAT = "evenstep-plan/2"
_OLDER_FORMATS = ("evenstep-plan/1",)
_SCALED_BY_RULES = ("eps_factors", "decay_factors")
_SHARED_SETTINGS = ("eps_factors", "beta_factors")  # of a whole plan; empty under rules that only move rates


@contextmanager
def any_digits() -> Iterator[None]:
    """Write and read integers of any length: path counts can exceed Python's limit of 4300 digits."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        yield
    finally:
        sys.set_int_max_str_digits(limit)


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """Hold the initialisation and the learning rate of one parameter.

    It is drawn from N(`mean`, `std`^2), or stays as it is if `kept`; `init_reason` says why. Its learning rate is the
    base's times all `factors`; if `frozen`, it has none and is not trained. Adam's epsilon and weight decay are the
    optimiser's times `eps_factors` and `decay_factors`. `notes` are further remarks.
    """

    name: str
    std: float
    factors: tuple[Factor, ...]
    init_reason: str
    mean: float = 0.0
    kept: bool = False
    role: str = "weight"
    shape: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    frozen: bool = False
    eps_factors: tuple[Factor, ...] = ()
    decay_factors: tuple[Factor, ...] = ()

    @property
    def eps_scale(self) -> float:
        """The factor of Adam's epsilon."""
        return product(self.eps_factors)

    @property
    def decay_scale(self) -> float:
        """The factor by which the rule multiplies weight decay."""
        return product(self.decay_factors)

    @property
    def lr_scale(self) -> float:
        """The learning rate, in units of the base's; 0 if the parameter is not trained."""
        return 0.0 if self.frozen else product(self.factors)

    @property
    def reason(self) -> str:
        """One line that explains the rate and the initialisation."""
        return format_reason(self)


@dataclass(frozen=True, slots=True)
class VertexPlan:
    """Report a vertex: live in-degree, and second moment at initialisation relative to the input's.

    `measured` is the second moment in a forward pass divided by this one; None if no pass was run.
    """

    name: str
    in_degree: int
    second_moment: float
    measured: float | None = None


@dataclass(frozen=True)
class Plan:
    """Hold every trainable parameter exactly once, the rule that planned it, and the graph it was read from.

    `base` is the base's learning rate; None if the plan holds factors only. `lr_scale` is the factor of the whole
    network (topology and kernel); single parameters multiply it by their own factors. `optimizer_name` is the kind of
    step that the rates are for, `optimizer_options` its class and settings if they were given. `remarks` say where
    measured signals differ from the computed ones, `history` where the base's rate comes from. `training` is the batch
    size and number of steps that the rates are for, `searched` those that the base was searched with, as far as they
    are known. `eps_factors` multiply Adam's epsilon for all parameters and come first in each parameter's
    `eps_factors`; `beta_factors` multiply 1 - beta, for both of Adam's betas.
    """

    parameters: tuple[ParameterPlan, ...]
    rule: str
    base: float | None
    graph: Graph
    init: str = "conserve"
    optimizer_name: Optimizer = "sgd"
    factors: tuple[Factor, ...] = ()
    vertices: tuple[VertexPlan, ...] = field(default=(), repr=False)
    path_count: int = 0
    sum_cubed_depth: int = 0
    remarks: tuple[str, ...] = ()
    optimizer_options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    history: tuple[str, ...] = ()
    training: Training = UNKNOWN
    searched: Training = UNKNOWN
    eps_factors: tuple[Factor, ...] = ()
    beta_factors: tuple[Factor, ...] = ()

    @property
    def batch_size(self) -> int | None:
        """The number of examples per step that the plan is for; None if not known."""
        return self.training.batch_size

    @property
    def steps(self) -> int | None:
        """The number of training steps that the plan is for; None if not known."""
        return self.training.steps

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is likely to be wrong, one line each: signals that differ from the computed ones, and absurd values."""
        return (*self.remarks, *concerns(self))

    def with_measured(self, second_moments: Mapping[str, float], remarks: tuple[str, ...] = ()) -> Plan:
        """Return the plan with the second moments that a forward pass measured, and remarks on them."""
        vertices = (
            replace(v, measured=second_moments[v.name] / v.second_moment)
            if v.name in second_moments and v.second_moment > 0
            else v
            for v in self.vertices
        )
        return replace(self, vertices=tuple(vertices), remarks=(*self.remarks, *remarks))

    def with_factor(self, factor: Factor) -> Plan:
        """Return the plan with all rates multiplied by a further factor."""
        shared = (*self.factors, factor)
        parameters = (replace(p, factors=(*shared, *self.own_factors(p))) for p in self.parameters)
        return replace(self, factors=shared, parameters=tuple(parameters))

    @property
    def lr_scale(self) -> float:
        """The factor of the whole network relative to its base."""
        return product(self.factors)

    def __getitem__(self, name: str) -> ParameterPlan:
        """Return the plan of one parameter by name."""
        for parameter in self.parameters:
            if isinstance(name, str) and parameter.name == name:
                return parameter
        raise PlanError(
            f"the plan has no parameter {shown(name)}; it has {len(self.parameters)}, such as {self._some()}"
        )

    def __contains__(self, name: object) -> bool:
        """Return whether the plan has a parameter of this name."""
        return isinstance(name, str) and any(parameter.name == name for parameter in self.parameters)

    def __iter__(self) -> Iterator[ParameterPlan]:
        """Iterate over the parameters' plans in the model's order."""
        return iter(self.parameters)

    def __str__(self) -> str:
        """Return a table of 80 columns: shared factors, then a line for each parameter; `reason` has each in full."""
        return format_plan(self)

    def _repr_html_(self) -> str:
        """Return the plan as a notebook shows it."""
        return plan_html(self)

    def own_factors(self, parameter: ParameterPlan) -> tuple[Factor, ...]:
        """Return the factors of a parameter's rate besides those that all parameters share."""
        count = len(self.factors)
        return parameter.factors[count:] if parameter.factors[:count] == self.factors else parameter.factors

    def scales(self, option: str) -> bool:
        """Return whether the plan scales an option of the optimiser: `eps`, `betas` or `weight_decay`."""
        if option == "betas":
            return bool(self.beta_factors)
        values = {"eps": "eps_factors", "weight_decay": "decay_factors"}
        return option in values and any(getattr(p, values[option]) for p in self.parameters if not p.frozen)

    def decay_scale(self, parameter: ParameterPlan) -> float:
        """Return the factor that makes weight decay act equally on every layer.

        Optimisers multiply decay by the rate, so this divides it by the layer's own factor: a weight drawn a tenth as
        large because its input is ten times as large is then the same layer in other units.
        """
        return self.lr_scale / parameter.lr_scale if parameter.lr_scale > 0 else 1.0

    def param_groups(
        self,
        model: Any,
        *,
        lr: float | None = None,
        decay: Decay | None = None,
        even_decay: bool = False,
        no_decay: bool | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Return ordinary optimiser groups of a torch module, one for each rate, with a real `lr` and a `name`.

        `lr` is the base's learning rate and overrides the plan's; further options, such as `weight_decay`, are passed
        on to every group. `decay` says how weight decay depends on the rates: 'coupled' is torch's, one number for all,
        so that parameters with small rates decay slowly; 'even' (or `even_decay=True`) multiplies it by a group's
        `decay_scale`, so that all decay at one pace; 'independent' divides it by the group's rate, so that a step
        subtracts `weight_decay` of every weight whatever its rate. With `no_decay`, norms, biases, gates and embeddings
        have none; this is the default of plans for AdamW, Muon and Lion. If the rule scales Adam's `eps` or
        `weight_decay`, or a batch rule has moved `eps` and `betas`, groups hold those too: the factor times the value
        given here, else the one that the plan was made for, else torch's epsilon and betas; if neither gives a decay,
        it is left to the optimiser, unscaled. Frozen parameters are in no group. `batch_size` and `steps` are those of
        your training: if the plan is for others, a `PlanWarning` says so.
        """
        warn_if_elsewhere(self, Training(batch_size, steps))
        return param_groups(model, self, lr=lr, decay=decay, even_decay=even_decay, no_decay=no_decay, **options)

    def optimizer(
        self,
        model: Any,
        *,
        lr: float | None = None,
        decay: Decay | None = None,
        even_decay: bool = False,
        no_decay: bool | None = None,
        batch_size: int | None = None,
        steps: int | None = None,
        **options: Any,
    ) -> Any:
        """Return the torch optimiser that the plan is for, built from the groups of `param_groups`.

        A plan for a class or an instance builds that class with those settings. A plan for a name builds what searches
        train with: `torch.optim.SGD` for 'sgd', the same with Nesterov momentum of 0.9 for 'momentum',
        `torch.optim.AdamW` without weight decay for 'adam', `evenstep.optim.Muon` for 'muon' and `evenstep.optim.Lion`
        for 'lion'. `options` override the settings: `weight_decay=0.1`, `betas=(0.9, 0.95)`, `fused=True`. `lr`,
        `decay`, `even_decay`, `no_decay`, `batch_size` and `steps` are those of `param_groups`.
        """
        warn_if_elsewhere(self, Training(batch_size, steps))
        return build_optimizer(model, self, lr=lr, decay=decay, even_decay=even_decay, no_decay=no_decay, **options)

    def at(
        self,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        batch_rule: str | BatchRule = BATCH,
        length_rule: str | LengthRule = LENGTH,
    ) -> Plan:
        """Return the plan for another batch size, another number of steps, or both.

        All rates get two further factors, `batch` and `length`, relative to the plan's current batch size and number of
        steps: by `batch_rule`, one of `fourth-root`, `root`, `root-linear`, `linear`, `sde`, `none` or a value of your
        own (`evenstep.rules.batch`), and by `length_rule`, one of `travel`, `power`, `none` or a value of your own
        (`evenstep.rules.length`). With `sde`, Adam's betas and epsilon move as well, in `param_groups` and `optimizer`.

        >>> from evenstep.graph import dag_mlp_graph
        >>> from evenstep.planning import plan_graph
        >>> plan = plan_graph(dag_mlp_graph("2"), base=0.01, optimizer="adam", batch_size=64, steps=1500)
        >>> plan.at(batch_size=1024).lr_scale / plan.lr_scale
        2.0
        """
        return moved_to(self, Training(batch_size, steps), batch=batch_rule, length=length_rule)

    def scale(self, pattern: str, factor: float) -> Plan:
        """Return the plan with the rates of all parameters whose names match a pattern multiplied by a factor.

        `*` stands for any text, including dots: `plan.scale("*.bias", 2.0)`, `plan.scale("*", 0.5)` for all rates. The
        plan records the factor with its reason, as it does all others.
        """
        return scaled(self, pattern, factor)

    def freeze(self, pattern: str) -> Plan:
        """Return the plan in which parameters whose names match a pattern are not trained.

        `initialize_` keeps their values, and `param_groups` and `optimizer` leave them out. The module is not changed:
        they may require gradients (`requires_grad`) or not, as you like.
        """
        return frozen(self, pattern)

    def to_dict(self, *, graph: bool = True) -> dict[str, Any]:
        """Return the plan as plain values; without the graph it cannot be loaded again."""
        values: dict[str, Any] = {
            "format": FORMAT,
            "rule": self.rule,
            "init": self.init,
            "optimizer": self.optimizer_name,
            "optimizer_options": dict(self.optimizer_options),
            "base": self.base,
            "lr_scale": self.lr_scale,
            "factors": [asdict(factor) for factor in self.factors],
            "path_count": self.path_count,
            "sum_cubed_depth": self.sum_cubed_depth,
            "vertices": [asdict(vertex) for vertex in self.vertices],
            "remarks": list(self.remarks),
            "history": list(self.history),
            **asdict(self.training),
            "searched": asdict(self.searched),
            **{name: [asdict(f) for f in shared] for name in _SHARED_SETTINGS if (shared := getattr(self, name))},
            "parameters": [_listed(parameter) for parameter in self.parameters],
        }
        return {**values, "graph": self.graph.to_dict()} if graph else values

    def to_json(self) -> str:
        """Return the plan as JSON text that `Plan.from_json` reads back to an equal plan."""
        try:
            with any_digits():
                return json.dumps(self.to_dict(), allow_nan=False)
        except ValueError:
            raise PlanError(
                "the plan holds a number that is not finite, which JSON cannot write; look for a constant of the "
                "network that is infinite or not a number"
            ) from None

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan written by `to_json`; anything else raises a `PlanError`."""
        try:
            with any_digits():
                values = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise PlanError(
                f"this is not a plan: its text is not JSON ({error}); write one with plan.to_json()"
            ) from None
        return cls.from_dict(values)

    @classmethod
    def from_dict(cls, values: Any) -> Plan:
        """Read a plan written by `to_dict` with its graph; anything else raises a `PlanError`."""
        given = values.get("format") if isinstance(values, Mapping) else type(values).__name__
        if given in _OLDER_FORMATS:
            raise PlanError(
                f"the plan's format is {given!r}, from an older version, and not '{FORMAT}'; plan the model again and "
                "write it with plan.to_json()"
            )
        if given != FORMAT:
            raise PlanError(
                f"this is not a plan: its format is {given!r}, not '{FORMAT}'; write one with plan.to_json()"
            )
        try:
            return cls._from_values(values)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, EvenstepError) as error:
            reason = " ".join(str(error).split())[:300]
            raise PlanError(
                f"the plan is damaged ({type(error).__name__}: {reason}); make it again and write it with "
                "plan.to_json()"
            ) from None

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> Plan:
        optimizer = choice_from(values["optimizer"], values.get("optimizer_options", {}))
        plan = cls(
            parameters=tuple(map(_parameter_of, values["parameters"])),
            rule=values["rule"],
            base=values["base"],
            graph=Graph.from_dict(values["graph"]),
            init=values["init"],
            optimizer_name=optimizer.name,
            factors=tuple(Factor(**factor) for factor in values["factors"]),
            vertices=tuple(VertexPlan(**vertex) for vertex in values["vertices"]),
            path_count=values["path_count"],
            sum_cubed_depth=values["sum_cubed_depth"],
            remarks=tuple(values.get("remarks", ())),
            optimizer_options=optimizer.options,
            history=tuple(values.get("history", ())),
            training=Training(values.get("batch_size"), values.get("steps")),
            searched=Training(**values.get("searched", {})),
            **{name: tuple(Factor(**f) for f in values.get(name, ())) for name in _SHARED_SETTINGS},
        )
        check_values(plan)
        rate = values["lr_scale"]
        require(is_number(rate) and math.isclose(rate, plan.lr_scale), "lr_scale", rate)
        return plan

    def _some(self) -> str:
        return ", ".join(f"'{p.name}'" for p in self.parameters[:3])


def _listed(parameter: ParameterPlan) -> dict[str, Any]:
    """Return a parameter's plan as plain values: its fields, and values derived from them for other readers."""
    values = {f.name: getattr(parameter, f.name) for f in fields(parameter)}
    values["factors"] = [asdict(factor) for factor in parameter.factors]
    for name in _SCALED_BY_RULES:  # empty under rules that only scale rates
        if not (listed := values.pop(name)):
            continue
        values[name] = [asdict(factor) for factor in listed]
    return {**values, "lr_scale": parameter.lr_scale, "reason": parameter.reason}


def _parameter_of(values: Mapping[str, Any]) -> ParameterPlan:
    """Rebuild a parameter's plan; its rate has to be the product of its factors."""
    given = {name: value for name, value in values.items() if name not in ("lr_scale", "reason")}
    given |= {name: tuple(Factor(**f) for f in given.get(name, ())) for name in ("factors", *_SCALED_BY_RULES)}
    made = ParameterPlan(**given | {"shape": tuple(given["shape"]), "notes": tuple(given["notes"])})
    rate = values["lr_scale"]
    require(is_number(rate) and math.isclose(rate, made.lr_scale), f"lr_scale of '{made.name}'", rate)
    require(isinstance(values.get("reason", ""), str), f"reason of '{made.name}'", values.get("reason"))
    return made
