"""The provenance of a number: the versions, device and commit that it was measured with."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from evenstep import __version__


def provenance() -> dict[str, Any]:
    """Return what a reader needs to judge or repeat a measurement."""
    return {
        "versions": {"evenstep": __version__}
        | {name: _version(name) for name in ("torch", "numpy")}
        | {"python": platform.python_version()},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {platform.machine()}",
        "threads": torch.get_num_threads(),
        "commit": commit(),
    }


@lru_cache(maxsize=1)
def commit() -> str | None:
    """Return the commit of the checkout that the package runs from, marked `+` if files differ; None outside one.

    For a copy without history, the environment variable EVENSTEP_COMMIT gives it.
    """
    if named := os.environ.get("EVENSTEP_COMMIT"):
        return named
    here = Path(__file__).parent
    try:
        name = _git(here, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
