"""What a worker's function raises to decide for itself what becomes of its message."""

from __future__ import annotations

from tidegate.client.options import check_seconds


class Reject(Exception):
    """It is hopeless: to the dead letters at once, with this text."""


class Retry(Exception):
    """Not now: deliver it again after so many seconds; without, as the queue backs off.

    It counts as a delivery: after as many as the queue allows the message is given up.
    """

    def __init__(self, text: str = "", *, after: float | None = None) -> None:
        if after is not None:
            check_seconds("after", after, at_least=0.0)
        super().__init__(text)
        self.after = after


def said_by(error: BaseException) -> str:
    """What an exception says, as it can travel: names of files, say, may hold halves of characters.

    Whatever it says, its message has to go back: one that is never settled is held for ever.
    """
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return "(it cannot say why)"


def error_text(error: BaseException) -> str:
    """An exception as dead letters keep it: `type: text`."""
    return f"{type(error).__name__}: {said_by(error)}"
