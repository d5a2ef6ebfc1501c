"""Who hears nothing ends with its parent all the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from waiting import eventually_async

from tidegate.fleet.process import process_identity

DEAF = """
import os, signal, threading
from tidegate.fleet import process as parent
look, looked = os.getppid, threading.Semaphore(0)
def getppid():
    looked.release()
    return look()
os.getppid = getppid
parent._LOOK_S = 0.05
signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent.end_with_parent(patience_s=0.1)
# Whoever looks again has not begun to lose its patience.
for _ in range(8):
    looked.acquire()
print(os.getpid(), flush=True)
threading.Event().wait()
"""
PARENT = f"""
import os, subprocess, sys, time
from tidegate.fleet.process import child_environment as for_child
subprocess.Popen([sys.executable, "-c", {DEAF!r}], env={{**os.environ, **for_child()}})
time.sleep(3600)
"""


async def test_child_that_ignores_sigterm_ends_after_its_patience() -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PARENT,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert parent.stdout is not None
    try:
        pid = int(await parent.stdout.readline())
        assert process_identity(pid) is not None, "its parent lives, and so does it"
    finally:
        parent.kill()
        await parent.wait()

    await eventually_async(lambda: process_identity(pid) is None)
