"""Change the source a little, over and over, and see whether a test notices: mutation testing of what plans rest on.

    python benchmarks/mutants.py [--count 30] [--seed 0] [--only PATTERN] [--list] [--no-baseline]

The changes are spread evenly over four areas: rules, search, store and apply. Each is made in a copy of `src` in a
temporary folder, never in place; then the tests of its module run against the copy, quick files first, until one fails.
A test that fails, or that does not end within the time limit, kills the change; the table says which. Before that all
tests run on an unchanged copy (`--no-baseline` leaves that out): one that fails there would kill everything.

Which changes a seed stands for depends on the code that is changed and not on where it stands, so that an edit
elsewhere leaves the choice alone. `--only` takes those whose place or text (`--list` prints them) has PATTERN, a
regular expression, in it. Left out is what tests cannot tell: annotations, texts, messages of errors, decorators, what
only a GPU runs, and what only decides how long something takes.

Survivors that change nothing a test could see are explained in EXPLAINED; the exit status is the number of the others.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import copy
import hashlib
import importlib.util
import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = Path("src") / "evenstep"
LIMIT_SECONDS = 600.0  # at least: three times what all tests took without a change, if that is more

# Areas: folders and files of the package. Ray's engine is left out: its tests start a cluster and are not run here.
AREAS: dict[str, tuple[str, ...]] = {
    "rules": ("rules",),
    "search": (
        "search/searching.py",
        "search/grid.py",
        "search/result.py",
        "search/replicas.py",
        "search/stacked_optimizers.py",
        "search/job.py",
        "search/engines",
    ),
    "store": ("search/store.py",),
    "apply": ("module/apply.py", "planning/groups.py"),
}
LEFT_OUT = ("search/engines/ray.py",)

# Tests of a module, quick files first; the longest name that fits counts.
TESTS: dict[str, tuple[str, ...]] = {
    "rules": (
        "rules/test_rules.py",
        "planning/test_fields.py",
        "planning/test_plan.py",
        "module/test_ops.py",
        "module/test_unusual.py",
        "module/test_even_steps.py",
        "module/test_zoo.py",
    ),
    "search/grid.py": ("search/test_grid.py", "search/test_searching.py"),
    "search/result.py": ("search/test_grid.py", "search/test_round_trip.py", "search/test_searching.py"),
    "search/searching.py": (
        "search/test_searching.py",
        "search/test_inputs.py",
        "search/test_round_trip.py",
        "search/test_resume.py",
    ),
    "search/replicas.py": ("search/test_replicas.py", "search/test_memory.py", "search/test_engines.py"),
    "search/stacked_optimizers.py": ("search/test_replicas.py",),
    "search/job.py": (
        "search/test_replicas.py",
        "search/test_searching.py",
        "search/test_inputs.py",
        "search/test_engines.py",
        "search/test_resume.py",
    ),
    "search/engines": (
        "search/test_memory.py",
        "search/test_engines.py",
        "search/test_searching.py",
        "search/test_resume.py",
    ),
    "search/store.py": ("search/test_store.py", "cli/test_runs_command.py", "search/test_resume.py"),
    "module/apply.py": (
        "module/test_apply.py",
        "module/test_mistakes.py",
        "module/test_bad_input.py",
        "search/test_replicas.py",
        "test_examples.py",
    ),
    "planning/groups.py": (
        "module/test_apply.py",
        "planning/test_plan.py",
        "module/test_mistakes.py",
        "module/test_bad_input.py",
    ),
}

# What these hold or return decides how long something takes, and nothing else.
TIMING = {
    "_EVALUATION_BATCH",
    "_FEW_OPERATIONS",
    "_FEW_STEPS",
    "_SET_UP_TRIES",
    "_SHORT",
    "_START_SECONDS",
    "_STATISTICS_FROM",
    "_TIMED_STEPS",
    "_TIMING_SHARE",
    "_now",
    "_timed",
    "_too_small_to_try",
    "best_threads",
    "chosen_batching",
    "step_seconds",
}
NEEDS_GPU = {"CapturedReplicaStep"}
# Calls and options that guard against mistakes in the code itself, only wait, or need a GPU to make a difference.
SILENT_CALLS = {"cast", "set_num_threads", "sleep"}
SILENT_OPTIONS = {"daemon", "device", "non_blocking", "strict", "timeout"}

# Changes that survive because they change nothing a test could see, and why.
EXPLAINED: dict[tuple[str, str], str] = {
    ("rules/even.py", "_averages: statement: continue -> break"): (
        "either every head of a network has a readout or none has, so that nothing comes after the first without one"
    ),
    (
        "module/apply.py",
        "_draw_normal_: argument: drawn.normal_(planned.mean, planned.std, generator=generator) -> "
        "drawn.normal_(planned.mean, generator=generator)",
    ): "runs where the generator is on another device than the parameter: only with a GPU",
}

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
OTHER_QUERY = {
    "OR IGNORE": "OR REPLACE",
    "LEFT JOIN": "JOIN",
    "IS NULL": "IS NOT NULL",
    " = ": " <> ",
    "ORDER BY ": "ORDER BY -",
}
OTHER_FUNCTION = {"min": "max", "max": "min", "any": "all", "all": "any"}
TEXTS = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)


@dataclass(frozen=True)
class Change:
    """One small change of one file: the source from `start` to `end`, in bytes, becomes `after`."""

    area: str
    file: str
    line: int
    scope: str
    kind: str
    start: int
    end: int
    before: str
    after: str
    number: int = 0  # among changes that read the same

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.words}"

    @property
    def words(self) -> str:
        """What is changed, without its line."""
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.scope}: {self.kind}: {before} -> {after}"

    def rank(self, seed: int) -> str:
        """Return the place in the order of a seed, which does not depend on lines."""
        key = (seed, self.file, self.scope, self.kind, self.before, self.after, self.number)
        return hashlib.sha256(repr(key).encode()).hexdigest()

    def made(self, source: bytes) -> bytes:
        """Return the source with the change in it."""
        return source[: self.start] + self.after.encode() + source[self.end :]


# Every expression and statement that may change, and what it may become


def variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Yield the kinds of change that a node allows, each with the node as it would be."""
    match node:
        case ast.BinOp(op=op) if type(op) in SWAPPED and not _is_text(node.left) and not _is_text(node.right):
            yield "operator", _with(node, op=SWAPPED[type(op)]())
        case ast.AugAssign(op=op) if type(op) in SWAPPED and not _is_text(node.value):
            yield "operator", _with(node, op=SWAPPED[type(op)]())
        case ast.Compare(ops=ops):
            for place, compared in enumerate(ops):
                yield "comparison", _with(node, ops=[*ops[:place], SWAPPED[type(compared)](), *ops[place + 1 :]])
        case ast.BoolOp(op=op):
            yield "and for or", _with(node, op=SWAPPED[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "sign", node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(number)):
            yield "constant", ast.Constant(number + 1)
        case ast.Constant(value=float(real)):
            yield "constant", ast.Constant(2 * real if real else 1.0)
        case ast.Call():
            yield from _calls(node)
        case ast.Return():
            yield "return", ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield "statement", ast.Pass()
        case ast.Break():
            yield "statement", ast.Continue()
        case ast.Continue():
            yield "statement", ast.Break()


def _calls(call: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(call.func, ast.Name) and call.func.id in OTHER_FUNCTION:
        yield "min for max", _with(call, func=ast.Name(OTHER_FUNCTION[call.func.id], ast.Load()))
    if _target(call.func).startswith("execute") and isinstance(call.args[0], ast.Constant):
        for part, other in OTHER_QUERY.items():
            if part in (query := str(call.args[0].value)) and not query.startswith("PRAGMA"):
                changed = ast.Constant(query.replace(part, other, 1))
                yield "query", _with(call, args=[changed, *call.args[1:]])
    if len(call.args) > 1 and _target(call.func) != "isinstance":
        yield "argument", _with(call, args=call.args[:-1])
    for keyword in call.keywords:
        if keyword.arg not in SILENT_OPTIONS:
            yield "argument", _with(call, keywords=[other for other in call.keywords if other is not keyword])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, TEXTS) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


class _Finder(ast.NodeVisitor):
    """Walk through one file and note what may change, past what is left out."""

    def __init__(self, area: str, file: str, source: bytes) -> None:
        self.area, self.file, self.source = area, file, source
        self.scope: list[str] = []
        self.changes: list[Change] = []
        self.line_starts = list(
            itertools.accumulate((len(line) for line in source.splitlines(keepends=True)), initial=0)
        )

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Compare) and _is_of_time(node):
            return
        for kind, changed in variants(node):
            if not (isinstance(node, ast.BoolOp) and _is_of_time(node)):
                self.note(kind, node, changed)
        for test in _conditions(node):
            # Comparisons and negations change anyhow, where they are visited.
            if not isinstance(test, ast.UnaryOp | ast.Compare) and not _is_of_time(test):
                self.note("condition", test, ast.UnaryOp(ast.Not(), test))
        super().visit(node)

    def note(self, kind: str, node: ast.AST, changed: ast.AST) -> None:
        if not isinstance(node, ast.expr | ast.stmt):
            return
        start = self.line_starts[node.lineno - 1] + node.col_offset
        end = self.line_starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        before, after = self.source[start:end].decode(), ast.unparse(ast.fix_missing_locations(changed))
        if isinstance(node, ast.expr) and not isinstance(changed, ast.Constant | ast.Call | ast.Name):
            after = f"({after})"
        scope = ".".join(self.scope) or "module"
        change = Change(self.area, self.file, node.lineno, scope, kind, start, end, before, after)
        same = sum((c.scope, c.kind, c.before, c.after) == (scope, kind, before, after) for c in self.changes)
        self.changes.append(_numbered(change, same))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if node.name not in {"__repr__", "__str__"} | TIMING:
            self.scope.append(node.name)
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.visit(default)
            self._body(node.body)
            self.scope.pop()

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name not in NEEDS_GPU:
            self.scope.append(node.name)
            self._body(node.body)
            self.scope.pop()

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None and _target(node.target) not in TIMING:
            self.visit(node.value)

    def visit_Assign(self, node: ast.Assign) -> None:
        if not any(_target(target) in TIMING for target in node.targets):
            self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        if _target(node.func) not in SILENT_CALLS:
            self.visit(node.func)
            for value in (*node.args, *(k.value for k in node.keywords if k.arg not in SILENT_OPTIONS)):
                self.visit(value)

    def visit_If(self, node: ast.If | ast.IfExp) -> None:
        if _target(node.test) == "TYPE_CHECKING":
            return
        if "cuda" in ast.unparse(node.test):  # which one it is stands in the condition: without a GPU always the same
            self._body(node.orelse if isinstance(node.orelse, list) else [node.orelse])
        else:
            self.generic_visit(node)

    visit_IfExp = visit_If  # noqa: N815

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave errors and their messages alone."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts alone."""

    def _body(self, nodes: list[ast.stmt] | list[ast.expr]) -> None:
        for node in nodes:
            self.visit(node)


