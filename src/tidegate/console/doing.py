"""The frame of every write endpoint: the queue's name, a timeout, and an audit entry.

A node that hangs must not make the request hang. After the timeout the user gets an error, and the
audit entry says that the result is unknown.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate.console.access import AnyRequest
from tidegate.console.deeds import Deeds
from tidegate.console.doorkeeper import name_in
from tidegate.console.model import Deed
from tidegate.console.person import Person
from tidegate.console.problems import Refused
from tidegate.core.errors import TidegateError

# Less than the page's own timeout (api.js).
DONE_S_MAX = 12.0
# For changes whose duration grows with the number of messages.
LONG_S_MAX = 115.0
_NAME_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Doing:
    """A change under way; the handler sets the outcome for the audit log."""

    outcome = "done"


@asynccontextmanager
async def noted(
    request: AnyRequest, person: Person, what: str, service: str, *, is_long: bool = False
) -> AsyncIterator[Doing]:
    """Execute a change with a timeout, and record it in the audit log, however it ends."""
    within_s = LONG_S_MAX if is_long else DONE_S_MAX
    deeds: Deeds = request.app.state.deeds
    doing = Doing()
    try:
        async with asyncio.timeout(within_s):
            yield doing
    except (TidegateError, Refused) as failure:
        doing.outcome = f"refused: {failure}"
        raise
    except TimeoutError:
        doing.outcome = f"no answer within {within_s:g} s: nobody knows whether it was done"
        raise Refused(
            503,
            "UNAVAILABLE",
            f"no node answered within {within_s:g} s, and it may still be done: look before you "
            "try again",
        ) from None
    except BaseException:
        doing.outcome = "broken off: nobody knows whether it was done"
        raise
    finally:
        person.watch.hurry()
        deeds.add(
            Deed(
                at=time.time(),
                user=person.user,
                what=what,
                service=service,
                outcome=doing.outcome[:500],
            )
        )


def queue_in(name: str) -> str:
    """Return the queue's name from a path segment; raise Refused 404 if it is no valid name."""
    found = name_in(name)
    if len(found) > _NAME_MAX or not found.strip() or _CONTROL.search(found):
        raise Refused(404, "QUEUE_NOT_EXISTING", "no queue can be called so")
    return found


def not_now(detail: str) -> Refused:
    """Return a 409: the request is valid, but the present state does not allow it."""
    return Refused(409, "NOT_AS_IT_IS", detail)
