"""A job: everything a worker needs to train trials of one network, wherever it runs."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from evenstep.errors import InputError
from evenstep.module import initialize_
from evenstep.planning import Plan
from evenstep.search.recipe import Recipe

Data = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Trial:
    """Name one trial: its learning rate (the base's, before the plan's factors) and the seed of its weights."""

    lr: float
    seed: int


@dataclass(frozen=True)
class Job:
    """Hold one network, its plan and its recipe; values only, so that it can be sent to another process.

    A trial starts as the template with weights drawn from the plan by the trial's seed. What the plan leaves alone
    (parameters it keeps, frozen ones, buffers) is as `make_model` made it under that seed: `kept` holds that for every
    seed, but for frozen values and buffers that are the template's too.
    """

    template: nn.Module
    plan: Plan
    recipe: Recipe
    kept: Mapping[int, Mapping[str, Tensor]]

    @classmethod
    def of(cls, make_model: Callable[[], nn.Module], plan: Plan, recipe: Recipe, seeds: range) -> Job:
        """Make a job, calling `make_model` once for every seed whose own values matter."""
        template = made(make_model, 0)
        names = {p.name for p in plan.parameters if p.kept}
        fixed = _fixed(template)
        kept = {}
        for seed in seeds if names or fixed else ():
            model = made(make_model, seed)
            _require_alike(model, template)
            values: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if name in names}
            values |= {name: t for name, t in _fixed(model).items() if not _same(t, fixed.get(name))}
            if values:
                kept[seed] = {name: tensor.detach().clone() for name, tensor in values.items()}
        return cls(template, plan, recipe, kept)

    def start(self, seed: int) -> nn.Module:
        """Return a new model as the trial of a seed starts it."""
        model = copy.deepcopy(self.template)
        tensors = dict(model.named_parameters()) | dict(model.named_buffers())
        with torch.no_grad():
            for name, value in self.kept.get(seed, {}).items():
                tensors[name].copy_(value)
        initialize_(model, self.plan, generator=torch.Generator().manual_seed(seed))
        return model

    def description(self, data: Data) -> dict[str, Any]:
        """Return what identifies the job: equal descriptions train equal trials."""
        recipe = {name: _named(getattr(self.recipe, name)) for name in self.recipe.__dataclass_fields__}
        network: dict[str, Any] = {"plan": _digest(self.plan.to_json().encode()), "template": repr(self.template)}
        network["fixed"] = {name: _fingerprint(tensor) for name, tensor in _fixed(self.template).items()}
        if norms_of(self.template):  # their losses were measured otherwise once
            network["statistics"] = "afresh"
        kept = {str(seed): {n: _fingerprint(t) for n, t in values.items()} for seed, values in self.kept.items()}
        return {"recipe": recipe, "network": network, "kept": kept, "data": [_fingerprint(tensor) for tensor in data]}

    def config(self, data: Data) -> str:
        """Return the hash of the job's description."""
        return _digest(json.dumps(self.description(data), sort_keys=True).encode())


def _require_alike(model: nn.Module, template: nn.Module) -> None:
    """Refuse a model of other parameters or buffers than the template's: a function makes the same one at each call."""
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
    """Return a new model; it may draw from the global random state, which is put back."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model()
    if not isinstance(model, nn.Module):
        raise InputError(f"make_model returned {type(model).__name__}; return a torch.nn.Module")
    return model


def _fixed(model: nn.Module) -> dict[str, Tensor]:
    """Return what no plan draws and no step trains, by name: frozen parameters and buffers."""
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    return frozen | dict(model.named_buffers())


def _same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(_dense(tensor), _dense(other))


def _dense(tensor: Tensor) -> Tensor:
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _named(value: Any) -> Any:
    """Return a function by its name and code, anything else as it is."""
    if not callable(value):
        return value
    code = getattr(value, "__code__", None)
    body = _digest(code.co_code + repr(code.co_consts).encode())[:12] if code else repr(value)
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__name__)}:{body}"


def _fingerprint(tensor: Tensor) -> list[Any]:
    values = _dense(tensor.detach()).cpu().contiguous()
    content = values.reshape(-1).view(torch.uint8).numpy().data if values.numel() else memoryview(b"")
    return [str(tensor.dtype), list(tensor.shape), _digest(content)]


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
