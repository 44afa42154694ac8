"""What a sweep over cells and protocols is to train, and how it runs: base rates first, then every cell."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import torch

from evenstep.arguments import require_choice
from evenstep.errors import EvenstepError, InputError
from evenstep.search.cuda import Precision
from evenstep_research.spaces.cells import cell_digits, is_live
from evenstep_research.study.nas.ledger import LedgerRow, Run, RunLedger, SweepSetting
from evenstep_research.study.nas.muparam import MupProtocol
from evenstep_research.study.nas.protocols import (
    BenchmarkProtocol,
    ConstantTunedProtocol,
    NetworkShape,
    PaperProtocol,
    TrainingProtocol,
    WeightedProtocol,
)
from evenstep_research.study.nas.sweep import SweepResources, Tuned, data_set_in, sweep, tune
from evenstep_research.study.nas.training import SweepTraining
from evenstep_research.study.progress import Notify, StudyProgress

PROTOCOLS: Mapping[str, Callable[[float], TrainingProtocol]] = MappingProxyType(
    {
        "benchmark": BenchmarkProtocol,
        "constant-tuned": ConstantTunedProtocol,
        "paper": PaperProtocol,
        "weighted": WeightedProtocol,
        "mup": MupProtocol,
    }
)
GIVEN = ("benchmark", "mup")  # train at the benchmark's rate unless told otherwise
SMOKE = SweepSetting(
    NetworkShape(channels=4, cells=1, side=8), SweepTraining(2, batch_size=64, padding=1, flip=False), "digits"
)
SMOKE_CODES = ("303101", "333333", "000300", "211101")
LEDGER, CHECKPOINT = "ledger.jsonl", "checkpoint.pt"


@dataclass(frozen=True)
class SweepOptions:
    """Say what is to be trained; `rates` gives protocols their rate, the others' are searched on the base cell."""

    codes: tuple[str, ...]
    protocols: tuple[str, ...]
    setting: SweepSetting
    resources: SweepResources
    seeds: int = 2
    rates: Mapping[str, float] = field(default_factory=dict)
    tune_epochs: int = 12
    tune_seeds: int = 1
    out: Path | None = None

    def __post_init__(self) -> None:
        for name, value in (("seeds", self.seeds), ("tune_epochs", self.tune_epochs), ("tune_seeds", self.tune_seeds)):
            if value < 1:
                raise InputError(f"{name} is {value}; give a whole number from 1 up")
        if self.resources.together < 1:
            raise InputError(f"together is {self.resources.together}; give a whole number from 1 up")
        _known(self.protocols)
        _known(self.rates)


