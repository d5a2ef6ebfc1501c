"""The command `tidegate worker module:app`: run the workers of an application."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.options import ConfigOption, duration_option, some_duration_s, without_password
from tidegate.cli.output import set_up_logs
from tidegate.cli.settings import load_settings
from tidegate.client.connect import URL_VARIABLE
from tidegate.client.worker import EXIT_MESSAGE_S
from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.core.runtime import user_module
from tidegate.core.text import parse_rate_per_s
from tidegate.fleet.packages import walk_code
from tidegate.fleet.process import ReadyPipe, end_with_parent
from tidegate.fleet.processes import ProcessSpec, SupervisedProcess

if TYPE_CHECKING:
    from tidegate.client.app import App
    from tidegate.client.handler import Prefetch
    from tidegate.client.prefetch import PrefetchStep

log = logging.getLogger(__name__)


_STEERED = "A prefetch that sets itself"
_DEFAULT_NAME = "app"


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", help="Module and name of the tidegate.App, such as shop:app."
        ),
    ],
    queues: Annotated[
        str | None,
        typer.Option(
            help="Run the workers of these queues only, separated by commas. [default: "
            "all queues of the app]"
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of messages of each queue that are processed at a time. "
            "[default: set by the app]",
        ),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of messages of each queue that the worker holds. "
            "[default: twice the concurrency]",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="RATE",
            rich_help_panel=_STEERED,
            help="Control the prefetch so that messages of each queue arrive at this "
            "rate, such as 400/s.",
        ),
    ] = None,
    keep_up: Annotated[
        bool,
        typer.Option(
            "--keep-up",
            rich_help_panel=_STEERED,
            help="Control the prefetch so that the handlers stay busy with few messages "
            "in reserve.",
        ),
    ] = False,
    prefetch_model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_STEERED,
            help="Model of the consumer, as a file of `tidegate tune prefetch`.",
        ),
    ] = None,
    settle: Annotated[
        float | None,
        duration_option(
            "Time in which the rate is to reach the target. [default: 30s]", some_duration_s
        ),
    ] = None,
    telemetry: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=_STEERED,
            help="Record every decision about the prefetch in this lake.",
        ),
    ] = None,
    drain: Annotated[
        float,
        duration_option("Time that running handlers have to finish after SIGTERM. [default: 30s]"),
    ] = 30.0,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart when a Python file in the working folder changes."),
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar=URL_VARIABLE,
            callback=without_password,
            help="URL of the node. [default: set by the app]",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run workers until SIGTERM or Ctrl-C, then finish running handlers; a second signal ends them.

    --drain limits how long running handlers may take.

    Example: `tidegate worker shop:app --queues orders --concurrency 8`
    """
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    if reload:
        raise typer.Exit(run_again_on_change(Path.cwd(), drain))
    end_with_parent(patience_s=drain + EXIT_MESSAGE_S)
    ready = ReadyPipe()
    app = load_app(target)
    ready.report("imported")
    chosen = None if queues is None else [name.strip() for name in queues.split(",")]
    with recorded(app, telemetry):
        app.run(
            queues=chosen,
            concurrency=concurrency,
            prefetch=prefetch_of(prefetch, rate, keep_up, prefetch_model, settle),
            drain_s=drain,
            url=url,
        )
    if app.has_cut_off:
        # A normal exit would join the handler threads, whose messages are already with other
        # consumers.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def prefetch_of(
    prefetch: int | None,
    target: str | None,
    keep_up: bool,
    model_file: Path | None,
    settle_s: float | None,
) -> Prefetch:
    """Return the prefetch in the options; None means that of the application."""
    if (prefetch is not None) + (target is not None) + keep_up > 1:
        raise InvalidValue("--prefetch N, --target RATE and --keep-up: one of them")
    model = None if model_file is None else PrefetchModel.load(model_file)
    if target is None and not keep_up:
        if settle_s is not None:
            raise InvalidValue("--settle is for a goal: say --target RATE or --keep-up as well")
        if prefetch is not None and model is not None:
            raise InvalidValue("--prefetch N stays as it is, and needs no --prefetch-model")
        # A model without a goal applies to the application's goals, or to keep-up if it has none.
        return prefetch if model is None else model
    rate_per_s = None if target is None else parse_rate_per_s(target)
    goal = PrefetchGoal(rate_per_s=rate_per_s, model=model)
    if settle_s is not None:
        goal = msgspec.structs.replace(goal, settle_s=settle_s)
    goal.check()
    return goal


