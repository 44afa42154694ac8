"""Check the folding of finely traced graphs: a network operator by operator against its compact form."""

from collections import Counter

import pytest
from hypothesis import assume, given

from evenstep.graph import Edge, Graph, Parameter, Vertex, dag_mlp_graph
from evenstep.graph.networks import Order
from evenstep.graph.operators import Activation, ConcatBlock, Contraction, Operator, Scale, Weight
from evenstep.graph.simplify import simplified
from evenstep.init import Network
from evenstep.planning import plan_graph
from evenstep.rules import Weighted
from tests import reference
from tests.strategies import dag_codes, inits, orders

WIDTH, INPUTS, CLASSES = 16, 8, 10


class Fine:
    """Write a network down as a trace would: one vertex for every tensor, one edge for every operator."""

    def __init__(self) -> None:
        self.edges: list[Edge] = []
        self.parameters: list[Parameter] = []

    def weight(self, source: str, name: str, reads: int, writes: int) -> str:
        names = (f"{name}.weight", f"{name}.bias")
        self.parameters.append(Parameter(names[0], "weight", (writes, reads), fan_in=reads, fan_out=writes))
        self.parameters.append(Parameter(names[1], "bias", (writes,), fan_in=reads, fan_out=writes))
        self.edges.append(Edge(source, f"{name} out", (Weight(reads, fan_out=writes),), names))
        return f"{name} out"

    def relu(self, source: str, name: str) -> str:
        self.edges.append(Edge(source, name, (Activation("relu"),)))
        return name

    def add(self, terms: list[str], name: str) -> str:
        """Add left to right, two at a time; a lone term is the tensor itself."""
        total = terms[0]
        for number, term in enumerate(terms[1:]):
            self.edges.append(Edge(total, f"{name} sum {number}"))
            self.edges.append(Edge(term, f"{name} sum {number}"))
            total = f"{name} sum {number}"
        return total

    def graph(self, output: str) -> Graph:
        names = dict.fromkeys(end for edge in self.edges for end in (edge.source, edge.target))
        return Graph.build(
            map(Vertex, names), self.edges, inputs=["input"], outputs=[output], parameters=self.parameters
        )


def fine_mlp(code: str, order: str) -> Graph:
    """Return the graph of a DAG-MLP with every ReLU, matrix and addition on its own."""
    fine = Fine()
    edges = reference.live_edges(code)
    last = code.count("_") + 1
    read = {s for s, _, op in edges if op == "weight"} | {last}
    stem = fine.weight("input", "stem", INPUTS, WIDTH)
    field = {0: stem if order == "pre" else fine.relu(stem, "stem relu")}
    active = {0: fine.relu(stem, "relu 0")} if order == "pre" and 0 in read else {}
    for target in sorted({t for _, t, _ in edges}):
        terms = []
        for source, _, op in [edge for edge in edges if edge[1] == target]:
            name = f"edges.{source}_{target}"
            if op == "skip":
                terms.append(field[source])
            elif order == "pre":
                terms.append(fine.weight(active[source], name, WIDTH, WIDTH))
            else:
                terms.append(fine.relu(fine.weight(field[source], name, WIDTH, WIDTH), f"{name} relu"))
        field[target] = fine.add(terms, str(target))
        if order == "pre" and target in read:
            active[target] = fine.relu(field[target], f"relu {target}")
    return fine.graph(fine.weight(active[last] if order == "pre" else field[last], "readout", WIDTH, CLASSES))


@given(dag_codes(), orders)
def test_no_path_changes_and_no_parameter_is_lost(code: str, order: Order) -> None:
    fine = fine_mlp(code, order)
    folded = simplified(fine)
    depths = Counter(reference.dag_depths(code))
    assert Counter(reference.graph_depths(fine)) == depths
    assert Counter(reference.graph_depths(folded)) == depths
    assert folded.parameters == fine.parameters
    assert Counter(name for edge in folded.edges for name in edge.parameters) == Counter(
        parameter.name for parameter in fine.parameters
    )
    assert simplified(folded) == folded


@given(dag_codes())
def test_the_score_is_that_of_the_compact_form(code: str) -> None:
    # Under `he` no weight looks at its in-degree, so flattening nested skips may not move anything either.
    folded = simplified(fine_mlp(code, "pre"))
    compact = dag_mlp_graph(code, width=WIDTH, inputs=INPUTS)
    found, expected = (Weighted().score(Network.of(graph, "he")) for graph in (folded, compact))
    assert found == pytest.approx(expected, rel=1e-9)


