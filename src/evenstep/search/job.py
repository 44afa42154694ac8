"""A job: everything that a worker needs to train trials of one network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from evenstep.errors import InputError
from evenstep.module import initialize_
from evenstep.planning import Plan
from evenstep.search.copying import CodeSeen, code_seen, require_as_sent, require_copies
from evenstep.search.randomness import copied, own_randomness
from evenstep.search.recipe import Recipe
from evenstep.search.sharing import packed, unpacked_


@dataclass(frozen=True, slots=True)
class Trial:
    """Name one trial by its learning rate (the base's, before the plan's factors) and the seed of its weights."""

    lr: float
    seed: int


@dataclass(frozen=True)
class Job:
    """Hold one network, its plan and its recipe as plain values, so that it can be sent to another process.

    A trial starts from the template, with weights drawn by the plan from the trial's seed. What the plan leaves alone
    (kept and frozen parameters, buffers) is as `make_model` made it with that seed: `kept` holds it for each seed,
    except for frozen values and buffers that equal the template's.
    """

    template: nn.Module
    plan: Plan
    recipe: Recipe
    kept: Mapping[int, Mapping[str, Tensor]]

    @classmethod
    def of(cls, make_model: Callable[[], nn.Module], plan: Plan, recipe: Recipe, seeds: range) -> Job:
        """Make a job, calling `make_model` once for each seed whose values matter."""
        template = made(make_model, 0)
        require_copies(template)
        names = {p.name for p in plan.parameters if p.kept}
        fixed = fixed_tensors(template)
        kept = {}
        for seed in seeds if names or fixed else ():
            model = made(make_model, seed)
            _require_alike(model, template)
            values: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if name in names}
            values |= {name: t for name, t in fixed_tensors(model).items() if not _same(t, fixed.get(name))}
            if values:
                kept[seed] = {name: tensor.detach().clone() for name, tensor in values.items()}
        return cls(template, plan, recipe, kept)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with a template that pickle accepts."""
        template, names = packed(self.template)
        code = code_seen(self.template, self.recipe.loss)
        return _arrived, (template, names, self.plan, self.recipe, self.kept, torch.get_default_dtype(), code)

    def require_as_sent(self) -> None:
        """Refuse to train in another process if the network or the loss differs there."""
        require_as_sent(self.template, self.recipe.loss, self.__dict__.get("_code"))

    @property
    def stays(self) -> bool:
        """Whether a worker has found that the job differs there."""
        return "_stays" in self.__dict__

    def keep_here_(self) -> None:
        """Note that no other process can train this job."""
        self.__dict__["_stays"] = True

    def start(self, seed: int) -> nn.Module:
        """Return a new model as a trial with this seed starts."""
        try:
            model = copied(self.template)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise InputError(
                f"{type(self.template).__name__} cannot be copied, but every trial trains a copy: {reason}; keep what "
                "has no copy outside the module, and use torch.nn.utils.parametrizations.weight_norm for weight_norm"
            ) from error
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, value in self.kept.get(seed, {}).items():
                tensors[name].copy_(value)
        initialize_(model, self.plan, generator=torch.Generator().manual_seed(seed))
        return model


def _arrived(
    template: nn.Module,
    names: list[str],
    plan: Plan,
    recipe: Recipe,
    kept: Mapping[int, Mapping[str, Tensor]],
    default_dtype: torch.dtype,
    code: CodeSeen | None,
) -> Job:
    torch.set_default_dtype(default_dtype)
    job = Job(unpacked_(template, names), plan, recipe, kept)
    job.__dict__["_code"] = code
    return job


def _require_alike(model: nn.Module, template: nn.Module) -> None:
    """Refuse a model whose parameters or buffers differ from the template's: every call must make the same network."""
    known = {name: tuple(tensor.shape) for name, tensor in template.state_dict().items()}
    for name, tensor in model.state_dict().items():
        if known.pop(name, None) != tuple(tensor.shape):
            raise _changing(model, f"'{name}' of shape {tuple(tensor.shape)}")
    if known:
        raise _changing(model, f"no '{next(iter(known))}'")


def _changing(model: nn.Module, what: str) -> InputError:
    return InputError(
        f"make_model returned {type(model).__name__} with {what}, unlike before; return the same network at each call"
    )


def norms_of(model: nn.Module) -> list[_NormBase]:
    """Return the norms that keep running statistics."""
    return [module for module in model.modules() if isinstance(module, _NormBase) and module.track_running_stats]


def made(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a new model; it may draw from the global random state, which is restored."""
    with own_randomness(seed):
        model = make_model()
    if not isinstance(model, nn.Module):
        raise InputError(f"make_model returned {type(model).__name__}; return a torch.nn.Module")
    return model


def fixed_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return by name what plans do not draw and steps do not train: frozen parameters and buffers."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return frozen | dict(model.named_buffers())


def _same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(_dense(tensor), _dense(other))


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()
