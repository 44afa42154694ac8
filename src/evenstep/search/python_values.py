"""Digest Python values so that another process finds the same digest: code, what it refers to, and the numbers held.

A digest contains no addresses, order of sets or file names. Library functions and classes are hashed by name, the
user's by their code with everything it reaches. What has no content to read (a socket, a lock) raises `Unreadable`.
"""

from __future__ import annotations

import contextlib
import copyreg
import dis
import enum
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from evenstep.search.randomness import GLOBAL_GENERATORS

_LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")})
_ATOMS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented), range, slice)
_TORCH_ATOMS = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
# Attributes that describe a class rather than act, and those that Python and torch add when it is used, which would
# make a class differ by its use: copying adds `__slotnames__`, joining flags `_value2member_map_`, and functions with a
# custom gradient `_backward_cls`.
_BOOKKEEPING = {
    "__module__", "__doc__", "__dict__", "__weakref__", "__annotations__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotations_cache__", "__annotate_func__", "__annotate__", "__parameters__",
    "__orig_bases__", "__type_params__", "__abstractmethods__", "_abc_impl", "__match_args__", "__dataclass_fields__",
    "__dataclass_params__", "__slotnames__", "_value2member_map_", "_hashable_values_", "_unhashable_values_",
    "_unhashable_values_map_", "_inverted_", "_backward_cls", "__non_callable_proto_members__",
}  # fmt: skip


# What every module keeps besides its tensors: hooks of all kinds, and the names of unsaved buffers.
_HOOKS = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules", "_is_full_backward_hook"}


class Unreadable(Exception):  # noqa: N818 - an answer, not a mistake
    """Name a value without content that could be hashed."""


def digest_of(content: bytes | memoryview) -> str:
    """Return a short hash."""
    return hashlib.sha256(content).hexdigest()[:32]


def tensor_digest(tensor: Tensor) -> list[Any]:
    """Return a tensor's type, its shape, and a hash of its bytes."""
    values = tensor.detach()
    values = (values if values.layout == torch.strided else values.to_dense()).cpu().resolve_conj().resolve_neg()
    values = values.contiguous()
    content = values.reshape(-1).view(torch.uint8).numpy().data if values.numel() else memoryview(b"")
    return [str(tensor.dtype), list(tensor.shape), digest_of(content)]


