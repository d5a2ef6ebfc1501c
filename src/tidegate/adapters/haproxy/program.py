"""Where HAProxy is on this computer, if it is."""

from __future__ import annotations

import os
import shutil

from tidegate.core.errors import Unavailable

# For one that is somewhere else.
PROGRAM_VARIABLE = "TIDEGATE_HAPROXY"


def haproxy_program() -> str:
    """Its path; Unavailable, with what to do, if there is none."""
    named = os.environ.get(PROGRAM_VARIABLE)
    if named:
        if found := shutil.which(named):
            return found
        raise Unavailable(
            f"{PROGRAM_VARIABLE} names {named}, which is no program; install HAProxy (Debian: apt "
            "install haproxy), or take the engine gateway"
        )
    # Debian has it where only root looks.
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"))
    found = shutil.which("haproxy", path=path)
    if found is None:
        raise Unavailable(
            "there is no haproxy on this computer; install it (Debian: apt install haproxy), or "
            "take the engine gateway"
        )
    return found
