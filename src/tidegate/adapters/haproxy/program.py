"""Location of the HAProxy program on this machine."""

from __future__ import annotations

import os
import shutil

from tidegate.core.errors import Unavailable

# Names a program outside the usual places.
PROGRAM_VARIABLE = "TIDEGATE_HAPROXY"


def haproxy_program() -> str:
    """Return the path of the program; raise Unavailable, with what to do, if there is none."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if found := shutil.which(named):
            return found
        raise Unavailable(
            f"{PROGRAM_VARIABLE} names {named}, which is no program; install HAProxy (Debian: apt "
            "install haproxy), or take the engine gateway"
        )
    # Debian installs it in a folder that only root has in PATH.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("haproxy", path=path)
    if found is None:
        raise Unavailable(
            "there is no haproxy on this computer; install it (Debian: apt install haproxy), or "
            "take the engine gateway"
        )
    return found
