"""Groups of options that several commands share.

    @dataclass(frozen=True)
    class GoalOptions:
        settle: SettleOption = None             each field is an option with its default

    @flatten_options()
    def policy(queue: QueueArgument, goal: GoalOptions = NO_GOAL) -> None: ...

Typer reads the options from the signature of the command. The decorator replaces each group in the
signature by the fields of the group.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import inspect
import socket
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, is_dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints
from urllib.parse import urlsplit

import typer

from tidegate.client.address import (
    PASSWORD_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    SCHEME,
    SCHEME_TLS,
    parse_address,
)
from tidegate.client.connect import DEFAULT_URL, URL_VARIABLE, connect
from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.prefetch import (
    KEEP_UP,
    PrefetchGoal,
    with_goal_keys,
    with_manual_prefetch,
    without_manual_prefetch,
)
from tidegate.core.text import escape_control_characters, parse_duration_s, parse_size_bytes
from tidegate.core.topology import ScalingPolicy

if TYPE_CHECKING:
    from tidegate.client.client import Client


Command = Callable[..., None]


def flatten_options(*left_out: str) -> Callable[[Command], Command]:
    """Return a decorator that replaces option groups in a command's signature by their fields.

    Fields in `left_out` are no options, and keep their defaults.
    """

    def spread_out(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[Parameter] = []
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        for name, parameter in inspect.signature(command).parameters.items():
            kind = hints[name]
            if not (isinstance(kind, type) and is_dataclass(kind)):
                kept = parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)
                parameters.append(kept)
                continue
            options = [field for field in fields(kind) if field.name not in left_out]
            types = get_type_hints(kind, include_extras=True)
            groups[name] = (kind, [option.name for option in options])
            parameters += [
                Parameter(
                    option.name,
                    Parameter.KEYWORD_ONLY,
                    default=option.default,
                    annotation=types[option.name],
                )
                for option in options
            ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            for name, (kind, names) in groups.items():
                given[name] = kind(**{one: given.pop(one) for one in names})
            command(**given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return spread_out


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Settings file in TOML. [default: tidegate.toml, if it exists]"),
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        help="Port of /metrics; 0 chooses a free port. [default: 1000 above the "
        "command's own port]",
    ),
]


# The connection of a command to a node: connect, do one task, disconnect.


Result = TypeVar("Result")

# Long enough for a queue to change its owner, and short enough for a person to wait for a dead
# node.
_TIMEOUT_S = 6.0
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
        help="URL of the node: tidegate[s]://[user@]host:port[,host:port…].",
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
        async with connect(url, mode=mode, reconnect_s=_TIMEOUT_S) as mq:
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
        shown = escape_control_characters(text[:_DIGITS_MAX]) + (
            "…" if len(text) > _DIGITS_MAX else ""
        )
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


PolicyOption = Annotated[
    ScalingPolicy | None, typer.Option(help="The law that sets the number of replicas.")
]
MaxWaitOption = Annotated[
    str | None,
    typer.Option(
        parser=duration_text, metavar="DURATION", help="The longest time that a message may wait."
    ),
]
MinLoadOption = Annotated[
    float | None,
    typer.Option(help="Remove a replica if fewer messages than this wait for each replica."),
]
MaxLoadOption = Annotated[
    float | None,
    typer.Option(help="Add a replica if more messages than this wait for each replica."),
]
AnyKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Set any other key, such as cooldown_period=60s; may be repeated.",
    ),
]
RecommendOnlyOption = Annotated[
    bool,
    typer.Option(
        "--recommend-only", help="Record each decision and its reason, but do not act on it."
    ),
]
AgreementOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Agreement of the queue (TOML), which is obeyed under the policy "
        "`agreement` and otherwise only judged; `none` removes it.",
    ),
]


def assignments(settings: list[str]) -> dict[str, str]:
    """Return the values of `NAME=VALUE` options by name; raise `InvalidValue` without an `=`."""
    found = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InvalidValue(f"{setting!r} is no setting: write {name}=VALUE")
        found[name.strip().replace("-", "_")] = text.strip()
    return found


# Options that set the prefetch goal of a queue's consumers.


_PANEL = "Prefetch"

PrefetchRateOption = Annotated[
    str | None,
    typer.Option(
        "--prefetch-rate",
        metavar="RATE",
        rich_help_panel=_PANEL,
        help="Control the prefetch so that messages arrive at each consumer at this "
        "rate, such as 400/s.",
    ),
]
PrefetchKeepUpOption = Annotated[
    bool,
    typer.Option(
        "--prefetch-keep-up",
        rich_help_panel=_PANEL,
        help="Control the prefetch so that each consumer's handler stays busy with "
        "few messages in reserve.",
    ),
]
PrefetchManualOption = Annotated[
    int | None,
    typer.Option(
        "--prefetch-manual",
        metavar="N",
        rich_help_panel=_PANEL,
        help="Set this prefetch for each consumer, as an override.",
    ),
]
PrefetchAutoOption = Annotated[
    bool,
    typer.Option(
        "--prefetch-auto",
        rich_help_panel=_PANEL,
        help="Remove the override of the prefetch and restore the state before it.",
    ),
]
PrefetchOffOption = Annotated[
    bool,
    typer.Option(
        "--prefetch-off",
        rich_help_panel=_PANEL,
        help="Stop controlling the prefetch; each consumer gets the prefetch that it requests.",
    ),
]
SettleOption = Annotated[
    str | None,
    typer.Option(
        parser=duration_text,
        metavar="DURATION",
        rich_help_panel=_PANEL,
        help="Time in which the rate is to reach the target.",
    ),
]
OvershootOption = Annotated[
    str | None,
    typer.Option(
        metavar="PART",
        rich_help_panel=_PANEL,
        help="Largest overshoot of the rate above the target, such as 5%.",
    ),
]
PrefetchModelOption = Annotated[
    str | None,
    typer.Option(
        "--prefetch-model",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="Model of the consumers, as a file of `tidegate tune prefetch`.",
    ),
]


def _base(before: PrefetchGoal | None, manual: int | None) -> PrefetchGoal:
    """Return the goal to change; without one, a manual goal that --prefetch-auto removes."""
    if before is not None:
        return before
    return PrefetchGoal() if manual is None else with_manual_prefetch(None, manual)


@dataclass(frozen=True)
class GoalOptions:
    """The prefetch options of one command line."""

    rate: PrefetchRateOption = None
    keep_up: PrefetchKeepUpOption = False
    manual: PrefetchManualOption = None
    auto: PrefetchAutoOption = False
    off: PrefetchOffOption = False
    settle: SettleOption = None
    overshoot: OvershootOption = None
    model: PrefetchModelOption = None

    def __post_init__(self) -> None:
        goals = (self.rate is not None, self.keep_up, self.off)
        hands = (self.manual is not None, self.auto, self.off)
        if sum(goals) > 1 or sum(hands) > 1:
            raise InvalidValue(
                "--prefetch-rate, --prefetch-keep-up and --prefetch-off: one of them; and of "
                "--prefetch-manual, --prefetch-auto and --prefetch-off"
            )
        if self.off and any((self.settle, self.overshoot, self.model)):
            raise InvalidValue(
                "--prefetch-off ends the steering, so --settle, --overshoot and --prefetch-model "
                "say nothing beside it: leave them out, or say --prefetch-rate 400/s instead"
            )

    @property
    def are_given(self) -> bool:
        return self != GoalOptions()

    def changed(self, before: PrefetchGoal | None, queue: str) -> PrefetchGoal | None:
        """Return the new prefetch goal of the queue; None removes the goal."""
        if self.off:
            return None
        changes: dict[str, Any] = {}
        if self.rate is not None or self.keep_up:
            changes["rate"] = KEEP_UP if self.keep_up else self.rate
        for key in ("settle", "overshoot", "model", "manual"):
            value = getattr(self, key)
            if value is not None:
                changes[key] = value
        if before is None and not changes.keys() & {"rate", "manual"}:
            raise InvalidValue(
                "prefetch is not steered here: say what to, with --prefetch-rate 400/s, "
                "--prefetch-keep-up or --prefetch-manual N"
            )
        goal = with_goal_keys(_base(before, self.manual), changes)
        if self.auto:
            back = without_manual_prefetch(goal)
            if back is None:
                return None
            goal = back
        if self.model is not None and goal.model is not None:
            doubts = goal.model.doubts(queue, "tidegate")
            if doubts:
                print(f"{self.model}: {doubts}", file=sys.stderr)
        return goal


NO_GOAL = GoalOptions()


# A check that an address is free, before a command starts any process.


def check_free(host: str, port: int, option: str = "--port") -> None:
    """Raise `Unavailable` if a server cannot listen on the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # Servers set this option, too: connections in TIME_WAIT do not block the address.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except UnicodeError:
        raise InvalidValue(f"--host {host!r} is no address, nor the name of a computer") from None
    except OSError as failure:
        raise Unavailable(
            f"cannot listen on {host}:{port}: {failure.strerror or failure}; "
            f"{_advice(failure, option)}"
        ) from None


def _advice(failure: OSError, option: str) -> str:
    if isinstance(failure, socket.gaierror) or failure.errno == errno.EADDRNOTAVAIL:
        return "choose an address of this computer with --host"
    if failure.errno in (errno.EACCES, errno.EPERM):
        return f"choose a port from 1024 on with {option}: those below are not for everybody"
    return f"choose another with {option}, or end what listens there"