def load_app(target: str) -> App:
    """Return the App that `module:app` names; raise `InvalidValue` with what was found instead."""
    from tidegate.client.app import App

    module_name, _, path = target.partition(":")
    path = path or _DEFAULT_NAME
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise InvalidValue(f"{target!r} is no MODULE:APP, such as shop:app or shop.workers:app")
    module = user_module(module_name)
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if isinstance(found, App):
        return found
    where = f"{module_name} ({getattr(module, '__file__', None) or 'no file'})"
    apps = [name for name, value in vars(module).items() if isinstance(value, App)]
    there = f"there is {module_name}:{apps[0]}" if apps else "no tidegate.App is in it"
    if found is None:
        raise InvalidValue(f"{where} has no {path!r}; {there}")
    raise InvalidValue(
        f"{path!r} in {where} is of type {type(found).__name__}, no tidegate.App; {there}"
    )


@contextlib.contextmanager
def recorded(app: App, folder: Path | None) -> Iterator[None]:
    """Record each prefetch step in this context to the lake in `folder`; None records nothing."""
    if folder is None:
        yield
        return
    # Imported here, so that a worker that does not record starts faster.
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    # The nodes delete old hours of a shared lake, so this recorder keeps all hours.
    recorder = Recorder(RecorderOptions(lake=str(folder), retention_s=0.0))
    recorder.start(f"worker-{socket.gethostname()}-{os.getpid()}")

    @app.on_prefetch_step
    def record(step: PrefetchStep) -> None:
        decision = step.explained()
        recorder.decision(
            decision.loop,
            decision.service,
            decision.law,
            # The loop's monotonic clock has no meaning for other processes.
            at_s=time.time(),
            inputs=decision.inputs,
            outputs=decision.outputs,
            action=f"prefetch {step.prefetch}" if decision.rule == "automatic" else decision.rule,
            reason=decision.reason,
        )

    try:
        yield
    finally:
        recorder.stop()


# The restart of a command whenever a source file changes, for development.
#
# This process watches the files, and a child process runs the command. A change sends SIGTERM to
# the child, which finishes its work with the old code; then a new child starts. A child that ends
# by itself is restarted at the next change, which probably mends it. The watch compares
# modification times twice a second, which takes a millisecond for a thousand files.


_POLL_S = 0.5
# The time a child needs to stop in addition to its drain, for hooks and disconnecting.
_EXIT_S = 10.0


class Sources:
    """The Python files below a folder, with their modification times."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._poll()

    def changed(self) -> list[str]:
        """Return the files that were added, removed or changed since the previous call."""
        before, self._seen = self._seen, self._poll()
        return sorted({path for path, _ in before.items() ^ self._seen.items()})

    def _poll(self) -> dict[str, int]:
        seen: dict[str, int] = {}
        for path in python_files(self._folder):
            try:
                seen[str(path)] = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue  # deleted meanwhile
        return seen


def run_again_on_change(folder: Path, drain_s: float) -> int:
    """Run this command without `--reload`, again after each change; return the last exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--reload"]
    child = SupervisedProcess(
        ProcessSpec(
            name="the worker",
            command=[sys.executable, "-m", "tidegate", *arguments],
            environment=os.environ,
            stop_s=drain_s + _EXIT_S,
        )
    )
    sources = Sources(folder)
    asked: list[int] = []

    def stop(number: int, _: object) -> None:
        if asked:
            child.terminate()
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    log.info("watching", extra={"folder": str(folder)})
    child.start()
    try:
        while not asked:
            time.sleep(_POLL_S)
            if changed := sources.changed():
                log.info("changed: starting again", extra={"files": ", ".join(changed[:5])})
                child.terminate()
                child.wait()
                if not asked:
                    child.start()
    finally:
        child.terminate()
        child.wait()
    return child.exit_code or 0


# The Python files below a folder, without those of installed packages.


# Applications are smaller, so more files mean that the folder is wrong.
FILES_MAX = 10_000


def python_files(folder: Path) -> Iterator[Path]:
    """Yield each Python file below the folder once."""
    for here, _, files in walk_code(folder):
        for name in files:
            if name.endswith(".py"):
                yield here / name


def revision_of(folder: Path) -> str:
    """Return a hash of the code below a folder, so that changed code has another revision."""
    files = []
    for file in python_files(folder):
        files.append(file)
        if len(files) > FILES_MAX:
            raise InvalidValue(
                f"there are more than {FILES_MAX} Python files below {folder}: run this in the "
                "folder of the application, or name it with --ship"
            )
    digest = hashlib.sha256()
    for file in sorted(files):
        try:
            content = file.read_bytes()
        except OSError:
            continue  # deleted meanwhile, or not readable
        name = str(file.relative_to(folder)).encode(errors="surrogateescape")
        digest.update(b"%d %s %d " % (len(name), name, len(content)))
        digest.update(content)
    return digest.hexdigest()
