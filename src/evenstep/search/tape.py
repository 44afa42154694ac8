"""Record what a step computes: every operator of a forward and backward pass, its numbers, and outside tensors.

A tape names operators, not the values they return, so it is the same on another machine. Only tensors that no recorded
operator made, such as constants or another library's results, count by their bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from evenstep.search.python_values import tensor_digest

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.layout, torch.memory_format)


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Record operators in this context; `named` tensors are recorded by name."""

    def __init__(self, named: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hash = hashlib.sha256()
        self._labels: dict[
            int, tuple[StorageWeakRef, str]
        ] = {}  # by storage, so that views and saved copies count as their origin
        self._made = 0
        for name, tensor in named.items():
            self._label(tensor, name)

    def digest(self) -> str:
        """Return the digest of everything recorded."""
        return self._hash.hexdigest()[:32]

    def note(self, value: Any) -> None:
        """Record a result."""
        self._hash.update(f"result {self._shown(value)}\n".encode())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record an operator and run it."""
        del types
        self._hash.update(f"{func} {self._shown(args)} {self._shown(kwargs or {})}\n".encode())
        result = func(*args, **(kwargs or {}))
        self._produced(result)
        return result

    def _produced(self, result: Any) -> None:
        if isinstance(result, Tensor) and result.layout == torch.strided:
            if self._known(result) is None:
                self._label(result, f"%{self._made}")
                self._made += 1
        elif isinstance(result, list | tuple):
            for part in result:
                self._produced(part)

    def _label(self, tensor: Tensor, label: str) -> None:
        if tensor.layout == torch.strided:
            reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
            self._labels[reference.cdata] = reference, label

    def _known(self, tensor: Tensor) -> str | None:
        if tensor.layout != torch.strided:
            return None
        # A weak reference keeps another storage from taking this address.
        entry = self._labels.get(tensor.untyped_storage()._cdata)
        return entry[1] if entry else None

    def _shown(self, value: Any) -> str:
        if isinstance(value, Tensor):
            label = self._known(value)
            if label is None:
                label = f"bytes {tensor_digest(value)[2]}"
                self._label(value, label)
            place = (value.storage_offset(), value.stride()) if value.layout == torch.strided else value.layout
            return f"<{label} {value.dtype} {tuple(value.shape)} {place}>"
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self._shown, value))}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{key}: {self._shown(part)}' for key, part in value.items())}}}"
        if isinstance(value, torch.device):
            return value.type
        if isinstance(value, torch.Generator):
            return f"<generator {tensor_digest(value.get_state())[2]}>"
        return repr(value) if isinstance(value, _PLAIN) else type(value).__qualname__
