"""Handling of SIGINT and SIGTERM: both have the same effect, and do not interrupt cleanup."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C in this context, so that cleanup runs."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    # A shell starts background processes with SIGINT ignored, so raise the exception directly.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM in this context, for cleanup that has its own time limit."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
