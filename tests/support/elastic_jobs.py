"""User code for the tests: about forty messages a second, each noted before it counts as done."""

import os
import time
from pathlib import Path

import tidegate

app = tidegate.App()
_NOTES = Path(os.environ.get("JOBS_FOLDER", ".")) / f"handled-{os.getpid()}"


@app.worker("work", concurrency=1)
def work(payload: bytes) -> None:
    time.sleep(0.025)  # the handler's work
    with _NOTES.open("ab", buffering=0) as notes:
        notes.write(payload + b"\n")
