"""What everything that changes something has in common: a queue by its name, in time, written down.

A node that hangs is no reason to hang, too: who asks is told that nobody answered, and the deed is
written down as one of which nobody knows whether it was done.
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

# Sooner than a page gives up (api.js).
DONE_S_MAX = 12.0
# What takes the longer the more messages there are.
LONG_S_MAX = 115.0
_NAME_MAX = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class Doing:
    """A deed while it is done: what is to be said of it in the end."""

    outcome = "done"


@asynccontextmanager
async def noted(
    request: AnyRequest, person: Person, what: str, service: str, *, is_long: bool = False
) -> AsyncIterator[Doing]:
    """It is written down, whatever comes of it."""
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
    """The name of a queue in a path; 404 for what no queue can be called."""
    found = name_in(name)
    if len(found) > _NAME_MAX or not found.strip() or _CONTROL.search(found):
        raise Refused(404, "QUEUE_NOT_EXISTING", "no queue can be called so")
    return found


def not_now(detail: str) -> Refused:
    """The wish is one, and the queue is not so that it could be fulfilled."""
    return Refused(409, "NOT_AS_IT_IS", detail)
