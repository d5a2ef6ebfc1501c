"""User code for the tests: one file is written for each message that was worked on."""

import os
import time
from pathlib import Path

import tidegate

app = tidegate.App()
FOLDER = Path(os.environ.get("JOBS_FOLDER", "."))


@app.worker("orders", concurrency=1)
def work(payload: bytes) -> None:
    name = payload.decode()
    (FOLDER / f"begun-{name}").write_text(str(os.getpid()))
    if name.startswith("long"):
        # Until the test lets it go.
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
    (FOLDER / f"done-{name}").write_text(os.environ.get("TIDEGATE_REPLICA", ""))
