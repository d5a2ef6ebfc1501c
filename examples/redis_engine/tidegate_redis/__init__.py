"""Tidegate's workers on Redis: `tidegate.App("redis://127.0.0.1:6379/0")`."""

from __future__ import annotations

from typing import Any

from tidegate.client.connect import Connector
from tidegate.core.errors import InvalidValue
from tidegate_redis.client import RedisClient


def connect(
    url: str,
    *,
    reconnect_s: float = 60.0,
    user: str | None = None,
    password: str | None = None,
    **others: Any,
) -> Connector[RedisClient]:
    """The keywords are those of `tidegate.connect`."""
    # What differs from its default was meant.
    meant = {name: value for name, value in others.items() if value not in (None, "read-write")}
    if meant:
        raise InvalidValue(
            f"{', '.join(meant)}: not on Redis; say it in the URL, or use tidegate://"
        )
    return Connector(
        lambda: RedisClient(url, reconnect_s=reconnect_s, user=user, password=password)
    )


__all__ = ["RedisClient", "connect"]
