"""Packets to say what the loops are to do, and to ask what they have decided."""

from __future__ import annotations

from tidegate.core.by_hand import ByHand
from tidegate.core.model import Mode
from tidegate.core.scaling import Scaling
from tidegate.core.users import Right
from tidegate.wire.packet import Answer, Claim, Request, Success


class SetScaling(Request):
    """Say how a queue scales; None: it becomes a plain queue, once it has no replicas."""

    method = 0x8B
    answer = Success
    right = Right.CONFIGURE
    mode = Mode.READ_WRITE
    queue_id: int
    scaling: Scaling | None
    # Only if it has scaled as `before` says until now, else ChangedMeanwhile; None: it was plain.
    is_compared: bool = False
    before: Scaling | None = None


class SteerService(Request):
    """Say about an HTTP service what goes before the law, if it was `before` until now."""

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
    """Decisions, the newest first; each a JSON document in the body, one a line."""

    method = 0x94


class Explain(Request):
    """What the loops have decided about a queue, or (None) about the fleet."""

    method = 0x93
    answer = ExplainResponse
    right = Right.SEE
    queue_id: int | None = None
    count: int = 20


class ExplainServiceResponse(Answer):
    """Decisions, as in ExplainResponse."""

    method = 0x9E


class ExplainService(Request):
    """What the loops have decided about an HTTP service."""

    method = 0x9D
    answer = ExplainServiceResponse
    right = Right.SEE
    service: str
    count: int = 20

    def claims(self) -> list[Claim]:
        return [(Right.SEE, self.service)]
