"""From a module to its graph to its plan in one call, checked by a forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from evenstep.graph import Graph
from evenstep.init import Initialisation
from evenstep.module.checked import planned_as_measured
from evenstep.module.trace import OnUnknown, read
from evenstep.planning import BaseSearch, OptimizerLike, Plan, plan_network
from evenstep.planning.concerns import report
from evenstep.rules import Rule


def plan(
    model: nn.Module | Graph,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    base: BaseSearch | float | None = None,
    base_graph: Graph | None = None,
    rule: str | Rule = "weighted",
    init: str | Initialisation = "conserve",
    optimizer: OptimizerLike | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
    on_unknown: OnUnknown = "raise",
    measure: bool | None = None,
    strict: bool = False,
) -> Plan:
    """Return an initialisation and a learning rate for every trainable parameter of a module (or graph).

    `base` is the result of `search_lr`, or the best learning rate of the network `base_graph`, by default the
    one-hidden-layer chain of the same kind. Without `base` the plan holds factors only. `init` is `conserve`, `degree`
    (the paper's), `he`, or `keep` for a plan of learning rates only. `optimizer` defaults to the one that the base was
    searched for; with a bare learning rate it has to be given: `sgd`, `momentum`, `adam` (or `adamw`), `muon`, `lion`,
    a class such as `torch.optim.AdamW`, or an instance, whose settings except for the learning rate
    `plan.optimizer(model)` takes over. `batch_size` and `steps` are those that a bare learning rate was searched with;
    a search knows its own. `Plan.at` moves the plan to yours.

    A forward pass with weights drawn as planned then measures the signal at every vertex: if one is far from the
    computed one, a warning names the operator and the plan uses the measured value. The module itself does not change.
    By default this happens if the network can run and its forward pass is not large; `measure` forces it on (True) or
    off (False). What looks wrong in the finished plan is also a `PlanWarning`; with `strict` it is an error.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 2))
    >>> planned = plan(net, torch.zeros(1, 8), base=0.1, optimizer="sgd")
    >>> [parameter.name for parameter in planned.parameters]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """
    make = partial(
        plan_network,
        rule=rule,
        init=init,
        optimizer=optimizer,
        base=base,
        base_graph=base_graph,
        batch_size=batch_size,
        steps=steps,
    )
    if isinstance(model, Graph):
        made, _ = make(model)
    else:
        with _own_generators_kept(model):
            reading = read(model, example_inputs, example_kwargs=example_kwargs, on_unknown=on_unknown)
            made = make(reading.graph)[0] if measure is False else planned_as_measured(reading, make, insist=measure)
        made = made.with_measured({}, reading.program.remarks)
    report(made, strict=strict)
    return made


@contextmanager
def _own_generators_kept(model: nn.Module) -> Iterator[None]:
    """Restore the state of generators that modules hold."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    held = [value for module in modules for value in vars(module).values() if isinstance(value, torch.Generator)]
    before = [(generator, generator.get_state()) for generator in held]
    try:
        yield
    finally:
        for generator, state in before:
            generator.set_state(state)
