"""An instance that is told to end does end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from command_line import clean_environment
from waiting import LIMIT_S

# Its loop hangs as soon as it has started; nothing is left of the drain.
BRIEF = """
import sys
from tidegate.fleet import app_server
app_server._GOODBYE_S = 0.2
sys.exit(app_server.main(["shop:app", "--drain-s", "0.1"]))
"""
HANGING = """
import time


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        print("hangs", flush=True)
        while True:
            time.sleep(0.01)
"""


def test_app_server_with_a_hanging_loop_ends_after_sigterm(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANGING)
    process = subprocess.Popen(
        [sys.executable, "-c", BRIEF],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"hangs\n"
        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=LIMIT_S) == 1
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
