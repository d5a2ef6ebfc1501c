"""Who hears nothing ends with its parent all the same."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

from led_fleet import until

from tidegate.fleet.parent import identity_of

DEAF = """
import os, signal, time
from tidegate.fleet import parent
parent._LOOK_S = 0.05
signal.signal(signal.SIGTERM, signal.SIG_IGN)
parent.end_with_parent(patience_s=0.1)
print(os.getpid(), flush=True)
time.sleep(3600)
"""
PARENT = f"""
import os, subprocess, sys, time
from tidegate.fleet.parent import for_child
subprocess.Popen([sys.executable, "-c", {DEAF!r}], env={{**os.environ, **for_child()}})
time.sleep(3600)
"""


async def test_one_that_does_not_listen_outlives_its_parent_by_its_patience_only() -> None:
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
        # Some times its patience.
        await asyncio.sleep(0.5)
        assert identity_of(pid) is not None, "its parent lives, and so does it"
    finally:
        parent.kill()
        await parent.wait()

    await until(lambda: identity_of(pid) is None)
