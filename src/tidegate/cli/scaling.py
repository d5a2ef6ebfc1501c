"""The commands `scale` and `queue set`: change how a queue is spread over replicas at run time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.queue_setting import set_queue
from tidegate.cli.queues import QueueArgument
from tidegate.cli.rescaling import change_scaling, topology_of
from tidegate.cli.scaling_end import end_scaling
from tidegate.cli.scaling_options import (
    AgreementOption,
    AnyKeyOption,
    MaxLoadOption,
    MaxWaitOption,
    MinLoadOption,
    PolicyOption,
    RecommendOnlyOption,
    assignments,
)
from tidegate.cli.scaling_view import show_scaling
from tidegate.cli.settings.reader import load_settings
from tidegate.cli.settings_options import ConfigOption
from tidegate.core.errors import InvalidValue
from tidegate.core.scaling import Scaling, Steering

if TYPE_CHECKING:
    from tidegate.client.client import Client
    from tidegate.core.replication import Topology


def register(app: typer.Typer) -> None:
    app.command("scale")(scale)
    queue = typer.Typer(no_args_is_help=True, help="Change a queue while everything runs.")
    queue.command("set")(set_queue)
    app.add_typer(queue, name="queue")


def scale(
    queue: QueueArgument,
    least: Annotated[int | None, typer.Option("--min", help="Replicas at least.")] = None,
    most: Annotated[int | None, typer.Option("--max", help="Replicas at most.")] = None,
    policy: PolicyOption = None,
    agreement: AgreementOption = None,
    max_wait: MaxWaitOption = None,
    min_load: MinLoadOption = None,
    max_load: MaxLoadOption = None,
    worker: Annotated[
        str | None, typer.Option(metavar="MODULE:APP", help="What its workers run.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="Replicas that a machine has room for.")] = None,
    warm: Annotated[str | None, typer.Option(help="Machines kept warm, or none: NPP.")] = None,
    settings: AnyKeyOption = None,
    to: Annotated[
        int | None, typer.Option(min=0, help="So many from now on, whatever the law says.")
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Let the law decide again.")] = False,
    recommend_only: RecommendOnlyOption = False,
    from_settings: Annotated[
        bool,
        typer.Option(
            "--from-settings", help="As [queues.QUEUE] of the settings says, and no more."
        ),
    ] = False,
    config: ConfigOption = None,
    off: Annotated[
        bool, typer.Option("--off", help="Drain every replica, then be a plain queue again.")
    ] = False,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Show how a queue scales; with options, change that while the cluster runs.

    The first change makes a plain queue a logical queue with replicas. --to sets a number of
    replicas by hand until --auto. --off drains all replicas and waits until the queue is a plain
    one again.

    Example: `tidegate scale orders --min 1 --max 8 --max-wait 5s`
    """
    output = Output(json)
    named = {
        "min": least,
        "max": most,
        "policy": policy,
        "agreement": agreement,
        "max_wait": max_wait,
        "worker": worker,
        "min_load": min_load,
        "max_load": max_load,
        "slots_per_machine": slots,
        "warm": warm,
    }
    changes = {key: value for key, value in named.items() if value is not None}
    changes |= assignments(settings or [])
    changes |= _steering(to, auto, recommend_only, off)
    if off and (changes or from_settings):
        raise InvalidValue("--off and settings of how it scales: one of them")
    declared = _declared(queue, config) if from_settings else None
    if off:
        ask(url, lambda mq: end_scaling(mq, queue), "read-write")
        if json:
            output.json({"queue": queue, "scaling": None})
        else:
            output.line(f"queue {queue} is a plain queue again")
        return

    async def work(mq: Client) -> Topology | None:
        if changes or declared is not None:
            await change_scaling(mq, queue, changes, declared)
        return await topology_of(mq, queue)

    found = ask(url, work, "read-write" if changes or declared is not None else "read-only")
    show_scaling(output, queue, found)


def _steering(to: int | None, auto: bool, recommend_only: bool, off: bool) -> dict[str, Any]:
    if sum((to is not None, auto, recommend_only, off)) > 1:
        raise InvalidValue("--to, --auto, --recommend-only and --off: one of them")
    if to is not None:
        return {"steering": Steering.MANUAL, "replicas_wanted": to}
    if auto:
        return {"steering": Steering.AUTO, "replicas_wanted": None}
    return {"steering": Steering.RECOMMEND} if recommend_only else {}


def _declared(queue: str, config: Path | None) -> Scaling:
    found = load_settings(config, os.environ).queues.get(queue)
    if found is None:
        raise InvalidValue(f"the settings have no section [queues.{queue}]")
    return found
