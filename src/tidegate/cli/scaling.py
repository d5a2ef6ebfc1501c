"""The commands `scale` and `queue set`: change how a queue is spread over replicas at run time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.cli.command_line import NotFound
from tidegate.cli.options import (
    DEFAULT,
    NO_GOAL,
    AgreementOption,
    AnyKeyOption,
    ConfigOption,
    GoalOptions,
    MaxLoadOption,
    MaxWaitOption,
    MinLoadOption,
    PolicyOption,
    RecommendOnlyOption,
    UrlOption,
    ask,
    assignments,
    flatten_options,
    queue_key,
)
from tidegate.cli.output import Column, JsonOption, Output
from tidegate.cli.queues import QueueArgument, change_policy, parse_policy, policy_keys
from tidegate.cli.settings import load_settings
from tidegate.core.errors import ChangedMeanwhile, InvalidValue, TidegateError
from tidegate.core.prefetch import format_goal as goal_told
from tidegate.core.text import suggestion_for
from tidegate.core.topology import (
    DEFAULT_SCALING,
    KEYS,
    REPLICAS_MAX,
    ControlMode,
    Range,
    Scaling,
    ScalingPolicy,
    format_scaling_keys,
    logical_name,
    with_scaling_keys,
)

if TYPE_CHECKING:
    from tidegate.agreements.document import Agreement
    from tidegate.client.client import Client
    from tidegate.core.topology import Topology
    from tidegate.protocol.cluster import Member
    from tidegate.telemetry.stats import ConsumerStats


def register_scaling(app: typer.Typer) -> None:
    app.command("scale")(scale)
    queue = typer.Typer(no_args_is_help=True, help="Change a queue while the cluster runs.")
    queue.command("set")(set_queue)
    app.add_typer(queue, name="queue")


def scale(
    queue: QueueArgument,
    least: Annotated[int | None, typer.Option("--min", help="Smallest number of replicas.")] = None,
    most: Annotated[int | None, typer.Option("--max", help="Largest number of replicas.")] = None,
    policy: PolicyOption = None,
    agreement: AgreementOption = None,
    max_wait: MaxWaitOption = None,
    min_load: MinLoadOption = None,
    max_load: MaxLoadOption = None,
    worker: Annotated[
        str | None,
        typer.Option(metavar="MODULE:APP", help="Application that the queue's workers run."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Number of replicas that fit on one machine.")
    ] = None,
    warm: Annotated[
        str | None,
        typer.Option(
            help="Number of machines kept warm; `none` means the number of the settings "
            "or the learned one."
        ),
    ] = None,
    settings: AnyKeyOption = None,
    to: Annotated[
        int | None,
        typer.Option(min=0, help="Override the law with this number of replicas until --auto."),
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Remove the override; the law decides again.")
    ] = False,
    recommend_only: RecommendOnlyOption = False,
    from_settings: Annotated[
        bool,
        typer.Option(
            "--from-settings",
            help="Replace the queue's scaling by section [queues.QUEUE] of the settings.",
        ),
    ] = False,
    config: ConfigOption = None,
    off: Annotated[
        bool,
        typer.Option(
            "--off", help="Drain all replicas, then turn the queue back into a plain queue."
        ),
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
        return {"steering": ControlMode.MANUAL, "replicas_wanted": to}
    if auto:
        return {"steering": ControlMode.AUTO, "replicas_wanted": None}
    return {"steering": ControlMode.RECOMMEND} if recommend_only else {}


def _declared(queue: str, config: Path | None) -> Scaling:
    found = load_settings(config, os.environ).queues.get(queue)
    if found is None:
        raise InvalidValue(f"the settings have no section [queues.{queue}]")
    return found


# The command `scale --off`: a logical queue becomes a plain one when its replicas are empty.


_END_POLL_S = 0.2
# How long the rollback after Ctrl-C may take.
_TAKE_BACK_S = 3.0


async def end_scaling(mq: Client, queue: str) -> None:
    """Drain all replicas of a queue, wait until they are gone, and end its scaling.

    Ctrl-C during the wait restores the previous scaling.
    """
    topology = await topology_of(mq, queue)
    if topology is None:
        return
    key = queue_key(queue)
    if topology.replicas:
        going = with_scaling_keys(
            topology.scaling,
            {"min": 0, "steering": ControlMode.MANUAL, "replicas_wanted": 0},
        )
        before = topology.scaling
        await mq.set_scaling(key, going, before=before)
        print(f"waiting until the replicas of {queue} are empty", file=sys.stderr)
        try:
            while topology is not None and topology.replicas:
                await asyncio.sleep(_END_POLL_S)
                topology = await topology_of(mq, queue)
        except asyncio.CancelledError:
            await _take_back(mq, queue, before, going)
            raise
    # Raise `ChangedMeanwhile` if another client changed the scaling while the replicas drained.
    await mq.set_scaling(key, None, before=None if topology is None else topology.scaling)


async def _take_back(mq: Client, queue: str, before: Scaling, going: Scaling) -> None:
    """Restore the scaling after Ctrl-C; if that fails, print how to continue."""
    try:
        async with asyncio.timeout(_TAKE_BACK_S):
            # Keep a change that another client made meanwhile.
            with contextlib.suppress(ChangedMeanwhile):
                await mq.set_scaling(queue_key(queue), before, before=going)
        print(f"queue {queue} goes on scaling as it did", file=sys.stderr)
    except (TidegateError, TimeoutError):
        least = before.replicas.min
        print(
            f"the replicas of {queue} go on draining: `tidegate scale {queue} --off` waits again, "
            f"`tidegate scale {queue} --auto --min {least}` keeps them",
            file=sys.stderr,
        )


# The scaling and the replicas of a queue as tables or JSON.


_COLUMNS = [Column("scaling", style="bold"), Column("value"), Column("default", spare=True)]
_REPLICAS = [
    Column("replica", style="bold"),
    Column("state"),
    Column("share", shown=lambda share: f"{100 * share:.1f} %", right=True),
    Column("machine", right=True),
    Column("served by"),
    Column("store", right=True, spare=True),
]


def show_scaling(output: Output, queue: str, topology: Topology | None) -> None:
    if output.as_json:
        document = None if topology is None else format_scaling_keys(topology.scaling)
        replicas = [] if topology is None else [_replica_json(one) for one in topology.replicas]
        output.json({"queue": queue, "scaling": document, "replicas": replicas})
        return
    if topology is None:
        output.line(
            f"queue {queue} does not scale; `tidegate scale {queue} --min 1 --max 8` makes it"
        )
        return
    plain = format_scaling_keys(DEFAULT_SCALING)
    output.table(
        _COLUMNS,
        [
            [key, _text(value), _text(plain[key])]
            for key, value in format_scaling_keys(topology.scaling).items()
        ],
    )
    output.table(
        _REPLICAS,
        [
            [
                f"{topology.queue}#{place.number}",
                str(place.state),
                place.share,
                place.machine_id,
                place.address,
                place.store_number,
            ]
            for place in topology.replicas
        ],
        title="Replicas",
    )


def _replica_json(place: Any) -> dict[str, Any]:
    return {
        "number": place.number,
        "queue_id": place.queue_id,
        "state": place.state,
        "share": place.share,
        "machine_id": place.machine_id,
        "address": place.address,
    }


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict):
        return f"{value['min']} to {value['max']}"
    return f"{value:g}" if isinstance(value, float) else str(value)


# Concurrent-safe changes of how a queue scales.


# How often to try a change that collides with changes by other clients.
_TRIES_MAX = 8


async def topology_of(mq: Client, queue: str) -> Topology | None:
    """Return the topology of a logical queue; None for a plain queue.

    Raise `InvalidValue` for a replica, because only the logical queue scales.
    """
    info = await mq.queue(queue_key(queue))
    if info.alias_id:
        whole = logical_name(info.name)
        raise InvalidValue(
            f"{info.name} is a replica of queue {whole}, which scales as a whole: "
            f"`tidegate scale {whole}`"
        )
    return await mq.topology(info.queue_id) if info.elastic else None


async def change_scaling(
    mq: Client, queue: str, changes: dict[str, Any], declared: Scaling | None = None
) -> None:
    """Change some scaling keys of a queue, and keep concurrent changes of others.

    `declared` replaces the present settings before the changes apply. Print a warning if the
    worker's module cannot be found here.
    """

    def wanted(topology: Topology | None) -> Scaling:
        before = declared or (DEFAULT_SCALING if topology is None else topology.scaling)
        said = changes
        if topology is None and declared is None and "min" in changes and "max" not in changes:
            # Without an upper bound for a new logical queue, use the lower bound. An existing upper
            # bound stays, or the server refuses the change.
            said = {"max": changes["min"], **changes}
        name = queue if topology is None else topology.queue
        obeyed, rest = _obeying(before, said, name)
        _check_replicas(obeyed, rest, name)
        return with_scaling_keys(obeyed, rest)

    await _rescale(mq, queue, wanted)
    worker = changes.get("worker") or (None if declared is None else declared.worker)
    if worker not in (None, "none") and (doubts := worker_doubts(worker, queue)):
        print(f"warning: {doubts}", file=sys.stderr)


def _check_replicas(before: Scaling, changes: dict[str, Any], queue: str) -> None:
    """Raise `InvalidValue` with the bounds and a remedy if --to is outside of them."""
    wanted = changes.get("replicas_wanted")
    if not isinstance(wanted, int):
        return
    free = msgspec.structs.replace(before, steering=ControlMode.AUTO, replicas_wanted=None)
    said = {key: value for key, value in changes.items() if key in ("min", "max", "replicas")}
    bounds = with_scaling_keys(free, said).replicas
    if bounds.min <= wanted <= bounds.max:
        return
    told = f"--to {wanted}: must be between min {bounds.min} and max {bounds.max} of queue {queue}"
    if wanted > REPLICAS_MAX:
        raise InvalidValue(f"{told}; no queue has more than {REPLICAS_MAX} replicas")
    bound = "--max" if wanted > bounds.max else "--min"
    raise InvalidValue(f"{told}; `tidegate scale {queue} --to {wanted} {bound} {wanted}` moves it")


async def _rescale(mq: Client, queue: str, wanted: Callable[[Topology | None], Scaling]) -> None:
    """Read, change and write the scaling; try again if another client changed it meanwhile."""
    for left in reversed(range(_TRIES_MAX)):
        topology = await topology_of(mq, queue)
        before = None if topology is None else topology.scaling
        try:
            await mq.set_scaling(queue_key(queue), wanted(topology), before=before)
            return
        except ChangedMeanwhile:
            if not left:
                raise


def _obeying(
    before: Scaling, changes: dict[str, Any], queue: str
) -> tuple[Scaling, dict[str, Any]]:
    """Replace `agreement`, a file name, by the scaling that the agreement gives.

    Return the changed scaling, and the remaining changes.
    """
    file = changes.get("agreement")
    if file is None or file == "none":
        return before, changes
    from tidegate.agreements.document import agreement_of_file, with_agreement

    agreement, text = agreement_of_file(Path(file).expanduser(), queue)
    is_bounded = (
        agreement.resources.replicas_max is not None
        or before.replicas != Range()
        or {"max", "replicas"} & changes.keys()
    )
    if changes.get("policy") == ScalingPolicy.AGREEMENT and not is_bounded:
        raise InvalidValue(
            f"{file} does not say how many replicas there may be: write replicas = "
            "{ min = 1, max = 8 } into it, or say --max"
        )
    rest = {key: value for key, value in changes.items() if key != "agreement"}
    agreed = with_agreement(before, agreement, text)
    if changes.get("policy", before.policy) == ScalingPolicy.AGREEMENT:
        offer, text = _offered(agreement, text, with_scaling_keys(agreed, rest))
        agreed = with_agreement(before, offer, text)
    return agreed, rest


def _offered(agreement: Agreement, text: str, scaling: Scaling) -> tuple[Agreement, str]:
    """Return the agreement that this many replicas can keep, or a reduced one, with its text.

    Raise `InvalidValue` if the replicas do not suffice and the agreement must not be reduced.
    """
    from tidegate.control.planning import (
        PlanningRequest,
        plan_capacity,
        planning_inputs,
        reduced_agreement,
    )

    most = scaling.replicas.max
    bounded = replace(agreement, resources=replace(agreement.resources, replicas_max=most))
    asked = PlanningRequest(capacity_per_s=scaling.capacity_per_s)
    found = plan_capacity(bounded, planning_inputs(bounded, asked, None), asked)
    if not found.missing:
        return agreement, text
    if found.offer is None:
        raise InvalidValue(
            f"{agreement.name}: {'; '.join(found.missing)}. Promise less, allow more replicas, or "
            'write insufficient = "reduce"'
        )
    offer, text = reduced_agreement(agreement, found, "replica")
    print(f"{agreement.name}: reduced: {offer.resources.reduced}", file=sys.stderr)
    return offer, text


# The commands `move` and `prefetch`: changes by an administrator at run time.


def register_steering(app: typer.Typer) -> None:
    app.command("move")(move)
    app.command("prefetch")(prefetch)


def move(
    queue: QueueArgument,
    member: Annotated[str, typer.Argument(metavar="NODE", help="Id, name or address of the node.")],
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Move a queue to another node, given by id, name or address (see `tidegate nodes`).

    Example: `tidegate move orders 2`
    """
    output = Output(json)

    async def give(mq: Client) -> Member:
        heir = _living_node(member, await mq.members())
        await mq.set_owner(queue_key(queue), heir.member_id)
        return heir

    heir = ask(url, give, "admin")
    if json:
        output.json({"queue": queue, "member_id": heir.member_id, "address": heir.address})
    else:
        output.line(f"queue {queue} is served by {heir.name} ({heir.address})")


