"""The pipe through which a child announces once that it serves, or why it does not."""

from __future__ import annotations

import os

READY_VARIABLE = "TIDEGATE_READY_FD"


class ReadyPipe:
    """The child's end of the pipe; without a parent that listens it does nothing."""

    def __init__(self) -> None:
        # Remove the variable, so that our own children do not use the pipe.
        descriptor = os.environ.pop(READY_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)

    def tell(self, text: str) -> bool:
        """Send the line once; return False if the parent does not listen, or no longer."""
        if self._descriptor is None:
            return False
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(" ".join(text.split()) + "\n")
        self._descriptor = None
        return True
