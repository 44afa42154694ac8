"""Weight decay of groups: which parameters decay, and how their decay depends on their rates.

Torch's optimisers multiply a group's `weight_decay` by its rate: a step subtracts rate x weight_decay of every weight.

- `coupled`: the same number for all groups, as in torch. Parameters that train slowly decay slowly. (AdamW in torch,
  after Loshchilov & Hutter 2019, arXiv 1711.05101, whose own formula leaves the rate out.)
- `even`: divided by the layer's own factor of the rate, so that rate x decay is the same for all: all parameters decay
  at one pace, that of the network's rate. Between widths this keeps eta lambda constant, as muP and CompleteP do for
  AdamW (Dey et al. 2025, arXiv 2505.01618): rates that fall with width have decays that grow with it.
- `independent`: divided by the whole rate, so that a step subtracts `weight_decay` of every weight, times the
  schedule's factor only: the learning rate does not change it (Loshchilov & Hutter's formula; Wortsman et al. 2023,
  arXiv 2309.14322). Such decays are of the order of 1e-4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from evenstep.arguments import require_choice, require_number, shown
from evenstep.errors import InputError, PlanWarning, warn
from evenstep.graph.model import COMPUTED_FROM, EMBEDDING, Graph, Parameter

Decay = Literal["coupled", "even", "independent"]
DECAYS: tuple[str, ...] = get_args(Decay)
# Classes that do not add decay to the gradient; others have an option for it, `decoupled_weight_decay`.
_DECOUPLED = ("AdamW", "Muon", "Lion")


def decay_kind(decay: str | None, *, even_decay: bool) -> str:
    """Return the kind of decay that two arguments choose together; `even_decay` is the older one."""
    if not isinstance(even_decay, bool):
        raise InputError(f"even_decay is {shown(even_decay)}; give True or False")
    if decay is None:
        return "even" if even_decay else "coupled"
    require_choice("decay", decay, DECAYS)
    if even_decay and decay != "even":
        raise InputError(f"decay is '{decay}' and even_decay True; leave even_decay out")
    return decay


def decay_rate(kind: str, options: Mapping[str, Any]) -> float | None:
    """Return the weight decay that is to be divided among groups; None if none is."""
    given = options.get("weight_decay")
    if kind == "coupled":
        return None
    how = "even_decay=True divides" if kind == "even" else "decay='independent' divides"
    remedy = f", which {how} among the groups, or leave {'even_decay' if kind == 'even' else 'decay'} out"
    if kind == "independent":
        return require_number("weight_decay", given, least=0, below=1, remedy=remedy)
    return require_number("weight_decay", given, least=0, remedy=remedy)


def group_decay(kind: str, weight_decay: float, *, rate: float, decay_scale: float) -> float:
    """Return a group's weight decay at its rate; `decay_scale` is the plan's for the group's layers.

    >>> [round(group_decay(kind, 0.1, rate=0.02, decay_scale=0.5), 6) for kind in ("coupled", "even", "independent")]
    [0.1, 0.05, 5.0]
    """
    if kind == "even":
        return weight_decay * decay_scale
    return weight_decay / rate if kind == "independent" else weight_decay


def is_decoupled(class_name: str, options: Mapping[str, Any]) -> bool:
    """Return whether an optimiser class subtracts decay from the weights instead of adding it to the gradient."""
    return class_name in _DECOUPLED or bool(options.get("decoupled_weight_decay"))


def warn_if_normalised(kind: str, class_name: str, weight_decay: object, options: Mapping[str, Any]) -> None:
    """Warn if Adam would add the decay to a gradient that it normalises: dividing it then does not make it even."""
    if kind == "coupled" or not weight_decay or class_name == "SGD" or is_decoupled(class_name, options):
        return
    warn(
        f"decay is '{kind}', but the optimizer {class_name} adds decay to the gradient and divides both by the "
        f"gradient's size, so decay is not '{kind}' after all; plan with optimizer=torch.optim.AdamW",
        PlanWarning,
    )


def decaying(graph: Graph) -> frozenset[str]:
    """Return the parameters that decay if not all do: weights, and parameters that weights are computed from.

    Gains and biases of norms, other biases, gates and factors, tables of positions and embeddings do not decay. A table
    that is also the readout's weight does.
    """
    multiplied = {
        name for edge in graph.edges if edge.weight is not None and edge.weight.fan_in > 1 for name in edge.parameters
    }
    return frozenset(
        p.name for p in graph.parameters if _is_weight(p) and (p.note != EMBEDDING or p.name in multiplied)
    )


def _is_weight(parameter: Parameter) -> bool:
    if parameter.note == COMPUTED_FROM:
        return sum(size > 1 for size in parameter.shape) > 1
    return parameter.role == "weight"
