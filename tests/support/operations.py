"""How much work a call does, in steps of Python's interpreter: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def operations_of(call: Callable[[], Any]) -> int:
    """Call it, and return how many of Python's instructions that took."""
    count = 0

    def counting(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return counting

    # Whoever measures coverage goes on afterwards.
    before = sys.gettrace()
    sys.settrace(counting)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
