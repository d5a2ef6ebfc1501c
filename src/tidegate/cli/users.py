"""The commands `tidegate user`: users, passwords and permissions.

They access the store and not a node. The first user must exist before any login is possible, and
access to the store gives all permissions anyway. Nodes notice a change within a second. Passwords
come from a prompt, from stdin or from a file, and never from the command line, which other users of
the machine can read.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from tidegate.cli.command_line import NotFound
from tidegate.cli.options import ConfigOption
from tidegate.cli.output import Cell, Column, JsonOption, Output
from tidegate.cli.settings import load_settings
from tidegate.cli.wiring import ask_store
from tidegate.core.errors import UniqueConstraint

if TYPE_CHECKING:
    from tidegate.core.model import Grant, User
    from tidegate.core.store import Store

Result = TypeVar("Result")

_COLUMNS = [
    Column("user", style="bold"),
    Column("read"),
    Column("write"),
    Column("configure"),
    Column("admin"),
]

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]
DataOption = Annotated[
    Path | None,
    typer.Option("--data", help="Folder of the embedded PostgreSQL. [default: tidegate-data]"),
]
PasswordFileOption = Annotated[
    Path | None,
    typer.Option(
        "--password-file", help="Read the password from the first line of this file; - means stdin."
    ),
]
ReadOption = Annotated[
    list[str],
    typer.Option(
        "--read",
        metavar="PATTERN",
        help="Allow the user to take and browse messages of these queues.",
    ),
]
WriteOption = Annotated[
    list[str],
    typer.Option(
        "--write", metavar="PATTERN", help="Allow the user to put messages in these queues."
    ),
]
ConfigureOption = Annotated[
    list[str],
    typer.Option(
        "--configure",
        metavar="PATTERN",
        help="Allow the user to create, change, purge and delete these queues.",
    ),
]
AdminOption = Annotated[
    bool, typer.Option("--admin", help="Give the user all rights on all queues.")
]
AdminOfOption = Annotated[
    list[str],
    typer.Option("--admin-of", metavar="PATTERN", help="Give the user all rights on these queues."),
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Manage users and their rights.")
    group.command("add")(add)
    group.command("list")(list_all)
    group.command("grant")(grant)
    group.command("passwd")(passwd)
    group.command("remove")(remove)
    app.add_typer(group, name="user")


def add(
    name: NameArgument,
    read: ReadOption = [],  # noqa: B006
    write: WriteOption = [],  # noqa: B006
    configure: ConfigureOption = [],  # noqa: B006
    admin: AdminOption = False,
    admin_of: AdminOfOption = [],  # noqa: B006
    password_file: PasswordFileOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Create a user with permissions on queues whose names match a pattern such as 'orders.*'.

    Without a permission option the user may log in but use no queue.

    Example: `tidegate user add billing --read 'orders.*' --write 'invoices.*'`
    """
    from tidegate.core.model import User
    from tidegate.protocol.scram import check_user_name, derive_keys

    check_user_name(name)
    grants = _grants(read, write, configure, admin, admin_of)
    user = User(name, derive_keys(_password(password_file)), grants)

    async def work(store: Store) -> None:
        if not await store.add_user(user):
            raise UniqueConstraint(
                f"user {name!r} exists: `tidegate user passwd {name}` changes its password, "
                f"`tidegate user grant {name}` what it may do"
            )

    _with_store(data, config, work)
    _print_user(json, user, f"user {name} is made{'' if grants else ', and may do nothing yet'}")


