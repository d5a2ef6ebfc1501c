"""Reasons of decisions, and their sentences for people.

A law or a loop states a `Reason` with its numbers, such as `Reason.LOAD_BELOW(load=12.0,
min_load=50.0)`. The sentences are in this module only. They are formed where a decision is stored:
`reason_text` says why it was made, and `otherwise_text` what would have changed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple


class Reason(Enum):
    """A reason of a decision: why it was made, and what would have changed it.

    Each text is a format string for the numbers that are stated with the reason. An empty text says
    nothing.
    """

    def __init__(self, why: str, otherwise: str = "") -> None:
        self.why = why
        self.otherwise = otherwise

    def __call__(self, **numbers: float | str | Explanation) -> Explanation:
        """State this reason with its numbers and names."""
        return Explanation(self, numbers)

    # Policy "load".
    LOAD_ABOVE = ("The average load is {load:.0f} messages, above max_load {max_load:g}.",)
    LOAD_SOON_ABOVE = (
        "The average load is {load:.0f} messages and grows: before a replica that is added now "
        "serves it may be {soon:.0f}, above max_load {max_load:g}.",
    )
    LOAD_BELOW = ("The average load is {load:.0f} messages, below min_load {min_load:g}.",)
    LOAD_WITHIN_BOUNDS = (
        "The average load of {load:.0f} messages lies between min_load {min_load:g} and max_load "
        "{max_load:g}.",
        "Above {max_load:g}, now or soon, a replica would have been added, below {min_load:g} one "
        "would have begun to go.",
    )
    LOAD_ROSE_IN_REMOVAL = (
        "The average load rose to {load:.0f} messages, above min_load {min_load:g}, while a "
        "replica's share went down: {count} replicas are too few for {arrived_per_s:.0f} msg/s, so "
        "it stays.",
        "At or below {min_load:g} messages the removal would have gone on.",
    )
    REMOVAL_CANCELLED = (
        "A replica that was going stays.",
        "At or below min_load {min_load:g} the removal would have gone on.",
    )
    REMOVAL_RUNS = (
        "A replica is already going.",
        "Above {min_load:g} messages it would stay.",
    )
    INHIBITED = (
        "The last scale-up is still to show what it does.",
        "If that is still so when it serves and the inhibition is over, another comes.",
    )
    NOTHING_ON_ITS_WAY = (
        "Nothing is on its way.",
        "At or below {max_load:g} messages, now and soon, nothing would have been added.",
    )
    NO_REPLICA_LEFT = (
        "There is no replica that could go.",
        "Messages that wait would bring a replica.",
    )
    TOO_FEW_BEFORE = (
        "{fewer} replicas were too few at {too_few_per_s:.0f} msg/s, and {arrived_per_s:.0f} msg/s "
        "arrive now.",
        "Below {bar_per_s:.0f} msg/s, or in {left_s:.0f} s, it is tried again.",
    )
    LAST_ADDED_GOES = (
        "The last added replica is to go, a step of its share each period.",
        "At or above {min_load:g} messages all would stay.",
    )
    # Policy "length".
    LENGTH_ASKS_FOR = (
        "{messages} messages for a target of {queue_length:g} per replica ask for {desired} "
        "replicas, and there are {count}.",
        "At {same_at:g} messages nothing would change.",
    )
    LENGTH_ASKS_FOR_FEWER = (
        "{messages} messages for a target of {queue_length:g} per replica ask for {desired} "
        "replicas; the most that was asked for in the last {window_s:g} s was {most}.",
        "A scale-in goes no lower than what was asked for within {window_s:g} s.",
    )
    # Policies "feed-forward" and "agreement".
    CAPACITY_UNKNOWN = (
        "What a replica can do is not known yet.",
        "`capacity_per_s` in the config, `capacity` in the agreement, or a replica seen busy, lets "
        "the rate count.",
    )
    RATE_NEEDS = (
        "{level_per_s:.0f} msg/s arrive, changing by {trend_per_s2:+.2f} msg/s²; with "
        "{behind_per_s:.0f} msg/s to catch up and {usable_per_s:.0f} msg/s planned per replica, "
        "{needed:.2f} replicas are needed in {within_s:.0f} s.",
    )
    WAIT_EXPECTED = (
        "What arrives now waits for about {expected_s:.3g} s, and {metric} warns at {warns_s:.4g} "
        "s.",
    )
    THROUGHPUT_PROMISED = ("{metric} is promised, and {waiting} messages wait.",)
    PROMISE_NEEDS = (
        "{level_per_s:.4g} msg/s arrive and {usable_per_s:.4g} of {capacity_per_s:.4g} msg/s are "
        "planned per replica: {needed:.2f} replicas are needed in {within_s:.3g} s.",
    )
    OLDEST_AGE = ("The oldest message is {age_s:.3g} s old.",)
    MORE_NEEDED = (
        "There are {count}.",
        "Up to {full_per_s:.4g} msg/s nothing would have been added.",
    )
    MORE_NEEDED_IN_TIME = (
        "There are {count}.",
        "Up to {full_per_s:.4g} msg/s and {waiting:.0f} waiting messages nothing would have been "
        "added.",
    )
    FEWER_ARE_ENOUGH = (
        "At most {peak:.2f} were needed in the last {down_s:.0f} s: {fits} of {count} are enough.",
        "Above {bar_per_s:.4g} msg/s in the last {down_s:.0f} s all would have stayed.",
    )
    AS_MANY_AS_NEEDED = (
        "There are {count}, and at most {peak:.2f} were needed in the last {down_s:.0f} s.",
        "Above {full_per_s:.4g} msg/s one would be added; below {bar_per_s:.4g} for {down_s:.0f} s "
        "one would go.",
    )
    LAST_ONES_NEEDED = (
        "There are {count}, and at most {peak:.2f} were needed in the last {down_s:.0f} s.",
        "Above {full_per_s:.4g} msg/s one would be added; the last ones stay.",
    )
    IN_DANGER = (
        "{fits} would be enough, but a window was warned of or breached, and none was met since.",
        "With a window that is met a replica may go.",
    )
    # Policy "clients".
    CLIENT_LOAD = (
        "{clients} clients for a capacity of {capacity:g} and machines {resource:.0%} busy: L_c = "
        "{load:.2f}.",
    )
    CLIENTS_NEED_MORE = ("", "At L_c ≤ 1 nothing would have been added.")
    CLIENTS_NEED_FEWER = (
        "One replica less is still enough.",
        "With more than {clients:g} clients all would stay.",
    )
    CLIENTS_WITHIN_BOUNDS = (
        "",
        "Above L_c = 1 a replica would be added; one goes when its capacity is not needed.",
    )
    # Policy "fixed", an override, and samples that cannot be used.
    SET_BY_HAND = (
        "A person has set the number of replicas to {wanted}.",
        'Steering "auto" would let the policy decide.',
    )
    FIXED = (
        "The policy is fixed: the number of replicas is {wanted}.",
        "Another policy or another `replicas.min` would change it.",
    )
    NOT_MEASURED_YET = ("Nothing has been measured yet.",)
    STALE = ("The oldest measurement is {age_s:.1f} s old, past {stale_s:g} s.",)
    NOT_A_NUMBER = ("A measurement is missing, not a number, or below 0.",)
    REPLICA_TWICE = ("A replica is in the sample twice.",)
    NO_AGREEMENT = ("There is no agreement that can be read.",)
    INPUT_UNUSABLE = (
        "Nothing is changed on such input.",
        "With fresh and complete measurements the policy would have decided.",
    )
    # Guards of queues.
    SCALE_UP_DID_HARM = (
        "Going from {fewer} to {more} replicas lowered the throughput from {before_per_s:.0f} to "
        "{after_per_s:.0f} msg/s at no less arrival: it is not tried again.",
        "In {left_s:.0f} s it is forgotten and may be tried again.",
    )
    AT_MAX = (
        "{most} is the most that there may be.",
        "A larger `replicas.max` would allow more.",
    )
    AT_MIN = (
        "{least} is the least that there may be.",
        "A smaller `replicas.min` would allow fewer.",
    )
    BELOW_MIN = (
        "The number of replicas is {count}, and {least} is the least that there may be.",
        "A smaller `replicas.min` would allow fewer.",
    )
    LITTLE_TO_DO = (
        "{waiting} waiting messages, {unacknowledged} unacknowledged and {arrived_per_s:.3g} msg/s "
        "that arrive are little, but not nothing: one replica is to serve.",
        "With nothing to do for the time of the cool-down there would be none.",
    )
    NOTHING_TO_DO_YET = (
        "There is nothing to do, but there was a moment ago: the last replica stays.",
        "If nothing comes for another {left_s:.0f} s it goes.",
    )
    NO_CONSUMERS = (
        "{consumers} consumers serve {count} replicas, and another one would have no consumer.",
        "More consumers, or a `worker` that comes with each replica, would allow more.",
    )
    REPLICAS_AWAY = (
        "{unreachable} of the replicas cannot be reached, so nothing is removed.",
        "When all can be reached a scale-in may begin.",
    )
    COOL_DOWN = (
        "Replicas have changed a moment ago, so nothing is removed.",
        "In {left_s:.0f} s the cool-down is over.",
    )
    ONE_REMOVAL_RUNS = ("Another replica is still going; one at a time.",)
    # Machines.
    ALL_PLACED = ("Every replica has a place and the warm pool is full.",)
    REPLICA_PLACED = (
        "A replica of {queue} comes to machine {machine_id}, which has {free} of {slots} slots "
        "free.",
    )
    INSTANCE_PLACED = (
        "An instance of {queue} comes to machine {machine_id}, which has {free} of {slots} slots "
        "free.",
    )
    BOOTS_CLAIMED = ("{count} {kind}(s) of {queue} wait for machines that boot already.",)
    NO_FREE_SLOT = (
        "{count} {kind}(s) of {queue} have no free slot: {booted} machine(s) with {slots} slot(s) "
        "are booted.",
    )
    TOO_FEW_BOOTS = ("{lacking} more machine(s) would be needed than may be booted now.",)
    WARM_MISSING = (
        "{warm} warm machine(s) are to be kept and {idle} are there, {booting} boot: {booted} more "
        "in the background.",
    )
    WARM_SURPLUS = ("Machine {machine_id} holds nothing, and {warm} warm one(s) are enough.",)
    MACHINES_LIMITED = (
        "",
        "With more machines allowed, those that wait would have a place.",
    )
    BOOTS_FOR_REPLICAS = (
        "",
        "A free slot, or more than {warm} warm machines, would have spared the boot.",
    )
    BOOTS_WARM = ("", "A smaller `warm`, `sla_delta` or `boot` would have booted none.")
    HALTS = ("", "A larger `warm`, `sla_delta` or `boot` would have kept it.")
    PLACES = ("", "Without a free slot it would have waited until a machine had booted.")
    WAITS_FOR_BOOT = ("", "With a free slot on a machine that runs it would have its place now.")
    NOTHING_TO_PLACE = ("", "A replica without a place would have changed it.")
    # HTTP services: how many instances serve.
    ANSWERED_IN_TIME = ("What is in hand is answered in time.",)
    INSTANCES_SET_BY_HAND = ("A person has set the number of instances to {wanted}.",)
    NUMBER_IS_OVERRIDDEN = ("", "Given back, the law would decide how many there are.")
    IN_HAND = ("There are {in_hand:.3g} requests in hand.",)
    IN_HAND_GROWS = (
        "There are {in_hand:.3g} requests in hand, and they grow by {growth_per_s:.2g}/s.",
    )
    ANSWERS_AS_SEEN = ("An instance answers {per_s:.3g}/s, as was seen.",)
    ANSWERS_AS_AGREED = ("An instance answers {per_s:.3g}/s, as the agreement says.",)
    ANSWERS_AS_ITS_LIMIT_ALLOWS = ("An instance answers {per_s:.3g}/s, as its limit allows.",)
    NEEDED_FOR_ALL = ("{asked} instance(s) answer all of them.",)
    NEEDED_IN_TIME = ("{asked} instance(s) answer all of them within a mean of {target_s:.2g} s.",)
    NOTHING_WAITS = ("Nothing waits for an instance: more of them would answer no sooner.",)
    LOAD_DOES_NOT_EXPLAIN = ("What is in hand does not explain it: {evidence}.",)
    ONE_FEWER_WAS_ENOUGH = (
        "In the last {cooldown_s:.0f} s {fewer} would have been enough, with room to spare.",
    )
    DOORS_SILENT = ("No door has reported for a while: the load is not known.",)
    NEEDS_MORE_THAN_THERE_IS = ("What is in hand needs more than there is: {short}.",)
    INSTANCE_CAPACITY_UNKNOWN = (
        "",
        "What an instance can do is not known until something waits for one; `capacity` in the "
        "agreement would say it.",
    )
    ROLLOUT_RUNS = ("", "With all instances of one version only the load would count.")
    NO_LIMIT_KNOWN = ("", "Another load would have changed it.")
    IN_HAND_BEARABLE = (
        "",
        "With {more} requests in hand or more another instance would be needed.",
    )
    # HTTP services: single instances, and what doors let in.
    INSTANCE_DRAINED = ("Instance {instance_id} has answered all that it had.",)
    INSTANCE_STAYS_SLOW = (
        "Instance {instance_id} stays slower than the others: another one takes its place.",
    )
    INSTANCE_SHORT_OF_MEMORY = (
        "Instance {instance_id} stays short of memory: another one takes its place.",
    )
    INSTANCE_FAILED = ("Instance {instance_id} failed ({said}): it is replaced.",)
    FAILED_ONE_NOT_NEEDED = (
        "{wanted} answer without instance {instance_id} of version {version}, which failed: it is "
        "not replaced.",
    )
    INSTANCE_HANGS = (
        "Instance {instance_id} has been ejected for {ejected_s:.0f} s and others answer: it is "
        "replaced.",
    )
    SPARE_SERVES = ("{wanted} are to serve: spare {instance_id} does at once.",)
    INSTANCES_LACKING = ("{wanted} are to serve: {lacking} more.",)
    SPARES_LACKING = ("{spares} spare(s) are to be kept: {lacking} more.",)
    OLD_VERSION_DRAINS = (
        "{wanted} answer without instance {instance_id} of version {version}: it drains.",
    )
    TO_BE_RENEWED = (
        "{count} are to be renewed (version {version} is deployed): one more comes before one "
        "goes.",
    )
    GOES_BEFORE_NEW_ONE = ("There is no slot for one more: instance {instance_id} goes first.",)
    CONCURRENCY_LOWERED = (
        "Instance {instance_id} takes {inflation:.1f} times as long as at its best, and {knee} at "
        "a time keep it busy: {target} instead of {limit}, the others wait in the door.",
    )
    CONCURRENCY_RAISED = (
        "Instance {instance_id} has all the {limit} requests that it may have and is quick: "
        "{target} at a time.",
    )
    WEIGHT_LOWERED = (
        "Instance {instance_id} takes {ratio:.1f} times as long as the others: it gets less.",
    )
    ADMISSION_BEGINS = (
        "{ready} instance(s) answer no more than {bound} requests before the breaching point: "
        "others are refused at once, so that these are kept.",
    )
    ADMISSION_ENDS = ("All that come can be answered in time again: no request is refused.",)
    ADMISSION_CHANGES = ("{bound} requests at a time are answered before the breaching point now.",)
    # Steps of the prefetch. Their texts are in the lake, without a full stop.
    STARVED = ("starved",)
    OUTLIER = ("outlier",)
    DEADBAND = ("deadband",)
    DITHERED = ("dithered",)
    SILENT = ("nothing was measured for {silent_s:g} s",)
    GAINS_HALVED = ("swings: gains halved, to 1/{part} of the design",)
    GAINS_LOWERED = ("1/{part} of the gains: with more it swung",)
    CEILING = ("the ceiling is about {rate_per_s:.0f}/s",)
    CEILING_OF_HANDLER = ("the ceiling is about {rate_per_s:.0f}/s: the handler is kept up with",)
    CEILING_OF_PREFETCH = ("the ceiling is about {rate_per_s:.0f}/s: more prefetch brings no more",)
    NO_CONTROLLER = ("held: no controller",)
    NOTHING_KNOWN = ("nothing is known yet: held",)
    WORKLOAD_CHANGED = ("scheduled: the workload is that of {name}",)
    GUESS_NOT_REDESIGNED = ("guessed, but not redesigned: {refused}",)
    GUESSED = (
        "no model: guessed {worth_per_s:.3g} msg/s per unit of prefetch, and cautious until it is "
        "learned",
    )
    SET_IN_PLACE = ("{prefetch:g} was set in place of {asked:g}",)
    BACK_FROM_KNEE = ("back from beyond the knee at {knee:.3g}",)
    HELD_AT_KNEE = ("held at the knee at {knee:.3g}",)
    OFFSET_OF_P = (
        "P keeps an offset: it rests at about {rests_per_s:.3g}/s with a prefetch of "
        "{prefetch:.3g}, and not at {target_per_s:g}/s; PI keeps none",
    )
    SETTLES_LATER = ("{asked_s:g} s to settle cannot be had, but {settle_s:g} s",)
    GOAL_NOT_KEPT = (
        "no controller keeps the goal on a = {a:.3g}, b = {b:.3g}: held; allow more time, or "
        "identify the consumer again",
    )
    REDESIGNED = ("redesigned: {drift}; now {gains}",)
    REDESIGNED_AGAIN = ("redesigned: {drift}; again {gains}",)
    NOT_REDESIGNED = ("drifted, but not redesigned: {refused}",)
    SAMPLES_ARE_SHORT = (
        "samples are short: a message is away for {sojourn_s:.2g} s, and a sample ten times as "
        "long says more",
    )
    CREDIT_CUT = ("credit cut for a moment, to see what is held",)
    # A learned model against the model in use.
    TOO_FEW_SAMPLES = ("{samples:.0f} samples are too few to judge by",)
    NOT_DETERMINED = ("{error}",)
    NO_PLANT = ("a = {a:.4g}, b = {b:.4g} is no plant to steer",)
    SAME_AS_IN_USE = (
        "a = {a:.4g} ± {a_error:.2g}, b = {b:.4g} ± {b_error:.2g} cannot be told from the model in "
        "use",
    )
    PREDICTS_NO_BETTER = ("the learned model predicts no better than the one in use",)
    PREDICTS_BETTER = (
        "a = {a:.4g}, b = {b:.4g} leaves {part:.0%} of the squared error that a = {a_in_use:.4g}, "
        "b = {b_in_use:.4g} makes",
    )
    # Decisions about the prefetch.
    PREFETCH_FOR_RATE = ("prefetch {level:.4g} for {rate_per_s:g}/s: {mode}",)
    PREFETCH_TO_KEEP_UP = ("prefetch {level:.4g} for keep up: {mode}",)
    CONTROLLER_STEERS = ("the controller steers",)
    PREFETCH_HELD = (
        "held: nothing new was measured",
        "With a measurement the controller goes on from here.",
    )
    PREFETCH_FALLBACK = (
        "the fallback: measurements have stopped",
        "With a measurement the controller goes on from here.",
    )
    PREFETCH_SET_BY_HAND = (
        "set by hand",
        "Take the manual value away, and the controller goes on from it.",
    )
    BELOW_TARGET = (
        "{used_per_s:.4g}/s is {off_per_s:.3g}/s below the target of {target_per_s:.4g}/s, so P "
        "{proportional:.4g} + I {integral:.4g} + D {derivative:.4g} = {wanted:.4g}",
    )
    ABOVE_TARGET = (
        "{used_per_s:.4g}/s is {off_per_s:.3g}/s above the target of {target_per_s:.4g}/s, so P "
        "{proportional:.4g} + I {integral:.4g} + D {derivative:.4g} = {wanted:.4g}",
    )
    AT_HIGH_LIMIT = (
        "held at its high limit",
        "A prefetch above {high} is not allowed: raise `high`, or lower the target.",
    )
    AT_LOW_LIMIT = ("held at its low limit", "A prefetch below {low} is not allowed.")


class Explanation(NamedTuple):
    """A reason with its numbers; another explanation may be among them."""

    reason: Reason
    numbers: dict[str, Any]

    def __str__(self) -> str:
        return self.reason.why.format(**self.numbers)


def reason_text(reasons: Sequence[Explanation]) -> str:
    """Return the sentences that say why a decision was made."""
    return _joined([str(one) for one in reasons])


def otherwise_text(reasons: Sequence[Explanation]) -> str:
    """Return the sentences that say what would have changed a decision, the last reason first.

    The last reason is the one that was decisive.
    """
    return _joined([one.reason.otherwise.format(**one.numbers) for one in reversed(reasons)])


def _joined(sentences: Sequence[str]) -> str:
    return " ".join(filter(None, sentences))
