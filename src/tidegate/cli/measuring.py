"""Helpers for commands that measure.

Progress goes to stderr and the report to stdout. Packages that only measurements need are imported
when a command needs them. If a package of the `lab` extra is missing, the command names it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Protocol, Self, TypeVar

import typer
from rich.console import Console

from tidegate.cli.exit_codes import FAILED
from tidegate.cli.interruption import terminated_like_interrupted
from tidegate.cli.output import Output
from tidegate.core.errors import TidegateError

QuickOption = Annotated[
    bool, typer.Option("--quick", help="Show that it works; no figures to quote.")
]


class Report(Protocol):
    """The result of a measurement."""

    def as_json(self) -> Any: ...


class QuickOptions(Protocol):
    """Options of a measurement that also has a quick variant."""

    def __init__(self) -> None: ...

    @classmethod
    def quick(cls) -> Self: ...


Options = TypeVar("Options", bound=QuickOptions)
Measurement = TypeVar("Measurement", bound=Report)


class LabMissing(TidegateError):
    """A package that only measurements need is not installed."""

    name = "LAB_MISSING"


class MeasurementFailed(TidegateError):
    """A measurement failed; the text may have several lines."""

    name = "MEASUREMENT_FAILED"


@contextlib.contextmanager
def with_the_lab() -> Iterator[None]:
    """Report missing packages and failed measurements in this context as Tidegate errors."""
    try:
        with terminated_like_interrupted():
            yield
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.startswith("tidegate"):
            raise
        raise LabMissing(
            f"this needs the package {missing.name}: pip install 'tidegate[lab]'"
        ) from None
    except (RuntimeError, AssertionError) as failure:
        # Errors of the lab's own servers and child processes are expected failures. Any other error
        # is a bug, and needs its traceback.
        if not type(failure).__module__.startswith("tidegate.lab"):
            raise
        raise MeasurementFailed(str(failure)) from None


def say(line: str) -> None:
    """Print a line of progress to stderr."""
    print(line, file=sys.stderr, flush=True)


def names_in(text: str) -> list[str]:
    """Return the names in a comma-separated option."""
    return [name.strip() for name in text.split(",") if name.strip()]


def changed(options: Any, **given: Any) -> Any:
    """Return the options, with the values from the command line that are not None."""
    import msgspec

    return msgspec.structs.replace(
        options, **{name: value for name, value in given.items() if value is not None}
    )


def measured(
    run: Callable[[Options, Callable[[str], None]], Measurement],
    kind: type[Options],
    *,
    quick: bool,
    **given: Any,
) -> Measurement:
    """Run a measurement with its default or quick options, changed by the given values."""
    options = kind.quick() if quick else kind()
    return run(changed(options, **given), say)


def show(
    report: Report, render: Callable[[Any, Console], None], *, as_json: bool, good: bool
) -> None:
    """Print the report; exit with FAILED if the result is not `good`."""
    output = Output(as_json)
    if as_json:
        output.json(report.as_json())
    else:
        render(report, output.report_console())
    if not good:
        raise typer.Exit(FAILED)
