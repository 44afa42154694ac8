"""Identify a search by one hash of everything that decides its trials' losses.

Both code and operators are read: code shows branches that one batch does not take, and operators show what libraries
do. Neither contains an address, an order of sets or a path, so another process finds the same key.
"""

from __future__ import annotations

import json
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from evenstep.module.threads import threads
from evenstep.search.fields import Column, Data, called, copy_of, loss_of, named_tensors
from evenstep.search.job import Job, fixed_tensors, norms_of
from evenstep.search.python_values import Unreadable, ValueReader, digest_of, tensor_digest
from evenstep.search.randomness import own_randomness
from evenstep.search.replicas import HOPELESS, step_count
from evenstep.search.sharing import move_
from evenstep.search.stacked_optimizers import Treatment, treatments
from evenstep.search.tape import Tape

_VERSION = 3  # of what is hashed and of how a trial's loss is computed; version 2 evaluated in other batches
_FUNCTIONS = ("loss", "schedule")
_SCALES = (0.01, 1.0, 100.0)  # of outputs that a loss is tried on, on either side of where it may be clipped or bent


@dataclass(frozen=True)
class SearchKey:
    """Hold the hash that identifies a search, and a description of what was hashed.

    Searches with equal hashes train equal trials. If `unreadable` names something that cannot be hashed, the hash is
    unique.
    """

    config: str
    description: Mapping[str, Any]
    unreadable: str | None = None


def search_key(
    job: Job,
    data: Data,
    *,
    name: str | None = None,
    precision: str = "float32",
    shrink: Mapping[str, Any] | None = None,
) -> SearchKey:
    """Return the key of a job on its data; a name, with the sizes of `shrink`, stands for what is computed."""
    recipe, unreadable = job.recipe, None
    numbers = {field: getattr(recipe, field) for field in recipe.__dataclass_fields__ if field not in _FUNCTIONS}
    if recipe.counted is None:
        del numbers["counted"]  # so that stores from before this choice keep their keys
    else:
        numbers["hopeless"] = HOPELESS
    numbers["betas"] = recipe.betas_used
    if not recipe.no_decay:
        del numbers["no_decay"]
    if treated := _treated(job):
        numbers["treated"] = treated
    keyed: dict[str, Any] = {
        "version": _VERSION,
        "recipe": numbers,
        "schedule": _schedule_digest(job, data),
        "network": {
            "parameters": _parameters(job),
            "fixed": {name: tensor_digest(tensor) for name, tensor in fixed_tensors(job.template).items()},
        },
        "kept": {str(seed): {n: tensor_digest(t) for n, t in values.items()} for seed, values in job.kept.items()},
        "data": [_data_digest(part) for part in data],
    }
    if precision != "float32":
        keyed["precision"] = precision
    if norms_of(job.template):  # older versions measured their losses differently
        keyed["network"]["statistics"] = "afresh"
    if name is not None:
        keyed["computed"] = {"name": name} | ({} if shrink is None else {"shrink": shrink})
    else:
        try:
            keyed["computed"] = {"code": _code_digests(job), "steps": _step_digests(job, data)}
        except Unreadable as reason:
            unreadable = str(reason)
            keyed["computed"] = {"alone": uuid.uuid4().hex}
    shown = {field: _shown(getattr(recipe, field)) for field in _FUNCTIONS}
    description = keyed | {"recipe": numbers | shown, "template": repr(job.template)}
    if shrink is not None:
        description["shrink"] = shrink
    return SearchKey(digest_of(json.dumps(keyed, sort_keys=True).encode()), description, unreadable)


def _parameters(job: Job) -> list[list[Any]]:
    """Return what trials take from the plan: how parameters are drawn and their rates, without reasons."""
    types = {name: str(p.dtype) for name, p in job.template.named_parameters()}
    return [
        [p.name, list(p.shape), types.get(p.name), p.lr_scale, None if p.kept else [p.mean, p.std]]
        for p in job.plan.parameters
    ]


def _treated(job: Job) -> list[list[Any]]:
    """Return what trials take from the plan's graph: which parameters do not decay, and which count as matrices."""
    names = [p.name for p in job.plan.parameters]
    treated = zip(names, treatments(job.recipe, job.plan, names), strict=True)
    return [[name, *treatment] for name, treatment in treated if treatment != Treatment()]


