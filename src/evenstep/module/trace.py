"""From a module to a graph: export it, then let each operator's handler draw its edges."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import fx, nn

from evenstep.arguments import require_choice
from evenstep.errors import EvenstepError, InputError, PlanWarning, TraceError, warn
from evenstep.graph.expressions import affine
from evenstep.graph.model import Edge, Graph, Parameter, Role, Vertex
from evenstep.graph.norms import with_norms
from evenstep.graph.operators import ConcatBlock, LogSoftmax, Steer, Unknown, Weight, scaled
from evenstep.graph.simplify import simplified
from evenstep.module.entrywise import (
    composed,
    fill_of,
    is_drawn_exactly,
    makes_zeros,
    mask_of,
    moved,
    one_activation,
    sums_copies,
)
from evenstep.module.exported import check_parameters, program_of, split_inputs
from evenstep.module.fused import fused_parts
from evenstep.module.handler_types import (
    Call,
    ConstantValue,
    Entrywise,
    Outcome,
    ParameterValue,
    SignalValue,
    carried,
    edge_from,
    flattened,
)
from evenstep.module.learned_inputs import dependents, joins, makes_a_signal
from evenstep.module.nodes import (
    attribute,
    each_output,
    module_path,
    place_of,
    repeated,
    require_fixed_size,
    shape_of,
    vertex_name,
    viewed_by,
    written_by,
)
from evenstep.module.ops import handler_of, moves_entries, op_name
from evenstep.module.program import Program
from evenstep.module.reading import TRANSPARENT, Maker, Reading
from evenstep.planning.concerns import NOT_USED
from evenstep.planning.unwrap import own_name, unwrapped

OnUnknown = Literal["raise", "identity"]
_PRECEDENCE = {"weight": 0, "gain": 1, "bias": 2, "unscaled": 3}
OUTSIDE = "outside the theory"


def trace(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    on_unknown: OnUnknown = "raise",
) -> Graph:
    """Return a module's graph, read from one run on example inputs; the module stays as it is.

    `example_inputs` is a tensor, a tuple of positional arguments or a mapping of keyword arguments; `example_kwargs`
    adds keyword arguments to positional ones. An operator without a handler raises; with `on_unknown='identity'` it is
    let through, and every parameter that it affects is marked as outside the theory. The module is read in its current
    mode: parts that only training uses (an auxiliary head) are not seen in eval mode, and a warning says so. The run is
    symbolic; if that fails, it is a real one, and a warning says where the module's control flow depends on its data.

    >>> net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> [edge.words() for edge in trace(net, torch.zeros(1, 8)).edges]
    ['weight', 'relu, then weight']
    """
    reading = read(model, example_inputs, example_kwargs=example_kwargs, on_unknown=on_unknown)
    for remark in reading.program.remarks:
        warn(remark, PlanWarning)
    graph = reading.graph
    if not model.training:
        _warn_of_unused(model, graph)
    return graph


def read(
    model: nn.Module,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    on_unknown: OnUnknown = "raise",
) -> Reading:
    """Return a module's graph as `trace` does, together with the program it was read from."""
    require_choice("on_unknown", on_unknown, ("raise", "identity"))
    if not isinstance(model, nn.Module):
        if isinstance(example_inputs, nn.Module):
            given = f"the model is {type(model).__name__} and example_inputs is {type(example_inputs).__name__}"
            raise InputError(f"{given}; the two are swapped: give the module first, then its inputs")
        raise InputError(f"the model is {type(model).__name__}; give a torch.nn.Module")
    args, kwargs = split_inputs(example_inputs, example_kwargs)
    model = unwrapped(model)
    check_parameters(model)
    program = program_of(model, args, kwargs)
    tracer = _Tracer(model, on_unknown)
    outputs = tracer.read(program)
    graph = tracer.graph(outputs)
    return Reading(graph, program, tracer.drawing.makers, tracer.canonical)


def _warn_of_unused(model: nn.Module, graph: Graph) -> None:
    """Warn of parameters that a module in eval mode does not use: training may use them."""
    idle = [p.name for p in graph.parameters if p.trainable and p.note.startswith(NOT_USED)]
    if idle:
        more = f" and {len(idle) - 1} more" if len(idle) > 1 else ""
        warn(
            f"{type(model).__name__} was read in eval mode, where '{idle[0]}'{more} is not used; if training uses it, "
            "call train() before planning"
        )


