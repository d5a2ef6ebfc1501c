"""Rounds of compaction, each a process of its own, from the side of who starts them.

The recorder's thread asks every few seconds whether it is time; nobody ever waits for a round. One
that is killed in the middle is finished by the next (compaction.py).
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time

import msgspec

log = logging.getLogger(__name__)

EVERY_S = 600.0
FIRST_S = 60.0
# An hour is over this long after its end: files are written some seconds after their rows, and
# clocks of machines differ.
GRACE_S = 600.0
# Replaced files are kept for who is reading them.
LINGER_S = 600.0
# A writer that wrote nothing to an hour for so long is gone.
ORPHANED_S = 86_400.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a round is to do, for whom, and when."""

    lake: str
    writer: str
    # The life of the writer: what it is writing now is no leftover.
    run: str
    now_s: float
    # 0: for ever.
    retention_s: float = 0.0
    grace_s: float = GRACE_S
    linger_s: float = LINGER_S
    orphaned_s: float = ORPHANED_S


class Round(msgspec.Struct):
    """What a round did."""

    hours_compacted: int = 0
    files_replaced: int = 0
    files_deleted: int = 0
    leftovers_deleted: int = 0
    hours_expired: int = 0
    # Files that are not what they should be, and are left alone.
    files_left_out: int = 0
    failure: str = ""


class Housekeeping:
    """Starts rounds, one at a time, and hears what came of them."""

    def __init__(self, lake: str, writer: str, run: str, retention_s: float) -> None:
        self._lake = lake
        self._writer = writer
        self._run = run
        self._retention_s = retention_s
        # Nodes start together; their rounds, a hundred megabytes each, had better not.
        self._due_at = time.monotonic() + random.uniform(FIRST_S, EVERY_S)
        self._process: subprocess.Popen[bytes] | None = None

    def look_after(self) -> None:
        """Start a round when it is time; never waits."""
        if self._process is not None:
            if self._process.poll() is not None:
                self._hear(self._process)
                self._process = None
        elif time.monotonic() >= self._due_at:
            self._due_at = time.monotonic() + EVERY_S
            plan = Plan(
                lake=self._lake,
                writer=self._writer,
                run=self._run,
                now_s=time.time(),
                retention_s=self._retention_s,
            )
            try:
                self._process = started(plan)
            except OSError as failure:
                log.warning("old files of the lake are not looked after: %s", failure)

    @staticmethod
    def _hear(process: subprocess.Popen[bytes]) -> None:
        outcome, _ = process.communicate()
        try:
            failure = msgspec.json.decode(outcome, type=Round).failure
        except msgspec.DecodeError:
            failure = f"ended with {process.returncode}"
        if failure:
            log.warning("old files of the lake were not looked after: %s", failure)

    def stop(self) -> None:
        """Whatever the round is at, the next one goes on from there."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def started(plan: Plan) -> subprocess.Popen[bytes]:
    """A round on its way; what it did is JSON on its stdout."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.telemetry.compaction"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    # By stdin, since the address of a lake may hold a secret.
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    process.stdin = None
    return process
