"""The command `tidegate tune prefetch URL`: measure a consumer and design its controller."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tidegate.cli.command_line import NotWritten
from tidegate.cli.options import duration_option, some_duration_s, without_password
from tidegate.cli.output import (
    JsonOption,
    Output,
    print_progress,
    terminated_like_interrupted,
    undisturbed,
)
from tidegate.cli.worker import load_app
from tidegate.client.address import SCHEME, SCHEME_TLS, redact_url
from tidegate.core.errors import InvalidValue, TidegateError
from tidegate.core.prefetch import PROBE_BYTES_MAX, ControllerKind, PrefetchGoal, parse_part
from tidegate.core.text import (
    format_duration,
    format_size,
    parse_rate_per_s,
    parse_size_bytes,
    seconds,
)
from tidegate.tuning import (
    EXCITED_SAMPLES,
    EXCITED_SAMPLES_MIN,
    ExperimentOrigin,
    TuningGoal,
    sweep_samples,
)

if TYPE_CHECKING:
    from tidegate.client.app import App
    from tidegate.core.prefetch import TunableConsumer
    from tidegate.tuning.experiment import TuningResult

Result = TypeVar("Result")

tune = typer.Typer(help="Measure running consumers, and design controllers for them.")

PICTURES = (".png", ".svg", ".pdf")
# The time limit for restoring the consumer's state.
CLOSE_S_MAX = 10.0
# Long enough for a queue to change its owner, and short enough for a person to wait for a dead
# node.
PATIENCE_S = 6.0


class TuneMissing(TidegateError):
    """A package that only tuning needs is not installed."""

    name = "TUNE_MISSING"


def register(app: typer.Typer) -> None:
    app.add_typer(tune, name="tune")


@tune.callback()
def _group() -> None: ...


def rate_per_s(text: str | float) -> float:
    """Return the rate of an option, per second."""
    try:
        return parse_rate_per_s(str(text))
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None


def fraction(text: str | float) -> float:
    """Return the fraction of an option such as `5%`."""
    try:
        return parse_part(str(text))
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None


def size_bytes(text: str | int) -> int:
    """Return the size of an option, in bytes."""
    try:
        return parse_size_bytes(text)
    except InvalidValue as wrong:
        raise typer.BadParameter(str(wrong)) from None


@tune.command("prefetch")
def prefetch(
    url: Annotated[
        str,
        typer.Argument(
            envvar="TIDEGATE_URL",
            callback=without_password,
            help="URL of the broker: amqp://host/vhost or tidegate://host:port.",
        ),
    ],
    queue: Annotated[
        str, typer.Option("--queue", "-q", help="The queue whose consumers are measured.")
    ],
    target: Annotated[
        float,
        typer.Option(
            parser=rate_per_s,
            metavar="RATE",
            help="Rate at which messages are to arrive at one consumer, such as 400/s.",
        ),
    ],
    settle: Annotated[
        float,
        duration_option(
            "Time in which the rate is to come within 2 % of the target. [default: 30s]",
            some_duration_s,
        ),
    ] = 30.0,
    overshoot: Annotated[
        float,
        typer.Option(
            parser=fraction,
            metavar="PART",
            show_default=False,
            help="Largest overshoot of the rate above the target. [default: 5%]",
        ),
    ] = 0.05,
    kind: Annotated[
        ControllerKind, typer.Option(help="The kind of the controller.")
    ] = ControllerKind.PI,
    low: Annotated[int, typer.Option("--from", min=1, help="The smallest prefetch.")] = 1,
    high: Annotated[int, typer.Option("--to", min=1, help="The largest prefetch.")] = 360,
    sample: Annotated[
        float,
        duration_option("Sampling interval of the control loop. [default: 1s]", some_duration_s),
    ] = 1.0,
    duration: Annotated[
        float | None,
        duration_option(
            "Duration of the experiment. [default: about 110 samples]", some_duration_s
        ),
    ] = None,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:APP",
            help="Run the handlers of this application on the real messages of the queue.",
        ),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe", help="Use Tidegate's probe consumer even if the queue has consumers."
        ),
    ] = False,
    handler_time: Annotated[
        float, duration_option("Time that the probe takes for each message. [default: 1ms]")
    ] = 0.001,
    size: Annotated[
        int | None,
        typer.Option(
            parser=size_bytes,
            metavar="SIZE",
            help="Size of the probe's messages. [default: the size of the queue's "
            "messages, or 256B]",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw the open loop, the fit and the predicted step to this file (.png, "
            ".svg or .pdf)."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the model to this file. [default: QUEUE.model.json]")
    ] = None,
    apply: Annotated[
        bool,
        typer.Option(
            "--apply", help="Let the nodes control the queue's consumers with this model."
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Measure how prefetch drives a consumer's rate, and design a controller. Needs tidegate[tune].

    With --worker your own handlers are measured. On tidegate:// the consumers of the queue are
    measured, and their prefetch is restored afterwards. Otherwise a probe is measured on a queue of
    its own, which touches none of your messages.

    Example: `tidegate tune prefetch tidegate://localhost -q orders --target 400/s --plot
    orders.png`
    """
    out = out or Path(f"{queue.replace('/', '-')}.model.json")
    _check_files(plot, out)
    is_native = url.startswith((SCHEME, SCHEME_TLS))
    if not is_native and not url.startswith(("amqp://", "amqps://")):
        raise InvalidValue(
            f"{redact_url(url)} is neither amqp://host/vhost nor tidegate://host:port"
        )
    output = Output(json)
    wish = _goal(
        duration,
        target_per_s=target,
        settle_s=settle,
        overshoot=overshoot,
        kind=kind,
        low=low,
        high=high,
        sample_s=sample,
    )
    if apply and not is_native:
        raise typer.BadParameter(
            "nodes steer consumers on tidegate:// only. On RabbitMQ the worker does: "
            + usage(queue, wish, out),
            param_hint="--apply",
        )
    _check_probe(handler_time, size, sample)
    _check_packages(is_native)
    app = None if worker is None else load_app(worker)

    def consumer() -> contextlib.AbstractAsyncContextManager[TunableConsumer]:
        if app is not None:
            return _own_worker(app, url, queue)
        if is_native:
            return _on_node(url, queue, probe, handler_time, size)
        return _on_rabbitmq(url, queue, handler_time, size)

    async def experiment(heard: Callable[..., None]) -> TuningResult:
        async with _telling_what_is_left(consumer()) as found:
            # The import takes seconds, so it happens only after the connection exists.
            from tidegate.tuning.experiment import TuningRefused
            from tidegate.tuning.experiment import tune as run
            from tidegate.tuning.figure import draw_tuning

            print_progress(f"measuring {found.description}")
            about = ExperimentOrigin("tidegate" if is_native else "rabbitmq", queue, time.time())
            try:
                tuned = await run(found, wish, heard, about)
            except TuningRefused as refused:
                if plot is not None and refused.record is not None and refused.record.open_loop:
                    draw_tuning(plot, queue, wish, refused.record, None)
                    print_progress(f"{plot}: what was measured until then")
                raise
        tuned.model.save(out)
        if plot is not None:
            draw_tuning(plot, queue, wish, tuned.record, tuned)
        return tuned

    begun_at = time.monotonic()
    with terminated_like_interrupted():
        with progress(sweep_samples(low, high) + wish.excited_samples) as heard:
            tuned = run_on_worker_loop(experiment(heard))
        if apply:
            run_on_worker_loop(_apply(url, queue, wish, tuned))
    if json:
        output.json(tuning_json(tuned))
        return
    print_tuning(output, wish, tuned)
    files = f"{out}" if plot is None else f"{out}, {plot}"
    output.line(f"files       {files} in {seconds(time.monotonic() - begun_at)}")
    if apply:
        output.line(f"applied     the nodes steer the consumers of {queue} from now on")
    else:
        output.line(f"to use it   {usage(queue, wish, out)}")


