"""The user code of a scale storm: writes down what it was given, and that it lets go of it.

Workers are killed with -9, so every delivery is in the file before its work begins, and that it is
acknowledged when its work is done and nothing but the acknowledgement is left to do: what a worker
was at when it was killed it never let go of. A delivery whose acknowledgement was lost comes again,
flagged, as it should.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path

import tidegate
from tidegate.lab.faults.payload import numbered
from tidegate.lab.history import HistoryWriter

FOLDER_VARIABLE = "TIDEGATE_STORM_HISTORIES"
WORK_VARIABLE = "TIDEGATE_STORM_WORK_S"
QUEUE = "storm"
# So that a kill finds something begun.
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
    # Whoever is cut off meanwhile does not get here: its message is given back.
    history.note("ack", "invoke", QUEUE, producer, seq)
    history.flush()
