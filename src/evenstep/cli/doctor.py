"""`evenstep doctor`: what is installed, and whether it works."""

from __future__ import annotations

import json
import math
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer

from evenstep.cli.added import GET_RESEARCH, RESEARCH, research_version
from evenstep.cli.working import working

_REQUIREMENT = re.compile(r"([\w.-]+)[^;>=]*(?:>=([\w.]+))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w.-]+)['"]""")


@dataclass(frozen=True)
class Package:
    """A package that evenstep requires: the installed version (None if there is none) and the lowest that works."""

    name: str
    version: str | None
    lowest: str
    extra: str

    @property
    def ok(self) -> bool:
        """Whether it is installed and new enough."""
        return self.version is not None and _numbers(self.version) >= _numbers(self.lowest)


@dataclass(frozen=True)
class Finding:
    """One part of the self-check: the answer, the expected answer, and whether they agree."""

    name: str
    found: str
    expected: str
    ok: bool
    seconds: float


def doctor(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Show versions, device and extras, and check that evenstep works; exit 1 if it does not."""
    from evenstep import __version__

    research = research_version()
    packages = installed()
    with working("planning and searching small networks", quiet=quiet):
        findings = self_check()
    broken = [p.name for p in packages if not p.extra and not p.ok] + [f.name for f in findings if not f.ok]
    if as_json:
        values = {
            "evenstep": __version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "device": _device(),
            "research": research,
            "packages": [{**asdict(package), "ok": package.ok} for package in packages],
            "checks": [asdict(finding) for finding in findings],
            "ok": not broken,
        }
        print(json.dumps(values))
    else:
        print(f"evenstep {__version__}, Python {platform.python_version()}, {platform.platform()}")
        print(f"device: {_device()}")
        print(f"{RESEARCH}: {research or f'not installed; {GET_RESEARCH}'}")
        _print_packages(packages)
        for finding in findings:
            verdict = "ok" if finding.ok else f"BROKEN, expected {finding.expected}"
            print(f"{finding.name}: {finding.found} ({finding.seconds:.1f} s), {verdict}")
        print(f"broken: {', '.join(broken)}; reinstall with pip install evenstep" if broken else "everything works")
    if broken:
        raise typer.Exit(1)


def installed() -> list[Package]:
    """Return the packages that evenstep's metadata requires, each once, with those of extras last."""
    found: dict[str, Package] = {}
    for text in metadata.requires("evenstep") or []:
        required = _REQUIREMENT.match(text)
        extra = _EXTRA.search(text)
        if required is None or required[1] in ("evenstep", *found) or (extra and extra[1] in ("dev", "docs")):
            continue
        found[required[1]] = Package(required[1], _version(required[1]), required[2] or "0", extra[1] if extra else "")
    return sorted(found.values(), key=lambda package: bool(package.extra))


def self_check() -> list[Finding]:
    """Plan a network whose factor is known, and search for a rate that is known."""
    return [_checked("plan", _plan, _PLANNED), _checked("search", _search, _SEARCHED)]


# The paper's rule is exact: paths of depths 3, 2 and 1 where the base has one of depth 2.
_PLANNED = math.sqrt(8 / (27 + 8 + 1))
# Rates a factor of four apart, so that rounding on another machine cannot change which loss is smallest.
_RATES = (1 / 16, 1 / 4, 1.0, 4.0, 16.0)
_SEARCHED = 4.0


def _plan() -> float:
    import torch
    from torch import Tensor, nn

    from evenstep.module import plan

    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            first = self.layers[0](x)
            second = self.layers[1](torch.relu(first))
            third = self.layers[2](torch.relu(second)) + first + second
            out: Tensor = self.layers[3](torch.relu(third))
            return out

    return plan(Skips(), torch.zeros(2, 8), rule="paths").lr_scale


def _search() -> float:
    import torch
    from torch import nn

    from evenstep.search import search_lr

    inputs = torch.randn(128, 8, generator=torch.Generator().manual_seed(0))

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    return search_lr(make, (inputs, (inputs[:, 0] > 0).long()), grid=_RATES, steps=16, seeds=2, progress=False).best


def _checked(name: str, run: Callable[[], float], expected: float) -> Finding:
    """Run a check; if it raises, that is its finding."""
    before = time.perf_counter()
    try:
        value = run()
    except Exception as error:  # anything may be broken: that is what the check is for
        problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return Finding(name, problem, f"{expected:.6g}", ok=False, seconds=time.perf_counter() - before)
    near = math.isclose(value, expected, rel_tol=1e-6)
    return Finding(name, f"{value:.6g}", f"{expected:.6g}", ok=near, seconds=time.perf_counter() - before)


def _device() -> str:
    try:
        import torch
    except Exception as error:
        return f"unknown because torch cannot be loaded ({type(error).__name__}: {error})"
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return f"cuda ({', '.join(names)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'' if threads == 1 else 's'})"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: '2.13.0+cpu' is (2, 13, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def _print_packages(packages: list[Package]) -> None:
    wide = max((len(package.name) for package in packages), default=0)
    for package in packages:
        if package.ok:
            print(f"  {package.name:<{wide}}  {package.version}")
        elif package.extra:
            hint = f"pip install 'evenstep[{package.extra}]'"
            print(f"  {package.name:<{wide}}  {package.version or 'not installed'} (optional: {hint})")
        else:
            wanted = f"{package.lowest} or later"
            print(f"  {package.name:<{wide}}  {package.version or 'NOT INSTALLED'}, BROKEN: needs {wanted}")
