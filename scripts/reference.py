"""The reference of the settings; docs/reference/settings.md is generated from here.

Defaults and allowed values come from the settings classes. The meaning of each key is in this
module. A key without a text fails the check of the docs, and a test.
"""

from __future__ import annotations

from typing import Any

from tidegate.cli.settings.document import as_document
from tidegate.cli.settings.settings import QUEUES, SECTIONS, Settings
from tidegate.core.quantities import DURATION_IS, SIZE_IS
from tidegate.core.scaling import DEFAULT_SCALING
from tidegate.core.scaling_words import KEYS, written

SECTIONS_SAY = {
    "store": "Where messages are kept: PostgreSQL servers of yours, or else an embedded one.",
    "node": "How a node serves, and its bounds.",
    "tls": "The files, in PEM, with which a node speaks TLS.",
    "metrics": "Where a node shows `/metrics`, `/healthz` and `/readyz`.",
    "console": "Where `up` serves the [console](../console-api.md).",
    "spark": 'Which Spark learns. Any `"spark.…" = …` may stand beside these.',
    "pipeline": "What is learned from, and where to.",
    "telemetry": "What is recorded, and where to.",
    "log": "What is logged, and how.",
    "fleet": "Who makes machines, and how patient we are with them.",
    "alerts": "Who is told when an agreement is breached; neither: the log only.",
}
SAYS = {
    "store.url": "the PostgreSQL (15 or newer) that is the store; not set: an embedded one",
    "store.urls": "several stores, the first is the catalogue; instead of `url`",
    "store.data": "folder of the embedded PostgreSQL; lake and knowledge are in it, too",
    "store.connections": "connections of a node that write messages; 0: as many as it has writers",
    "node.host": "address that it listens on; beyond loopback it wants TLS and users",
    "node.advertise": "the host under which others reach it, when that is not what it listens on",
    "node.port": "of the first node; 0: any free one",
    "node.memory": "what messages may take of memory; the rest waits in the store",
    "node.lease": "how long a node owns its queues without a sign of life",
    "node.heartbeat": "a connection that is silent for three of these is gone",
    "node.handshake": "from connecting to being identified",
    "node.message_bytes_max": "the largest message",
    "node.frame_before_login": "the largest frame of who is not identified yet",
    "node.connections_max": "connections at most; strangers get half of them",
    "node.connections_per_address_max": "of one address; other nodes do not count",
    "node.connections_per_user_max": "of one user",
    "node.slow_reader": "who reads nothing for so long, while there is something, is hung up on",
    "node.login": "`auto`: clients on this machine need none until the first user is made",
    "node.delivery_lease": "how long a consumer may hold a message without a sign of life",
    "node.writers": "connections that write to the store, one commit at a time each",
    "node.settle_linger": "how long acknowledgements that nobody waits for are gathered",
    "tls.certificate": "of the node; with `key`",
    "tls.key": "of the certificate, without a password",
    "tls.authority": "who signed the other nodes' certificates; not set: whom the machine trusts",
    "metrics.enabled": "whether there are such pages",
    "metrics.host": "address that they are on; they ask for no password",
    "metrics.port": "not set: 1000 above the node's, or a free one where that was free to choose; "
    "0: any free one",
    "metrics.queues_max": "queues that are shown; the others are counted",
    "console.enabled": "whether `up` serves it; `--console` and `--no-console` go before",
    "console.host": "address that it listens on; beyond loopback it wants TLS and users",
    "console.port": "not set: 1500 above the first node's, or a free one where that was free to "
    "choose; 0: any free one",
    "console.names": "other names that it goes by, such as that of a proxy: host, or host:port",
    "spark.master": "any master of Spark",
    "pipeline.knowledge": "where what was learned is kept; not set: `knowledge` in `store.data`",
    "pipeline.agreements": "agreements: files, or folders of them",
    "telemetry.enabled": "whether anything is recorded",
    "telemetry.lake": "a folder, or an address that Arrow knows; not set: `lake` in `store.data`",
    "telemetry.interval": "between two samples of each queue and consumer",
    "telemetry.flush": "between two files: so much of the past a kill may cost",
    "telemetry.retention": "older hours are deleted; `0s` keeps them for ever",
    "telemetry.requests_per_s": "single requests recorded, a second and node, about; 0: none",
    "telemetry.lifecycles_per_s": "the same of single messages",
    "log.level": "the least that is logged",
    "log.format": "for people, or for programs",
    "fleet.provider": "`process`: process trees on this computer; `command`: your own commands",
    "fleet.name": "`{fleet}` in the commands: tells fleets of one cloud apart",
    "fleet.boot": "provider `command`: boots machine `{id}`",
    "fleet.halt": "provider `command`: ends machine `{id}`",
    "fleet.list": "provider `command`: prints the machines that there are",
    "fleet.command_deadline": "when a boot or halt command is killed",
    "fleet.list_deadline": "when a list command is",
    "fleet.list_interval": "between two lists",
    "fleet.tries": "of one boot or halt",
    "fleet.backoff": "before the second try; doubles with each",
    "fleet.boot_deadline": "from the order of a machine until it has joined",
    "fleet.lost": "how long a machine may be without a living node before it is given up",
    "fleet.drain": "how long a worker may finish what it has begun",
    "fleet.boot_s": "provider `process`: seconds that stand for a cloud's boot time",
    "fleet.slots": "replicas that a machine has room for, unless its queue says so",
    "fleet.hosts": "where machines may sit, when the commands ask for a `{host}`",
    "fleet.machines_per_host": "on one of them; 0: any number",
    "fleet.machines_max": "machines at most",
    "fleet.warm": "machines kept booted without work; not set: as was learned",
    "fleet.provisioning": "`energy`: fewest machines; `performance`: a machine for each replica",
    "alerts.command": "a program and its arguments; gets each alert as JSON on stdin",
    "alerts.webhook": "an `http://` address; gets it as a POST",
    "alerts.warnings": "also warnings, and when one is over",
    "alerts.timeout": "of one attempt",
    "alerts.attempts": "how often it is tried",
}
SCALING_SAYS = {
    "replicas": "never fewer, never more; an agreement that names bounds has its own",
    "policy": "`fixed`, `load`, `clients`, `feed-forward`, `length` or `agreement`",
    "steering": "`auto`; `recommend-only`: decided and explained, not done; `manual`",
    "replicas_wanted": "of `manual`: how many",
    "min_load": "below so many waiting messages for each replica one goes",
    "max_load": "above so many one comes",
    "max_wait": "how long a message may wait; replaces the loads once a replica's rate is known",
    "queue_length": "of `length`: waiting messages for each replica",
    "capacity_clients": "of `clients`: how many clients a replica is best with; else learned, or 3",
    "capacity_per_s": "messages a second of a replica with its workers; else measured",
    "polling_interval": "between two decisions",
    "inhibition": "after a scale-up no other one, counted again from when the replica serves",
    "cooldown_period": "after any change no scale-in",
    "step_max": "replicas that one decision may add or begin to remove; else 4 for `feed-forward` "
    "and `agreement`, 1 for the others",
    "stale": "older measurements are not acted on",
    "reversal_memory": "how long a scale-up that lowered throughput is not tried again",
    "worker": "`module:app` that a machine starts with each replica",
    "workers_per_replica": "processes of it",
    "rate_max_per_s": "a stated limit of each replica, for experiments",
    "slots_per_machine": "replicas that a machine has room for; else `fleet.slots`",
    "provisioning": "which machine a replica comes to; else `fleet.provisioning`",
    "warm": "machines kept warm; else `fleet.warm`, else as was learned",
    "boot": "how long a machine boots; else learned",
    "sla_delta": "the largest growth to keep up with, msg/s²; else learned",
    "shares": "parts of new messages by hand, by replica: `{ 1 = 0.7, 2 = 0.3 }`; else the law's",
    "agreement": "a file beside the settings: judged under every policy, obeyed under `agreement`",
    "prefetch": "what the prefetch of consumers is steered to: `400/s`, `keep-up`, a number, "
    '`off`, or `{ rate = "400/s", settle = "20s", high = 100 }`',
}


