"""Refuse tests that depend on how fast the machine is: run by `make check`.

In `tests/` (`benchmarks/` is for measuring) each of these is an error:
- an assertion, or an `if` that fails the test, that limits an elapsed time from above: a busy
  machine fails it;
- a loop that compares a clock, or that looks, sleeps and leaves: `waiting.eventually` is the one
  way to wait;
- a fixed sleep without a comment in its line that says why it is no wait for an event;
- a limit of less than a minute without such a comment: it is an assertion on speed, too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
SLEEPS = {"sleep", "wait_for_timeout"}
# These take a limit; none below this many seconds is a guard against hanging alone.
LIMITED = {"communicate", "eventually", "eventually_async", "join", "timeout", "wait", "wait_for"}
LIMITS = {"limit_s", "timeout"}
LIMIT_S_MIN = 60
WAITING = "waiting.py"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def names_in(node: ast.AST) -> set[str]:
    """Return the names of variables and of attributes that an expression reads."""
    walked = list(ast.walk(node))
    return {n.id for n in walked if isinstance(n, ast.Name)} | {
        n.attr for n in walked if isinstance(n, ast.Attribute)
    }


def called(node: ast.Call) -> str:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


def bound(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that each statement writes, and the value that they get."""
    for n in ast.walk(node):
        if isinstance(n, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and n.value:
            for target in n.targets if isinstance(n, ast.Assign) else [n.target]:
                for name in names_in(target) - {"self"}:
                    yield name, n.value
        elif isinstance(n, ast.Call) and called(n) == "append" and n.args:
            for name in names_in(n.func) - {"append", "self"}:
                yield name, n.args[0]


def compared(test: ast.AST, is_refused: bool = False) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the smaller and the larger side of each comparison; of what is refused, reversed."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, is_refused = test.operand, not is_refused
    for found in ast.walk(test):
        if isinstance(found, ast.Compare):
            sides = [found.left, *found.comparators]
            for operator, left, right in zip(found.ops, sides, sides[1:], strict=False):
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    is_less = isinstance(operator, ast.Lt | ast.LtE)
                    yield (left, right) if is_less != is_refused else (right, left)


def fails(branch: ast.If) -> bool:
    first = branch.body[0]
    return isinstance(first, ast.Raise) or (
        isinstance(first, ast.Expr)
        and isinstance(first.value, ast.Call)
        and called(first.value) == "fail"
    )


class File:
    """A file of tests: its clocks and sleeps by the names that it gives them."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        self._tree = ast.parse(text)
        self._lines = text.splitlines()
        self._is_waiting = path.name == WAITING
        self._clocks, self._sleeps = set(CLOCKS), set(SLEEPS)
        self._clocks |= {f"{name}_ns" for name in CLOCKS}
        for n in ast.walk(self._tree):
            for one in n.names if isinstance(n, ast.ImportFrom) else ():
                for known in (self._clocks, self._sleeps):
                    known |= {one.asname} if one.asname and one.name in known else set()
        self._ends = {
            name
            for name, value in bound(self._tree)
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add)
        }
        # A stopwatch: its callers get an elapsed time.
        for n in ast.walk(self._tree):
            if isinstance(n, Function):
                given = [r.value for r in ast.walk(n) if isinstance(r, ast.Return) and r.value]
                timed = self._timed(n)
                if any(isinstance(v, ast.BinOp) and self._is_time(v, timed) for v in given):
                    self._clocks.add(n.name)

    def _is_time(self, node: ast.AST, timed: set[str]) -> bool:
        calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)]
        return any(called(n) in self._clocks for n in calls) or bool(names_in(node) & timed)

    def _timed(self, function: ast.AST) -> set[str]:
        """Return the names that hold a time, or the difference of two."""
        timed: set[str] = set()
        pairs = list(bound(function))
        for _ in range(3):
            timed |= {
                name
                for name, value in pairs
                if self._is_time(value, timed if isinstance(value, ast.BinOp) else set())
            }
        return timed

    def _explained(self, node: ast.expr) -> bool:
        return any("#" in line for line in self._lines[node.lineno - 1 : node.end_lineno])

    def complaints(self) -> Iterator[tuple[int, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, Function):
                timed = self._timed(node)
                for n in ast.walk(node):
                    if isinstance(n, ast.Assert) or (
                        isinstance(n, ast.If) and not self._is_waiting and fails(n)
                    ):
                        yield from self._of_assertion(n, timed)
                    elif isinstance(n, ast.While | ast.For) and not self._is_waiting:
                        yield from self._of_loop(n, timed)
            elif isinstance(node, ast.Call) and not self._is_waiting:
                yield from self._of_call(node)

    def _of_assertion(self, n: ast.Assert | ast.If, timed: set[str]) -> Iterator[tuple[int, str]]:
        for small, large in compared(n.test, isinstance(n, ast.If)):
            # Two times of the test may be in order; one of them plus a limit is a limit.
            is_sum = isinstance(large, ast.BinOp) and isinstance(large.op, ast.Add)
            is_limit = (
                is_sum or bool(names_in(large) & self._ends) or not self._is_time(large, timed)
            )
            if self._is_time(small, timed) and is_limit:
                yield n.lineno, "limits an elapsed time: measure it in benchmarks/"

    def _of_loop(self, n: ast.While | ast.For, timed: set[str]) -> Iterator[tuple[int, str]]:
        inside = list(ast.walk(n))
        tests = [a.test for a in inside if isinstance(a, ast.While | ast.If | ast.Assert)]
        compares = any(
            self._is_time(side, timed) for test in tests for pair in compared(test) for side in pair
        )
        sleeps = any(isinstance(c, ast.Call) and self._is_sleep(c) for c in inside)
        looks = any(
            isinstance(b.body[-1], ast.Break | ast.Return) for b in inside if isinstance(b, ast.If)
        )
        if compares or (sleeps and looks):
            yield n.lineno, "waits by a loop of its own: call waiting.eventually"

    def _is_sleep(self, node: ast.Call) -> bool:
        is_zero = bool(node.args) and getattr(node.args[0], "value", None) == 0
        return called(node) in self._sleeps and not is_zero

    def _of_call(self, node: ast.Call) -> Iterator[tuple[int, str]]:
        if self._explained(node):
            return
        if self._is_sleep(node):
            yield node.lineno, "sleeps: wait for the event, or say in the line why not"
        if called(node) in LIMITED:
            given = [*node.args, *(k.value for k in node.keywords if k.arg in LIMITS)]
            for value in (getattr(one, "value", None) for one in given):
                if isinstance(value, int | float) and 0 < value < LIMIT_S_MIN:
                    yield node.lineno, f"gives {value:g} s: a busy machine takes longer"


def main() -> int:
    found = sorted(
        {
            f"{path}:{line}: {what}"
            for path in Path("tests").rglob("*.py")
            for line, what in File(path).complaints()
        }
    )
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