@dataclass
class _Sketch:
    """Hold the graph while it is drawn."""

    vertices: dict[str, Vertex] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    uses: dict[str, Parameter] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)  # vertex -> the vertex last written into part of it
    makers: dict[str, Maker] = field(default_factory=dict)
    superseded: dict[str, None] = field(default_factory=dict)  # vertices that a composed function replaces

    def vertex(self, wanted: str, merge: Any = "sum") -> str:
        """Add a vertex of the wanted name, with a number from the second of that name on."""
        name, count = wanted, 1
        while name in self.vertices:
            count += 1
            name = f"{wanted}#{count}"
        self.vertices[name] = Vertex(name, merge)
        return name

    def drop_superseded(self, outputs: Iterable[str]) -> None:
        """Drop the steps of functions that are drawn as one activation, unless something else reads them."""
        incoming: dict[str, list[Edge]] = {}
        readers: dict[str, int] = {}
        for edge in self.edges:
            incoming.setdefault(edge.target, []).append(edge)
            readers[edge.source] = readers.get(edge.source, 0) + 1
        kept, gone = {*outputs, *self.inputs}, set[str]()
        queue = list(self.superseded)
        for vertex in queue:
            edges = incoming.get(vertex, [])
            if vertex in kept or vertex in gone or readers.get(vertex) or any(edge.parameters for edge in edges):
                continue
            gone.add(vertex)
            for edge in edges:
                readers[edge.source] -= 1
                queue.append(edge.source)
        self.vertices = {name: vertex for name, vertex in self.vertices.items() if name not in gone}
        self.edges = [edge for edge in self.edges if edge.target not in gone]

    def use(self, uses: Iterable[Parameter]) -> None:
        """Record what parameters are used for; use as a weight takes precedence."""
        for use in uses:
            known = self.uses.get(use.name)
            if known is None or _PRECEDENCE[use.role] < _PRECEDENCE[known.role]:
                self.uses[use.name] = use