class ValueReader:
    """Turn values into digests; `names` are tensors that count by name alone, such as a model's parameters."""

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        self.names = dict(names or {})
        self.seen: dict[str, str] = {}  # by the names of variables and parts of classes, inner ones first
        self.imported: set[str] = set()  # the user's modules that code imports when it runs
        self.read: dict[int, tuple[Any, str]] = {}  # keeps the value alive, or another could take its address
        self.open: dict[int, int] = {}  # values being read, by depth, which ends cycles

    def digest(self, value: Any, where: str) -> str:
        """Return the digest of a value; `where` says how it is reached, for errors."""
        if isinstance(value, enum.Enum):
            return self._joined(
                "enum", type(value).__qualname__, value.name, self.digest(value.value, f"{where}.value")
            )
        if isinstance(value, _ATOMS) and type(value) in _ATOMS:
            return self._joined(type(value).__name__, repr(value))
        if isinstance(value, _TORCH_ATOMS):
            return self._joined("torch", repr(value))
        if id(value) in self.read:
            return self.read[id(value)][1]
        if id(value) in self.open:
            return self._joined("cycle", str(len(self.open) - self.open[id(value)]))
        self.open[id(value)] = len(self.open)
        try:
            found = self._joined(*self._parts(value, where))
        finally:
            del self.open[id(value)]
        self.read[id(value)] = value, found
        return found

    def _noted(self, value: Any, where: str, name: str) -> str:
        """Return the digest of a value, and record it under its full name."""
        found = self.digest(value, where)
        self.seen[name] = found
        return found

    def _joined(self, *parts: str) -> str:
        return digest_of("\0".join(parts).encode("utf-8", "surrogatepass"))

    def _all(self, values: Iterable[Any], where: str) -> list[str]:
        return [self.digest(value, f"{where}[{place}]") for place, value in enumerate(values)]

    def _named(self, values: Mapping[str, Any], where: str) -> list[str]:
        return [part for name in values for part in (str(name), self.digest(values[name], f"{where}.{name}"))]

    def _parts(self, value: Any, where: str) -> list[str]:
        if isinstance(value, Tensor):
            if id(value) in self.names:
                return ["named tensor", self.names[id(value)]]
            return ["tensor", repr(tensor_digest(value)), str(value.requires_grad)]
        if isinstance(value, numpy.ndarray | numpy.generic):
            if value.dtype.hasobject:
                return ["objects", repr(value.shape), *self._all(value.reshape(-1).tolist(), where)]
            return ["array", str(value.dtype), repr(value.shape), digest_of(numpy.ascontiguousarray(value).tobytes())]
        if type(value) in (list, tuple):
            return [type(value).__name__, *self._all(value, where)]
        if type(value) in (set, frozenset):
            return ["set", *sorted(self._all(value, where))]
        if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
            keys = [self.digest(key, f"{where}.keys()") for key in value]
            return ["mapping", *keys, *(self.digest(value[key], f"{where}[{key!r}]") for key in value)]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, types.CodeType):
            return self._code(value, where)
        if (name := _library_name(value)) is not None:
            return ["library", name]
        if isinstance(value, type):
            return self._class(value, where)
        return self._callable(value, where) or self._instance(value, where)

    def _code(self, code: types.CodeType, where: str) -> list[str]:
        counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
        names = (code.co_names, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], code.co_freevars)
        return [
            "code",
            digest_of(code.co_code),
            digest_of(code.co_exceptiontable),
            repr((counts, names)),
            *self._all(code.co_consts, where),
        ]

    def _callable(self, value: Any, where: str) -> list[str]:
        """Return the parts of a callable, or none if it is an object like any other."""
        if isinstance(value, types.FunctionType):
            cells = [
                next((self.digest(content, f"{where}.{name}") for content in cell_contents(cell)), "empty")
                for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            ]
            return [
                "function",
                self.digest(value.__code__, where),
                *cells,
                self.digest(value.__defaults__, f"{where}.defaults"),
                self.digest(value.__kwdefaults__, f"{where}.defaults"),
                *self._globals(value),
            ]
        if isinstance(value, types.MethodType):
            return ["method", self.digest(value.__func__, where), self.digest(value.__self__, where)]
        if isinstance(value, functools.partial):
            held = (value.func, value.args, value.keywords)
            return ["partial", *(self.digest(part, f"{where}.partial") for part in held)]
        if isinstance(value, staticmethod | classmethod):
            return [type(value).__name__, self.digest(value.__func__, where)]
        if isinstance(value, property):
            return ["property", *self._all((value.fget, value.fset, value.fdel), where)]
        if isinstance(value, functools.cached_property):
            return ["property", self.digest(value.func, where)]
        if isinstance(value, torch.jit.ScriptFunction):
            return ["script", str(value.code)]  # its graph names files
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return ["operator", str(value)]
        if isinstance(value, types.BuiltinFunctionType | types.MethodWrapperType):  # of an object, not a module
            return ["builtin", value.__name__, self.digest(value.__self__, where)]
        if isinstance(value, functools._lru_cache_wrapper):
            return ["wrapped", type(value).__qualname__, self.digest(value.__wrapped__, where)]
        return []

    def _globals(self, function: types.FunctionType) -> list[str]:
        """Return the globals that a function reads, and what it takes from the user's modules."""
        parts: list[str] = []
        if in_library(function.__module__ or "__main__"):  # a library's inner function, whose globals are the library's
            return parts
        for name in sorted(global_names(function.__code__)):
            if name not in function.__globals__:
                continue
            value = function.__globals__[name]
            parts += [name, self._noted(value, name, f"{_module_name(function)}.{name}")]
            if isinstance(value, types.ModuleType):
                parts += self._taken_from(value, attribute_names(function.__code__), name)
        for name in sorted(_imported_names(function.__code__, function.__globals__.get("__package__"))):
            module = None if in_library(name) else sys.modules.get(name)
            if isinstance(module, types.ModuleType):
                self.imported.add(name)
                parts += [name, *self._taken_from(module, attribute_names(function.__code__), name)]
        return parts

    def _taken_from(self, module: types.ModuleType, names: set[str], where: str) -> list[str]:
        """Return what code that uses these names may take from one of the user's modules and its submodules."""
        parts: list[str] = []
        if in_library(module.__name__) or id(module) in self.open:
            return parts
        self.open[id(module)] = len(self.open)
        for name in sorted(names & set(vars(module))):
            value = vars(module)[name]
            parts += [name, self._noted(value, f"{where}.{name}", f"{module.__name__}.{name}")]
            if isinstance(value, types.ModuleType):
                parts += self._taken_from(value, names, f"{where}.{name}")
        del self.open[id(module)]
        return parts

    def _class(self, value: type, where: str) -> list[str]:
        own = {name: part for name, part in vars(value).items() if name not in _BOOKKEEPING}
        slots = {name for name, part in own.items() if isinstance(part, types.MemberDescriptorType)}
        methods = {name: own[name] for name in sorted(own) if name not in slots}
        read = [
            part
            for name, method in methods.items()
            for part in (
                name,
                self._noted(method, f"{where}.{name}", f"{_module_name(value)}.{value.__qualname__}.{name}"),
            )
        ]
        return ["class", value.__qualname__, *self._all(value.__bases__, where), *read]

    def _instance(self, value: Any, where: str) -> list[str]:
        if any(value is generator for generator in GLOBAL_GENERATORS):  # seeded for every trial and step
            return ["global generator", type(value).__name__]
        if isinstance(value, torch.Generator):
            return ["generator", repr(tensor_digest(value.get_state()))]
        if isinstance(value, nn.Module):
            return ["torch module", self.digest(type(value), where), *self._module(value, where)]
        try:
            # What pickle would write, one level deep.
            registered = copyreg.dispatch_table.get(type(value))
            reduced: Any = registered(value) if registered else value.__reduce_ex__(4)
        except Exception as error:
            raise Unreadable(f"{where} is a {type(value).__name__}, which has no content to read") from error
        if isinstance(reduced, str):
            return ["named", reduced]
        function, arguments, *rest = reduced
        state = [list(part) if hasattr(part, "__next__") else part for part in rest]
        return ["object", self.digest(function, where), *self._all(arguments, where), *self._state(state, where)]

    def _state(self, state: list[Any], where: str) -> list[str]:
        first, *others = [*state, None, None]
        named = self._named(first, where) if isinstance(first, dict) else [self.digest(first, where)]
        return [*named, *(self.digest(part, where) for part in others)]

    def _module(self, module: nn.Module, where: str) -> list[str]:
        """Return a module's attributes, with hooks by order because their numbers count all hooks in a process."""
        parts: list[str] = []
        for name, value in vars(module).items():
            if name in _HOOKS:
                if value:
                    values = value.values() if isinstance(value, dict) else sorted(value)
                    parts += [name, *self._all(values, f"{where}.{name}")]
            elif name in ("_parameters", "_buffers", "_modules"):
                parts += [name, *self._named(value, where)]
            elif name not in ("training", "_is_full_backward_hook", "_compiled_call_impl"):
                parts += [name, self.digest(value, f"{where}.{name}")]
        return parts


