"""A module's run as a graph of operators, exported or recorded, for the reader and for forward passes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import TreeSpec, tree_leaves

Kind = Literal["parameter", "fixed", "input"]


class ProgramInput(NamedTuple):
    """Say what a program's placeholder stands for: a parameter or fixed tensor, by name, or an input."""

    name: str
    kind: Kind
    target: str = ""


@dataclass(frozen=True)
class Program:
    """Hold a module's operators as one graph, and the values it runs on.

    `inputs` are in the order of the graph's placeholders; `results` says for each leaf of the output whether it is a
    result of the module, and not an updated buffer or a state for its next call. `tensors` holds parameters and buffers
    by name, `constants` those of them that the module itself does not name, and `examples` the values of the
    placeholders that are inputs. `remarks` say what depends on the example inputs.
    """

    graph_module: fx.GraphModule
    inputs: tuple[ProgramInput, ...]
    results: tuple[bool, ...]
    tensors: Mapping[str, Any]
    constants: Mapping[str, Any]
    examples: tuple[Any, ...]
    remarks: tuple[str, ...] = ()

    @property
    def graph(self) -> fx.Graph:
        """The graph of operators."""
        return self.graph_module.graph


def of_export(exported: ExportedProgram) -> Program:
    """Return an exported program as a `Program`."""
    kinds: dict[InputKind, Kind] = {InputKind.PARAMETER: "parameter", InputKind.USER_INPUT: "input"}
    inputs = [
        ProgramInput(getattr(spec.arg, "name", ""), kinds.get(spec.kind, "fixed"), str(spec.target or ""))
        for spec in exported.graph_signature.input_specs
    ]
    returned = iter(_is_result(exported.call_spec.out_spec))
    results = [
        spec.kind == OutputKind.USER_OUTPUT and next(returned, True) for spec in exported.graph_signature.output_specs
    ]
    return Program(
        exported.graph_module,
        tuple(inputs),
        tuple(results),
        {**exported.constants, **exported.state_dict},
        exported.constants,
        tuple(tree_leaves(exported.example_inputs)),
    )


def has_fixed_sizes(program: Program) -> bool:
    """Return whether no tensor's size depends on other tensors' values, as that of `nonzero` does."""
    values = (value for node in program.graph.nodes for value in tree_leaves(node.meta.get("val")))
    return not any(
        isinstance(size, torch.SymInt) for value in values if isinstance(value, torch.Tensor) for size in value.shape
    )


def results_of(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors that a module returns as results, in tuples, lists, mappings and dataclasses.

    Tensors in other objects are states for the next call, such as a language model's cache.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from results_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from results_of(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in vars(value).values():
            yield from results_of(item)


def _is_result(spec: TreeSpec) -> list[bool]:
    """Return for every leaf of an output whether `results_of` would yield it."""
    if spec.type is None or spec.is_leaf():
        return [True]
    known = isinstance(spec.type, type) and (issubclass(spec.type, list | tuple | Mapping) or is_dataclass(spec.type))
    children = spec.children() if callable(getattr(spec, "children", None)) else spec.children_specs
    leaves = [leaf for child in children for leaf in _is_result(child)]
    return leaves if known else [False] * len(leaves)
