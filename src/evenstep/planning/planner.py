"""From a graph to its plan: the chosen rule's factors, the base they relate to, and each parameter's line."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple, Protocol

from evenstep.arguments import require_choice, require_number, shown
from evenstep.errors import InputError
from evenstep.graph import Graph, Parameter, dag_cnn_graph, dag_mlp_graph
from evenstep.graph.expression_names import is_plain
from evenstep.graph.fields import described, name_of
from evenstep.graph.networks import NormKind, Order
from evenstep.graph.operators import Activation, Recurrent
from evenstep.init import INITS, Initialisation, Network, initialisation
from evenstep.init.network import branch_words
from evenstep.planning.concerns import ON_NO_PATH
from evenstep.planning.groups import matrices_of
from evenstep.planning.optimizers import OptimizerChoice, OptimizerLike, optimizer_choice
from evenstep.planning.plan import ParameterPlan, Plan, VertexPlan
from evenstep.rules import RULES, Factor, Optimizer, RateFactors, Rule
from evenstep.rules.rule import product, steps_by_rate
from evenstep.rules.training import Training

# Widths of the one-hidden-layer chain that a bare learning rate is taken to be for: those of our measurements.
BASE_WIDTH = {"mlp": 256, "cnn": 64}

_NO_ANSWER = {
    "best_at_edge": "widen its grid, or train longer",
    "learnt_nothing": "train longer, check the targets and the loss, or try other rates",
    "all_diverged": "search lower rates, or check the data's scale and the loss",
}


class BaseSearch(Protocol):
    """What a plan needs from a search: the best rate and the graph of the base network."""

    @property
    def best(self) -> float:
        """The base's best learning rate."""

    @property
    def graph(self) -> Graph:
        """The base network's graph."""


def plan_graph(
    graph: Graph,
    *,
    rule: str | Rule = "weighted",
    init: str | Initialisation = "conserve",
    optimizer: OptimizerLike | None = None,
    base: BaseSearch | float | None = None,
    base_graph: Graph | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
) -> Plan:
    """Return the plan of a graph, relative to a base.

    `base` is a search (its `rate` counts, else its `best`), or the best learning rate of `base_graph` (by default the
    one-hidden-layer chain of the same kind, of `BASE_WIDTH` units and kernel 3). Without it the plan holds factors
    only. `optimizer`, as `optimizer_choice` takes it, defaults to the search's; with a bare learning rate it has to be
    given, and factors alone are for `sgd`. `batch_size` and `steps` are those that a bare learning rate was searched
    with, so that `Plan.at` can move the plan to others; a search knows its own.
    """
    options: dict[str, Any] = {"optimizer": optimizer, "batch_size": batch_size, "steps": steps}
    return plan_network(graph, rule=rule, init=init, base=base, base_graph=base_graph, **options)[0]


def plan_network(
    graph: Graph,
    *,
    rule: str | Rule = "weighted",
    init: str | Initialisation = "conserve",
    optimizer: OptimizerLike | None = None,
    base: BaseSearch | float | None = None,
    base_graph: Graph | None = None,
    batch_size: int | None = None,
    steps: int | None = None,
) -> tuple[Plan, Network]:
    """Return the plan of a graph as `plan_graph` does, and the network at initialisation that it was made from."""
    chosen, start = _chosen(rule), initialisation(init)
    requested = None if optimizer is None else optimizer_choice(optimizer)
    _require_graph("graph", graph)
    rate, base_graph = _base(base, base_graph)
    if base_graph is not None:
        _require_graph("base_graph", base_graph)
    _require_answer(base)
    _require_like(base, chosen)
    _require_trainable(graph)
    kind = _optimizer(base, requested)
    training = _searched(base, Training(batch_size, steps))
    with _collector_paused():
        plan, network = _planned(graph, chosen, start, kind, rate, base_graph)
    if kind.name == "muon":
        plan = _with_matrices(plan)
    remark = getattr(base, "remark", "")
    words = (getattr(base, "words", ""), f"the base's search: {remark}" if remark else "")
    return replace(plan, history=tuple(filter(None, words)), training=training, searched=training), network


