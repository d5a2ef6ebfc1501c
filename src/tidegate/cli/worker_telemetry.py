"""What a worker's prefetch loops decide, on its way to a lake."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.client.app import App
    from tidegate.client.steered_prefetch import PrefetchStep


@contextlib.contextmanager
def recorded(app: App, folder: Path | None) -> Iterator[None]:
    """Every step of the block goes to the lake in this folder; None: nowhere."""
    if folder is None:
        yield
        return
    # Who does not record need not wait for it.
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    # Of a lake that nodes write, too, they look after what is old.
    recorder = Recorder(RecorderOptions(lake=str(folder), retention_s=0.0))
    recorder.start(f"worker-{socket.gethostname()}-{os.getpid()}")

    @app.on_prefetch_step
    def record(step: PrefetchStep) -> None:
        decision = step.explained()
        recorder.decision(
            decision.loop,
            decision.service,
            decision.law,
            # The loop's own clock says nothing to others.
            at_s=time.time(),
            inputs=decision.inputs,
            outputs=decision.outputs,
            action=f"prefetch {step.prefetch}" if decision.rule == "automatic" else decision.rule,
            reason=decision.reason,
        )

    try:
        yield
    finally:
        recorder.stop()