def _goal(
    duration_s: float | None, *, low: int, high: int, sample_s: float, **asked: Any
) -> TuningGoal:
    """Return the goal of the tuning, with as many samples as the duration allows."""
    swept = sweep_samples(low, max(low, high))
    excited = EXCITED_SAMPLES if duration_s is None else int(duration_s / sample_s) - swept
    if duration_s is not None and excited < EXCITED_SAMPLES_MIN:
        needed = format_duration(math.ceil((swept + EXCITED_SAMPLES_MIN) * sample_s))
        raise typer.BadParameter(
            f"too short for some {swept} samples of a sweep and {EXCITED_SAMPLES_MIN} of "
            f"excitation: give {needed}, or a shorter --sample",
            param_hint="--duration",
        )
    return TuningGoal(low=low, high=high, sample_s=sample_s, excited_samples=excited, **asked)


def run_on_worker_loop(work: Coroutine[Any, Any, Result]) -> Result:
    """Run on the event loop that workers use, so that measured rates match."""
    from tidegate.client.blocking import new_event_loop

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work)


def usage(queue: str, wish: TuningGoal, out: Path) -> str:
    """Return a line of Python that uses the model file."""
    goal, plain = wish.goal(), PrefetchGoal()
    said = [
        f"{name}={getattr(goal, name)!r}"
        for name in ("rate_per_s", "settle_s", "overshoot", "sample_s", "low", "high")
        if getattr(goal, name) != getattr(plain, name)
    ]
    if goal.controller is not plain.controller:
        said.append(f"controller=tidegate.ControllerKind.{goal.controller}")
    return (
        f'@app.worker("{queue}", prefetch=tidegate.PrefetchGoal({", ".join(said)}, '
        f'model=tidegate.PrefetchModel.load("{out}")))'
    )


