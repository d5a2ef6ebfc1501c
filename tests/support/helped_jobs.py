"""A module whose helper outlives it, with its pipes in hand; its import never ends."""

import os
import subprocess
import threading
from pathlib import Path

if os.environ.get("JOBS_DEAF"):
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen(["sleep", "600"])
partial = Path(os.environ["JOBS_FOLDER"]) / "partial"
partial.write_text(str(helper.pid))
partial.rename(partial.with_name("helper"))
threading.Event().wait()