@given(dag_codes(), orders)
def test_the_output_has_the_size_it_has_in_the_compact_form(code: str, order: Order) -> None:
    # Whether a lone activation is folded before or behind is a matter of words: the function stays.
    fine = fine_mlp(code, order)
    compact = dag_mlp_graph(code, width=WIDTH, inputs=INPUTS, order=order)
    expected = Network.of(compact, "he").signal.vertices["output"].second_moment
    for graph in (fine, simplified(fine)):
        found = Network.of(graph, "he").signal.vertices["readout out"].second_moment
        assert found == pytest.approx(expected, rel=1e-9)


@given(dag_codes(digits="02"), orders, inits)
def test_sums_of_weights_get_the_plan_of_the_compact_form(code: str, order: Order, init: str) -> None:
    code = code.replace("1", "2")  # the strategy's way out of a dead code
    # Without a sum nothing tells the orders apart: a chain is read as of order pre.
    assume(order == "pre" or max(reference.live_in_degrees(code).values()) > 1)
    folded = plan_graph(simplified(fine_mlp(code, order)), init=init)
    compact = plan_graph(dag_mlp_graph(code, width=WIDTH, inputs=INPUTS, order=order), init=init)
    for parameter in compact.parameters:
        assert folded[parameter.name].std == pytest.approx(parameter.std, rel=1e-9), parameter.name
        assert folded[parameter.name].lr_scale == pytest.approx(parameter.lr_scale, rel=1e-9), parameter.name
    assert (folded.path_count, folded.sum_cubed_depth) == (compact.path_count, compact.sum_cubed_depth)


def test_a_chain_folds_into_one_edge_a_layer() -> None:
    folded = simplified(fine_mlp("2_02", "pre"))
    assert [(edge.words(), edge.depth) for edge in folded.edges] == [
        ("weight", 0),
        ("relu, then weight", 1),
        ("relu, then weight", 1),
        ("relu, then weight", 1),
    ]


def test_an_activation_that_a_sum_reads_too_stays_where_it_is() -> None:
    fine = Fine()
    hidden = fine.relu(fine.weight("input", "a", 4, 4), "h")
    total = fine.add([fine.weight(hidden, "b", 4, 4), hidden], "t")
    folded = simplified(fine.graph(fine.weight(total, "c", 4, 2)))
    # Folded behind 'a' (order post), because 'h' is read by more than weights.
    first = next(edge for edge in folded.edges if "a.weight" in edge.parameters)
    assert (first.target, first.words(), first.depth) == ("h", "weight, then relu", 1)
    assert sorted(reference.graph_depths(folded)) == [1, 1]


def test_a_nested_sum_that_is_read_twice_stays() -> None:
    edges = [
        Edge("x", "s"),
        Edge("x", "s"),
        Edge("s", "t"),
        Edge("s", "t"),
    ]
    graph = Graph.build(map(Vertex, "xst"), edges, inputs=["x"], outputs=["t"])
    folded = simplified(graph)
    assert folded.in_degree("t") == 2
    assert len(reference.graph_depths(folded)) == 4


@pytest.mark.parametrize("operator", [Scale(2.0), ConcatBlock(0.5), Contraction(2)])
def test_a_scaled_copy_is_no_nested_sum(operator: Operator) -> None:
    edges = [
        Edge("x", "s", (Weight(),)),
        Edge("x", "s", (Weight(),)),
        Edge("s", "t", (operator,)),
        Edge("x", "t", (Weight(),)),
    ]
    folded = simplified(Graph.build(map(Vertex, "xst"), edges, inputs=["x"], outputs=["t"]))
    assert folded.in_degree("t") == 2
    assert folded.in_degree("s") == 2


def test_signs_and_added_parameters_fold_into_the_weight_before_them_and_factors_do_not() -> None:
    def graph(amplitude: float) -> Graph:
        return simplified(
            Graph.build(
                map(Vertex, ("input", "a", "b", "output")),
                [
                    Edge("input", "a", (Weight(),), ("w",)),
                    Edge("a", "b", (Scale(amplitude),), ("p",)),
                    Edge("input", "b"),
                    Edge("b", "output", (Weight(),), ("v",)),
                ],
                inputs=["input"],
                outputs=["output"],
                parameters=[Parameter("w", "weight"), Parameter("p", "unscaled"), Parameter("v", "weight")],
            )
        )

    for sign in (1.0, -1.0):
        assert {(e.words(), e.parameters) for e in graph(sign).incoming["b"]} == {
            ("weight", ("w", "p")),
            ("identity", ()),
        }
    assert [e.words() for e in graph(1e-6).incoming["b"]] == ["times 1e-06", "identity"]