def _with_matrices(plan: Plan) -> Plan:
    """Return a plan for Muon with a note on each parameter that it steps as a matrix; raise if there is none."""
    matrices = matrices_of(plan)
    if not matrices:
        raise InputError(
            "optimizer is 'muon', but the network has no hidden matrices for it to step: each of its weights reads the "
            "input, gives the output or is not a matrix; plan with optimizer='adam' (AdamW)"
        )
    noted = (
        replace(p, notes=(*p.notes, f"stepped by Muon as {matrices[p.name].words()}")) if p.name in matrices else p
        for p in plan.parameters
    )
    return replace(plan, parameters=tuple(noted))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Plan without the cycle collector, which would visit a large plan's many objects again and again in vain."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _planned(
    graph: Graph,
    rule: Rule,
    init: Initialisation,
    optimizer: OptimizerChoice,
    rate: float | None,
    base_graph: Graph | None,
) -> tuple[Plan, Network]:
    base_init = INITS["conserve"] if init.keeps and base_graph is None else init
    base = Network(base_graph or chain_like(Network(graph, init).live), base_init)
    network = Network(graph, init.relative_to(base.readout_fan_in))
    factors = rule.factors(network, base, optimizer.name)
    _require_factors(rule, factors, graph)
    if not network.init.keeps:
        multipliers, starts = _products(factors.multipliers), _products(factors.starts)
        if multipliers or starts:
            network = replace(network, multipliers=multipliers, start_scales=starts)
    live, signal = network.live, network.signal
    plan = Plan(
        parameters=_parameters(network, factors, optimizer),
        rule=described(rule),
        base=rate,
        graph=graph,
        init=described(init),
        optimizer_name=optimizer.name,
        optimizer_options=optimizer.options,
        factors=factors.shared,
        vertices=tuple(
            VertexPlan(vertex.name, live.in_degree(vertex.name), signal.vertices[vertex.name].second_moment)
            for vertex in live.vertices
        ),
        path_count=network.path_moments.count,
        sum_cubed_depth=network.path_moments.m3,
    )
    return plan, network


def _products(factors: Mapping[str, tuple[Factor, ...]]) -> dict[str, float]:
    """Return the product of each parameter's factors, if that is not one."""
    products = {name: product(listed) for name, listed in factors.items()}
    return {name: value for name, value in products.items() if not math.isclose(value, 1.0, rel_tol=1e-12)}


def _parameters(network: Network, factors: RateFactors, optimizer: OptimizerChoice) -> tuple[ParameterPlan, ...]:
    """Return the plan of every trainable parameter, in the graph's order."""
    folds = _Folds.of(optimizer)
    joined = dict[int, tuple[Factor, ...]]()  # layers of one kind share their factors, which are joined once
    planned = []
    for parameter in network.graph.parameters:
        if not parameter.trainable:
            continue
        of_layer = factors.own.get(parameter.name, ())
        rates = joined.get(id(of_layer))
        if rates is None:
            rates = joined[id(of_layer)] = (*factors.shared, *of_layer)
        parameter_plan = _parameter(network, parameter, rates)
        planned.append(folds.into(parameter_plan, factors) if factors.scales_more_than_rates else parameter_plan)
    return tuple(planned)


class _Folds(NamedTuple):
    """Hold the powers of a multiplier by which folding it in scales a parameter's rate, epsilon and decay.

    With W = a V, a step of V moves W by `a` times as much. V's gradient is `a` times W's: Adam divides by its size,
    except for epsilon, and SGD's step is proportional to it. Decoupled decay shrinks V and W alike and is multiplied by
    the rate, so W's has to be divided by the rate's factor; decay that is added to the gradient is scaled like V's
    gradient.
    """

    rate: int
    eps: int
    decay: int

    @classmethod
    def of(cls, optimizer: OptimizerChoice) -> _Folds:
        """Return the powers for an optimiser."""
        rate = 1 if steps_by_rate(optimizer.name) else 2
        eps = -1 if optimizer.name in ("adam", "muon") else 0
        return cls(rate, eps, -1 if optimizer.decouples_decay else -2)

    def into(self, planned: ParameterPlan, factors: RateFactors) -> ParameterPlan:
        """Return a parameter's plan with the rule's multipliers folded in, and its factors of epsilon and decay."""
        name, multipliers = planned.name, factors.multipliers_of(planned.name)
        rate, eps, decay = (
            tuple(Factor(m.name, m.value**power, m.why) for m in multipliers if power)
            for power in (self.rate, self.eps, self.decay)
        )
        start = "" if planned.kept or not (planned.std or planned.mean) else _start_words(factors.start_of(name))
        return replace(
            planned,
            factors=(*planned.factors, *rate),
            init_reason=planned.init_reason + start,
            eps_factors=_unless_one((*factors.eps.get(name, ()), *eps)),
            decay_factors=_unless_one((*factors.decay.get(name, ()), *decay)),
        )