def _living_node(text: str, nodes: list[Member]) -> Member:
    living = [node for node in nodes if node.alive]
    for found in living:
        if text in (str(found.member_id), found.name, found.address):
            return found
    known = ", ".join(f"{one.member_id} ({one.name})" for one in living)
    raise NotFound(f"no living node is called {text}; there are {known}")


def prefetch(
    queue: QueueArgument,
    messages: Annotated[
        int, typer.Argument(min=1, help="Maximum number of unacknowledged messages of a consumer.")
    ],
    client: Annotated[
        str | None,
        typer.Option(help="Change only the consumers of this client, given by name or id."),
    ] = None,
    consumer: Annotated[
        int | None,
        typer.Option(help="Change only the consumer with this number on its connection."),
    ] = None,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Set the number of unacknowledged messages that the consumers of a queue may hold.

    Example: `tidegate prefetch orders 100 --client worker-1`
    """
    output = Output(json)

    async def change(mq: Client) -> list[ConsumerStats]:
        key = queue_key(queue)
        queue_id = await mq.queue_id(key)
        cluster = await mq.stats(key)
        chosen = [
            one
            for node in cluster.nodes
            for numbers in node.queues
            if numbers.queue_id == queue_id
            for one in numbers.consumers
            if (client is None or client in (one.client_name, str(one.client_id)))
            and (consumer is None or consumer == one.consumer)
        ]
        for one in chosen:
            await mq.set_consumer_prefetch(queue_id, one.client_id, one.consumer, messages)
        return chosen

    changed = ask(url, change, "admin")
    if not changed:
        raise NotFound(f"queue {queue} has no such consumer; `tidegate status` lists them")
    if json:
        output.json(
            [
                {
                    "client_id": one.client_id,
                    "client": one.client_name,
                    "consumer": one.consumer,
                    "before": one.prefetch,
                    "prefetch": messages,
                }
                for one in changed
            ]
        )
    for one in changed if not json else []:
        output.line(
            f"{one.client_name}, consumer {one.consumer}: prefetch {one.prefetch} -> {messages}"
        )


# A check whether a queue's workers can import their application, as far as this host can tell.
#
# Workers run on other machines, in an unknown working folder. A missing module here may exist
# there, so the check returns a warning and no error. It imports nothing, because an import runs
# user code.


def worker_doubts(target: str, queue: str) -> str | None:
    """Return a warning if `module:app` is not found here; None if it is."""
    module = target.partition(":")[0]
    if _is_found(module):
        return None
    return (
        f"no module {module!r} here: looked in {Path.cwd()} and where Python finds packages. "
        f"Workers of {queue} start only where it can be imported: run the nodes and machines in "
        f"its folder, or install it for them. `tidegate worker {target}` tries it; `tidegate scale "
        f"{queue} --worker MODULE:APP` names another, `--worker none` none"
    )


def _is_found(module: str) -> bool:
    head, *rest = module.split(".")
    before = list(sys.path)
    # Workers search the working folder, too.
    sys.path.insert(0, str(Path.cwd()))
    try:
        spec = importlib.util.find_spec(head)
    except ValueError:
        # The module is already loaded and has no __spec__.
        return True
    finally:
        sys.path[:] = before
    for part in rest:
        if spec is None:
            return False
        # Search in the package's folder, without running its __init__.
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations or [])
    return spec is not None


@flatten_options()
def set_queue(
    queue: QueueArgument,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE…]", help="Set these keys of the queue's policy or scaling."
        ),
    ] = None,
    policy: Annotated[
        ScalingPolicy | None, typer.Option(help="The law that sets the number of replicas.")
    ] = None,
    agreement: AgreementOption = None,
    goal: GoalOptions = NO_GOAL,
    url: UrlOption = DEFAULT,
    json: JsonOption = False,
) -> None:
    """Change the policy, the scaling or the prefetch goal of a queue while the cluster runs.

    Example: `tidegate queue set orders lease=30s max=8`
    """
    output = Output(json)
    found = assignments(settings or [])
    if policy is not None:
        found["policy"] = policy.value
    if agreement is not None:
        found["agreement"] = agreement
    if not found and not goal.are_given:
        raise InvalidValue("set what? write KEY=VALUE, or a goal such as --prefetch-rate 400/s")
    for_policy = {key for key in found if key in policy_keys()}
    changes = {key: text for key, text in found.items() if key not in for_policy}
    known = {*KEYS, *KEYS.values(), "min", "max"}
    if unknown := [key for key in changes if key not in known]:
        raise InvalidValue(
            f"{unknown[0]}: there is no such "
            f"key{suggestion_for(unknown[0], [*known, *policy_keys()])}"
        )
    promises = parse_policy([f"{key}={found[key]}" for key in for_policy])

    async def work(mq: Client) -> None:
        # Check the goal first, because two requests cannot be one transaction.
        if goal.are_given:
            info = await mq.queue(queue_key(queue))
            goal.changed(info.policy.prefetch, info.name)
        if changes:
            await change_scaling(mq, queue, changes)
        if promises or goal.are_given:
            promised = await change_policy(mq, queue, promises, goal)
            if goal.are_given:
                found["prefetch"] = goal_told(promised.prefetch)

    ask(url, work, "read-write")
    if json:
        output.json({"queue": queue, "set": found})
    else:
        told = ", ".join(f"{key} = {text}" for key, text in found.items())
        output.line(f"queue {queue}: {told}")
