"""`tidegate worker module:app`: run the workers of an application until told to stop."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.asking import duration_option, without_password
from tidegate.cli.logs import set_up_logs
from tidegate.cli.reloading import end_with_parent, run_again_on_change
from tidegate.cli.serving import ConfigOption
from tidegate.cli.settings import load_settings
from tidegate.core.errors import InvalidValue

if TYPE_CHECKING:
    from types import ModuleType

    from tidegate.client.app import App

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
            envvar="TIDEGATE_URL",
            callback=without_password,
            help="Node to talk to [default: as the app says]",
        ),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Run workers until SIGTERM or Ctrl-C, then finish what runs; a second one hurries."""
    settings = load_settings(config, os.environ)
    set_up_logs(settings.log.level, settings.log.format)
    if reload:
        raise typer.Exit(run_again_on_change(Path.cwd(), drain))
    end_with_parent()
    app = load_app(target)
    chosen = None if queues is None else [name.strip() for name in queues.split(",")]
    app.run(queues=chosen, concurrency=concurrency, prefetch=prefetch, drain_s=drain, url=url)


def load_app(target: str) -> App:
    """The App that `module:app` names; an error says what was tried."""
    from tidegate.client.app import App

    module_name, _, path = target.partition(":")
    path = path or _DEFAULT_NAME
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise InvalidValue(f"{target!r} is no MODULE:APP, such as shop:app or shop.workers:app")
    module = _imported(module_name)
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
    raise InvalidValue(f"{path!r} in {where} is a {type(found).__name__}, no tidegate.App; {there}")


def _imported(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        # As python itself does: what lies here can be named.
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as failure:
        missing = failure.name or ""
        if module_name == missing or module_name.startswith(missing + "."):
            raise InvalidValue(
                f"no module {module_name!r}: looked in {here} and where Python finds packages"
            ) from None
        traceback.print_exc()
        raise InvalidValue(
            f"{module_name!r} was found, but imports {missing!r}, which is not installed"
        ) from None
    except Exception as failure:
        traceback.print_exc()
        raise InvalidValue(
            f"{module_name!r} fails when imported: {type(failure).__name__}: {failure}"
        ) from None
