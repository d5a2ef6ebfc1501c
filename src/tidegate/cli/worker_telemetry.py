"""The recording of a worker's prefetch decisions."""

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
    """Record each prefetch step in this context to the lake in `folder`; None records nothing."""
    if folder is None:
        yield
        return
    # Imported here, so that a worker that does not record starts faster.
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    # The nodes delete old hours of a shared lake, so this recorder keeps all hours.
    recorder = Recorder(RecorderOptions(lake=str(folder), retention_s=0.0))
    recorder.start(f"worker-{socket.gethostname()}-{os.getpid()}")

    @app.on_prefetch_step
    def record(step: PrefetchStep) -> None:
        decision = step.explained()
        recorder.decision(
            decision.loop,
            decision.service,
            decision.law,
            # The loop's monotonic clock has no meaning for other processes.
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
