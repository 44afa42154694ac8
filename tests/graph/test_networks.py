"""Check the graphs of whole networks against their modules, and codes of one DAG against each other."""

import re
from collections.abc import Callable
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from evenstep.errors import GraphError, InputError
from evenstep.graph import Graph, dag_cnn_graph, dag_mlp_graph, nasbench201_graph, path_moments
from evenstep.graph.networks import NormKind, Order
from evenstep.init import Network
from evenstep.planning import plan_graph
from evenstep.rules import Weighted
from evenstep_research.spaces import DagCNN, DagMLP, NasBench201
from tests import reference
from tests.strategies import dag_codes, inits, isomorphic_code, orders

Case = tuple[Graph, Callable[[], nn.Module]]


def _mlp(code: str, order: Order, norm: NormKind) -> Case:
    return (
        dag_mlp_graph(code, width=6, inputs=5, classes=3, order=order, norm=norm),
        lambda: DagMLP(code, width=6, inputs=5, classes=3, order=order, norm=norm),
    )


def _cnn(code: str, order: Order, norm: NormKind) -> Case:
    return (
        dag_cnn_graph(code, width=6, channels=2, classes=3, kernel_size=5, order=order, norm=norm),
        lambda: DagCNN(code, width=6, channels=2, classes=3, kernel_size=5, order=order, norm=norm),
    )


def _cell(code: str) -> Case:
    return (
        nasbench201_graph(code, channels=4, classes=3),
        lambda: NasBench201(code, channels=4, cells=1, stages=1, classes=3),
    )


KINDS: tuple[tuple[Order, NormKind], ...] = (
    ("pre", "none"),
    ("post", "none"),
    ("pre", "batch"),
    ("pre", "layer"),
)
MODULES: dict[str, Case] = {
    f"{make.__name__} {code} {order} {norm}": make(code, order, norm)
    for make in (_mlp, _cnn)
    for code in ("1", "2", "2_12_112", "2_20_102", "0_22_212")
    for order, norm in KINDS
} | {f"_cell {code}": _cell(code) for code in ("3_24_140", "1_11_111", "3_20_003", "0_23_114")}