def _unless_one(factors: tuple[Factor, ...]) -> tuple[Factor, ...]:
    return () if math.isclose(product(factors), 1.0) else factors


def _start_words(factors: tuple[Factor, ...]) -> str:
    return "".join(f", x {factor.name} {factor.value:.4g} ({factor.why})" for factor in _unless_one(factors))


def _parameter(network: Network, parameter: Parameter, factors: tuple[Factor, ...]) -> ParameterPlan:
    name, role = parameter.name, parameter.role
    mean, std, kept = 0.0, 0.0, False
    if name in network.tables:
        std, start = network.tables[name], "drawn no larger than the signal it is added to"
    elif network.init.keeps or role == "unscaled" or (role == "weight" and name not in network.weights.std):
        std, start, kept = parameter.measured or 0.0, "kept as it is", True
    elif role == "weight":
        std, start = network.weights.std[name], network.weights.why[name]
    elif role == "bias":
        start = "starts at 0"
    else:
        mean, start = network.scales.get(name, 1.0), "starts at 1" + branch_words(network.branch_scales.get(name, 1.0))
    notes: tuple[str, ...] = () if not parameter.note else (parameter.note,)
    if role != "unscaled" and name not in network.roles.edges_of:
        notes = (ON_NO_PATH, *notes)
    return ParameterPlan(name, std, factors, start, mean, kept, role, parameter.shape, notes)


def chain_like(graph: Graph) -> Graph:
    """Return the one-hidden-layer chain of the same kind: layers, order, norm and activation as in `graph`."""
    graph = graph.live()
    # Only activations that count as depth: the squares and roots of a written-out norm do not.
    used = Counter(
        operator.name
        for edge in graph.edges
        for operator in edge.operators
        if isinstance(operator, Activation) and operator.depth
    )
    # Of equally common ones, named functions come first.
    ranked = sorted(used, key=lambda name: (-used[name], not is_plain(name)))
    common = [name for name in ranked if not name.startswith("softmax")]
    activation = common[0] if common else "relu"
    norms = [edge for edge in graph.edges if edge.normalises]
    norm: NormKind = "none" if not norms else "batch" if any(edge.normalises_over_batch for edge in norms) else "layer"
    after = sum(edge.activates_last for edge in graph.edges)
    # A recurrent block has its activations inside and reads its input without one.
    activated = (e for e in graph.edges if e.weight is not None and (e.activation or isinstance(e.weight, Recurrent)))
    before = sum(1 for _ in activated) - after
    order: Order = "post" if norm == "none" and after > before else "pre"
    if graph.convolutions:
        return dag_cnn_graph("2", width=BASE_WIDTH["cnn"], order=order, norm=norm, activation=activation)
    return dag_mlp_graph("2", width=BASE_WIDTH["mlp"], order=order, norm=norm, activation=activation)


def _chosen(rule: str | Rule) -> Rule:
    if isinstance(rule, type):
        raise InputError(f"rule is the class {rule.__name__}; give one of its values, such as {rule.__name__}()")
    if not isinstance(rule, str) and hasattr(rule, "factors"):
        for field in ("name", "layerwise"):
            if not hasattr(rule, field):
                raise InputError(f"the rule {type(rule).__name__} has no '{field}'; see evenstep.rules.rule.Rule")
        return rule
    return RULES[require_choice("rule", rule, RULES)]


def _require_factors(rule: Rule, factors: object, graph: Graph) -> None:
    """Refuse factors that no plan can hold."""
    if not isinstance(factors, RateFactors):
        raise InputError(f"rule '{rule.name}' returned {type(factors).__name__}; return a RateFactors")
    names = {parameter.name for parameter in graph.parameters}
    by_name = (factors.own, factors.multipliers, factors.counted, factors.starts, factors.eps, factors.decay)
    if unknown := [name for group in by_name for name in group if name not in names]:
        raise InputError(f"rule '{rule.name}' returned factors for '{unknown[0]}', which the network does not have")
    groups = (factors.shared, *(listed for group in by_name for listed in group.values()))
    distinct = {id(group): group for group in groups}
    for factor in (factor for group in distinct.values() for factor in group):
        if not isinstance(factor.value, int | float) or not math.isfinite(factor.value) or factor.value <= 0:
            raise InputError(
                f"rule '{rule.name}' returned the factor {factor.name} {factor.value!r}; give finite numbers above 0"
            )