class _Tracer:
    """Walk an exported graph and compute a value for every node."""

    def __init__(self, model: nn.Module, on_unknown: OnUnknown) -> None:
        self.model = model
        self.on_unknown = on_unknown
        self.not_used = NOT_USED if model.training else f"{NOT_USED} in eval mode (call train() if training uses it)"
        self.drawing = _Sketch()
        first: dict[int, str] = {}
        self.canonical: dict[str, str] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            self.canonical[name] = first.setdefault(id(parameter), own_name(name))
        self.tensors: dict[str, torch.Tensor] = {own_name(n): p for n, p in model.named_parameters()}
        self.tensors |= dict(model.named_buffers())
        self.dependent: set[fx.Node] = set()  # nodes whose values depend on the inputs
        # Parameters and constants that layers read as signals.
        self.promoted: dict[fx.Node | tuple[str, ...], SignalValue] = {}
        self.layouts = 0  # the number of unknown arrangements of entries so far
        self.sizes: dict[str, float | None] = {}
        self.made: dict[str, Callable[[], Any]] = {}  # tensors computed from parameters and buffers, by name
        self.parts: dict[str, tuple[int, ...]] = {}  # sizes of the projections that a fused weight holds

    # Reading

    def read(self, program: Program) -> list[str]:
        """Draw the whole program; return the vertices of its outputs."""
        # Tensors that are neither parameters nor buffers: plain attributes, literals in the code.
        self.tensors |= {n: t for n, t in program.constants.items() if isinstance(t, torch.Tensor)}
        self.parts = {self.canonical[name]: parts for name, parts in fused_parts(program).items()}
        values: dict[str, Any] = {}
        shapes = {n.name: shape_of(n.meta.get("val")) for n in program.graph.nodes if n.op == "placeholder"}
        users = [given for given in program.inputs if given.kind == "input"]
        count = sum(shapes.get(given.name) is not None for given in users)
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        self.dependent = dependents(program.graph, {given.name for given in users})
        for name, kind, target in program.inputs:
            shape = shapes.get(name)
            if shape is None:
                values[name] = None
            elif kind == "parameter":
                canonical = self.canonical[target]
                values[name] = ParameterValue((canonical,), shape, tensor=self._values_of(canonical))
            elif kind == "input":
                vertex = self.drawing.vertex("input" if count == 1 else f"input.{name}")
                self.drawing.inputs.append(vertex)
                self.drawing.makers[vertex] = Maker(nodes[name])
                values[name] = SignalValue(vertex, shape)
            else:
                values[name] = ConstantValue(shape, buffer=target, tensor=self._values_of(target))
        results = self._walk(program.graph_module, values)
        leaves = zip(flattened(results), program.results, strict=False)
        kept = [leaf for leaf, returned in leaves if returned and isinstance(leaf, SignalValue)]
        if not kept:
            raise TraceError(
                f"no output of {type(self.model).__name__} depends on its inputs; return a tensor computed from them"
            )
        return list(dict.fromkeys(signal.vertex for signal in kept))

    def _walk(self, module: fx.GraphModule, values: dict[str, Any]) -> Any:
        """Compute every node's value; return the output's."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                values[node.name] = attribute(module, str(node.target))
            elif node.op == "call_function":
                args = fx.node.map_arg(node.args, lambda n: values[n.name])
                kwargs = fx.node.map_arg(node.kwargs, lambda n: values[n.name])
                values[node.name] = self._call(node, args, kwargs)
                for changed in written_by(node):
                    self._write(changed, values[node.name], values)
            elif node.op == "output":
                return fx.node.map_arg(node.args[0], lambda n: values[n.name])
        return None

    def _call(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.target is operator.getitem:
            return args[0][args[1]] if isinstance(args[0], list | tuple) else args[0]
        if str(node.target) in TRANSPARENT:
            return self._inline(next(a for a in args if isinstance(a, fx.GraphModule)), args)
        if op_name(node.target).startswith("aten.broadcast_tensors."):  # each separately, in a common shape
            return list(args[0])
        result = node.meta.get("val")
        require_fixed_size(node, result)
        call = Call(
            op_name(node.target),
            tuple(args),
            kwargs,
            shape_of(result if not isinstance(result, list | tuple) else next(iter(result), None)) or (),
            module_path(node),
            self._rms,
        )
        if makes_zeros(call):
            return each_output(result, lambda shape: ConstantValue(shape, fill=0.0))
        if self.promoted and joins(call.op):
            call = replace(call, args=fx.node.map_aggregate(call.args, self._joining))
        if not call.signals() and makes_a_signal(node, self.dependent):
            call = replace(call, args=(self._promoted(node, call.args[0]), *call.args[1:]))
        if not call.signals():
            return self._offpath(call, node, result)
        kinds = {value.dtype for value in flattened(result) if isinstance(value, torch.Tensor)}
        if kinds == {torch.bool} or not kinds:
            mask = mask_of(call)
            return each_output(result, lambda shape: ConstantValue(shape, entrywise=mask))
        if not any(kind.is_floating_point or kind.is_complex for kind in kinds):
            outcome = carried(call.signals()[0])  # integers, such as token ids
        else:
            outcome = _with_all_parameters(self._outcome(call, node), call)
        if not outcome.edges:
            return self._offpath(call, node, result)
        return self._draw_function(node, call, outcome, result)

    def _promoted(self, node: fx.Node, value: Any) -> Any:
        """Return parameters or constants that a layer reads as a separate signal of their size."""
        source = node.args[0]
        if not isinstance(value, ParameterValue | ConstantValue) or not isinstance(source, fx.Node):
            return value
        tensor = value.tensor() if value.tensor is not None else None
        if tensor is None or tensor.is_meta or not tensor.is_floating_point():
            return value
        key = value.names if isinstance(value, ParameterValue) and not value.made else source
        if key in self.promoted:
            return replace(self.promoted[key], shape=value.shape)
        names = value.names if isinstance(value, ParameterValue) else ()
        drawn = isinstance(value, ParameterValue) and not value.made  # a table of rows that every example reads
        columns = value.shape[-1] if value.shape else 1
        operators = (Weight(1, columns),) if drawn else scaled(float(tensor.float().square().mean().sqrt()))
        role: Role = "weight" if drawn else "unscaled"
        note = "learned input" if drawn else "read as a signal"
        self.drawing.use(Parameter(name, role, fan_in=1, fan_out=columns, note=note) for name in names)
        start = self.drawing.vertex(f"input.{source.name}")
        self.drawing.inputs.append(start)
        vertex = self.drawing.vertex(source.name)
        self.drawing.edges.append(Edge(start, vertex, operators, names))
        self.drawing.makers[vertex] = Maker(source)
        self.promoted[key] = SignalValue(vertex, value.shape)
        return self.promoted[key]

    def _joining(self, value: Any) -> Any:
        """Return the signal that stands for a parameter if a layer reads it as one: it may join others by a skip."""
        if not isinstance(value, ParameterValue) or value.made or value.names not in self.promoted:
            return value
        return replace(self.promoted[value.names], shape=value.shape)

    def _draw_function(self, node: fx.Node, call: Call, outcome: Outcome, result: Any) -> Any:
        """Draw an operator: as one activation if its output is a function of a single field."""
        function = None if isinstance(result, list | tuple) else composed(call, outcome)
        if function is None or sums_copies(call, outcome):
            value = self._draw(node, outcome, result)
            known = {signal.vertex for signal in call.signals()}
            if isinstance(value, SignalValue) and value.vertex in known:  # the entries of a signal, in unknown places
                self.layouts += 1
                return replace(value, entrywise=Entrywise(value.vertex, f"#{self.layouts}"))
            return value
        if affine(function.function) is None and not is_drawn_exactly(call, outcome, function.function):
            self.drawing.superseded |= dict.fromkeys(s.vertex for s in call.signals() if s.vertex != function.root)
            outcome = one_activation(function, call.shape)
        return replace(self._draw(node, outcome, result), entrywise=function)

    def _write(self, node: fx.Node, value: Any, values: dict[str, Any]) -> None:
        """Record that a node's tensor was overwritten in place, and with it part of the tensor it is a view of."""
        values[node.name] = value
        base = viewed_by(node)
        if base is None or not isinstance(value, SignalValue):
            return
        whole = shape_of(base.meta.get("val")) or ()
        share = math.prod(value.shape) / max(math.prod(whole), 1)
        before = values[base.name]
        if isinstance(before, SignalValue) and self.drawing.written.get(before.vertex) == value.vertex:
            return  # `x[i] += y` writes twice: in place, and then the same values again
        if not isinstance(before, SignalValue) or share >= 1:  # a new tensor is filled part by part
            self.layouts += 1
            filled = SignalValue(value.vertex, whole, entrywise=Entrywise(value.vertex, f"#{self.layouts}"))
            self._write(base, filled, values)
            return
        vertex = self.drawing.vertex(f"{value.vertex}.written", "concat")
        self.drawing.edges.append(Edge(before.vertex, vertex, (ConcatBlock(1 - share),)))
        self.drawing.edges.append(Edge(value.vertex, vertex, (ConcatBlock(share),)))
        self.drawing.written[vertex] = value.vertex
        self._write(base, SignalValue(vertex, whole), values)

    def _inline(self, inner: fx.GraphModule, args: Any) -> Any:
        given = args[[a is inner for a in args].index(True) + 1 :]
        names = [n.name for n in inner.graph.nodes if n.op == "placeholder"]
        return self._walk(inner, dict(zip(names, given, strict=False)))

    def _outcome(self, call: Call, node: fx.Node) -> Outcome:
        handler = handler_of(call.op)
        if handler is None:
            return self._unknown(call, node)
        remedy = f"replace it with evenstep.register_op('{call.op}', handler)"
        try:
            outcome = handler(call)
        except EvenstepError:
            raise
        except Exception as error:
            raise TraceError(
                f"the handler of operator '{call.op}' in {place_of(node)} failed with {type(error).__name__}: {error}; "
                f"{remedy}"
            ) from error
        if not isinstance(outcome, Outcome):
            raise TraceError(
                f"the handler of operator '{call.op}' in {place_of(node)} returned {type(outcome).__name__}; return an "
                f"evenstep.ops.Outcome, or {remedy}"
            )
        on_edges = {name for edge in outcome.edges for name in edge.parameters}
        for use in outcome.uses if outcome.edges else ():
            if use.role == "weight" and use.name not in on_edges:
                raise TraceError(
                    f"the handler of operator '{call.op}' in {place_of(node)} uses the weight '{use.name}' on no edge; "
                    f"name it in edge_from(..., parameters=('{use.name}',)), or call evenstep.ops.weight"
                )
        return outcome

    def _unknown(self, call: Call, node: fx.Node) -> Outcome:
        if self.on_unknown == "raise":
            raise TraceError(
                f"operator '{call.op}' in {place_of(node)} is not known; teach it with "
                f"evenstep.register_op('{call.op}', handler), or pass on_unknown='identity' to let it through"
            )
        first, *others = call.signals()
        names = tuple(name for value in call.parameters() for name in value.names)
        note = f"{OUTSIDE} (operator '{call.op}')"
        return Outcome(
            (
                edge_from(first, Unknown(call.op), parameters=names),
                *(edge_from(other, Steer()) for other in others),
            ),
            uses=tuple(Parameter(name, "unscaled", note=note) for name in names),
        )

    def _offpath(self, call: Call, node: fx.Node, result: Any) -> Any:
        """Return an operator's output from parameters and constants only, with its values if they are available."""
        compute = repeated(node, call)
        if isinstance(result, list | tuple):
            return [
                self._made(call, node, part, compute and partial(_item, compute, i)) for i, part in enumerate(result)
            ]
        return self._made(call, node, result, compute)

    def _made(self, call: Call, node: fx.Node, result: Any, compute: Callable[[], Any] | None) -> Any:
        shape = shape_of(result)
        if shape is None:
            return None
        label = f"{node.name} of {call.module or type(self.model).__name__}"
        sources = call.parameters()
        if not sources:
            if compute:
                self.made[label] = compute
            starts, mean = _drawn(call)
            masks = [value.entrywise for value in call.args if isinstance(value, ConstantValue)]
            mask = moved(masks[0], call) if masks and masks[0] is not None else None
            return ConstantValue(shape, label if compute else None, compute, starts, mean, fill_of(call), mask)
        names = tuple(dict.fromkeys(name for value in sources for name in value.names))
        if not compute or (moves_entries(call.op) and not any(value.made for value in sources)):
            return ParameterValue(names, shape, tensor=compute)
        self.made[label] = compute
        return ParameterValue(names, shape, label, compute)

    # Drawing

    def _draw(self, node: fx.Node, outcome: Outcome, result: Any, place: tuple[int, ...] = ()) -> Any:
        self.drawing.use(outcome.uses)
        if outcome.parts and isinstance(result, list | tuple):
            return [self._draw(node, outcome, part, (*place, i)) for i, part in enumerate(result)]
        first = outcome.edges[0]
        if len(outcome.edges) == 1 and outcome.scale == 1.0 and not (first.operators or first.parameters):
            return each_output(result, lambda shape: SignalValue(first.source, shape, outcome.probability))
        vertex = self.drawing.vertex(vertex_name(node), outcome.merge)
        for edge in outcome.edges:
            self._draw_edge(edge, vertex)
        if outcome.scale != 1.0:
            unscaled, vertex = vertex, self.drawing.vertex(vertex)
            self.drawing.edges.append(Edge(unscaled, vertex, scaled(outcome.scale)))
        self.drawing.makers[vertex] = Maker(node, (*place, 0) if isinstance(result, list | tuple) else place)
        return each_output(result, lambda shape: SignalValue(vertex, shape, outcome.probability))

    def _draw_edge(self, edge: Edge, target: str) -> None:
        """Draw an edge operator by operator, each with its own vertex; parameters stay with the weight."""
        source, operators = edge.source, edge.operators
        at_weight = operators.index(edge.weight) if edge.weight is not None else 0
        for position in range(len(operators) - 1):
            vertex = self.drawing.vertex(target)
            parameters = edge.parameters if position == at_weight else ()
            self.drawing.edges.append(Edge(source, vertex, operators[position : position + 1], parameters))
            source = vertex
        parameters = edge.parameters if at_weight >= len(operators) - 1 else ()
        self.drawing.edges.append(Edge(source, target, operators[-1:], parameters))

    def graph(self, outputs: list[str]) -> Graph:
        """Return the finished graph, simplified, with every parameter of the module."""
        drawing = self.drawing
        drawing.drop_superseded(outputs)
        # A log-softmax at an output belongs to the loss: the logits count as the output.
        for place, edge in enumerate(drawing.edges):
            if edge.target in outputs and _is_log_softmax(edge):
                drawing.edges[place] = replace(edge, operators=())
                drawing.makers.pop(edge.target, None)  # the program's value there is no longer the vertex's
        graph = Graph.build(
            drawing.vertices.values(),
            drawing.edges,
            inputs=drawing.inputs,
            outputs=outputs,
            parameters=self._parameters(),
        )
        notes = _touched(graph)
        graph = simplified(with_norms(simplified(graph)))
        if not notes:
            return graph
        marked = tuple(replace(p, note=notes.get(p.name, p.note)) for p in graph.parameters)
        return replace(graph, parameters=marked)

    def _parameters(self) -> list[Parameter]:
        """Return every parameter of the module once, then buffers and computed tensors that serve as weights."""
        made = []
        for full_name, tensor in self.model.named_parameters():
            made.append(self._parameter(own_name(full_name), tensor, trainable=tensor.requires_grad))
        known = {parameter.name for parameter in made}
        for name in self.drawing.uses:
            if name not in known and (fixed := self._tensor(name)) is not None:
                made.append(self._parameter(name, fixed, trainable=False))
        return made

    def _parameter(self, name: str, tensor: torch.Tensor, *, trainable: bool) -> Parameter:
        use = self.drawing.uses.get(name) or Parameter(name, "unscaled", note=self.not_used)
        parts = self.parts.get(name, ()) if use.role == "weight" else ()
        return replace(use, shape=tuple(tensor.shape), trainable=trainable, measured=self._rms(name), parts=parts)

    def _rms(self, name: str) -> float | None:
        """Return the root mean square of a parameter or buffer; None if its values are not available."""
        if name not in self.sizes:
            tensor = self._tensor(name)
            if tensor is None or tensor.is_meta or not (tensor.is_floating_point() or tensor.is_complex()):
                self.sizes[name] = None
            else:
                self.sizes[name] = float(tensor.detach().abs().float().square().mean().sqrt())
        return self.sizes[name]

    def _tensor(self, name: str) -> torch.Tensor | None:
        """Return a parameter, a buffer, or a tensor computed from them."""
        if name in self.made:
            tensor = self.made[name]()
            return tensor if isinstance(tensor, torch.Tensor) else None
        return self.tensors.get(name)

    def _values_of(self, name: str) -> Callable[[], Any] | None:
        tensor = self.tensors.get(name)
        return None if tensor is None or tensor.is_meta else lambda: tensor.detach()


