"""The rules, and the function that checks them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import Parameter
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from evenstep.arguments import shown
from evenstep.errors import EvenstepError, InputError, PlanError, TraceError
from evenstep.lint.finding import Finding
from evenstep.lint.kinds import Part, parts_by_module, parts_of
from evenstep.module import check_groups
from evenstep.module.groups import require_even_schedule, unlike_rates
from evenstep.module.trace import read
from evenstep.optim import Muon
from evenstep.planning import Plan
from evenstep.planning.decay import is_decoupled
from evenstep.planning.groups import matched
from evenstep.planning.unwrap import is_module, is_sharded, named_parameters

RULES: Mapping[str, str] = {
    "ungrouped": "a trainable parameter is in no group",
    "grouped-twice": "a parameter is in two groups",
    "tied": "parameters that share memory are in different groups",
    "frozen": "a frozen parameter is in a group with weight decay",
    "decay": "a norm, bias or embedding has decoupled weight decay",
    "muon": "a readout, an embedding or a vector is in a group that Muon orthogonalises",
    "schedule": "a scheduler makes the rates of groups equal",
    "plan": "the groups are not those of the plan",
}


@dataclass(frozen=True)
class _Trained:
    """Hold a model's parameters by name, with the groups and the kind of each."""

    parameters: Mapping[str, Parameter]
    groups: Mapping[int, Sequence[tuple[Optimizer, dict[str, Any]]]]
    parts: Mapping[str, Part]

    def held(self) -> Iterator[tuple[str, Parameter, Optimizer, dict[str, Any]]]:
        """Yield the parameters with the groups that hold them."""
        for name, parameter in self.parameters.items():
            for optimizer, group in self.groups.get(id(parameter), ()):
                yield name, parameter, optimizer, group


def lint(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    scheduler: Any = None,
    *,
    example_inputs: Any = None,
    plan: Plan | None = None,
) -> tuple[Finding, ...]:
    """Return what is wrong with how a model's parameters were given to its optimisers and schedulers.

    With `example_inputs` the model is read as a graph, which says what each parameter is used for; a `plan` brings its
    own graph, and says which rates are right. Without either, norms, biases and embeddings are recognised by the kinds
    of their modules, and readouts are not recognised.

    Nothing is trained, and the model, optimisers and schedulers stay as they are. Weight decay of norms, biases and
    embeddings counts where it is decoupled from the gradient (AdamW, Muon, Lion), as in plans.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 2))
    >>> for finding in lint(net, torch.optim.AdamW(net[:3].parameters(), weight_decay=0.1)):
    ...     print(finding.rule, finding.parameters)
    ungrouped ('3.weight', '3.bias')
    decay ('0.bias', '1.bias')
    decay ('1.weight',)
    """
    if not is_module(model):
        raise InputError(f"the model is {shown(model)}; give a torch.nn.Module")
    if lazy := [name for name, p in named_parameters(model).items() if is_lazy(p)]:
        raise InputError(f"'{lazy[0]}' has no shape yet; run the model once, then build the optimizer")
    optimizers = _each("optimizer", optimizer, Optimizer, "a torch optimizer, or a list of them")
    kinds = (LRScheduler, ReduceLROnPlateau)
    schedulers = () if scheduler is None else _each("scheduler", scheduler, kinds, "a torch scheduler, or a list")
    if plan is not None and len(optimizers) > 1:
        raise InputError(f"a plan is for one optimizer, and there are {len(optimizers)}; leave the plan out")
    if plan is not None:
        matched(model, plan)  # a plan of another model is bad input, not a finding
    groups: dict[int, list[tuple[Optimizer, dict[str, Any]]]] = {}
    for each in optimizers:
        for group in each.param_groups:
            for parameter in group["params"]:
                groups.setdefault(id(parameter), []).append((each, group))
    trained = _Trained(named_parameters(model), groups, _parts(model, example_inputs, plan))
    found = [
        *_ungrouped(trained, plan),
        *_grouped_twice(trained),
        *_tied(trained),
        *_frozen(trained),
        *_decay(trained),
        *_muon(trained),
        *_schedule(optimizers, schedulers),
        *(_unplanned(model, plan, optimizers[0]) if plan is not None else ()),
    ]
    return _joined(found)


def _each(name: str, given: Any, kinds: Any, remedy: str) -> tuple[Any, ...]:
    values = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in values:
        if not isinstance(value, kinds):
            raise InputError(f"the {name} is {shown(value)}; give {remedy}")
    if not values:
        raise InputError(f"the {name} is {shown(given)}; give {remedy}")
    return values


def _parts(model: nn.Module, example_inputs: Any, plan: Plan | None) -> Mapping[str, Part]:
    if plan is not None:
        return parts_of(plan.graph)
    if example_inputs is None:
        return parts_by_module(model)
    try:
        return parts_of(read(model, example_inputs, on_unknown="identity").graph)
    except TraceError as error:
        raise TraceError(f"{error} (or leave the example inputs out: lint then uses the kinds of modules)") from None


