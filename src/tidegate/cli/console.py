"""The command `tidegate console`: the web console and the management API."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, check_is_node
from tidegate.cli.exit_codes import exit_code_of
from tidegate.cli.logs import set_up_logs
from tidegate.cli.settings.console import CONSOLE_PORT_OFFSET
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings.settings import Settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.store_wiring import (
    StoreDataOption,
    StoreOption,
    named_stores,
    opened,
    running_stores,
)
from tidegate.client.address import parse_address
from tidegate.client.credentials import (
    PASSWORD_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
)
from tidegate.core.errors import InvalidValue, NotAuthenticated, TidegateError, Unavailable
from tidegate.fleet.console_process import HOW_TO_GET_IT, is_installed
from tidegate.fleet.parent import end_with_parent
from tidegate.fleet.ready_pipe import ReadyPipe

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.client.credentials import Credentials
    from tidegate.console.server import ServerTls


def register(app: typer.Typer) -> None:
    app.command("console")(console)


def console(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port, 0 for a free one. [default: 1500 above the node's]"
        ),
    ] = None,
    or_free: Annotated[bool, typer.Option("--or-free", hidden=True)] = False,
    results: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of pages that `lab` and `report` wrote. [default: results]"),
    ] = None,
    url: UrlOption = DEFAULT,
    store: StoreOption = None,
    data: StoreDataOption = None,
    config: ConfigOption = None,
) -> None:
    """Serve the web console of running nodes until SIGTERM or Ctrl-C. Needs tidegate[console].

    A console on 127.0.0.1 needs no login. On any other address it needs TLS and users.

    Example: `tidegate console --port 9000`
    """
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    end_with_parent()
    ready = ReadyPipe()
    folder = (data or settings.store.data_folder).expanduser().resolve()
    try:
        check_is_node(url)
        if not is_installed():
            raise Unavailable(f"what the console stands on is not installed: {HOW_TO_GET_IT}")
        import uvloop

        uvloop.run(
            _serve(
                settings,
                url,
                _stores(store, data, settings),
                host=settings.console.host if host is None else host,
                ports=_ports(port, or_free, settings, url),
                # Do not create the data folder.
                folder=folder / "console" if folder.is_dir() else None,
                knowledge=settings.with_data(data).knowledge_folder,
                results=tuple(results or [Path("results")]),
                ready=ready,
            )
        )
    except TidegateError as failure:
        if not ready.tell(str(failure)):
            raise
        raise typer.Exit(exit_code_of(failure)) from None


def _stores(store: str | None, data: Path | None, settings: Settings) -> list[str]:
    """Return the stores with services and agreement statuses; empty means only the nodes' data."""
    if store or data or settings.store.all_urls:
        return named_stores(store, data, settings) or running_stores(store, data, settings)
    try:
        return running_stores(None, None, settings)
    except Unavailable:
        return []


def _ports(port: int | None, or_free: bool, settings: Settings, url: str) -> list[int]:
    asked = settings.console.port if port is None else port
    if asked is not None:
        return [asked, 0] if or_free and asked else [asked]
    derived = parse_address(url).nodes[0][1] + CONSOLE_PORT_OFFSET
    # The user did not choose this port, so a free one serves as well.
    return [derived, 0] if derived < 2**16 else [0]


async def _serve(
    settings: Settings,
    url: str,
    stores: list[str],
    *,
    host: str,
    ports: list[int],
    folder: Path | None,
    knowledge: Path,
    results: tuple[Path, ...],
    ready: ReadyPipe,
) -> None:
    from tidegate.console.application import ConsoleOptions, console_application
    from tidegate.console.doorkeeper import allowed_hosts, shown_host
    from tidegate.console.server import listening, serving

    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    connect = _connector(url, settings)
    is_local = _is_loopback(host)
    tls = None if is_local else _tls(settings)
    if not is_local:
        await _check_exposure(host, tls is not None, connect)
    async with AsyncExitStack() as stack:
        found = await stack.enter_async_context(opened(stores)) if stores else None
        listener = None
        while listener is None:
            try:
                listener = listening(host, ports[0])
            except Unavailable:
                if len(ports) == 1:
                    raise
                ports = ports[1:]
        bound = listener.getsockname()[1]
        application = console_application(
            ConsoleOptions(
                connect=connect,
                hosts=allowed_hosts(host, bound, settings.console.names, tls=tls is not None),
                port=bound,
                tls=tls is not None,
                needs_login=not is_local,
                store=found,
                folder=folder,
                knowledge=knowledge,
                results=results,
            )
        )
        await stack.enter_async_context(serving(application, listener, tls))
        shown = shown_host(host, settings.console.names)
        address = f"{'http' if tls is None else 'https'}://{shown}:{bound}"
        if not ready.tell(address):
            print(address, flush=True)
        await stop.wait()


def _connector(url: str, settings: Settings) -> Callable[[Credentials | None], Client]:
    """Return a function that connects a user under their own name.

    The console's own credentials are removed from the environment, so that no user gets them.
    """
    from tidegate.client.client import Client
    from tidegate.client.tls import verifying_context

    address = parse_address(url)
    if address.user is not None:
        raise InvalidValue(
            "a user in --url: people log in to the console under their own names; leave it out"
        )
    for variable in (USER_VARIABLE, PASSWORD_VARIABLE, PASSWORD_FILE_VARIABLE):
        os.environ.pop(variable, None)
    context = None
    if address.tls:
        authority = settings.tls.authority
        context = verifying_context(None if authority is None else Path(authority).expanduser())

    def connect(credentials: Credentials | None) -> Client:
        # A page polls again by itself, sooner than the default timeout.
        return Client(url, mode="admin", reconnect_s=5.0, credentials=credentials, tls=context)

    return connect


def _tls(settings: Settings) -> ServerTls | None:
    """Return the node's certificate files, or None if none are set; raise for unusable files."""
    from tidegate.cli.node_wiring import tls_of
    from tidegate.console.server import ServerTls

    if tls_of(settings) is None:
        return None
    assert settings.tls.certificate is not None
    assert settings.tls.key is not None
    return ServerTls(
        Path(settings.tls.certificate).expanduser(), Path(settings.tls.key).expanduser()
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _check_exposure(
    host: str, has_tls: bool, connect: Callable[[Credentials | None], Client]
) -> None:
    """Raise `InvalidValue` if the console listens on the network without TLS or without users."""
    missing = []
    if not has_tls:
        missing.append("TLS: set tls.certificate and tls.key to PEM files")
    try:
        client = await connect(None).open()
        await client.close()
        missing.append("users: make the first with `tidegate user add NAME --admin`")
    except NotAuthenticated:
        pass
    if missing:
        raise InvalidValue(
            f"a console that listens on {host} can be reached from other machines and needs "
            f"{'; and '.join(missing)}. Or listen on 127.0.0.1"
        )
