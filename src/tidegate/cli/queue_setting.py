"""The command `queue set`: change the policy and the scaling of a queue while the cluster runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.cli.asking import DEFAULT, UrlOption, ask, queue_key
from tidegate.cli.option_groups import spread
from tidegate.cli.output import JsonOption, Output
from tidegate.cli.policies import change_policy
from tidegate.cli.policy_settings import parse_policy, policy_keys
from tidegate.cli.prefetch_options import NO_GOAL, GoalOptions
from tidegate.cli.queues import QueueArgument
from tidegate.cli.rescaling import change_scaling
from tidegate.cli.scaling_options import AgreementOption, assignments
from tidegate.core.complaint import meant
from tidegate.core.errors import InvalidValue
from tidegate.core.prefetch_words import told as goal_told
from tidegate.core.scaling import ScalingPolicy
from tidegate.core.scaling_words import KEYS

if TYPE_CHECKING:
    from tidegate.client.client import Client


@spread()
def set_queue(
    queue: QueueArgument,
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE…]", help="Of its policy, or of how it scales."),
    ] = None,
    policy: Annotated[
        ScalingPolicy | None, typer.Option(help="Which law says how many replicas there are.")
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
            f"{unknown[0]}: there is no such key{meant(unknown[0], [*known, *policy_keys()])}"
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
