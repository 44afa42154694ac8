"""Record one run of a module on its example inputs as a graph of operators, for modules that cannot be exported.

If the module's control flow depends on its data, the recording holds what it did on the example inputs. It includes
layers that are dropped at random: of one run in which all such draws are low, and one in which all are high, the one
that uses more parameters counts.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_leaves, tree_map, tree_unflatten

from evenstep.module.draws import HIGH, LOW, Draws
from evenstep.module.learned_inputs import dependents
from evenstep.module.nodes import place_of
from evenstep.module.ops import op_name
from evenstep.module.program import Kind, Program, ProgramInput, results_of

_LEAVES_TORCH = (Tensor.numpy, Tensor.__array__)
_DATA = Tensor.data.__get__  # type: ignore[attr-defined]
_FINDS = (torch.nonzero, Tensor.nonzero, torch.argwhere, Tensor.argwhere, torch.unique, Tensor.unique)
_PICKS = (Tensor.__getitem__, torch.masked_select, Tensor.masked_select)
_GRADIENTS = torch._C._set_grad_enabled
# Operators that turn a tensor's values into Python numbers, and those whose output's size depends on the data.
_ASKS = (
    "aten._local_scalar_dense.",
    "aten.item.",
    "aten.is_nonzero.",
    "aten.equal.",
    "aten.allclose.",
    "aten.resolve_neg.",
)
_SIZES = (
    "aten.nonzero.",
    "aten.nonzero_numpy.",
    "aten.where.default",
    "aten.masked_select.",
    "aten.unique",
    "aten._unique",
)
# Checks that a signal is finite: unless the network is broken, their result is the same for all inputs.
_CHECKS = ("aten.isfinite.", "aten.isnan.", "aten.isinf.")


def record(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Program:
    """Return the program of one run of a module on its example inputs; the module does not change.

    Errors of the run are passed on.
    """
    first, drew = _recorded(model, args, kwargs, HIGH)
    if not drew:
        return first
    second, _ = _recorded(model, args, kwargs, LOW)
    return second if _parameters_used(second) > _parameters_used(first) else first


def run_plain(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Run a copy of a module on copies of its inputs and ignore the output, only to raise the module's errors."""
    with Draws(model):
        _copied(model)(*_cloned(args), **_cloned(kwargs))


def _recorded(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], level: float) -> tuple[Program, bool]:
    """Return the program of one run in which every single drawn number is `level`, and whether there was one."""
    copied = _copied(model)
    parameters, buffers = dict(copied.named_parameters()), dict(copied.named_buffers())
    values, spec = tree_flatten((_cloned(args), _cloned(kwargs)))
    places = [place for place, value in enumerate(values) if isinstance(value, Tensor)]

    def run(parameters: list[Tensor], buffers: list[Tensor], inputs: list[Tensor]) -> list[Tensor]:  # noqa: ARG001
        given = dict(zip(places, inputs, strict=True))
        positional, named = tree_unflatten([given.get(place, value) for place, value in enumerate(values)], spec)
        with _AsItRan():
            return list(results_of(copied(*positional, **named)))

    tensors = list(parameters.values()), list(buffers.values()), [values[place] for place in places]
    with Draws(model, level) as draws, _module_stack(copied), torch.enable_grad():
        module: fx.GraphModule = make_fx(run, pre_dispatch=True, _error_on_data_dependent_ops=False)(*tensors)
    kinds: list[tuple[Kind, str]] = [("parameter", name) for name in parameters]
    kinds += [("fixed", name) for name in buffers]
    kinds += [("input", "") for _ in places]
    placeholders = module.graph.find_nodes(op="placeholder")
    taken = {node.name for node in module.graph.nodes}
    names, examples = _names(model, args, kwargs), [v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor)]
    for node, value in zip(placeholders[-len(places) :], examples, strict=True):
        if (name := names[id(value)]) not in taken:
            node.name = node.target = name
            taken.add(name)
    inputs = [ProgramInput(node.name, *kind) for node, kind in zip(placeholders, kinds, strict=True)]
    remarks = tuple(_remarks(type(model).__name__, module.graph, [i.name for i in inputs if i.kind == "input"]))
    _drop_questions(module.graph)
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    (output,) = module.graph.find_nodes(op="output")
    results = (True,) * len(output.args[0])
    return Program(module, tuple(inputs), results, held, {}, tuple(examples), remarks), draws.drew


def _copied(model: nn.Module) -> nn.Module:
    """Return a copy of a module that shares the values of its parameters."""
    shared: dict[int, Any] = {id(p): nn.Parameter(p.detach(), p.requires_grad) for p in model.parameters()}
    for module in model.modules():  # tensors computed from others, as weight norms leave them, cannot be copied
        made = (v for v in vars(module).values() if isinstance(v, Tensor) and not v.is_leaf)
        shared |= {id(value): value.detach() for value in made}
    return copy.deepcopy(model, shared)


def _cloned(values: Any) -> Any:
    return tree_map(lambda value: value.detach().clone() if isinstance(value, Tensor) else value, values)


