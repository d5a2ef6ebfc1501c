"""Maintenance of a lake: it starts rounds of compaction, each as a separate process.

The recorder's thread asks every few seconds whether a round is due. It never waits for a round. The
next round completes a round that was killed (compaction.py).
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
# An hour counts as over this long after its end. Rows are written some seconds late, and the clocks
# of machines differ.
GRACE_S = 600.0
# Replaced files are kept this long for readers that have listed them.
LINGER_S = 600.0
# A writer without new files in an hour for this long counts as gone.
ORPHANED_S = 86_400.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The input of one round."""

    lake: str
    writer: str
    # The run of the writer. Its hidden files are in progress and are not leftovers.
    run: str
    now_s: float
    # 0 keeps all hours.
    retention_s: float = 0.0
    grace_s: float = GRACE_S
    linger_s: float = LINGER_S
    orphaned_s: float = ORPHANED_S


class Round(msgspec.Struct):
    """The counts of one round."""

    hours_compacted: int = 0
    files_replaced: int = 0
    files_deleted: int = 0
    leftovers_deleted: int = 0
    hours_expired: int = 0
    # Files that are damaged or of an unknown version; they are left unchanged.
    files_left_out: int = 0
    failure: str = ""


class Housekeeping:
    """Starts rounds, one at a time, and logs their failures."""

    def __init__(self, lake: str, writer: str, run: str, retention_s: float) -> None:
        self._lake = lake
        self._writer = writer
        self._run = run
        self._retention_s = retention_s
        # A random first delay. Nodes often start together, and a round takes a hundred megabytes of
        # memory.
        self._due_at = time.monotonic() + random.uniform(FIRST_S, EVERY_S)
        self._process: subprocess.Popen[bytes] | None = None

    def look_after(self) -> None:
        """Start a round if one is due; never wait."""
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
        """Kill a running round; the next one completes its work."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


def started(plan: Plan) -> subprocess.Popen[bytes]:
    """Start a round as a process; its result is JSON on stdout."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tidegate.telemetry.compaction"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    # The plan goes through stdin, because a lake location may contain a secret.
    process.stdin.write(msgspec.json.encode(plan))
    process.stdin.close()
    process.stdin = None
    return process