def print_tuning(output: Output, wish: TuningGoal, tuned: TuningResult) -> None:
    """Print the result line by line."""
    from tidegate.tuning.result import format_poles as shown_poles

    model, controller = tuned.model, tuned.model.controller
    ceiling = (
        f"; {model.ceiling_per_s:.0f} msg/s is the most"
        if model.ceiling_per_s == model.ceiling_per_s
        else ""
    )
    for name, text in (
        ("measured", model.measured_on),
        ("line", f"from prefetch {model.low} to {model.high}{ceiling}"),
        (
            "model",
            f"y(k+1) = {model.a:.4g}·y(k) + {model.b:.4g}·u(k) {model.offset_per_s:+.4g}, samples "
            f"of {format_duration(model.sample_s)}; ± {model.a_error:.2g} of a, "
            f"{model.b_error:.2g} of b",
        ),
        (
            "held out",
            f"R² {model.r2_test:.3f}, RMSE {model.rmse_test_per_s:.1f} msg/s of {model.n_test} "
            f"samples (fitted: R² {model.r2_train:.3f}, RMSE {model.rmse_train_per_s:.1f} of "
            f"{model.n_train})",
        ),
        ("controller", f"{controller.kind}: {tuned.loop.gains}"),
        ("poles", f"{shown_poles(tuned.loop.poles)}; damping {controller.damping:.2f}"),
        (
            "predicted",
            f"{wish.target_per_s:g} msg/s within {seconds(controller.settle_s)}, "
            f"{controller.overshoot:.1%} overshoot"
            + (f", {controller.offset:.1%} of it never" if controller.offset else ""),
        ),
        *(("note", note) for note in model.notes),
    ):
        output.line(f"{name:<11} {text}")


def tuning_json(tuned: TuningResult) -> dict[str, Any]:
    """Return the model file and the open-loop measurements."""
    return {"model": tuned.model, "open_loop": tuned.record.open_loop}


def _check_files(plot: Path | None, out: Path) -> None:
    """Check the output files before an experiment of two minutes."""
    if plot is not None and plot.suffix.lower() not in PICTURES:
        raise typer.BadParameter(
            f"{plot} is no picture: end it in {', '.join(PICTURES)}", param_hint="--plot"
        )
    for name, file in (("--plot", plot), ("--out", out)):
        if file is not None and not file.parent.is_dir():
            raise NotWritten(f"{name}: there is no folder {file.parent}")


def _check_probe(handler_time_s: float, size: int | None, sample_s: float) -> None:
    """Check that the probe's handler time fits a sample, and its messages fit a broker."""
    if handler_time_s >= sample_s:
        raise typer.BadParameter(
            f"{format_duration(handler_time_s)} for each message leave none for a sample of "
            f"{format_duration(sample_s)}: give less, or a longer --sample",
            param_hint="--handler-time",
        )
    if size is not None and size > PROBE_BYTES_MAX:
        raise typer.BadParameter(
            f"some thousand messages of {format_size(size)} would fill the broker: "
            f"{format_size(PROBE_BYTES_MAX)} at most; --worker measures with your own",
            param_hint="--size",
        )