def cell_contents(cell: types.CellType) -> tuple[Any, ...]:
    """Return what a closure's cell holds, or nothing if it is empty."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _module_name(value: Any) -> str:
    """Return the module name of a function or class; a script has another name in worker processes."""
    name = str(value.__module__)
    return "__main__" if name == "__mp_main__" else name


def _library_name(value: Any) -> str | None:
    """Return a library's name for a value, if looking the name up returns that value."""
    name, module = getattr(value, "__qualname__", None), getattr(value, "__module__", None)
    if not isinstance(name, str):
        name = getattr(value, "__name__", None)  # such as NumPy's functions over arrays
    if module is None and isinstance(value, types.BuiltinFunctionType):
        module = getattr(value.__self__, "__name__", None)  # torch's C functions name no module
    if not isinstance(name, str) or not isinstance(module, str) or not in_library(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}.{name}" if found is value else None


@functools.lru_cache(maxsize=1024)
def in_library(module: str) -> bool:
    """Say whether a module belongs to Python or to an installed package rather than to the user."""
    root = module.split(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return True
    if root == "__main__":
        return False
    file = getattr(sys.modules.get(root), "__file__", None) or _file_to_load(root)
    if file is None:
        return root in sys.builtin_module_names
    folders = Path(file).resolve().parents
    return any(Path(place).resolve() in folders for place in _LIBRARIES)


def _file_to_load(root: str) -> str | None:
    """Return the file that a module would be loaded from, because whether it is loaded depends on what has run."""
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None
    return spec.origin if spec is not None and spec.has_location else None


def global_names(code: types.CodeType) -> set[str]:
    """Return the global names that code reads, including nested code."""
    own = {str(i.argval) for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*(global_names(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))


def _imported_names(code: types.CodeType, package: str | None) -> set[str]:
    """Return the full names of modules that a package's code imports when it runs, including nested code."""
    instructions = list(dis.get_instructions(code))
    own = set()
    for level, _, instruction in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if instruction.opname == "IMPORT_NAME":
            with contextlib.suppress(ImportError, ValueError):  # a relative import without a package
                own.add(importlib.util.resolve_name("." * (level.argval or 0) + str(instruction.argval), package))
    inside = (inner for inner in code.co_consts if isinstance(inner, types.CodeType))
    return own.union(*(_imported_names(inner, package) for inner in inside))


def attribute_names(code: types.CodeType) -> set[str]:
    """Return the names of attributes and globals that code uses, including nested code."""
    own = set(code.co_names)
    return own.union(*(attribute_names(inner) for inner in code.co_consts if isinstance(inner, types.CodeType)))
