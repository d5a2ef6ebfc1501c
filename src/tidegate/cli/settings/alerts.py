"""The section [alerts], with a check of the webhook's address."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tidegate.cli.settings.field import Between, Duration
from tidegate.core.errors import InvalidValue
from tidegate.core.secrecy import without_secrets


class AlertSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where alerts go when an agreement is breached; with neither target, only to the log."""

    # A program and its arguments; it receives the alert as JSON on stdin.
    command: list[str] = []
    # Receives the alert as a POST request.
    webhook: str | None = None
    # Whether to send warnings, and their end, as well as breaches.
    warnings: bool = False
    timeout_s: Annotated[Duration, Between(0.1, 600.0)] = msgspec.field(
        default=10.0, name="timeout"
    )
    attempts: Annotated[int, Between(1, 20)] = 3


def alerts_complaints(alerts: dict[str, Any]) -> list[str]:
    """Return the problems of the section as a whole."""
    if (webhook := alerts.get("webhook")) is None:
        return []
    # Imported here: each command reads settings, and few of them have a webhook.
    from tidegate.control.http_call import address_of

    try:
        address_of(webhook)
    except InvalidValue as wrong:
        return [f"alerts.webhook: {without_secrets(str(wrong))}"]
    return []