def tables() -> str:
    """Return a Markdown table of the keys of each section, for the docs."""
    defaults = as_document(Settings())
    parts = []
    for section, fields in SECTIONS.items():
        parts.append(f"### [{section}]\n{SECTIONS_SAY[section]}\n")
        parts.append("| key | default | allowed | meaning |\n|---|---|---|---|")
        parts += [
            f"| `{key}` | {_shown(defaults[section][key])} | {_short(field.allowed)} "
            f"| {SAYS[f'{section}.{key}']} |"
            for key, field in fields.items()
        ]
        parts.append("")
    return "\n".join(parts).rstrip()


def queue_table() -> str:
    """Return a Markdown table of the keys of a queue's section."""
    defaults = written(DEFAULT_SCALING) | {"prefetch": None}
    lines = [f"| key of `[{QUEUES}.NAME]` | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{key}` | {_shown(defaults[key])} | {SCALING_SAYS[key]} |"
        for key in [*KEYS, "prefetch"]
    ]
    return "\n".join(lines)


def _short(allowed: str) -> str:
    """Shorten the format of durations and sizes, which the page explains above the tables."""
    return allowed.replace(DURATION_IS, "a duration").replace(SIZE_IS, "a size")


def _shown(value: Any) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict):
        return "`{ " + ", ".join(f"{key} = {one}" for key, one in value.items()) + " }`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"
