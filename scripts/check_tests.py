"""Refuse tests that depend on how fast the machine is: run by `make check`.

In `tests/` (`benchmarks/` is for measuring) each of these is an error:
- an assertion that limits an elapsed time from above: a busy machine fails it;
- a loop that compares a clock: `waiting.eventually` is the one way to wait;
- a fixed sleep without a comment in its line that says why it is no wait for an event.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

CLOCKS = {"monotonic", "perf_counter", "process_time", "time"}
WAITING = "waiting.py"


def names_in(node: ast.AST) -> set[str]:
    """Return the names of variables and of attributes that an expression reads."""
    walked = list(ast.walk(node))
    return {n.id for n in walked if isinstance(n, ast.Name)} | {
        n.attr for n in walked if isinstance(n, ast.Attribute)
    }


def reads_clock(node: ast.AST) -> bool:
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(
        getattr(called, "attr", None) in CLOCKS or getattr(called, "id", None) in CLOCKS
        for called in calls
    )


def compared(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the smaller and the larger side of each comparison."""
    for found in ast.walk(node):
        if isinstance(found, ast.Compare):
            sides = [found.left, *found.comparators]
            for operator, left, right in zip(found.ops, sides, sides[1:], strict=False):
                if isinstance(operator, ast.Lt | ast.LtE):
                    yield left, right
                elif isinstance(operator, ast.Gt | ast.GtE):
                    yield right, left


def complaints(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text()
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            timed = {
                name
                for n in ast.walk(node)
                if isinstance(n, ast.Assign) and reads_clock(n.value)
                for target in n.targets
                for name in names_in(target) - {"self"}
            }
            for n in ast.walk(node):
                if isinstance(n, ast.Assert):
                    for small, large in compared(n.test):
                        is_elapsed = reads_clock(small) or names_in(small) & timed
                        if is_elapsed and not (reads_clock(large) or names_in(large) & timed):
                            yield n.lineno, "limits an elapsed time: measure it in benchmarks/"
                elif isinstance(n, ast.While) and path.name != WAITING:
                    inside = [n.test, *(a.test for a in ast.walk(n) if isinstance(a, ast.Assert))]
                    if any(reads_clock(test) for test in inside):
                        yield n.lineno, "waits by a loop of its own: call waiting.eventually"
        elif isinstance(node, ast.Call) and path.name != WAITING:
            name = getattr(node.func, "attr", None) or getattr(node.func, "id", None)
            is_zero = bool(node.args) and isinstance(node.args[0], ast.Constant)
            is_zero = is_zero and node.args[0].value == 0  # type: ignore[attr-defined]
            if name == "sleep" and not is_zero and "#" not in lines[node.lineno - 1]:
                yield node.lineno, "sleeps: wait for the event, or say in the line why not"


def main() -> int:
    found = sorted(
        {
            f"{path}:{line}: {what}"
            for path in Path("tests").rglob("*.py")
            for line, what in complaints(path)
        }
    )
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
