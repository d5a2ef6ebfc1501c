"""What goes to stdout arrives whole, also where a write takes only a part (PYTHONUNBUFFERED)."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable

import msgspec
import pytest

from tidegate.cli.output import write
from tidegate_lab.loadgen.processes import answer

PART = 1000
PAYLOAD = bytes(range(256)) * 100


class Raw(io.RawIOBase):
    """As a pipe that is written to without a buffer: so much at a time."""

    def __init__(self) -> None:
        self.got = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        part = bytes(memoryview(data)[:PART])  # type: ignore[arg-type]
        self.got += part
        return len(part)


@pytest.mark.parametrize(
    ("say", "whole"),
    [
        (lambda: write(PAYLOAD, newline=True), PAYLOAD + b"\n"),
        (lambda: answer(list(range(5000))), msgspec.json.encode(list(range(5000))) + b"\n"),
    ],
    ids=["a message", "what a child answers"],
)
def test_output_is_complete_after_partial_writes(
    say: Callable[[], None], whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = Raw()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, write_through=True))  # type: ignore[type-var]
    say()
    assert raw.got == whole