def _data_digest(part: Column) -> Any:
    """Return the digest of a tensor, or the digests of several by name."""
    if isinstance(part, Tensor):
        return tensor_digest(part)
    return {"count": part.count, "kind": type(part.value).__name__} | {
        f"tensor {name}": tensor_digest(tensor) for name, tensor in named_tensors(part)
    }


def _schedule_digest(job: Job, data: Data) -> str:
    """Return the digest of all factors that will be used: a schedule is no more than its factors."""
    factors = [float(job.recipe.schedule(step)).hex() for step in range(step_count(len(data[0]), job.recipe))]
    return digest_of(" ".join(factors).encode())


def _code_digests(job: Job) -> dict[str, str]:
    """Return the digests of the code of the model and the loss, with the model's tensors by name."""
    names = {id(p): f"parameter {name}" for name, p in job.template.named_parameters()}
    names |= {id(b): f"buffer {name}" for name, b in job.template.named_buffers()}
    model = ValueReader(names).digest(job.template, type(job.template).__name__)
    return {"model": model, "loss": ValueReader(names).digest(job.recipe.loss, "loss")}


def _step_digests(job: Job, data: Data) -> list[str]:
    """Return the digests of a step, of an evaluation, and of the loss on outputs of several scales."""
    size, device = min(job.recipe.batch_size, len(data[0])), data[0].device
    model = move_(job.start(0), device)
    named: dict[str, Tensor] = {f"parameter {name}": p for name, p in model.named_parameters()}
    named |= {f"buffer {name}": b for name, b in model.named_buffers()}

    def batch() -> tuple[Column, Column, Tape]:
        """Return a batch that may be changed in place, copied outside the tape."""
        inputs, targets = copy_of(data[0][:size]), copy_of(data[1][:size])
        held = dict((*named_tensors(inputs, "inputs"), *named_tensors(targets, "targets")))
        return inputs, targets, Tape(named | held)

    kind = type(model).__name__
    with own_randomness(0, device), threads(1, device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the search repeats all these warnings when it trains
        try:
            inputs, targets, step = batch()
            with step:
                output = called(model.train(), inputs, copied=True)
                _note_gradients(step, loss_of(job.recipe.loss, output, targets, copied=True), _leaves(model))
            inputs, targets, evaluation = batch()
            with evaluation, torch.no_grad():
                evaluated = called(model.eval(), inputs, copied=True)
                evaluation.note(loss_of(job.recipe.loss, evaluated, targets, copied=True))
        except Exception as error:
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            raise Unreadable(f"a step of {kind} cannot be recorded ({type(error).__name__}: {reason})") from error
        trials = [_loss_digest(job, output, copy_of(data[1][:size]), scale) for scale in _SCALES]
    return [step.digest(), evaluation.digest(), *trials]


def _loss_digest(job: Job, output: Any, targets: Column, scale: float) -> str:
    """Return the digest of the loss on normal numbers in place of an output, or of the error it raises."""
    generator = torch.Generator().manual_seed(0)
    leaves: list[Tensor] = []
    drawn = _drawn_like(output, scale, generator, leaves)
    tape = Tape(
        dict(named_tensors(targets, "targets")) | {f"output {place}": leaf for place, leaf in enumerate(leaves)}
    )
    try:
        with tape:
            _note_gradients(tape, loss_of(job.recipe.loss, drawn, targets, copied=True), leaves)
    except Exception as error:
        tape.note(type(error).__name__)
    return tape.digest()


def _drawn_like(output: Any, scale: float, generator: torch.Generator, leaves: list[Tensor]) -> Any:
    if isinstance(output, Tensor) and output.is_floating_point():
        normal = torch.randn(output.shape, generator=generator, dtype=torch.float32)
        leaves.append((scale * normal).to(output.device, output.dtype).requires_grad_())
        return leaves[-1]
    if type(output) in (list, tuple):
        return type(output)(_drawn_like(part, scale, generator, leaves) for part in output)
    if type(output) is dict:
        return {name: _drawn_like(part, scale, generator, leaves) for name, part in output.items()}
    return output


def _note_gradients(tape: Tape, loss: Tensor, leaves: list[Tensor]) -> None:
    tape.note([loss, *torch.autograd.grad(loss, leaves, allow_unused=True)])


def _leaves(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _shown(function: Any) -> str:
    """Return a function's name to show."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
