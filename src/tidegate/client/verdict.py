"""Exceptions with which a worker's function decides what happens to its message."""

from __future__ import annotations

from tidegate.client.options import check_seconds


class Reject(Exception):
    """Moves the message to the dead letters at once, with this text as the reason."""


class Retry(Exception):
    """Returns the message to the queue, to be delivered again after `after` seconds.

    `None` means the delay of the queue's policy. It counts as a failed delivery, so after
    `deliveries_max` of them the message goes to the dead letters.
    """

    def __init__(self, text: str = "", *, after: float | None = None) -> None:
        if after is not None:
            check_seconds("after", after, at_least=0.0)
        super().__init__(text)
        self.after = after


def said_by(error: BaseException) -> str:
    """Return the text of an exception, in characters that UTF-8 can encode.

    A file name in it, for example, may hold lone surrogates. This function never raises, since a
    message whose error cannot be sent would stay held for ever.
    """
    try:
        return str(error).encode(errors="backslashreplace").decode()
    except Exception:
        return "(it cannot say why)"


def error_text(error: BaseException) -> str:
    """Return an exception as dead letters keep it: `type: text`."""
    return f"{type(error).__name__}: {said_by(error)}"
