"""User code for the tests: one file is written for each message that was worked on."""

import os
import time
from pathlib import Path

import tidegate

app = tidegate.App()
FOLDER = Path(os.environ.get("JOBS_FOLDER", "."))


def _note(file: str, text: str) -> None:
    """Whoever finds the file finds all of it."""
    partial = FOLDER / f"partial-{os.getpid()}"
    partial.write_text(text)
    partial.rename(FOLDER / file)


@app.worker("orders", concurrency=1)
def work(payload: bytes) -> None:
    name = payload.decode()
    _note(f"begun-{name}", str(os.getpid()))
    if name.startswith("long"):
        # Until the test lets it go.
        while not (FOLDER / "go").exists():
            time.sleep(0.02)  # a worker's process knows no other sign than the file
    _note(f"done-{name}", os.environ.get("TIDEGATE_REPLICA", ""))