def _require_like(base: BaseSearch | float | None, rule: Rule) -> None:
    """Refuse a base searched with layerwise rates for a rule with one rate, and the other way round."""
    searched = RULES.get(name_of(getattr(base, "rule", None) or ""))
    if searched is None or searched.layerwise == rule.layerwise:
        return
    ways = {True: "rates that differ by layer", False: "one rate for all layers of a base"}
    raise InputError(
        f"the base was searched with {ways[searched.layerwise]}, but rule '{rule.name}' needs "
        f"{ways[rule.layerwise]}; search the base with plan=evenstep.plan(make_model(), example_inputs, "
        f"rule='{rule.name}', optimizer={getattr(base, 'optimizer', None) or 'sgd'!r}, "
        "base_graph=evenstep.trace(make_model(), example_inputs))"
    )


def _require_answer(base: BaseSearch | float | None) -> None:
    """Refuse a search without an answer, whose best rate is only a guess."""
    status = getattr(base, "status", "ok")
    if status != "ok":
        remedy = _NO_ANSWER.get(status, "search it again")
        raise InputError(
            f"the base's search has the status '{status}', so it has no best rate: {remedy}; to use a rate anyway, "
            "give base=search.rate, base_graph=search.graph and the optimizer"
        )


def _searched(base: BaseSearch | float | None, given: Training) -> Training:
    """Return the training that the base was searched with: the search's, completed by what is given."""
    of_search = Training(getattr(base, "batch_size", None), getattr(base, "steps", None))
    for name in ("batch_size", "steps"):
        known, value = getattr(of_search, name), getattr(given, name)
        if None not in (known, value) and known != value:
            raise InputError(
                f"{name} is {value}, but the base was searched with {known}; leave it out, and move the plan to your "
                f"training with plan.at({name}={value})"
            )
    return of_search.changed(given)


def _optimizer(base: BaseSearch | float | None, requested: OptimizerChoice | None) -> OptimizerChoice:
    """Return the optimiser a plan is for: the requested one, which has to be the base's if that is known."""
    searched: Optimizer | None = getattr(base, "optimizer", None)
    if requested and searched and requested.name != searched:
        raise InputError(
            f"the base was searched for optimizer '{searched}', but the plan is for '{requested.name}', whose rates "
            f"have another size; search the base with optimizer='{requested.name}'"
        )
    if requested and (requested.options or not searched):
        return requested
    if searched:  # a bare name says no more than the base does, so the settings are the search's
        return OptimizerChoice(searched, getattr(base, "optimizer_options", {}))
    if base is not None:
        rate = f"only a learning rate, {float(base):g}" if isinstance(base, Real) else "a search that names none"
        raise InputError(
            f"the base is {rate}, and optimizer is not given; a rate is right for one optimizer only: give 'sgd', "
            "'momentum', 'adam', 'muon' or 'lion'"
        )
    return OptimizerChoice("sgd")


def _require_graph(name: str, graph: object) -> None:
    if not isinstance(graph, Graph):
        raise InputError(
            f"{name} is {type(graph).__name__}; give a Graph, which evenstep.trace(model, example_inputs) reads from a "
            "module"
        )


def _require_trainable(graph: Graph) -> None:
    """Refuse a network without anything to train; weight edges without parameters count as trained."""
    if any(p.trainable for p in graph.parameters) or any(
        e.weight is not None and not e.parameters for e in graph.edges
    ):
        return
    if graph.parameters:
        raise InputError(
            f"there is nothing to plan: '{graph.parameters[0].name}' and all other parameters are frozen; call "
            "requires_grad_() on what you want to train before planning"
        )
    raise InputError("there is nothing to plan: the network has no parameters; give one that has some")


def _base(base: BaseSearch | float | None, base_graph: Graph | None) -> tuple[float | None, Graph | None]:
    if base is None:
        return None, base_graph
    if isinstance(base, Real) and not isinstance(base, bool):  # includes numpy's numbers
        return require_number("the base learning rate", base, above=0), base_graph
    if hasattr(base, "best") and hasattr(base, "graph"):
        rate = getattr(base, "rate", base.best)  # if a search knows both, the rate transfers better
        return require_number("the base learning rate", rate, above=0), base.graph if base_graph is None else base_graph
    raise InputError(f"base is {shown(base)}; give a search's result, a learning rate, or nothing")
