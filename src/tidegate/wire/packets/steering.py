"""Packets to change scaling settings and overrides, and to get decisions."""

from __future__ import annotations

from tidegate.core.by_hand import ByHand
from tidegate.core.model import Mode
from tidegate.core.scaling import Scaling
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request, Success


class SetScaling(Request):
    """Set how a queue scales; `None` makes it a plain queue, if it has no replicas."""

    method = 0x8B
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    queue_id: int
    scaling: Scaling | None
    # Change it only if it equals `before` (`None`: plain), else answer ChangedMeanwhile.
    is_compared: bool = False
    before: Scaling | None = None


class SteerService(Request):
    """Set the override of an HTTP service, if it equals `before` until now."""

    method = 0x9B
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    service: str
    by_hand: ByHand
    before: ByHand

    def claims(self) -> list[Claim]:
        return [(Right.CONFIGURE, self.service)]


class ExplainResponse(Answer):
    """Decisions, the newest first; JSON in the body, one per line."""

    method = 0x94


class Explain(Request):
    """Get decisions about a queue, or with `None` about machines."""

    method = 0x93
    answer = ExplainResponse
    right = Right.SEE
    queue_id: int | None = None
    count: int = 20


class ExplainServiceResponse(Answer):
    """Decisions, as in ExplainResponse."""

    method = 0x9E


class ExplainService(Request):
    """Get decisions about an HTTP service."""

    method = 0x9D
    answer = ExplainServiceResponse
    right = Right.SEE
    service: str
    count: int = 20

    def claims(self) -> list[Claim]:
        return [(Right.SEE, self.service)]