def _joined(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Join findings with the same rule, value and remedy."""
    names: dict[tuple[str, str, str], list[str]] = {}
    for finding in findings:
        names.setdefault((finding.rule, finding.value, finding.remedy), []).extend(finding.parameters)
    return tuple(Finding(rule, tuple(who), value, remedy) for (rule, value, remedy), who in names.items())


def _ungrouped(trained: _Trained, plan: Plan | None) -> Iterator[Finding]:
    frozen = {p.name for p in plan if p.frozen} if plan is not None else set()
    for name, parameter in trained.parameters.items():
        if parameter.requires_grad and id(parameter) not in trained.groups and name not in frozen:
            yield Finding(
                "ungrouped",
                (name,),
                "is trainable but in no group, so it never changes",
                "build the optimizer when the model is complete, or set requires_grad=False",
            )


def _grouped_twice(trained: _Trained) -> Iterator[Finding]:
    for name, parameter in trained.parameters.items():
        groups = trained.groups.get(id(parameter), ())
        if len(groups) > 1:
            rates = " and ".join(f"{float(group['lr']):.4g}" for _, group in groups)
            yield Finding(
                "grouped-twice",
                (name,),
                f"is in {len(groups)} groups, with learning rates {rates}, and steps in each",
                "leave it in one",
            )


def _tied(trained: _Trained) -> Iterator[Finding]:
    first: dict[tuple[Any, ...], tuple[str, Parameter]] = {}
    for name, parameter in trained.parameters.items():
        memory = _memory(parameter)
        if memory is None or not parameter.requires_grad:
            continue
        other_name, other = first.setdefault(memory, (name, parameter))
        ids = [{id(group) for _, group in trained.groups.get(id(p), ())} for p in (parameter, other)]
        if other is not parameter and all(ids) and not ids[0] & ids[1]:
            yield Finding(
                "tied",
                (name, other_name),
                "share memory as two parameters in different groups, so the same numbers step twice",
                "make them one parameter before the optimizer is built: readout.weight = embedding.weight",
            )


def _memory(parameter: Parameter) -> tuple[Any, ...] | None:
    """Return where a parameter's numbers are in memory, or None if that is unknown."""
    if parameter.device.type == "meta" or is_sharded(parameter) or not parameter.numel():
        return None
    return parameter.device, parameter.data_ptr(), parameter.numel()


def _frozen(trained: _Trained) -> Iterator[Finding]:
    for name, parameter, _, group in trained.held():
        if not parameter.requires_grad and (decay := _decay_of(group)):
            yield Finding(
                "frozen",
                (name,),
                f"is frozen, but in a group with weight_decay {decay:g}",
                "leave frozen parameters out of the optimizer: if their gradient is not None, they still decay",
            )


def _decay(trained: _Trained) -> Iterator[Finding]:
    for name, parameter, optimizer, group in trained.held():
        part, decay = trained.parts.get(name), _decay_of(group)
        # As in plans: SGD and Adam add decay to the gradient, and whether to spare these is a matter of taste.
        if part is None or part.decays or not decay or not parameter.requires_grad or not _decouples(optimizer):
            continue
        yield Finding(
            "decay",
            (name,),
            f"{part.kind} with weight_decay {decay:g}",
            "give norms, biases and embeddings a group with weight_decay=0",
        )


def _decay_of(group: Mapping[str, Any]) -> float:
    return float(group.get("weight_decay") or 0.0)


def _decouples(optimizer: Optimizer) -> bool:
    return any(is_decoupled(kind.__name__, optimizer.defaults) for kind in type(optimizer).__mro__)


def _muon(trained: _Trained) -> Iterator[Finding]:
    for name, parameter, optimizer, group in trained.held():
        if not parameter.requires_grad or not _is_orthogonalised(optimizer, group):
            continue
        part = trained.parts.get(name)
        kind = part.kind if part is not None else "a vector" if parameter.ndim < 2 else "a weight"
        if kind != "a weight":
            yield Finding(
                "muon",
                (name,),
                f"{kind} of shape {tuple(parameter.shape)} in a Muon group",
                "give readouts, embeddings and vectors to AdamW, as plan.optimizer(model) does for 'muon'",
            )


def _is_orthogonalised(optimizer: Optimizer, group: Mapping[str, Any]) -> bool:
    """Say whether Muon steps a group: torch's, evenstep's, or one whose groups say so."""
    if isinstance(optimizer, Muon):
        return bool(group["muon"])
    torchs = getattr(torch.optim, "Muon", None)  # not in every torch
    return (torchs is not None and isinstance(optimizer, torchs)) or group.get("use_muon") is True


def _schedule(optimizers: Sequence[Optimizer], schedulers: Sequence[Any]) -> Iterator[Finding]:
    for scheduler in schedulers:
        optimizer = next((each for each in optimizers if scheduler.optimizer is each), optimizers[0])
        try:
            require_even_schedule(optimizer, scheduler)
        except PlanError as error:
            yield _from_error("schedule", (), error)
        except EvenstepError:
            raise
        except Exception:  # a custom scheduler that cannot be copied or stepped alone cannot be judged
            continue


def _unplanned(model: nn.Module, plan: Plan, optimizer: Optimizer) -> Iterator[Finding]:
    lost = {p.name for p, parameter in matched(model, plan) if not p.frozen and not _holds(optimizer, parameter)}
    if lost:  # reported already, and there are no rates to compare
        return
    try:
        check_groups(model, plan, optimizer)
    except PlanError as error:
        yield _from_error("plan", tuple(name for name, _, _ in unlike_rates(model, plan, optimizer)), error)


def _holds(optimizer: Optimizer, parameter: Any) -> bool:
    return any(each is parameter for group in optimizer.param_groups for each in group["params"])


def _from_error(rule: str, names: tuple[str, ...], error: PlanError) -> Finding:
    value, _, remedy = str(error).partition("; ")
    return Finding(rule, names, value, remedy)
