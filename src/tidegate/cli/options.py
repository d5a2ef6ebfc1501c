"""The connection of a command to a node: connect, do one task, disconnect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import typer

from tidegate.client.address import SCHEME, SCHEME_TLS, parse_address
from tidegate.client.connect import DEFAULT_URL, URL_VARIABLE, connect
from tidegate.client.credentials import PASSWORD_FILE_VARIABLE, PASSWORD_VARIABLE
from tidegate.core.errors import InvalidValue
from tidegate.core.harmless import harmless
from tidegate.core.quantities import parse_duration_s, parse_size_bytes

if TYPE_CHECKING:
    from tidegate.client.client import Client

Result = TypeVar("Result")

# Long enough for a queue to change its owner, and short enough for a person to wait for a dead
# node.
_PATIENCE_S = 6.0
# Queue ids are stored as 64-bit signed integers.
_QUEUE_ID_MAX = 2**63 - 1
_DIGITS_MAX = 20


def without_password(
    context: typer.Context, parameter: typer.CallbackParam, url: str | None
) -> str | None:
    """Refuse a password on the command line, which other users of the machine can read."""
    assert parameter.name is not None
    source = context.get_parameter_source(parameter.name)
    given = source is not None and source.name == "COMMANDLINE"
    if given and url is not None and _password_in(url):
        raise InvalidValue(
            "a password on the command line is read by everybody on this machine: set "
            f"{URL_VARIABLE}, {PASSWORD_VARIABLE} or {PASSWORD_FILE_VARIABLE} instead"
        )
    return url


def _password_in(url: str) -> str | None:
    if url.startswith((SCHEME, SCHEME_TLS)) or "://" not in url:
        return parse_address(url).password
    password = urlsplit(url).password
    # RabbitMQ's default password is not a secret. RabbitMQ accepts it from its own machine only.
    return None if password == "guest" else password


UrlOption = Annotated[
    str,
    typer.Option(
        "--url",
        envvar=URL_VARIABLE,
        callback=without_password,
        help="Node to talk to: tidegate[s]://[user@]host:port[,host:port…].",
    ),
]
DEFAULT = DEFAULT_URL


def ask(
    url: str,
    work: Callable[[Client], Awaitable[Result]],
    mode: Literal["read-only", "read-write", "admin"] = "read-only",
) -> Result:
    """Connect to a node, run `work` with the client, and return its result."""
    check_is_node(url)

    async def connected() -> Result:
        async with connect(url, mode=mode, reconnect_s=_PATIENCE_S) as mq:
            return await work(mq)

    return asyncio.run(connected())


def check_is_node(url: str) -> None:
    """Raise `InvalidValue` for a RabbitMQ URL; the command supports Tidegate nodes only."""
    if url.startswith(("amqp://", "amqps://")):
        raise InvalidValue(
            "this command talks to Tidegate's own nodes, and the URL names a RabbitMQ. For "
            "RabbitMQ there are `tidegate worker`, `tidegate tune prefetch` and `tidegate steer`; "
            "its own tools (rabbitmqctl, its management page) show and change its queues"
        )


def queue_key(text: str) -> str | int:
    """Return a queue's name, or its id if the text has the form `#7`."""
    digits = text[1:]
    if not text.startswith("#") or not digits.isdigit():
        return text
    # Superscripts are digits for str.isdigit(), but not for int(). Very long numbers are slow to
    # parse.
    is_number = digits.isascii() and len(digits) <= _DIGITS_MAX
    if not is_number or int(digits) > _QUEUE_ID_MAX:
        shown = harmless(text[:_DIGITS_MAX]) + ("…" if len(text) > _DIGITS_MAX else "")
        raise InvalidValue(f"{shown} is no id of a queue: `tidegate queues` shows them")
    return int(digits)


def duration_s(text: str | float) -> float:
    """Return the seconds of a duration option; the text needs a unit: `250ms`, `5s`."""
    # Typer also passes the default value, which already is in seconds.
    if not isinstance(text, str):
        return float(text)
    try:
        return parse_duration_s(text)
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None


def duration_text(text: str) -> str:
    """Check a duration option and return its text; the server checks the value `none`."""
    if text.lower() != "none":
        duration_s(text)
    return text


def some_duration_s(text: str | float) -> float:
    """Return the seconds of a duration option that must be above 0."""
    duration = duration_s(text)
    if duration <= 0.0:
        raise typer.BadParameter(f"{str(text)!r} is no time at all: give one such as 5s")
    return duration


def size_bytes(text: str | int) -> int:
    """Return the bytes of a size option: `16MiB`, `500kB`."""
    try:
        return parse_size_bytes(text)
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None


def size_option(says: str) -> Any:
    """Return an option for a size; its help text must name the default itself."""
    return typer.Option(parser=size_bytes, metavar="SIZE", show_default=False, help=says)


def duration_option(says: str, parser: Callable[[str], float] = duration_s) -> Any:
    """Return an option for a duration; its help text must name the default itself."""
    return typer.Option(parser=parser, metavar="DURATION", show_default=False, help=says)