@pytest.mark.parametrize(("graph", "make"), MODULES.values(), ids=list(MODULES))
def test_parameters_are_those_of_the_module(graph: Graph, make: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        module = make()
    expected = {name: tuple(value.shape) for name, value in module.named_parameters()}
    assert {parameter.name: parameter.shape for parameter in graph.parameters} == expected
    assert len(graph.parameters) == len(expected)
    used = [name for edge in graph.edges for name in edge.parameters]
    assert sorted(used) == sorted(expected)
    for parameter in graph.parameters:
        layer = module.get_submodule(parameter.name.rpartition(".")[0])
        kind = parameter.name.rpartition(".")[2]
        if isinstance(layer, nn.Linear | nn.Conv2d):
            fans = nn.init._calculate_fan_in_and_fan_out(layer.weight)
            assert (parameter.fan_in, parameter.fan_out) == fans
            assert parameter.role == kind
            (edge,) = [edge for edge in graph.edges if parameter.name in edge.parameters]
            assert edge.weight is not None
            assert (edge.weight.fan_in, edge.weight.fan_out) == fans
            assert edge.weight.kernel_size == (layer.kernel_size[0] if isinstance(layer, nn.Conv2d) else 1)
        else:
            assert parameter.role == ("gain" if kind == "weight" else "bias")


@given(dag_codes())
def test_live_in_degrees_are_those_of_the_code(code: str) -> None:
    for graph in (dag_mlp_graph(code), dag_mlp_graph(code, order="post"), dag_cnn_graph(code, image_size=4)):
        for vertex, degree in reference.live_in_degrees(code).items():
            assert graph.in_degree(str(vertex)) == degree
        assert graph.live() == graph


@given(dag_codes(max_vertices=6), orders, inits, st.data())
def test_codes_of_one_dag_get_one_plan(code: str, order: Order, init: str, data: st.DataObject) -> None:
    other, new = data.draw(isomorphic_code(code))
    graphs = [dag_mlp_graph(c, width=16, inputs=8, order=order) for c in (code, other)]
    assert path_moments(graphs[0]) == path_moments(graphs[1])
    scores = [Weighted().score(Network.of(graph, init)) for graph in graphs]
    assert scores[0] == pytest.approx(scores[1], rel=1e-9)
    plans = [plan_graph(graph, init=init) for graph in graphs]
    assert plans[0].lr_scale == pytest.approx(plans[1].lr_scale, rel=1e-9)
    found = {parameter.name: (parameter.std, parameter.lr_scale) for parameter in plans[1].parameters}
    for parameter in plans[0].parameters:
        name = re.sub(r"edges\.(\d+)_(\d+)", lambda m: f"edges.{new[int(m[1])]}_{new[int(m[2])]}", parameter.name)
        assert found.pop(name) == pytest.approx((parameter.std, parameter.lr_scale), rel=1e-9)
    assert not found


@given(dag_codes(max_vertices=6), orders, st.randoms(use_true_random=False))
def test_names_and_the_order_of_edges_change_no_plan(code: str, order: Order, random: Random) -> None:
    graph = dag_mlp_graph(code, width=16, inputs=8, order=order)
    names = [vertex.name for vertex in graph.vertices]
    fresh = [f"v{i}" for i in range(len(names))]
    random.shuffle(fresh)
    renamed = graph.relabelled(dict(zip(names, fresh, strict=True)))
    edges = list(renamed.edges)
    random.shuffle(edges)
    other = Graph.build(
        renamed.vertices[::-1],
        edges,
        inputs=renamed.inputs,
        outputs=renamed.outputs,
        parameters=renamed.parameters,
    )
    plan, same = plan_graph(graph), plan_graph(other)
    assert (plan.path_count, plan.sum_cubed_depth) == (same.path_count, same.sum_cubed_depth)
    assert same.lr_scale == pytest.approx(plan.lr_scale, rel=1e-9)
    for parameter in plan.parameters:
        assert same[parameter.name].std == pytest.approx(parameter.std, rel=1e-9)
        assert same[parameter.name].lr_scale == pytest.approx(parameter.lr_scale, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dag_mlp_graph("2", width=0), ("width is 0", "from 1 up")),
        (lambda: dag_mlp_graph("2", inputs=-1), ("inputs is -1",)),
        (lambda: dag_mlp_graph("2", classes=1.5), ("classes is 1.5", "whole number")),  # type: ignore[arg-type]
        (lambda: dag_mlp_graph("2", order="mid"), ("order is 'mid'", "'pre' or 'post'")),  # type: ignore[arg-type]
        (lambda: dag_mlp_graph("2", norm="group"), ("norm is 'group'", "'batch'")),  # type: ignore[arg-type]
        (lambda: dag_mlp_graph("2", norm="layer", order="post"), ("norm is 'layer'", "order 'post'")),
        (lambda: dag_cnn_graph("2", kernel_size=4), ("kernel_size is 4", "odd")),
        (lambda: dag_mlp_graph("2", width=10**400), ("width has 401 digits", "up to")),
        (lambda: dag_mlp_graph("2", activation=""), ("activation is empty", "relu")),
        (lambda: dag_cnn_graph("2", image_size=0), ("image_size is 0",)),
        (lambda: dag_cnn_graph("2", channels=True), ("channels is True",)),
        (lambda: nasbench201_graph("3_24_140", channels=0), ("channels is 0",)),
    ],
)
def test_bad_options_are_named_with_the_value(make: Callable[[], Graph], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


@pytest.mark.parametrize("make", [dag_mlp_graph, dag_cnn_graph, nasbench201_graph])
@pytest.mark.parametrize("code", ["", "9", "2_1", "0", "2_00"])
def test_bad_codes_raise_from_every_space(make: Callable[[str], Graph], code: str) -> None:
    with pytest.raises(GraphError):
        make(code)
