"""The section [alerts], and whether its address is one."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tidegate.cli.settings.field import Between, Duration
from tidegate.control.http_call import address_of
from tidegate.core.errors import InvalidValue
from tidegate.core.secrecy import without_secrets


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is told when an agreement is breached; neither: the log only."""

    # A program and its arguments; it gets the alert as JSON on stdin.
    command: list[str] = []
    # Gets it as a POST.
    webhook: str | None = None
    # Warnings as well, and what is over.
    warnings: bool = False
    timeout_s: Annotated[Duration, Between(0.1, 600.0)] = msgspec.field(
        default=10.0, name="timeout"
    )
    attempts: Annotated[int, Between(1, 20)] = 3


def alerts_complaints(alerts: dict[str, Any]) -> list[str]:
    """What is wrong with the section as a whole."""
    try:
        if (webhook := alerts.get("webhook")) is not None:
            address_of(webhook)
    except InvalidValue as wrong:
        return [f"alerts.webhook: {without_secrets(str(wrong))}"]
    return []
