"""The options of reads and writes, checked on the driver before it connects to a node.

Spark passes options as text and their names in lower case. A password appears in no repr, plan or
error message.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

from tidegate.client.address import shown
from tidegate.client.blocking import BlockingClient
from tidegate.client.client import Client
from tidegate.client.connect import Connector, connect, usual_url
from tidegate.core.errors import InvalidValue, TidegateError

READ = ("limit",)
READ_STREAM = ("messagesPerBatch", "messagesPerSecond", "failOnDataLoss")
WRITE = ("key", "dedupSeconds", "messagesPerSecond", "writeId")
# `checkpointLocation` and `queryName` are Spark's own options, which it passes to sinks as well.
WRITE_STREAM = ("key", "dedupSeconds", "messagesPerSecond", "checkpointLocation", "queryName")
EVERYWHERE = ("url", "queue", "user", "password", "passwordFile", "tls", "caFile", "patience")
KNOWN = dict.fromkeys((*EVERYWHERE, *READ, *READ_STREAM, *WRITE, *WRITE_STREAM))

# How long a task tries to reconnect to the node.
PATIENCE_S = 60.0
WRITE_ID_LENGTH_MAX = 200


@dataclass(frozen=True)
class Options:
    """Which queue, and how it is read or written."""

    queue: str
    url: str = field(default_factory=usual_url, repr=False)
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    tls: bool | None = None
    ca_file: str | None = None
    patience_s: float = PATIENCE_S
    limit: int | None = None
    messages_per_batch: int | None = None
    messages_per_second: float | None = None
    fail_on_data_loss: bool = True
    key: str | None = None
    # How long the queue must remember dedup ids, in seconds; `None` means the default of the write.
    dedup_s: float | None = None
    write_id: str | None = None

    @contextmanager
    def connected(self) -> Iterator[BlockingClient]:
        """Yield a connection for a task, and close it when the block ends."""
        with self.telling(), self.connector() as mq:
            yield mq

    @contextmanager
    def telling(self) -> Iterator[None]:
        """Add queue and URL to the errors of the block; Spark shows errors without the options."""
        try:
            yield
        except TidegateError as error:
            if getattr(error, "tells", False):
                raise
            told = type(error)(f"queue {self.queue!r} at {shown(self.url)}: {error}")
            told.tells = True  # type: ignore[attr-defined]
            raise told from None

    def connector(self) -> Connector[Client]:
        """Return an unopened connection; raise if the URL is wrong or the password is missing."""
        return connect(
            self.url,
            user=self.user,
            password=self.password,
            password_file=self.password_file,
            tls=self.tls,
            ca_file=self.ca_file,
            reconnect_s=self.patience_s,
        )

    def open(self) -> BlockingClient:
        """Return a connection that the caller must close."""
        return self.connector().__enter__()


def parse(options: Mapping[str, str], allowed: tuple[str, ...], purpose: str) -> Options:
    """Return the options of a read or write; raise `InvalidValue` if one is unknown or wrong.

    `purpose` names the operation in the error message.
    """
    _check_names(options, allowed, purpose)
    if not options.get("queue"):
        raise InvalidValue('name a queue: .option("queue", "orders")')
    values = {
        "url": options.get("url", usual_url()),
        "queue": options["queue"],
        "user": options.get("user"),
        "password": options.get("password"),
        "password_file": options.get("passwordFile"),
        "tls": _read(options, "tls", _flag),
        "ca_file": options.get("caFile"),
        "patience_s": _read(options, "patience", _amount),
        "limit": _read(options, "limit", _count),
        "messages_per_batch": _read(options, "messagesPerBatch", _count),
        "messages_per_second": _read(options, "messagesPerSecond", _amount),
        "fail_on_data_loss": _read(options, "failOnDataLoss", _flag),
        "key": options.get("key"),
        "dedup_s": _read(options, "dedupSeconds", _amount),
        "write_id": _read(options, "writeId", _write_id),
    }
    assert values.keys() == {each.name for each in fields(Options)}
    chosen = Options(**{name: value for name, value in values.items() if value is not None})
    chosen.connector()
    return chosen


def _check_names(options: Mapping[str, str], allowed: tuple[str, ...], purpose: str) -> None:
    usable = (*EVERYWHERE, *allowed)
    known = {name.lower(): name for name in KNOWN}
    for name in options:
        if name.lower() == "path":
            raise InvalidValue('load() and save() take no path: name the queue by option("queue")')
        if name.lower() not in known:
            raise InvalidValue(f"no option {name!r}; {purpose} has {', '.join(usable)}")
        if known[name.lower()] not in usable:
            raise InvalidValue(
                f"option {known[name.lower()]!r} is not for {purpose}, which has "
                f"{', '.join(usable)}"
            )


def _read(options: Mapping[str, str], name: str, kind: Callable[[str], Any]) -> Any:
    text = options.get(name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError as failure:
        raise InvalidValue(f"option {name!r} is {failure}, not {text!r}") from None


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("a whole number from 1")
    return int(text)


def _amount(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise ValueError("a number above 0")
    return amount


def _write_id(text: str) -> str:
    if not 0 < len(text) <= WRITE_ID_LENGTH_MAX:
        raise ValueError(f"a name of up to {WRITE_ID_LENGTH_MAX} characters")
    return text
