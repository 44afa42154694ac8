"""Load the data that `--data` names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from evenstep.cli.added import load_data_folder
from evenstep.cli.target import load_function
from evenstep.errors import InputError


def load_data(source: str) -> Any:
    """Load the data that `--data` names."""
    if source == "digits":
        from evenstep.data import digits

        return digits().train
    path = Path(source)
    if os.path.isdir(path):  # not path.is_dir(), which raises for names too long for a file system
        return load_data_folder()(path).train
    if ":" in source:
        return load_function(source, returns="(inputs, targets), a Dataset or a DataLoader")()
    if path.suffix not in (".npz", ".pt"):
        raise InputError(
            f"data is '{source}'; give 'digits', an .npz or .pt file, the folder of a data set, or 'file.py:function'"
        )
    if not os.path.isfile(path):
        raise InputError(f"there is no file '{source}'; give another --data")
    return _from_file(path)


def load_examples(source: str) -> Any:
    """Return example inputs from the data that `--data` names."""
    from evenstep.search.tensors import as_tensors, example_of

    (inputs, _), _ = as_tensors(load_data(source), limit=2)
    return example_of(inputs)


def _from_file(path: Path) -> Any:
    import numpy as np
    import torch

    stacked = path.suffix == ".npz"
    try:
        if stacked:
            with np.load(path, allow_pickle=False) as arrays:
                return torch.from_numpy(arrays["inputs"]), torch.from_numpy(arrays["targets"])
        values = torch.load(path, weights_only=True)
        return (values["inputs"], values["targets"]) if isinstance(values, dict) else tuple(values)
    except PermissionError:
        raise InputError(f"the data file '{path}' cannot be read: permission denied; give another --data") from None
    except KeyError as error:  # NumPy wraps the name in a sentence
        problem = f"has no '{next(name for name in ('inputs', 'targets') if name in str(error))}'"
    except Exception:  # a file of another kind raises almost anything, with advice for programmers
        problem = f"cannot be read as {'arrays of numbers' if stacked else 'tensors'}"
    save = "numpy.savez('{}', inputs=inputs, targets=targets)"
    if not stacked:
        save = "torch.save({{'inputs': inputs, 'targets': targets}}, '{}')"
    raise InputError(
        f"the data file '{path}' {problem}; it needs arrays 'inputs' and 'targets', written by {save.format(path.name)}"
    )
