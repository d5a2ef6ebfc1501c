"""The command `tidegate worker module:app`: run the workers of an application."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.asking import duration_option, some_duration_s, without_password
from tidegate.cli.logs import set_up_logs
from tidegate.cli.reloading import run_again_on_change
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.cli.worker_telemetry import recorded
from tidegate.client.connect import URL_VARIABLE
from tidegate.client.last_exit import GOODBYE_S
from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch import PrefetchGoal, PrefetchModel
from tidegate.core.quantities import parse_rate_per_s
from tidegate.fleet.parent import end_with_parent
from tidegate.fleet.ready_pipe import ReadyPipe
from tidegate.fleet.user_module import user_module

if TYPE_CHECKING:
    from tidegate.client.app import App
    from tidegate.client.worker import Prefetch

_STEERED = "A prefetch that sets itself"
_DEFAULT_NAME = "app"


def register(app: typer.Typer) -> None:
    app.command("worker")(worker)


def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:APP", help="Where the tidegate.App is, as in shop:app.")
    ],
    queues: Annotated[
        str | None, typer.Option(help="Only these, with commas between [default: all it has]")
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Messages at a time, each queue [default: as the app says]"),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(min=1, help="Messages held, each queue [default: twice the concurrency]"),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="RATE",
            rich_help_panel=_STEERED,
            help="Set the prefetch so that this much arrives, each queue, such as 400/s.",
        ),
    ] = None,
    keep_up: Annotated[
        bool,
        typer.Option(
            "--keep-up",
            rich_help_panel=_STEERED,
            help="Set the prefetch so that what the handlers can do arrives, and no stock.",
        ),
    ] = False,
    prefetch_model: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_STEERED,
            help="How the consumer answers: a file of `tidegate tune prefetch`.",
        ),
    ] = None,
    settle: Annotated[
        float | None,
        duration_option("Until the rate is there. [default: 30s]", some_duration_s),
    ] = None,
    telemetry: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            rich_help_panel=_STEERED,
            help="A lake for every decision about the prefetch.",
        ),
    ] = None,
    drain: Annotated[
        float,
        duration_option("How long SIGTERM lets what runs finish. [default: 30s]"),
    ] = 30.0,
    reload: Annotated[
        bool, typer.Option("--reload", help="Start again when a Python file here changes.")
    ] = False,
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            envvar=URL_VARIABLE,
            callback=without_password,
            help="Node to talk to [default: as the app says]",
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
    end_with_parent(patience_s=drain + GOODBYE_S)
    ready = ReadyPipe()
    app = load_app(target)
    ready.tell("imported")
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