def _is_log_softmax(edge: Edge) -> bool:
    return len(edge.operators) == 1 and isinstance(edge.operators[0], LogSoftmax)


def _item(compute: Callable[[], Any], position: int) -> Any:
    return compute()[position]


def _with_all_parameters(outcome: Outcome, call: Call) -> Outcome:
    """Return the outcome with parameters that its handler left out (a bias on attention scores) on the first edge."""
    known = {use.name for use in outcome.uses}
    names = dict.fromkeys(name for value in call.parameters() for name in value.names if name not in known)
    if not names or not outcome.edges:
        return outcome
    first, *others = outcome.edges
    uses = tuple(Parameter(name, "unscaled", note=f"steers operator '{call.op}'") for name in names)
    first = replace(first, parameters=(*first.parameters, *names))
    return replace(outcome, edges=(first, *others), uses=(*outcome.uses, *uses))


def _touched(graph: Graph) -> dict[str, str]:
    """Map the parameters near an unknown operator, up to the next weights in both directions, to a note on it."""
    notes: dict[str, str] = {}
    for edge in graph.edges:
        unknown = next((o for o in edge.operators if isinstance(o, Unknown)), None)
        if unknown is None:
            continue
        nearby = {edge, *_until_weights(edge.source, graph.incoming, forward=False)}
        nearby |= _until_weights(edge.target, graph.outgoing, forward=True)
        for touched in nearby:
            for name in touched.parameters:
                notes[name] = f"{OUTSIDE} (operator '{unknown.name}')"
    return notes


def _until_weights(start: str, edges: Mapping[str, tuple[Edge, ...]], *, forward: bool) -> set[Edge]:
    seen: set[Edge] = set()
    queue = [start]
    for vertex in queue:
        for edge in edges[vertex]:
            if edge not in seen:
                seen.add(edge)
                if edge.weight is None:
                    queue.append(edge.target if forward else edge.source)
    return seen


def _drawn(call: Call) -> tuple[float | None, float | None]:
    """Follow a hand-written mask, `floor(keep + rand())`: return the start of its unit interval, and its mean."""
    op = call.op.rpartition(".")[0]  # without the name of the overload
    if op == "aten.rand":
        return 0.0, None
    starts = [value.starts for value in call.args if isinstance(value, ConstantValue) and value.starts is not None]
    shifts = [float(value) for value in call.args if isinstance(value, int | float)]
    if len(starts) == 1 and op == "aten.add":
        return starts[0] + sum(shifts), None
    if len(starts) == 1 and op == "aten.floor":
        return None, starts[0]
    return None, None
