"""Run searches as people's scripts do: with and without a guard, on a terminal, interrupted."""

import io
import os
import pty
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import evenstep as es
from evenstep.search import LocalEngine

torch.set_num_threads(1)

SCRIPT = """
import sys
import torch
from torch import nn
import evenstep as es
from evenstep.search import LocalEngine

print("run", __name__, flush=True)
torch.set_num_threads(1)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x):
        return self.layers(x)

def plain():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

generator = torch.Generator().manual_seed(0)
inputs = torch.randn(64, 6, generator=generator)
data = inputs, (inputs @ torch.randn(6, 3, generator=generator)).argmax(1)

def main():
    found = es.search_lr({make}, data, steps=8, batch_size=16, seeds=1, grid=[0.1, 0.4, 1.6],
                         engine=LocalEngine(workers=2), on_failure="return")
    print("found", found.losses)

{call}
"""
GUARD = 'if __name__ == "__main__":\n    main()'


def ran(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(text)
    return subprocess.run(
        [sys.executable, *options, "script.py"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_script_searches_with_a_guard_and_without(tmp_path: Path) -> None:
    """Workers run a script again only for a class that it defines, and never one that would search again."""
    guarded, bare, plain = (
        ran(tmp_path, SCRIPT.format(make=make, call=call))
        for make, call in (("Net", GUARD), ("Net", "main()"), ("plain", "main()"))
    )
    for done, again, warned in ((guarded, 2, 0), (bare, 0, 1), (plain, 0, 0)):
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("found") == 1
        assert done.stdout.count("run __mp_main__") == again
        sentence = "put the call under `if __name__ == '__main__':` to train on all cores"
        assert done.stderr.count(sentence) == warned
        assert bool(done.stderr) is bool(warned)
    assert guarded.stdout.splitlines()[-1] == bare.stdout.splitlines()[-1]


def test_what_has_no_file_trains_in_one_process(tmp_path: Path) -> None:
    """Classes of an interactive session are not known to workers: they used to die one after another."""
    text = SCRIPT.format(make="Net", call=GUARD)
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("found") == 1
    assert "move it to a module to train on all cores" in done.stderr


def test_a_script_on_standard_input_trains_in_one_process(tmp_path: Path) -> None:
    """Workers that look for a file '<stdin>' used to die one after another."""
    text = SCRIPT.format(make="Net", call=GUARD)
    done = subprocess.run(
        [sys.executable, "-"], input=text, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("found") == 1
    assert "run a file to train on all cores" in done.stderr


OF_MINE = """
import dataclasses
import enum
import torch
from torch import nn

class Parts(enum.Flag):
    BIAS = 1
    SQUARED = 2

class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.relu().square()

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient * ctx.saved_tensors[0].relu()

@dataclasses.dataclass
class Config:
    width: int = 8
    parts: Parts = Parts.BIAS | Parts.SQUARED

class Net(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        self.config = config or Config()
        self.first, self.last = nn.Linear(6, self.config.width), nn.Linear(self.config.width, 3)

    def forward(self, x):
        from of_mine_too import halved
        return self.last(halved(Squared.apply(self.first(x)) if Parts.SQUARED in self.config.parts else self.first(x)))
"""
USED = """
import copy
import pickle
import torch
import evenstep as es
from evenstep.search import LocalEngine
from of_mine import Net

if __name__ == "__main__":
    torch.set_num_threads(1)
    class Counted(torch.autograd.Function):  # one that no worker knows
        pass
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    data = inputs, (inputs[:, 0] > 0).long()
    pickle.loads(pickle.dumps(copy.deepcopy(Net())))(inputs).sum().backward()
    searched = [es.search_lr(made, data, steps=8, batch_size=16, seeds=1, grid=[0.1, 0.4, 1.6], on_failure="return",
                             engine=LocalEngine(workers=2)) for made in (Net, es.base_of(Net(), inputs))]
    print(*(found.losses for found in searched))
"""


def test_classes_that_were_used_are_the_same_in_workers(tmp_path: Path) -> None:
    """What Python and torch note on a class that is copied, joined or imported is no difference between processes."""
    (tmp_path / "of_mine.py").write_text(OF_MINE)
    (tmp_path / "of_mine_too.py").write_text("def halved(x):\n    return x / 2\n")
    done = ran(tmp_path, USED)
    assert done.returncode == 0, done.stderr
    assert not done.stderr


def test_a_class_that_no_other_process_can_load_trains_in_one(tmp_path: Path) -> None:
    """A module that a program made itself used to let workers die one after another."""
    made = USED.replace("from of_mine import Net", "import sys, types\nNet = None")
    made = made.replace("(Net, es.base_of(Net(), inputs))", "(Net,)")
    made = made.replace(
        "    torch.set_num_threads(1)\n",
        "    torch.set_num_threads(1)\n    of_mine = sys.modules['of_mine'] = types.ModuleType('of_mine')\n"
        "    exec(open('text').read(), vars(of_mine))\n    Net = of_mine.Net\n",
    )
    (tmp_path / "text").write_text(OF_MINE.replace("from of_mine_too import halved", "halved = torch.relu"))
    done = ran(tmp_path, made)
    assert done.returncode == 0, done.stderr
    assert "cannot load the network or the loss (ModuleNotFoundError: No module named 'of_mine')" in done.stderr


# Interrupts

LONG = """
import sys
import torch
from torch import nn
import evenstep as es
from evenstep.search import LocalEngine

torch.set_num_threads(1)
inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
data = inputs, (inputs[:, 0] > 0).long()

def tell(progress):
    if progress.done >= 2:
        print("under way", flush=True)

def make():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

if __name__ == "__main__":
    es.search_lr(make, data, steps=2000, batch_size=16, seeds=1, engine=LocalEngine(workers=WORKERS), STORE
                 progress=tell)
"""


@pytest.mark.parametrize(("workers", "store"), [(1, ""), (2, "store='runs.sqlite',")], ids=["alone", "workers"])
def test_an_interrupt_says_what_is_kept_and_leaves_no_worker(workers: int, store: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(LONG.replace("WORKERS", str(workers)).replace("STORE", store))
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "under way\n"
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers, too
    _, error = process.communicate(timeout=60)  # ends when nobody holds its pipes any more: no worker is left
    assert process.returncode == -signal.SIGINT
    said = re.search(r"KeyboardInterrupt: stopped after (\d+) of at most (\d+) trials; (.*)", error)
    assert said, error
    assert 2 <= int(said[1]) < int(said[2])
    if store:
        assert said[3] == "they are in 'runs.sqlite': run the same search again with this store to continue"
    else:
        assert said[3].startswith("they are lost: with a store (store='runs.sqlite', ")


# Bars

SHORT = """
import torch
from torch import nn
import evenstep as es

torch.set_num_threads(1)
inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
data = inputs, (inputs[:, 0] > 0).long()
make = lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
es.search_lr(make, data, steps=8, batch_size=16, seeds=1, on_failure="return")
"""


def on_a_terminal(folder: Path, text: str) -> str:
    """Run a script with a terminal as its standard error, and return what it wrote there."""
    (folder / "script.py").write_text(text)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen([sys.executable, "script.py"], cwd=folder, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 65536):
            written += part
    except OSError:  # Linux's way to say that the other end is closed
        pass
    finally:
        os.close(ours)
    assert process.wait(timeout=60) == 0, written.decode()
    return written.decode()


def test_a_terminal_shows_a_bar_that_only_grows(tmp_path: Path) -> None:
    written = on_a_terminal(tmp_path, SHORT)
    shares = [int(share) for share in re.findall(r"(\d+)%", written)]
    assert shares
    assert shares == sorted(shares)
    assert re.search(r"\d+ of at most \d+ trials, best so far", written)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def search(**options: Any) -> None:
    inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
    data = inputs, (inputs[:, 0] > 0).long()
    usual: dict[str, Any] = {"steps": 4, "batch_size": 16, "seeds": 1, "grid": [0.1, 0.2, 0.4]}
    es.search_lr(lambda: nn.Linear(6, 2), data, engine=LocalEngine(workers=1), on_failure="return", **usual | options)


def test_without_rich_one_line_is_written_over_and_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setitem(sys.modules, "rich", None)
    search()
    *lines, blank, end = stream.getvalue().split("\r")[1:]
    assert [line.split(":")[0] for line in lines] == [
        "searching   0%",
        "searching  33%",
        "searching  67%",
        "searching 100%",
    ]
    assert "3 of at most 3 trials, best so far" in lines[-1]
    assert (blank.strip(), end) == ("", "")
    assert len(blank) == max(map(len, lines))
    assert "\n" not in stream.getvalue()


def test_a_bar_is_shown_where_it_is_asked_for_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    for stream, progress, shown in (
        (Terminal(), False, False),
        (io.StringIO(), None, False),
        (io.StringIO(), True, True),
    ):
        monkeypatch.setattr(sys, "stderr", stream)
        search(progress=progress)
        assert bool(stream.getvalue()) is shown


def test_a_notebook_shows_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel's standard error is no terminal; carriage returns work there."""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    search()
    assert "\rsearching 100%" in stream.getvalue()