def _names(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[int, str]:
    """Map the identities of the inputs' tensors to names as in an export: the argument, and the place within it."""
    try:
        bound = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        bound = {"args": args, "kwargs": kwargs}
    return {
        id(value): "_".join(str(getattr(key, "key", getattr(key, "idx", ""))) for key in path)
        for path, value in tree_flatten_with_path(bound)[0]
    }


def _parameters_used(program: Program) -> int:
    names = {given.name for given in program.inputs if given.kind == "parameter"}
    return sum(bool(node.users) for node in program.graph.nodes if node.name in names)


def _drop_questions(graph: fx.Graph) -> None:
    """Remove operators that switch gradients or only ask for values, and those computed only for that."""
    asked: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function" or node.users:
            continue
        if node.target is _GRADIENTS or _asks(node) or _finds(node) or (node in asked and not node.is_impure()):
            asked |= set(node.all_input_nodes)
            graph.erase_node(node)


@contextlib.contextmanager
def _module_stack(model: nn.Module) -> Iterator[None]:
    """Record for every operator which modules called it, outermost first, as an export does."""
    handles = []
    stacks: list[dict[str, tuple[str, str]]] = [{}]
    with fx_traceback.preserve_node_meta():
        meta = fx_traceback.get_current_meta()

        def enter(name: str, kind: type[nn.Module]) -> None:
            stacks.append({**stacks[-1], name: (name, f"{kind.__module__}.{kind.__qualname__}")})
            meta["nn_module_stack"] = stacks[-1]

        def leave() -> None:
            stacks.pop()
            meta["nn_module_stack"] = stacks[-1]

        for name, module in model.named_modules():
            before = partial(_ignoring, partial(enter, name, type(module)))
            handles.append(module.register_forward_pre_hook(before, prepend=True))
            handles.append(module.register_forward_hook(partial(_ignoring, leave), always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def _ignoring(act: Callable[[], None], *_: Any) -> None:
    """Call a function from a hook, ignoring the hook's arguments."""
    act()


class _AsItRan(TorchFunctionMode):
    """Record the entries that a module picks by data as constants, so that the program also runs with other weights.

    A signal that is passed to numpy is refused, because numpy cannot be traced.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _LEAVES_TORCH and args[0].is_floating_point():
            raise NumpyError
        if func == _DATA and not isinstance(args[0], nn.Parameter):
            return args[0].detach()  # the same values, but their origin is recorded
        if func in _PICKS:
            args = (args[0], *tree_map(_held_mask, args[1:]))
        result = func(*args, **(kwargs or {}))
        if func in _FINDS or (func is torch.where and len(args) == 1):
            return tree_map(_held, result)
        return result


def _held(value: Any) -> Any:
    """Return a tensor's values as a constant."""
    if not isinstance(value, Tensor):
        return value
    return torch.tensor(value.tolist(), dtype=value.dtype, device=value.device).reshape(value.shape)


def _held_mask(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.dtype != torch.bool:
        return value
    value.nonzero()  # so that the recording shows that the data were asked
    return _held(value)


class NumpyError(Exception):
    """Report that a module passed a signal to numpy while it was recorded."""


# What depends on the example inputs


def _remarks(kind: str, graph: fx.Graph, inputs: Collection[str]) -> Iterator[str]:
    """Yield a line if the module's control flow depends on its data."""
    signals = _signals(graph, inputs)
    asking = [node for node in graph.nodes if _depends_on_data(node, signals)]
    places = list(dict.fromkeys(place_of(node) for node in asking))
    if places:
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield (
            f"what {kind} does depends on its data in {places[0]}{more} ({op_name(asking[0].target)}); it was read as "
            "it ran on the example inputs, so give inputs like those of training"
        )


def _signals(graph: fx.Graph, inputs: Collection[str]) -> set[fx.Node]:
    """Return the nodes that depend on an input's values; what depends only on integers and masks is layout."""
    signals: set[fx.Node] = set()
    dependent = dependents(graph, inputs)
    for node in graph.nodes:
        floating = any(isinstance(v, Tensor) and v.is_floating_point() for v in tree_leaves(node.meta.get("val")))
        if node in dependent and (floating or any(argument in signals for argument in node.all_input_nodes)):
            signals.add(node)
    return signals


def _depends_on_data(node: fx.Node, signals: Collection[fx.Node]) -> bool:
    if node.op != "call_function" or not any(argument in signals for argument in node.all_input_nodes):
        return False
    return _finds(node) or (_asks(node) and not _checks(node))


def _asks(node: fx.Node) -> bool:
    return op_name(node.target).startswith(_ASKS)


def _finds(node: fx.Node) -> bool:
    return op_name(node.target).startswith(_SIZES)


def _checks(node: fx.Node) -> bool:
    """Return whether a node only checks that numbers are finite, through at most a few operators on masks."""
    queue = list(node.all_input_nodes)
    while queue:
        current = queue.pop()
        if op_name(current.target).startswith(_CHECKS):
            return True
        made = current.meta.get("val")
        if isinstance(made, Tensor) and made.dtype == torch.bool:
            queue += current.all_input_nodes
    return False
