"""The wire protocol as tables for the documentation, made from the packet classes."""

from __future__ import annotations

import ast
import itertools
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import typer.main

import tidegate.laws
from tidegate.cli.app import app
from tidegate.cli.settings import QUEUES, SECTIONS, Settings, as_document
from tidegate.core.errors import BY_CODE
from tidegate.core.text import DURATION_IS, SIZE_IS
from tidegate.core.topology import DEFAULT_SCALING, KEYS, format_scaling_keys
from tidegate.pipeline.learn import JOBS
from tidegate.protocol.connection import ANSWERS, PUSHES, REQUESTS, TRANSITIONS
from tidegate.protocol.packet import Packet, Run
from tidegate.telemetry.schemas import KINDS, RowKind

# -- command_reference --
# The reference of all commands; docs/reference/commands.md is generated from here.
#
# The texts are those of `--help`, read from the same objects.


def commands() -> str:
    """Return the reference of all commands, in the order of `tidegate --help`."""
    root: Any = typer.main.get_command(app)
    return "\n".join(_pages(root, root.context_class(root, info_name="tidegate"))).rstrip()


def names() -> list[str]:
    """Return all command names; those in groups in full, such as `user add`."""
    root: Any = typer.main.get_command(app)
    return [
        context.command_path.partition(" ")[2]
        for command, context in _walked(root, root.context_class(root, info_name="tidegate"))
        if not hasattr(command, "commands")
    ]


def _pages(root: Any, context: Any) -> Iterator[str]:
    for command, inner in _walked(root, context):
        is_group = hasattr(command, "commands")
        yield f"### {inner.command_path}"
        if is_group:
            yield f"{_docstring_text(command.help)}\n"
            continue
        usage = " ".join([inner.command_path, *command.collect_usage_pieces(inner)])
        yield f"```\n{usage}\n```\n{_docstring_text(command.help)}\n"
        records = [
            record
            for parameter in command.get_params(inner)
            # The page replaces --help.
            if (record := parameter.get_help_record(inner)) and "--help" not in parameter.opts
        ]
        if records:
            yield "| | |\n|---|---|"
            yield from (f"| `{_name(name)}` | {_escaped(_line(says))} |" for name, says in records)
            yield ""