def _check_packages(is_native: bool) -> None:
    """Check for missing packages without importing them, before any connection."""
    needed = [("tune", name) for name in ("control", "matplotlib", "numpy", "scipy")]
    if not is_native:
        needed.append(("rabbitmq", "aio_pika"))
        for library in ("aio_pika", "aiormq"):
            # This command reports connection errors itself.
            logging.getLogger(library).addHandler(logging.NullHandler())
    for extra, name in needed:
        if importlib.util.find_spec(name) is None:
            raise TuneMissing(f"this needs the package {name}: pip install 'tidegate[{extra}]'")


@contextlib.contextmanager
def progress(samples: int) -> Iterator[Callable[..., None]]:
    """Provide a progress bar on a terminal, and one line per phase elsewhere."""
    console = Console(stderr=True)
    if not console.is_terminal:
        parts: set[str] = set()

        def told(phase: str, prefetch: int, rate: float) -> None:
            if phase not in parts:
                parts.add(phase)
                print_progress(f"{phase}, from prefetch {prefetch}")

        yield told
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task("connecting", total=samples)

        def drawn(phase: str, prefetch: int, rate: float) -> None:
            bar.update(
                task, advance=1, description=f"{phase:<8} prefetch {prefetch:>3}: {rate:5.0f} msg/s"
            )

        yield drawn


# ---- the consumer


@contextlib.asynccontextmanager
async def _left_as_it_was(consumer: TunableConsumer) -> AsyncIterator[TunableConsumer]:
    """Close the consumer at the end, also after Ctrl-C, so that its state is restored."""
    try:
        yield consumer
    finally:
        with undisturbed():
            await asyncio.wait_for(consumer.close(), CLOSE_S_MAX)


@contextlib.asynccontextmanager
async def _telling_what_is_left(
    found: contextlib.AbstractAsyncContextManager[TunableConsumer],
) -> AsyncIterator[TunableConsumer]:
    """Print the state of the queue if the experiment is interrupted."""
    leaves = ""
    try:
        async with found as consumer:
            leaves = consumer.restored_text
            yield consumer
    except asyncio.CancelledError:
        print_progress(f"stopped, and nothing was designed: {leaves or 'nothing was touched yet'}")
        raise


@contextlib.asynccontextmanager
async def _on_node(
    url: str, queue: str, wants_probe: bool, handler_time_s: float, size: int | None
) -> AsyncIterator[TunableConsumer]:
    from tidegate.client.connect import connect
    from tidegate.engines.native.prefetch import ExistingConsumers, NoConsumers, native_probe
    from tidegate.tuning.experiment import TuningRefused

    async with connect(url, mode="admin", reconnect_s=PATIENCE_S) as client:
        found: TunableConsumer | None = None
        if not wants_probe:
            try:
                found = await ExistingConsumers.find(client, queue)
            except NoConsumers:
                pass
            except InvalidValue as standing:
                # Another client controls their prefetch at present. That is a refusal and not a
                # wrong argument.
                raise TuningRefused(str(standing)) from None
        if found is None:
            found = await native_probe(client, queue, handler_s=handler_time_s, size_bytes=size)
        async with _left_as_it_was(found):
            yield found


@contextlib.asynccontextmanager
async def _on_rabbitmq(
    url: str, queue: str, handler_time_s: float, size: int | None
) -> AsyncIterator[TunableConsumer]:
    from tidegate.engines.rabbitmq.management import rabbitmq_probe

    found = await rabbitmq_probe(url, queue, handler_s=handler_time_s, size_bytes=size)
    async with _left_as_it_was(found):
        yield found


@contextlib.asynccontextmanager
async def _own_worker(app: App, url: str, queue: str) -> AsyncIterator[TunableConsumer]:
    from tidegate.tuning.result import user_worker

    async with user_worker(app, url, queue) as found:
        yield found


async def _apply(url: str, queue: str, wish: TuningGoal, tuned: TuningResult) -> None:
    from tidegate.client.connect import connect

    async with connect(url, mode="admin", reconnect_s=PATIENCE_S) as client:
        await client.set_policy(queue, prefetch=wish.goal(tuned.model.plain()))
