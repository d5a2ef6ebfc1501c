"""The worker application of a scale storm: it records deliveries and acknowledgements.

The run kills workers with SIGKILL. The worker therefore writes a delivery to the file before its
work begins, and the acknowledgement after the work, just before the worker acknowledges. So the
history of a killed worker has no acknowledgement for the messages it was working on. A message
whose acknowledgement is lost is delivered again as redelivered.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import tidegate
from tidegate.demo.history import HistoryWriter, numbered

FOLDER_VARIABLE = "TIDEGATE_STORM_HISTORIES"
WORK_VARIABLE = "TIDEGATE_STORM_WORK_S"
QUEUE = "storm"
# Seconds per message, so that kills hit workers with work in progress.
WORK_S = float(os.environ.get(WORK_VARIABLE, "0.004"))

app = tidegate.App()
_histories: list[HistoryWriter] = []


def _history() -> HistoryWriter:
    if not _histories:
        name = f"worker-{os.getpid()}-{secrets.token_hex(4)}"
        folder = Path(os.environ[FOLDER_VARIABLE])
        _histories.append(HistoryWriter(folder / f"{name}.history", name))
    return _histories[0]


@app.worker(QUEUE, concurrency=4)
async def take(message: tidegate.Message) -> None:
    producer, seq = numbered(message.payload)
    history = _history()
    history.note(
        "deliver",
        "ok",
        QUEUE,
        producer,
        seq,
        redelivered=message.redelivered,
        hash_of=message.payload,
        group=message.group,
    )
    history.flush()
    await asyncio.sleep(WORK_S)
    # A handler that is cancelled during the sleep does not get here: its message is returned.
    history.note("ack", "invoke", QUEUE, producer, seq)
    history.flush()
