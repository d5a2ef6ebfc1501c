"""What commands that measure have in common.

Progress goes to stderr, the report to stdout. What only measurements need is imported when a
command needs it; a part of the `lab` extra that is missing is said in a sentence.
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
    """What every measurement returns."""

    def as_json(self) -> Any: ...


class QuickOptions(Protocol):
    """Options of a measurement that can be made quickly too."""

    def __init__(self) -> None: ...

    @classmethod
    def quick(cls) -> Self: ...


Options = TypeVar("Options", bound=QuickOptions)
Measurement = TypeVar("Measurement", bound=Report)


class LabMissing(TidegateError):
    """A package that only measurements need is not installed."""

    name = "LAB_MISSING"


class MeasurementFailed(TidegateError):
    """A measurement did not come to its end; its own words, in as many lines as it took."""

    name = "MEASUREMENT_FAILED"


@contextlib.contextmanager
def with_the_lab() -> Iterator[None]:
    """Where the lab is imported and used."""
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
        # Servers and children that fail are the lab's own errors; any other is a bug to see.
        if not type(failure).__module__.startswith("tidegate.lab"):
            raise
        raise MeasurementFailed(str(failure)) from None


def say(line: str) -> None:
    """Progress."""
    print(line, file=sys.stderr, flush=True)


def names_in(text: str) -> list[str]:
    """Names that were given in one option, separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def changed(options: Any, **given: Any) -> Any:
    """The options with what was given on the command line."""
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
    """Run it with its usual options or its quick ones, and with what was given on top."""
    options = kind.quick() if quick else kind()
    return run(changed(options, **given), say)


def show(
    report: Report, render: Callable[[Any, Console], None], *, as_json: bool, good: bool
) -> None:
    """Print the report; exit code FAILED when it is not good."""
    output = Output(as_json)
    if as_json:
        output.json(report.as_json())
    else:
        render(report, output.report_console())
    if not good:
        raise typer.Exit(FAILED)