@dataclass(frozen=True)
class SweepResult:
    """Hold the entries of all runs, the cells that were skipped for want of a live path, and searched rates."""

    entries: tuple[LedgerRow, ...]
    skipped: tuple[str, ...]
    tuned: tuple[Tuned, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rows = [
            {"code": e.code, "protocol": e.protocol["name"], "seed": e.seed, "accuracy": e.outcome.accuracy}
            for e in self.entries
        ]
        return {"runs": rows, "skipped": list(self.skipped), "tuned": [tuned.to_dict() for tuned in self.tuned]}


def run(options: SweepOptions, notify: Notify = lambda _: None) -> SweepResult:
    """Search the base rates that are not given, then train every cell with every protocol and seed."""
    out = options.out
    ledger = RunLedger(None if out is None else out / LEDGER)
    checkpoint = None if out is None else out / CHECKPOINT
    skipped = tuple(code for code in options.codes if not is_live(code))
    for code in skipped:
        notify(StudyProgress(0, 0, f"{code} skipped: no live path leads through it"))
    tuned: list[Tuned] = []
    protocols: list[TrainingProtocol] = []
    for name in options.protocols:
        if name in GIVEN and name not in options.rates:
            protocols.append(PROTOCOLS[name](BenchmarkProtocol().lr))
            continue
        if name not in options.rates:
            shorter = replace(
                options.setting.training, epochs=min(options.tune_epochs, options.setting.training.epochs)
            )
            setting = replace(options.setting, training=shorter)
            searched = tune(
                PROTOCOLS[name],
                setting,
                options.resources,
                ledger,
                seeds=options.tune_seeds,
                notify=notify,
                checkpoint=checkpoint,
            )
            notify(StudyProgress(0, 0, f"{name}: rate {searched.lr:.4g} on the base cell {searched.base}"))
            tuned.append(searched)
        rate = options.rates[name] if name in options.rates else tuned[-1].lr
        protocols.append(PROTOCOLS[name](rate))
    # Every number of a cell side by side: lanes of one cell take one time.
    runs = [
        Run(code, protocol, seed)
        for code in options.codes
        if code not in skipped
        for seed in range(options.seeds)
        for protocol in protocols
    ]
    entries = tuple(sweep(runs, options.setting, options.resources, ledger, notify=notify, checkpoint=checkpoint))
    return SweepResult(entries, skipped, tuple(tuned))


def sweep_options(
    *,
    scale: str = "full",
    data: str | None = None,
    codes: str | None = None,
    protocols: str = ",".join(PROTOCOLS),
    epochs: int | None = None,
    seeds: int = 2,
    base_lr: str | None = None,
    tune_epochs: int | None = None,
    tune_seeds: int = 1,
    out: Path | None = None,
    device: str | None = None,
    precision: str | None = None,
    together: int | None = None,
    engine: str = "local",
) -> SweepOptions:
    """Return what options in words ask for; `codes` is their text, one cell a line.

    A GPU trains in bfloat16 and eight runs side by side unless told otherwise, a CPU in float32 and one by one.
    """
    if scale not in ("smoke", "full"):
        raise InputError(f"scale is '{scale}'; choose smoke or full")
    if scale == "smoke" and data is not None:
        raise InputError("the scale 'smoke' trains on digits, which need no files; leave --data out")
    setting = SMOKE if scale == "smoke" else setting_for(data, epochs=12)
    if epochs is not None:
        setting = replace(setting, training=replace(setting.training, epochs=epochs))
    if codes is None and scale == "full":
        raise InputError("--codes is missing; give a file with one cell a line, such as evenstep nas sample writes")
    return SweepOptions(
        SMOKE_CODES if codes is None else read_codes(codes),
        read_protocols(protocols),
        setting,
        _resources(data, device, precision, together, engine),
        seeds,
        read_rates(base_lr),
        tune_epochs if tune_epochs is not None else (1 if scale == "smoke" else 12),
        tune_seeds,
        out,
    )


def _resources(
    data: str | None, device: str | None, precision: str | None, together: int | None, engine: str
) -> SweepResources:
    resources = SweepResources(data, device)
    if resources.kind.partition(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"--device is '{device}'; give cpu or cuda")
    on_gpu = resources.kind.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        raise InputError(f"--device is '{device}', which this machine has not; give cpu")
    precision = precision or ("bfloat16" if on_gpu else "float32")
    require_choice("--precision", precision, get_args(Precision))
    if precision != "float32" and not on_gpu:
        raise InputError(f"--precision is '{precision}', which is for a GPU; leave it out on a CPU")
    if engine not in ("local", "ray"):
        raise InputError(f"--engine is '{engine}'; choose local or ray")
    together = (8 if on_gpu else 1) if together is None else together
    return replace(resources, precision=precision, together=together, engine=engine)  # type: ignore[arg-type]


def setting_for(data: str | None, *, epochs: int, channels: int = 16, cells: int = 5) -> SweepSetting:
    """Return the benchmark's setting of the data set in a folder."""
    if data is None:
        raise InputError("--data is missing; give the folder of CIFAR-10, CIFAR-100 or ImageNet16, or --scale smoke")
    data_set = data_set_in(data)
    # Crops out of a margin of an eighth of the image: 4 pixels of 32, 2 of 16.
    training = SweepTraining(epochs, padding=data_set.side // 8)
    return SweepSetting(NetworkShape(channels, cells, data_set.classes, data_set.side), training, data_set.name)


def text_of(name: str | None) -> str | None:
    """Return the text of a file, of standard input for '-', or nothing."""
    if name is None:
        return None
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text()
    except (OSError, ValueError) as error:
        raise InputError(f"the codes '{name}' cannot be read ({error}); give a file with one cell a line") from None


def read_codes(text: str) -> tuple[str, ...]:
    """Read cells, one a line in any notation, each once; what follows a # is left unread.

    >>> read_codes("3_24_440  # a comment")
    ('324440',)
    """
    codes: dict[str, None] = {}
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0].strip()
        if not code:
            continue
        try:
            codes[cell_digits(code)] = None
        except EvenstepError as error:
            raise InputError(f"line {number} of the codes is no cell of NAS-Bench-201: {error}") from None
    if not codes:
        raise InputError("there are no codes; give one cell a line, such as 3_24_440")
    return tuple(codes)


def read_rates(text: str | None) -> dict[str, float]:
    """Read base rates: 'weighted=0.5,paper=0.46', or one number for all protocols whose rate is searched.

    >>> read_rates("weighted=0.5")
    {'weighted': 0.5}
    """
    if not text:
        return {}
    try:
        pairs = [part.split("=") for part in text.split(",")]
        if len(pairs) == 1 and len(pairs[0]) == 1:
            return {name: float(text) for name in PROTOCOLS if name not in GIVEN}
        return {_known([name.strip()])[0]: float(value) for name, value in pairs}
    except ValueError:
        raise InputError(f"--base-lr is '{text}'; give a number, or pairs such as weighted=0.5,paper=0.46") from None


def read_protocols(text: str) -> tuple[str, ...]:
    """Read protocols' names, joined by commas."""
    return _known([name.strip() for name in text.split(",") if name.strip()])


def _known(names: Sequence[str] | Mapping[str, Any]) -> tuple[str, ...]:
    for name in names:
        if name not in PROTOCOLS:
            raise InputError(f"there is no protocol '{name}'; choose from {', '.join(PROTOCOLS)}")
    if not names and not isinstance(names, Mapping):
        raise InputError(f"there are no protocols; choose from {', '.join(PROTOCOLS)}")
    return tuple(dict.fromkeys(names))
