"""The options of a service for `host` and `deploy`, checked completely before anything starts.

agreement → application → policy → code        the first problem is reported
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from tidegate.cli.application_probe import DEFAULT_NAME
from tidegate.cli.options import duration_option, size_option, some_duration_s
from tidegate.cli.wiring import ask_store
from tidegate.cli.worker import revision_of
from tidegate.core.errors import InvalidValue
from tidegate.core.services import Engine, ServiceSpec
from tidegate.core.text import escape_control_characters
from tidegate.fleet.process import without_stores

if TYPE_CHECKING:
    from tidegate.agreements.document import Agreement
    from tidegate.cli.settings import Settings
    from tidegate.control.planning import AvailableSlots
    from tidegate.storage.postgres.store import PostgresStore
    from tidegate.telemetry.models import ModelRegistry


# The name is part of command lines, cookies and HAProxy's configuration.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# The path is requested over HTTP and written to HAProxy's configuration: no quotes and no
# separators.
_PATH = re.compile(r"/[!$&(-;=?-Z_a-z~%]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:APP", help="Module and name of the ASGI application, such as shop:app."
    ),
]
AgreementOption = Annotated[
    Path,
    typer.Option(
        "--agreement",
        help="Agreement of the service (TOML); its key `http` is the name of the service.",
    ),
]
EngineOption = Annotated[
    Engine,
    typer.Option("--engine", help="The program that serves as the door in front of the instances."),
]
ConcurrencyOption = Annotated[
    int,
    typer.Option(
        "--concurrency",
        min=1,
        max=100_000,
        help="Maximum number of concurrent requests of one instance.",
    ),
]
SparesOption = Annotated[
    int, typer.Option("--spares", min=0, max=100, help="Number of instances kept ready in reserve.")
]
StickyOption = Annotated[
    bool, typer.Option("--sticky", help="Balance sessions by a cookie instead of single requests.")
]
SessionGraceOption = Annotated[
    float,
    duration_option("Time for which a draining instance keeps its sessions. [default: 60s]"),
]
BalancingOption = Annotated[
    str,
    typer.Option(
        "--balancing",
        metavar="POLICY",
        help="Policy that chooses the instance for the next request; the gateway also "
        "accepts your own module:Class.",
    ),
]
HealthPathOption = Annotated[
    str, typer.Option("--health-path", help="Path that health checks request from each instance.")
]
DeadlineOption = Annotated[
    float | None,
    duration_option(
        "Time for the complete answer to a request, after which the client gets "
        "504; gateway only. [default: none]",
        some_duration_s,
    ),
]
AnswerTimeoutOption = Annotated[
    float,
    duration_option(
        "Longest silence of an instance before and during its answer. [default: 60s]",
        some_duration_s,
    ),
]
BodyMaxOption = Annotated[
    int | None,
    size_option(
        "Largest body of a request; a request with a longer body gets 413. [default: no limit]"
    ),
]
ShipOption = Annotated[
    Path | None,
    typer.Option(
        "--ship",
        metavar="FOLDER|WHEEL",
        help="Send this folder or wheel to the machines. [default: machines run the "
        "code in this folder]",
    ),
]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Set an environment variable of the instances; without a value, take it "
        "from this environment. May be repeated.",
    ),
]


@dataclass(frozen=True)
class ServiceOptions:
    """The options that both commands share."""

    engine: EngineOption = Engine.GATEWAY
    concurrency: ConcurrencyOption = 100
    spares: SparesOption = 0
    sticky: StickyOption = False
    session_grace: SessionGraceOption = 60.0
    balancing: BalancingOption = "better-of-two"
    health_path: HealthPathOption = "/"
    deadline: DeadlineOption = None
    answer_timeout: AnswerTimeoutOption = 60.0
    body_max: BodyMaxOption = None
    ship: ShipOption = None
    env: EnvironmentOption = None


DEFAULT_SERVICE_OPTIONS = ServiceOptions()


@dataclass(frozen=True)
class ServiceRequest:
    """A checked request to deploy; `code` is not yet part of `spec`."""

    spec: ServiceSpec
    agreement: Agreement
    # The archive to send to the machines; None if they run the code in the present folder.
    code: bytes | None


def checked_request(target: str, agreement_file: Path, options: ServiceOptions) -> ServiceRequest:
    """Check all options, and return the request to deploy; raise an error with a remedy."""
    text, agreement = _http_agreement(agreement_file)
    _check_balancing(options.engine, options.balancing)
    _check_deadline(options.engine, options.deadline)
    health_path, ship = options.health_path, options.ship
    if _PATH.fullmatch(health_path) is None:
        raise InvalidValue(
            f"--health-path {health_path!r} is no path, such as /healthz; what is no letter of "
            "ASCII is written with %, as in /caf%C3%A9"
        )
    environment = environment_of(options.env or [], os.environ)
    if ":" not in target:
        target = f"{target}:{DEFAULT_NAME}"
    code: bytes | None = None
    folder: Path | None = None
    revision = ""
    if ship is None:
        folder = Path.cwd()
        revision = revision_of(folder)
        check_application(target, folder, environment)
    else:
        from tidegate.fleet.packages import pack_code

        code = pack_code(ship)
        is_folder = ship.is_dir()
        check_application(
            target,
            ship if is_folder else ship.resolve().parent,
            environment,
            code=ship.resolve(),
        )
    spec = ServiceSpec(
        name=agreement.http or "",
        target=target,
        agreement=text,
        concurrency=options.concurrency,
        spares=options.spares,
        engine=options.engine,
        balancing=options.balancing,
        sticky=options.sticky,
        session_grace_s=options.session_grace,
        health_path=health_path,
        deadline_s=options.deadline,
        answer_timeout_s=options.answer_timeout,
        body_bytes_max=options.body_max,
        environment=environment,
        folder=None if folder is None else str(folder),
        revision=revision,
    )
    return ServiceRequest(spec, agreement, code)


def offer_of(
    asked: ServiceRequest, settings: Settings, running: Sequence[str] = ()
) -> ServiceRequest:
    """Return the request with what the resources allow: unchanged, or reduced with a warning.

    Raise `LimitReached` if the agreement must not be reduced. If a store runs (`running`), its
    machines and services determine the resources, else the settings do.
    """
    from tidegate.control.planning import make_offer
    from tidegate.telemetry.models import ModelRegistry

    knowledge = ModelRegistry(settings.knowledge_folder, _warn)
    room = _available_slots(asked.spec, settings, running, knowledge)
    agreement, spec = make_offer(asked.agreement, asked.spec, room, knowledge)
    if reduced := agreement.resources.reduced:
        _warn(f"{spec.name}: reduced: {reduced}")
    return replace(asked, agreement=agreement, spec=spec)


def _available_slots(
    spec: ServiceSpec, settings: Settings, running: Sequence[str], knowledge: ModelRegistry
) -> AvailableSlots | None:
    """Return the slots available to a service; None if they are unknown."""
    from tidegate.cli.wiring import fleet_options
    from tidegate.control.provisioning import available_slots, slot_claims

    here = None if settings.fleet.provider == "none" else fleet_options(settings).machines_most
    if not running:
        return None if here is None else available_slots(spec, (), here)

    async def look(store: PostgresStore) -> AvailableSlots | None:
        # The limit stored by the leader takes precedence, because the settings here may differ from
        # its own.
        most = await store.machines_bound()
        if most is None and here is None:
            return None
        everybody = slot_claims(
            await store.services(), await store.instances(), await store.topologies(), knowledge
        )
        bound = (here or 0) if most is None else most
        return available_slots(spec, await store.machines(), bound, everybody)

    return ask_store(running, look)


def _warn(text: str) -> None:
    print(text, file=sys.stderr)


def _http_agreement(file: Path) -> tuple[str, Agreement]:
    """Return the text and the parsed agreement of an HTTP service."""
    from tidegate.agreements.document import AgreementInvalid, parse_agreement, read_text
    from tidegate.agreements.problems import DocumentProblem, lines_of_keys

    text = read_text(file, "TOML")
    agreement = parse_agreement(text, str(file))
    lines = lines_of_keys(text)
    if agreement.http is None:
        queue = "it governs a queue, and an HTTP application is to be hosted"
        complaint = DocumentProblem(
            *(str(file), lines.get(("queue",)), "queue", queue, repr(agreement.queue)),
            instead=f'http = "{agreement.name}"',
        )
        raise AgreementInvalid([complaint])
    if not _NAME.fullmatch(agreement.http):
        name = "is what commands and cookies call it: letters, digits, . _ - only, 64 at most"
        complaint = DocumentProblem(
            str(file), lines.get(("http",)), "http", name, repr(agreement.http)
        )
        raise AgreementInvalid([complaint])
    return text, agreement


def _check_balancing(engine: Engine, balancing: str) -> None:
    from random import Random

    if engine is Engine.HAPROXY:
        from tidegate.doors.haproxy.configuration import balance_of

        balance_of(balancing)
        return
    from tidegate.cli.door import parse_balancing_policy

    # Create the policy once as each door does, so that its errors are reported before anything
    # starts.
    parse_balancing_policy(balancing, Random(0))


def _check_deadline(engine: Engine, deadline_s: float | None) -> None:
    if engine is Engine.HAPROXY:
        from tidegate.doors.haproxy.configuration import check_deadline

        check_deadline(deadline_s)


def environment_of(said: Sequence[str], here: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    """Return the variables in `--env NAME=VALUE` and `--env NAME`."""
    found = {}
    for one in said:
        name, equals, value = one.partition("=")
        if not _VARIABLE.fullmatch(name):
            raise InvalidValue(f"--env {one!r} is no NAME=VALUE, nor a NAME")
        if not equals:
            if name not in here:
                raise InvalidValue(f"--env {name}: it is not set here; give --env {name}=VALUE")
            value = here[name]
        if "\0" in value:
            raise InvalidValue(f"--env {name}: a value cannot hold a NUL")
        found[name] = value
    return found


# A check that an application can be hosted, before anything starts.


# Some applications load models at import.
IMPORT_S_MAX = 60.0
_ANSWER_BYTES_MAX = 1 << 16


def check_application(
    target: str, folder: Path, environment: Mapping[str, str], *, code: Path | None = None
) -> None:
    """Raise `InvalidValue` if the target does not import, or is not an ASGI application.

    `code` is a wheel or a folder that comes before `folder` on the import path.
    """
    heard, told = os.pipe()
    # As for an instance, the folder comes after the standard library on the import path (-P).
    # Otherwise a file named like a standard module would replace that module in this check only.
    command = [sys.executable, "-P", "-m", "tidegate.cli.application_probe", target, str(told)]
    if code is not None:
        command.append(str(code))
    try:
        probe = subprocess.Popen(
            command,
            env=without_stores(os.environ) | dict(environment),
            cwd=folder,
            pass_fds=(told,),
            stdin=subprocess.DEVNULL,
            # Output of the application is not shown; its errors are.
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as failure:
        os.close(heard)
        raise InvalidValue(f"{target} cannot be tried in {folder}: {failure}") from None
    finally:
        os.close(told)
    try:
        answer = _heard(heard)
    finally:
        os.close(heard)
        # Kill all processes of the probe's group, because an import may start processes.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(probe.pid, signal.SIGKILL)
        code_at_end = probe.wait()
    if answer is None:
        raise InvalidValue(f"{target!r} is not imported after {IMPORT_S_MAX:g} s")
    if not answer:
        raise InvalidValue(
            f"importing {target!r} ended the process (exit code {code_at_end}) before it was done"
        )
    if wrong := msgspec.json.decode(answer)["wrong"]:
        raise InvalidValue(escape_control_characters(wrong))


def _heard(descriptor: int) -> bytes | None:
    """Return the answer of the probe; None after IMPORT_S_MAX."""
    parts: list[bytes] = []
    deadline = time.monotonic() + IMPORT_S_MAX
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
            return None
        part = os.read(descriptor, _ANSWER_BYTES_MAX)
        parts.append(part)
        # A forked process may hold the pipe open, so the end of the line ends the answer.
        if not part or part.endswith(b"\n"):
            return b"".join(parts)
