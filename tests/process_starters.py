"""Who starts a process, found by reading the code that a test would run.

Strategy: from a test function and its fixtures follow the names that their code uses, through the
tests' own modules, the lab's, the fleet's and the embedded store's, until one of them is a module
or a call that starts processes. Of the product's other code only what stands in a module that
starts them itself: a node could start one, and hardly ever does.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

MODULES = {"multiprocessing", "pty", "pyspark", "subprocess"}
CALLS = {"create_subprocess_exec", "create_subprocess_shell", "fork", "posix_spawn"}
_READ_THROUGH = ("tidegate.fleet.", "tidegate.lab.", "tidegate.storage.embedded")
_STARTING = re.compile(rf"^import ({'|'.join(MODULES)})\b|\.({'|'.join(CALLS)})\(", re.MULTILINE)


class ProcessStarters:
    """Remembers what it has read."""

    def __init__(self) -> None:
        self._known: dict[int, bool] = {}

    def includes(self, thing: Any) -> bool:
        """Whether calling it starts a process, as far as can be seen."""
        if isinstance(thing, staticmethod | classmethod):
            thing = thing.__func__
        if isinstance(thing, FunctionType):
            thing = inspect.unwrap(thing)
        if isinstance(thing, ModuleType):
            return _starts_itself(thing)
        if not isinstance(thing, FunctionType | type) or not _is_ours(thing.__module__):
            return False
        key = id(thing)
        if key not in self._known:
            # Who calls itself is judged by the rest of what it does.
            self._known[key] = False
            self._known[key] = self._read(thing)
        return self._known[key]

    def _read(self, thing: FunctionType | type) -> bool:
        if not _is_read_through(thing.__module__):
            return _starts_itself(sys.modules[thing.__module__])
        if isinstance(thing, type):
            return any(map(self.includes, (*vars(thing).values(), *thing.__bases__)))
        return any(
            name in CALLS or self.includes(thing.__globals__.get(name))
            for code in _codes(thing.__code__)
            for name in code.co_names
        )


def _codes(code: CodeType) -> Iterator[CodeType]:
    """With those of the functions inside."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@functools.cache
def _starts_itself(module: ModuleType) -> bool:
    if _top(module.__name__) in MODULES:
        return True
    return _is_ours(module.__name__) and bool(_STARTING.search(inspect.getsource(module)))


def _is_ours(module: str) -> bool:
    return _top(module) == "tidegate" or _is_of_tests(module)


def _is_read_through(module: str) -> bool:
    return module.startswith(_READ_THROUGH) or _is_of_tests(module)


def _is_of_tests(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return file.startswith(_TESTS)


def _top(module: str) -> str:
    return module.partition(".")[0]


_TESTS = __file__.rpartition("/")[0] + "/"
