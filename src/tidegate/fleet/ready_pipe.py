"""How a child tells whoever started it that it serves, or else why it does not: one line, once."""

from __future__ import annotations

import os

READY_VARIABLE = "TIDEGATE_READY_FD"


class ReadyPipe:
    """Whom to tell how the start went: whoever started us, or nobody."""

    def __init__(self) -> None:
        # Taken out: what we start ourselves has nothing to tell there.
        descriptor = os.environ.pop(READY_VARIABLE, None)
        self._descriptor = None if descriptor is None else int(descriptor)

    def tell(self, text: str) -> bool:
        """Say it once; False when nobody listens, or no longer."""
        if self._descriptor is None:
            return False
        with os.fdopen(self._descriptor, "w") as pipe:
            pipe.write(" ".join(text.split()) + "\n")
        self._descriptor = None
        return True