def _conditions(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.If | ast.IfExp):
        return [] if "cuda" in ast.unparse(node.test) or _target(node.test) == "TYPE_CHECKING" else [node.test]
    return node.ifs if isinstance(node, ast.comprehension) else [node.test] if isinstance(node, ast.While) else []


def _is_of_time(node: ast.AST) -> bool:
    return any(_target(part) in TIMING for part in ast.walk(node))


def _target(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _numbered(change: Change, number: int) -> Change:
    return Change(**{**vars(change), "number": number})


def changes_of(area: str) -> list[Change]:
    """Return every change that the files of an area allow and that still parses."""
    found: list[Change] = []
    for name in AREAS[area]:
        place = ROOT / PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            file = path.relative_to(ROOT / PACKAGE).as_posix()
            if file not in LEFT_OUT:
                source = path.read_bytes()
                finder = _Finder(area, file, source)
                finder.visit(ast.parse(source))
                found += [change for change in finder.changes if _parses(change.made(source))]
    return found


def _parses(source: bytes) -> bool:
    try:
        compile(source, "changed", "exec")
    except SyntaxError:  # such as `continue` outside of a loop
        return False
    return True


def drawn(count: int, seed: int, only: str) -> list[Change]:
    """Return so many changes, spread evenly over the areas and, within each, over the kinds of change."""
    found: list[Change] = []
    for place, area in enumerate(AREAS):
        allowed = [change for change in changes_of(area) if re.search(only, str(change))]
        allowed.sort(key=lambda change: change.rank(seed))
        kinds: dict[str, list[Change]] = {}
        for change in allowed:
            kinds.setdefault(change.kind, []).append(change)
        turns = itertools.chain.from_iterable(itertools.zip_longest(*kinds.values()))
        share = count // len(AREAS) + (place < count % len(AREAS))
        found += itertools.islice((change for change in turns if change is not None), share)
    return found


# Running tests on a change


def tests_of(file: str) -> list[str]:
    """Return the test files of a module."""
    name = max((name for name in TESTS if file.startswith(name)), key=len)
    return [f"tests/{test}" for test in TESTS[name]]


def run_tests(tests: list[str], folder: Path, limit: float | None = None) -> tuple[int | None, str]:
    """Run tests against the copy in a folder until one fails; return pytest's status, None for out of time, and why."""
    environment = os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(folder / "hypothesis"),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-m", "not exhaustive", "--basetemp", str(folder / "pytest"), *tests]
    with (folder / "output").open("w+") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            return None, f"the time limit of {limit:.0f} s"
        finally:
            _end_group(process)
        output.seek(0)
        text = output.read()
    failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
    return status, failed.group(1) if failed else text[-2000:]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def killer(change: Change, folder: Path, limit: float) -> str | None:
    """Return what noticed a change, None where it survived."""
    path = folder / PACKAGE / change.file
    source = path.read_bytes()
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.unlink(missing_ok=True)
    path.write_bytes(change.made(source))
    try:
        status, what = run_tests(tests_of(change.file), folder, limit)
    finally:
        path.write_bytes(source)
    if status not in (None, 0, 1, 2):  # 1: a test failed, 2: a file could not be imported
        raise RuntimeError(f"pytest ended with status {status} on {change}:\n{what}")
    return None if status == 0 else what


def main() -> int:
    """Draw changes, test them, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="PATTERN")
    parser.add_argument("--list", action="store_true", help="print the changes and test none")
    parser.add_argument("--no-baseline", action="store_true")
    options = parser.parse_args()
    changes = drawn(options.count, options.seed, options.only)
    if options.list:
        print("\n".join(map(str, changes)))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder / "src", quiet=2)
        limit = LIMIT_SECONDS
        if not options.no_baseline:
            began = time.monotonic()
            every = list(dict.fromkeys(test for change in changes for test in tests_of(change.file)))
            status, what = run_tests(every, folder)
            if status != 0:
                raise SystemExit(f"the tests fail without any change: {what}")
            limit = max(limit, 3 * (time.monotonic() - began))
        survivors: list[Change] = []
        for number, change in enumerate(changes, 1):
            began = time.monotonic()
            killed_by = killer(change, folder, limit)
            outcome = f"killed by {killed_by}"
            if killed_by is None:
                survivors.append(change)
                outcome = f"SURVIVED: {EXPLAINED.get((change.file, change.words), 'not explained')}"
            print(f"{number:3} {change}\n      {outcome} ({time.monotonic() - began:.0f} s)", flush=True)
    unexplained = sum((change.file, change.words) not in EXPLAINED for change in survivors)
    killed = len(changes) - len(survivors)
    print(f"{len(changes)} changes of seed {options.seed}: {killed} killed, {len(survivors)} survived", end=", ")
    print(f"{unexplained} of them without an explanation")
    return unexplained


if __name__ == "__main__":
    sys.exit(main())