def grant(
    name: NameArgument,
    read: ReadOption = [],  # noqa: B006
    write: WriteOption = [],  # noqa: B006
    configure: ConfigureOption = [],  # noqa: B006
    admin: AdminOption = False,
    admin_of: AdminOfOption = [],  # noqa: B006
    only: Annotated[
        bool, typer.Option("--only", help="Replace the user's rights by the given ones.")
    ] = False,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Add permissions to a user, or replace them with --only; the user's connections are closed.

    Example: `tidegate user grant billing --configure 'orders.*'`
    """
    added = _grants(read, write, configure, admin, admin_of)

    async def work(store: Store) -> list[Grant]:
        had = [g for u in await store.list_users() if u.name == name for g in u.grants]
        now = list(dict.fromkeys([*([] if only else had), *added]))
        await _existing(name, store.set_user_grants(name, now))
        return now

    grants = _with_store(data, config, work)
    if json:
        Output(True).json({"user": name, **_by_role(grants)})
    else:
        Output().line(f"user {name} may do that from now on")


def passwd(
    name: NameArgument,
    password_file: PasswordFileOption = None,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Change the password of a user; the user's connections are closed."""
    from tidegate.protocol.scram import derive_keys

    keys = derive_keys(_password(password_file))
    _with_store(data, config, lambda store: _existing(name, store.set_user_keys(name, keys)))
    if json:
        Output(True).json({"user": name, "changed": True})
    else:
        Output().line(f"the password of {name} is changed; its connections are ended")


def remove(
    name: NameArgument,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Delete a user and the user's clients; the connections are closed."""
    _with_store(data, config, lambda store: _existing(name, store.remove_user(name)))
    if json:
        Output(True).json({"user": name, "removed": True})
    else:
        Output().line(f"user {name} is removed")


def list_all(
    data: DataOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """List the users with their permissions."""
    output = Output(json)
    users = _with_store(data, config, lambda store: store.list_users())
    if json:
        output.json([{"user": user.name, **_by_role(user.grants)} for user in users])
    elif users or not output.on_terminal:
        rows = [
            [u.name, *(" ".join(p) or None for p in _by_role(u.grants).values())] for u in users
        ]
        output.table(_COLUMNS, rows)
    else:
        output.line("there are no users: on this machine nobody has to log in", style="dim")


def _row(user: User) -> list[Cell]:
    return [user.name, *(" ".join(patterns) or None for patterns in _by_role(user.grants).values())]


def _print_user(json: bool, user: User, sentence: str) -> None:
    if json:
        Output(True).json({"user": user.name, **_by_role(user.grants)})
    else:
        Output().line(sentence)


def _by_role(grants: list[Grant]) -> dict[str, list[str]]:
    from tidegate.core.model import ROLES

    return {role.value: [g.pattern for g in grants if g.role is role] for role in ROLES}


def _grants(
    read: list[str], write: list[str], configure: list[str], admin: bool, admin_of: list[str]
) -> list[Grant]:
    from tidegate.core.model import ALL_QUEUES, ROLES, Grant, check_pattern

    patterns = (read, write, configure, [*([ALL_QUEUES] if admin else []), *admin_of])
    return [
        Grant(role, check_pattern(pattern))
        for role, chosen in zip(ROLES, patterns, strict=True)
        for pattern in chosen
    ]


def _password(file: Path | None) -> str:
    """Return the password from a file, from stdin if it is not a terminal, or from a prompt."""
    from tidegate.client.address import read_password_file

    if file is not None and str(file) != "-":
        return read_password_file(file)
    if file is not None or not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    return str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))


async def _existing(name: str, change: Awaitable[bool]) -> None:
    if not await change:
        raise NotFound(f"there is no user {name!r}: `tidegate user list` shows who there is")


def _with_store(
    data: Path | None, config: Path | None, work: Callable[[Store], Awaitable[Result]]
) -> Result:
    """Open the store, run `work` with it, and return the result; no node needs to run."""
    with _store_urls(data, config) as urls:
        return ask_store(urls, work)


@contextlib.contextmanager
def _store_urls(data: Path | None, config: Path | None) -> Iterator[list[str]]:
    """Yield the URLs of the store; start an embedded one that does not run for this context."""
    from tidegate.storage.embedded import EmbeddedPostgres
    from tidegate.storage.postgres_server import DataFolderHeld

    settings = load_settings(config, os.environ)
    if settings.store.all_urls and data is None:
        yield settings.store.all_urls
        return
    embedded = EmbeddedPostgres(data or settings.store.data_folder)
    try:
        embedded.start()
    except DataFolderHeld:
        yield [embedded.url]
        return
    try:
        yield [embedded.url]
    finally:
        embedded.stop()
