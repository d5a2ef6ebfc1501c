"""The rules of laws as text for people.

    needed ≈ replicas            there are as many replicas as are needed
    held: cool-down              nothing is changed: replicas have come or gone a moment ago
    capacity unknown: …          what a replica can do is not known yet: …

A decision stores the rule's name (`Decision.rule`), so that programs can compare and count it.
Views for people translate it with this table. A rule without an entry is shown unchanged.
"""

from __future__ import annotations

_HELD = "held: "
_UNKNOWN = "capacity unknown: "
# Endings that guards append to a rule, and the limits of a prefetch.
_ENDS = {
    ", at max": ", but no more are allowed",
    ", at min": ", but no fewer are allowed",
    ", saturated low": ", down to its lower limit",
    ", saturated high": ", up to its upper limit",
}
_WORDS = {
    # Policy "load": by waiting messages.
    "avg_load > max_load": "more messages wait for each replica than max_load allows",
    "avg_load < min_load": "fewer messages wait for each replica than min_load says",
    "min_load ≤ avg_load ≤ max_load": "as many messages wait for each replica as may",
    "avg_load > min_load: plan cancelled": "messages pile up again: the replica that was to go "
    "stays",
    "avg_load > max_load: plan cancelled": "far too many messages wait: the replica that was to "
    "go stays",
    "avg_load < min_load: plan goes on": "few messages wait, and a replica is going already",
    "inhibited": "the replica that was added last is still to show what it does",
    "backed off": "one replica fewer was too few for this rate before",
    # Policies "feed-forward" and "agreement": by the number of replicas needed.
    "needed > replicas": "more replicas are needed than there are",
    "needed < replicas − room": "fewer replicas are needed than there are, with room to spare",
    "needed ≈ replicas": "there are as many replicas as are needed",
    "oldest age at the aim": "the oldest message has nearly waited for too long",
    "the agreement is in danger": "the agreement is in danger, so no replica may go",
    # Policy "length".
    "messages / queue_length": "there are to be as many replicas as messages ask for at "
    "queue_length each",
    "stabilisation window": "more replicas were needed within the stabilisation window",
    # Policy "clients".
    "R5: L_c ≥ 1, a new replica": "the replicas have as many clients as they can take",
    "R5: L_c ≥ 1, a marked replica stays": "the replicas have as many clients as they can take: "
    "the one that was to go stays",
    "R5: L_c > 1": "the replicas have more clients than they can take",
    "R5: L_c > 1, a marked replica stays": "the replicas have more clients than they can take: "
    "the one that was to go stays",
    "R6: L_c < 1, C_i ≤ ΣC − (N + M)": "one replica fewer can take all clients",
    "L_c within its bounds": "the replicas can take their clients, and none is too many",
    "elected": "a client was given a replica",
    "marked and empty": "a replica that was to go is empty",
    "nothing to change": "there is nothing to change",
    # Guards.
    "reversal guard": "more replicas lowered the throughput before",
    "below min": "there are fewer replicas than the least that there may be",
    "something to do": "there is something to do",
    "something to do a moment ago": "there was something to do a moment ago",
    "no consumers for another replica": "nobody would consume from another replica",
    "a replica is away": "a replica cannot be reached",
    "cool-down": "replicas have come or gone a moment ago",
    "stale": "what was measured is too old",
    "no measurement": "it is not measured",
    "no agreement": "there is no agreement that can be read",
    "one removal at a time": "another replica is still going",
    "manual": "it was set by hand",
    "fixed": "the number is fixed",
    "judged": "the agreement was judged",
    # Machines.
    "a free slot": "there is a free slot",
    "no free slot": "there is no free slot",
    "warm pool below NPP": "fewer machines are kept warm than there should be",
    "warm pool above NPP": "more machines are warm than there need be",
    "waiting for a boot": "a machine is booting",
    "nothing to do": "there is nothing to do",
    # HTTP services.
    "inside first": "first what can be changed inside, then how many there are",
    "more in hand than is answered in time": "more requests are in hand than are answered in time",
    "not a matter of load": "a promise is in danger, and more instances would not help",
    "warned": "a promise is in danger, and the load does not explain it",
    "one fewer holds with room": "one instance fewer is enough, with room to spare",
    "enough": "there are enough instances",
    "nothing is left to take": "more is needed than there is",
    "there are enough again": "there are enough instances again",
    "drained": "an instance has answered all that it had",
    "overloaded": "an instance is overloaded",
    "a spare serves": "a spare serves at once",
    "fewer than wanted": "fewer instances serve than are wanted",
    "failed": "an instance has failed",
    "hanging": "an instance does not answer",
    "one is renewed": "an instance is replaced by a newer one",
    "spares are refilled": "spares are missing",
    # Prefetch.
    "automatic": "the controller steers the prefetch",
    "held": "nothing new was measured, and nothing is changed",
    "fallback": "measurements have stopped, and the fallback counts",
}


def in_words(rule: str) -> str:
    """Return a rule as text for people."""
    if rule in _WORDS:
        return _WORDS[rule]
    if rule.startswith(_HELD):
        return f"nothing is changed: {in_words(rule.removeprefix(_HELD))}"
    if rule.startswith(_UNKNOWN):
        return f"what a replica can do is not known yet: {in_words(rule.removeprefix(_UNKNOWN))}"
    for end, words in _ENDS.items():
        if rule.endswith(end):
            return f"{in_words(rule.removesuffix(end))}{words}"
    return rule