def _walked(group: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every command below a group, each group before its commands."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        inner = command.context_class(command, info_name=name, parent=context)
        yield command, inner
        if hasattr(command, "commands"):
            yield from _walked(command, inner)


def _docstring_text(text: str | None) -> str:
    """Return a docstring with each paragraph on one line."""
    paragraphs = (text or "").split("\n\n")
    return _escaped("\n\n".join(_line(one) for one in paragraphs))


def _name(text: str) -> str:
    """Return an option's name for a table cell; code in a cell cannot contain an escaped `|`."""
    return _line(text).replace(" range>", ">").replace("|", " or ")


def _line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


# -- settings_reference --
# The reference of the settings; docs/reference/settings.md is generated from here.
#
# Defaults and allowed values come from the settings classes. The meaning of each key is in this
# module. A key without a text fails the check of the docs, and a test.


SECTION_TEXTS = {
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
SETTING_TEXTS = {
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
SCALING_TEXTS = {
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


def settings_tables() -> str:
    """Return a Markdown table of the keys of each section, for the docs."""
    defaults = as_document(Settings())
    parts = []
    for section, fields in SECTIONS.items():
        parts.append(f"### [{section}]\n{SECTION_TEXTS[section]}\n")
        parts.append("| key | default | allowed | meaning |\n|---|---|---|---|")
        parts += [
            f"| `{key}` | {_format_default(defaults[section][key])} | {_short(field.allowed)} "
            f"| {SETTING_TEXTS[f'{section}.{key}']} |"
            for key, field in fields.items()
        ]
        parts.append("")
    return "\n".join(parts).rstrip()


def queue_table() -> str:
    """Return a Markdown table of the keys of a queue's section."""
    defaults = format_scaling_keys(DEFAULT_SCALING) | {"prefetch": None}
    lines = [f"| key of `[{QUEUES}.NAME]` | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{key}` | {_format_default(defaults[key])} | {SCALING_TEXTS[key]} |"
        for key in [*KEYS, "prefetch"]
    ]
    return "\n".join(lines)


def _short(allowed: str) -> str:
    """Shorten the format of durations and sizes, which the page explains above the tables."""
    return allowed.replace(DURATION_IS, "a duration").replace(SIZE_IS, "a size")


def _format_default(value: Any) -> str:
    if value is None or value == []:
        return "–"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, dict):
        return "`{ " + ", ".join(f"{key} = {one}" for key, one in value.items()) + " }`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


# -- law_reference --
# The laws with their formulas, for docs/explanation, read from the docstrings of their modules.
#
# A law's module begins with a sentence that says what the law answers, followed by its formula in
# an
# indented block. Reading both from the source keeps the page and the code equal.


# In the order of the pages.
SCALING = (
    *("stability", "shares", "exchange", "elasticity", "election", "feed_forward"),
    *("wait_sizing", "length_target", "reversal", "warm_pool"),
)
PREFETCH = ("least_squares", "controllers", "pole_placement", "keep_up")
HTTP = ("http_sizing", "availability_index", "balancing")
LEARNED = ("capacity", "load", "extrapolation", "anomaly")


_LAWS = Path(tidegate.laws.__file__).parent
# Laws whose words are those of their module.
_MAIN = {
    "shares": "routing.py",
    "elasticity": "scaling/load.py",
    "election": "scaling/clients.py",
    "feed_forward": "scaling/feed_forward.py",
    "wait_sizing": "scaling/wait.py",
    "least_squares": "prefetch/fit.py",
    "controllers": "prefetch/controller.py",
    "http_sizing": "http/sizing.py",
    "balancing": "http/balancing.py",
    "capacity": "capacity.py",
}


def scaling() -> str:
    return _law_docs(SCALING)


def prefetch() -> str:
    return _law_docs(PREFETCH)


def http() -> str:
    return _law_docs(HTTP)


def learned() -> str:
    return _law_docs(LEARNED)


def _law_docs(modules: tuple[str, ...]) -> str:
    return "\n\n".join(_one(module) for module in modules)


def _opening(law: str) -> str:
    """Return the words that a law opens with: a module's, or a comment's below `# -- law --`."""
    for file in sorted(_LAWS.rglob("*.py")):
        source = file.read_text(encoding="utf-8")
        _, found, rest = source.partition(f"\n# -- {law} --\n")
        if found:
            lines = itertools.takewhile(lambda line: line.startswith("#"), rest.splitlines())
            return "\n".join(line[1:].removeprefix(" ") for line in lines)
    source = (_LAWS / _MAIN[law]).read_text(encoding="utf-8")
    return ast.get_docstring(ast.parse(source), clean=True) or ""


def _one(module: str) -> str:
    words = _opening(module)
    sentence, *paragraphs = words.split("\n\n")
    following = itertools.dropwhile(lambda one: not one.startswith("    "), paragraphs)
    formula = "\n\n".join(itertools.takewhile(lambda one: one.startswith("    "), following))
    if not formula:
        raise ValueError(f"laws/{module}.py does not open with its formula")
    said = " ".join(sentence.split())
    return f"**`{module}`**: {said}\n\n```text\n{textwrap.dedent(formula)}\n```"


# -- schema_reference --
# Texts of the telemetry columns; the tables of docs/telemetry.md are generated from here.


# The text of a column in every kind, unless COLUMN_TEXTS_OF_KIND has one for the kind.
COLUMN_TEXTS = {
    "at": "end of the interval",
    "interval_s": "its length, by the monotonic clock",
    "node": "who recorded it",
    "queue": "its name",
    "replica": "which replica of the queue, from 0",
    "epoch": "of the ownership; grows with each new owner",
    "put": "messages stored within the interval",
    "delivered": "deliveries, repeated ones too",
    "acked": "messages done",
    "returned": "messages that came back: returned, lease run out, consumer gone",
    "redelivered": "deliveries of messages that may have been delivered before",
    "refused": "messages whose put was refused",
    "dead_lettered": "messages given up that went to the dead letters",
    "dropped": "messages given up that went nowhere",
    "expired": "messages that outlived their time",
    "deduplicated": "messages not stored, since one with their dedup id was",
    "wait_s_sum": "sum of the waits that `wait` counts",
    "service_s_sum": "sum of the services that `service` counts",
    "wait": "histogram: from when a message could be delivered to its first delivery",
    "service": "histogram: from delivery to acknowledgement",
    "waiting": "messages that wait at the end, delayed ones too",
    "waiting_in_store": "of those, in the store only",
    "delayed": "of those, not due yet",
    "unacknowledged": "messages in the hands of consumers at the end",
    "oldest_age_s": "how long the oldest could have been delivered; 0: none could",
    "resident_bytes": "memory that its messages take",
    "prefetch": "messages that may be unacknowledged, at the end; of a queue all consumers' sum",
    "producers": "who put within the interval",
    "consumers": "subscriptions at the end",
    "readers": "reads that wait at the end",
    "group": "the queue, and the client's name up to its first `#` or `@`: who does the same",
    "client": "the client's name",
    "consumer": "the number of its subscription",
    "automatic": "whether a delivery acknowledges",
    "arrival_per_s": "y(k+1): deliveries a second within the interval",
    "arrival_before_per_s": "y(k): the same of the interval before; null after a gap",
    "prefetch_before": "u(k): the prefetch at the end of the interval before; null after a gap",
    "role": "what kind of process: node, …",
    "member_id": "its number among the members",
    "connections": "open ones at the end",
    "queues": "that it owns at the end",
    "packets_in": "received within the interval",
    "packets_out": "sent",
    "commits": "transactions that stored messages",
    "committed_messages": "how many they stored",
    "commit_s_sum": "how long they took together",
    "process_memory_bytes": "resident memory at the end",
    "cpu_s": "processor time of the process within the interval",
    "messages_memory_bytes": "what messages take of its memory",
    "rows_dropped": "rows that could not be recorded since the last row of this kind",
    "verb": "the packet that was answered",
    "weight": "how many it stands for",
    "wait_client_us": "from the end of the answer before until the request came",
    "parse_us": "until it was parsed; null: it came by a transaction, a topic or another queue",
    "store_us": "until it was stored",
    "wait_message_us": "a read that waited for a message",
    "respond_us": "until the answer had gone; null as above",
    "total_us": "all of them",
    "message_id": "within its queue",
    "payload_bytes": "its size",
    "put_at": "when it came to the node",
    "wait_us": "from when it could be delivered to its first delivery; null: it was not",
    "service_us": "from its last delivery to its end; null: it was not delivered",
    "response_us": "from its arrival to its end",
    "deliveries": "how often it was delivered",
    "outcome": "acked, dead, dropped, expired, moved or purged",
    "event": "join, leave, rejoin, own, takeover, disown; scale, boot, halt; violation, warned, "
    "eased, kept; reconfigured, …",
    "subject": "what it happened to: a member, a queue, a machine, an agreement",
    "duration_s": "how long it took; null: at once",
    "value": "a figure that goes with it, if any",
    "detail": "what else there is to know",
    "loop": "which loop decided",
    "law": "by which law",
    "inputs": "what it saw",
    "outputs": "what it chose",
    "action": "what was done",
    "reason": "why, in a sentence",
    "mode": "who decided: automatic (the controller), held, fallback, manual",
    "target_per_s": "messages a second that were wanted; null: not known yet",
    "rate_per_s": "deliveries a second within the interval",
    "used_per_s": "the rate as the controller took it: without outliers, within the deadband",
    "error_per_s": "target less that",
    "proportional": "the P part of `wanted`, in messages of prefetch",
    "integral": "the I part",
    "derivative": "the D part",
    "wanted": "their sum, before limits",
    "level": "within limits: the prefetch from now on, with its fraction",
    "output": "the whole number that was set just then",
    "saturated": "which limit holds: low, high, or empty",
    "acked_per_s": "acknowledgements a second within the interval",
    "held": "messages that wait unbegun in the consumer, as its node can tell; null: unknown",
    "starved": "whether the consumer had credit that the queue did not use",
    "notes": "what else was done: outlier, redesigned: …, the ceiling is …",
    "service_time": "histogram: from sending to an instance to the end of its answer",
    "door": "which running door; another after a restart",
    "instance": "which instance; null: the row is that of the door itself",
    "accepted": "requests that the door let in",
    "answered": "whole answers of instances that went to clients",
    "sent": "requests sent to the instance",
    "served": "of those, answered by it",
    "server_errors": "of those, with 500 and above",
    "failed": "requests without a whole answer of it",
    "response": "histogram: as clients see it, waiting in the door included",
    "in_flight": "requests that the door has in hand at the end",
    "outstanding": "requests that the instance has not answered at the end",
    "version": "of what is deployed; null: the store does not know it",
    "concurrency": "requests that it may have at a time",
    "free_memory_bytes": "as its machine measures it",
    "ejected": "why it is out of the balancing for now; empty: it is not",
    "trouble": "what the door cannot do now; empty: it can",
    "address": "whom it asked",
    "ok": "whether it was answered as it should be",
    "status": "of the answer",
    "failure": "why it is not ok; empty: it is",
    "method": "of the request",
    "wait_door_us": "until an instance was free for it",
    "connect_us": "until it was sent: a connection, or another try",
    "server_us": "until its answer had gone",
}
COLUMN_TEXTS_OF_KIND = {
    ("requests", "at"): "when the answer had gone",
    ("requests", "parse_us"): "until it was parsed",
    ("requests", "store_us"): "until the store had done its part; 0 for reads",
    ("requests", "respond_us"): "until the answer had gone",
    ("lifecycles", "at"): "when it ended",
    ("events", "at"): "when it happened",
    ("control_steps", "prefetch"): "messages that might be unacknowledged, on average",
    ("decisions", "at"): "when it was taken",
    ("decisions", "service"): "of which queue or application",
    ("http_samples", "service"): "the HTTP service",
    ("http_samples", "refused"): "requests whose client got no whole answer of an instance",
    ("http_samples", "waiting"): "requests that wait in the door at the end",
    ("http_samples", "weight"): "what doors give the instance beside others; 0: a spare",
    ("http_samples", "rows_dropped"): "of the door: rows that could not be recorded since",
    ("http_probes", "at"): "when it had ended",
    ("http_probes", "service"): "the HTTP service",
    ("http_probes", "instance"): "which instance; null: it asked a door",
    ("http_probes", "status"): "of the answer; null: there was none",
    ("http_probes", "duration_s"): "how long it took",
    ("http_requests", "at"): "when it had been answered",
    ("http_requests", "service"): "the HTTP service",
    ("http_requests", "instance"): "who answered; null: the door itself",
}


def column_text(kind: RowKind, column: str) -> str:
    """Return the text of a column."""
    return COLUMN_TEXTS_OF_KIND.get((kind.name, column)) or COLUMN_TEXTS[column]


def schema_tables() -> str:
    """Return a Markdown table of the columns of every kind, for the docs."""
    parts = []
    for kind in KINDS.values():
        parts.append(f"### {kind.name}\n{kind.says} Version {kind.version}.\n")
        parts.append("| column | type | what it says |\n|---|---|---|")
        parts += [
            f"| `{field.name}` | {_type(field.type)} | {column_text(kind, field.name)} |"
            for field in kind.columns
        ]
        parts.append("")
    return "\n".join(parts).rstrip()


def _type(kind: Any) -> str:
    if pa.types.is_dictionary(kind):
        return "string"
    if pa.types.is_timestamp(kind):
        return "timestamp, µs, UTC"
    if pa.types.is_map(kind):
        return f"map of string to {_type(kind.item_type)}"
    if pa.types.is_list(kind):
        return "list of string" if pa.types.is_string(kind.value_type) else "list of bucket, count"
    return str(kind)


def requests_table() -> str:
    """Return a table of all requests with answer, mode, right and fields."""
    names = ("method", "packet", "answer", "mode", "right", "fields", "what it asks")
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    for method, packet in sorted(REQUESTS.items()):
        mode = "any" if packet.before_identification else packet.mode.name.lower().replace("_", "-")
        answer = f"0x{packet.answer.method:02x} {packet.answer.__name__}"
        lines.append(
            f"| 0x{method:02x} | {packet.__name__} | {answer} | {mode} | {packet.right or '–'} "
            f"| {_fields(packet)} "
            f"| {_sentence(packet)} |"
        )
    return "\n".join(lines)


def answers_table() -> str:
    """Return a table of all answers and pushes with their fields."""
    lines = ["| method | packet | fields | what it says |", "|" + "---|" * 4]
    for method, packet in sorted({**ANSWERS, **PUSHES}.items()):
        lines.append(
            f"| 0x{method:02x} | {packet.__name__} | {_fields(packet)} | {_sentence(packet)} |"
        )
    return "\n".join(lines)


def run_table() -> str:
    """Return a table of the fields of a run."""
    lines = ["| # | field | type |", "|" + "---|" * 3]
    for number, field in enumerate(msgspec.structs.fields(Run)):
        lines.append(f"| {number} | {field.name} | `{_format_type(field.type)}` |")
    return "\n".join(lines)


def errors_table() -> str:
    """Return a table of all error codes with class and meaning."""
    lines = ["| code | name | Python class | what it means |", "|" + "---|" * 4]
    for code, error in sorted(BY_CODE.items()):
        lines.append(f"| {code} | {error.name} | `{error.__name__}` | {_sentence(error)} |")
    return "\n".join(lines)


def states_table() -> str:
    """Return a table of the states of a connection."""
    lines = ["| state | on | becomes |", "|" + "---|" * 3]
    for state, moves in TRANSITIONS.items():
        for happening, following in moves.items():
            lines.append(f"| {state.value} | {happening.value} | {following.value} |")
    return "\n".join(lines)


def _fields(packet: type[Packet]) -> str:
    fields = msgspec.structs.fields(packet)
    return ", ".join(field.name + ("" if field.required else "?") for field in fields) or "–"


def _sentence(thing: type) -> str:
    return (thing.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ").replace("    ", "")


def _format_type(annotation: object) -> str:
    text = getattr(annotation, "__name__", None) if isinstance(annotation, type) else None
    return str(text or annotation).replace("tidegate.core.model.", "").replace("|", "or")


# -- reference --
# Tables of the jobs for the generated documentation, from what the jobs declare.


def jobs_table() -> str:
    """Return a table of what each job reads and writes, in the order in which the jobs run."""
    rows = ["| job | what it says | reads | tables |", "|---|---|---|---|"]
    rows += [
        f"| `{job.name}` | {job.says} | {_listed(job.reads)} | {_listed(job.writes)} |"
        for job in JOBS
    ]
    return "\n".join(rows)


def columns_table() -> str:
    """Return a table of the columns of every table that jobs write."""
    rows = ["| table | columns |", "|---|---|"]
    rows += [
        f"| `{table}` | " + ", ".join(f"`{field.name}`" for field in schema) + " |"
        for job in JOBS
        for table, schema in job.writes.items()
    ]
    return "\n".join(rows)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# -- architecture --
# The map of the packages and what each may import, from the contracts that `make check` enforces.

_ROOT = Path(__file__).resolve().parent.parent


def _contracts(kind: str) -> list[dict[str, Any]]:
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    return [contract for contract in contracts if contract["type"] == kind]


def _purpose(package: str) -> str:
    """Return the first sentence of a package's docstring."""
    source = (_ROOT / "src" / package / "__init__.py").read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return _escaped(" ".join(docstring.partition("\n\n")[0].split()))


def layers_table() -> str:
    """Return a table of the packages of tidegate, the highest layer first."""
    rows = ["| layer | package | what it is for |", "|---|---|---|"]
    [contract] = _contracts("layers")
    for number, layer in reversed([*enumerate(reversed(contract["layers"]), 1)]):
        rows += [
            f"| {number} | `{package}` | {_purpose(f'tidegate/{package}')} |"
            for package in layer.split(" | ")
        ]
    return "\n".join(rows)


def contracts_table() -> str:
    """Return a table of the imports that are forbidden besides those of higher layers."""
    rows = ["| rule | modules | may not import |", "|---|---|---|"]
    for contract in _contracts("forbidden"):
        sources = [name.removeprefix("tidegate.") for name in contract["source_modules"]]
        forbidden = contract["forbidden_modules"]
        directly = " directly" if contract.get("allow_indirect_imports") else ""
        row = f"| {contract['name']} | {_listed(sources)} | {_listed(forbidden)}{directly} |"
        rows.append(row)
    return "\n".join(rows)
