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
    "store": "The store of the messages: your own PostgreSQL servers, or an embedded PostgreSQL.",
    "node": "The addresses, limits and timing of a node.",
    "tls": "The PEM files that a node uses for TLS.",
    "metrics": "The address at which a node serves `/metrics`, `/healthz` and `/readyz`.",
    "console": "The address at which `up` serves the [console](../console-api.md).",
    "spark": "The Spark that runs the learning jobs. The section may also contain any "
    '`"spark.…" = …` option.',
    "pipeline": "The input and output folders of the learning jobs.",
    "telemetry": "The telemetry that nodes record, and the lake that they record it in.",
    "log": "The level and format of the logs.",
    "fleet": "The provider of machines, and the limits and deadlines for it.",
    "alerts": "The receivers of alerts about agreements. Without a command and a webhook, "
    "alerts go to the log only.",
}
SETTING_TEXTS = {
    "store.url": "The URL of the PostgreSQL (15 or newer) that is the store. Without it, "
    "an embedded PostgreSQL is the store.",
    "store.urls": "The URLs of several stores, of which the first is the catalogue; use it "
    "instead of `url`.",
    "store.data": "The folder of the embedded PostgreSQL, the lake and the learned models.",
    "store.connections": "The number of a node's connections that write messages; 0 means "
    "one for each writer.",
    "node.host": "The address that the node listens on; addresses beyond loopback need TLS "
    "and users.",
    "node.advertise": "The host name or address under which others reach the node, if it "
    "differs from `host`.",
    "node.port": "The port of the first node; 0 chooses a free port.",
    "node.memory": "The memory limit of messages; further messages wait in the store.",
    "node.lease": "The time for which a node owns its queues without renewing its lease.",
    "node.heartbeat": "The interval of heartbeats; a connection that is silent for three "
    "intervals is closed.",
    "node.handshake": "The longest time from connecting to being identified.",
    "node.message_bytes_max": "The size of the largest message.",
    "node.frame_before_login": "The size of the largest frame from a client that is not "
    "identified yet.",
    "node.connections_max": "The maximum number of connections; clients that are not "
    "identified get half of them.",
    "node.connections_per_address_max": "The maximum number of connections of one address; "
    "connections of other nodes do not count.",
    "node.connections_per_user_max": "The maximum number of connections of one user.",
    "node.slow_reader": "A client that reads none of its waiting data for this time is "
    "disconnected.",
    "node.login": "With `auto`, clients on this machine need no login until the first user "
    "is created.",
    "node.delivery_lease": "The time for which a consumer may hold a message without "
    "renewing its lease.",
    "node.writers": "The number of connections that write to the store; each runs one "
    "commit at a time.",
    "node.settle_linger": "The time for which a node collects acknowledgements that no "
    "client waits for.",
    "tls.certificate": "The certificate of the node; it needs `key`.",
    "tls.key": "The key of the certificate, without a password.",
    "tls.authority": "The authority that signed the certificates of the other nodes. "
    "Without it, the authorities of the machine are trusted.",
    "metrics.enabled": "Whether the node serves these pages.",
    "metrics.host": "The address of the pages, which need no password.",
    "metrics.port": "The port of the pages; 0 chooses a free port. Without it, the port is "
    "1000 above the node's, or a free one if the node's port was chosen "
    "freely.",
    "metrics.queues_max": "The maximum number of queues with metrics; further queues are "
    "only counted.",
    "console.enabled": "Whether `up` serves the console; `--console` and `--no-console` "
    "take precedence.",
    "console.host": "The address that the console listens on; addresses beyond loopback "
    "need TLS and users.",
    "console.port": "The port of the console; 0 chooses a free port. Without it, the port "
    "is 1500 above the first node's, or a free one if the node's port "
    "was chosen freely.",
    "console.names": "Other host names of the console, such as that of a proxy, as host or "
    "host:port.",
    "spark.master": "The URL of the Spark master.",
    "pipeline.knowledge": "The folder of the learned models. Without it, the folder is "
    "`knowledge` in `store.data`.",
    "pipeline.agreements": "Agreement files, or folders of agreement files.",
    "telemetry.enabled": "Whether nodes record telemetry.",
    "telemetry.lake": "The folder of the lake, or an address that Arrow supports. Without "
    "it, the folder is `lake` in `store.data`.",
    "telemetry.interval": "The time between two samples of each queue and consumer.",
    "telemetry.flush": "The time between two files; a kill loses at most the telemetry of "
    "this time.",
    "telemetry.retention": "The age at which telemetry is deleted; `0s` keeps it for ever.",
    "telemetry.requests_per_s": "The approximate number of single requests that each node "
    "records per second; 0 records none.",
    "telemetry.lifecycles_per_s": "The approximate number of message lifecycles that each "
    "node records per second; 0 records none.",
    "log.level": "The lowest level that is logged.",
    "log.format": "The format of the logs, for people or for programs.",
    "fleet.provider": "With `process`, machines are process trees on this computer; with "
    "`command`, your own commands boot and halt them.",
    "fleet.name": "The value of `{fleet}` in the commands, which distinguishes several "
    "fleets of one cloud.",
    "fleet.boot": "The command of provider `command` that boots machine `{id}`.",
    "fleet.halt": "The command of provider `command` that halts machine `{id}`.",
    "fleet.list": "The command of provider `command` that prints the existing machines.",
    "fleet.command_deadline": "The time after which a boot or halt command is killed.",
    "fleet.list_deadline": "The time after which a list command is killed.",
    "fleet.list_interval": "The time between two list commands.",
    "fleet.tries": "The maximum number of attempts of one boot or halt.",
    "fleet.backoff": "The time before the second attempt; it doubles with each further attempt.",
    "fleet.boot_deadline": "The longest time from ordering a machine until it joins.",
    "fleet.lost": "The time after which a machine without a living node is given up.",
    "fleet.drain": "The time that a worker has to finish its running messages.",
    "fleet.boot_s": "The simulated boot time of provider `process`, in seconds.",
    "fleet.slots": "The number of replicas that fit on one machine, unless the queue sets its own.",
    "fleet.hosts": "The hosts that machines may run on, if the commands contain `{host}`.",
    "fleet.machines_per_host": "The maximum number of machines on one host; 0 means no limit.",
    "fleet.machines_max": "The maximum number of machines.",
    "fleet.warm": "The number of booted machines that are kept without work. Without it, "
    "the learned number is used.",
    "fleet.provisioning": "With `energy`, replicas use the fewest machines; with "
    "`performance`, each replica gets a machine.",
    "alerts.command": "A program and its arguments, which gets each alert as JSON on stdin.",
    "alerts.webhook": "An `http://` address that gets each alert as a POST.",
    "alerts.warnings": "Whether warnings and their ends are alerts, too.",
    "alerts.timeout": "The time limit of one attempt to deliver an alert.",
    "alerts.attempts": "The maximum number of attempts to deliver an alert.",
}
SCALING_TEXTS = {
    "replicas": "The smallest and the largest number of replicas; bounds of an agreement "
    "take precedence.",
    "policy": "The scaling law: `fixed`, `load`, `clients`, `feed-forward`, `length` or "
    "`agreement`.",
    "steering": "With `auto`, decisions are executed; with `recommend-only`, they are only "
    "recorded; `manual` is an override.",
    "replicas_wanted": "The number of replicas under `manual`.",
    "min_load": "The law removes a replica if fewer messages than this wait for each replica.",
    "max_load": "The law adds a replica if more messages than this wait for each replica.",
    "max_wait": "The longest time that a message may wait; it replaces both loads once the "
    "rate of a replica is known.",
    "queue_length": "The number of waiting messages for each replica under policy `length`.",
    "capacity_clients": "The best number of clients for each replica under policy "
    "`clients`. Without it, the learned number or 3 is used.",
    "capacity_per_s": "The messages a second that a replica with its workers handles. "
    "Without it, the rate is measured.",
    "polling_interval": "The time between two decisions.",
    "inhibition": "The time after a scale-up without another one; it starts again when the "
    "new replica serves.",
    "cooldown_period": "The time after any change without a scale-in.",
    "step_max": "The maximum number of replicas that one decision may add or begin to "
    "remove. Without it, the number is 4 for `feed-forward` and "
    "`agreement`, and 1 for the other policies.",
    "stale": "The age from which measurements are not acted on.",
    "reversal_memory": "The time for which a scale-up that lowered throughput is not tried again.",
    "worker": "The application, as `module:app`, that a machine starts with each replica.",
    "workers_per_replica": "The number of worker processes of each replica.",
    "rate_max_per_s": "A fixed rate limit of each replica, for experiments.",
    "slots_per_machine": "The number of replicas that fit on one machine. Without it, "
    "`fleet.slots` is used.",
    "provisioning": "The rule that chooses the machine of a new replica. Without it, "
    "`fleet.provisioning` is used.",
    "warm": "The number of machines kept warm. Without it, `fleet.warm` or the learned "
    "number is used.",
    "boot": "The boot time of a machine. Without it, the learned time is used.",
    "sla_delta": "The largest growth of the load to keep up with, in msg/s². Without it, "
    "the learned growth is used.",
    "shares": "The overridden shares of new messages by replica, such as `{ 1 = 0.7, 2 = "
    "0.3 }`. Without it, the law sets the shares.",
    "agreement": "An agreement file beside the settings, which is obeyed under policy "
    "`agreement` and only judged under the others.",
    "prefetch": "The prefetch goal of the consumers: `400/s`, `keep-up`, a number, `off`, "
    'or `{ rate = "400/s", settle = "20s", high = 100 }`.',
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
    "at": "The end of the interval.",
    "interval_s": "The length of the interval, by the monotonic clock.",
    "node": "The node that recorded the row.",
    "queue": "The name of the queue.",
    "replica": "The number of the queue's replica, from 0.",
    "epoch": "The epoch of the ownership, which grows with each new owner.",
    "put": "The number of messages stored within the interval.",
    "delivered": "The number of deliveries, including repeated ones.",
    "acked": "The number of acknowledged messages.",
    "returned": "The number of messages that came back because they were returned, their "
    "lease expired, or their consumer ended.",
    "redelivered": "The number of deliveries of messages that may have been delivered before.",
    "refused": "The number of messages whose put was refused.",
    "dead_lettered": "The number of messages that moved to the dead letters.",
    "dropped": "The number of messages that were given up without a dead-letter queue.",
    "expired": "The number of messages whose time to live ended.",
    "deduplicated": "The number of messages that were not stored because their dedup id was known.",
    "wait_s_sum": "The sum of the waits that `wait` counts.",
    "service_s_sum": "The sum of the service times that `service` counts.",
    "wait": "A histogram of the time from when a message could be delivered to its first delivery.",
    "service": "A histogram of the time from delivery to acknowledgement.",
    "waiting": "The number of messages that wait at the end, including delayed ones.",
    "waiting_in_store": "The number of waiting messages that are in the store only.",
    "delayed": "The number of waiting messages that are not due yet.",
    "unacknowledged": "The number of messages that consumers hold at the end.",
    "oldest_age_s": "The time for which the oldest message could have been delivered; 0 if "
    "there is none.",
    "resident_bytes": "The memory of the queue's messages.",
    "prefetch": "The prefetch at the end; for a queue, the sum over its consumers.",
    "producers": "The number of producers that put within the interval.",
    "consumers": "The number of subscriptions at the end.",
    "readers": "The number of reads that wait at the end.",
    "group": "The queue, and the client's name up to its first `#` or `@`; it groups "
    "consumers with the same task.",
    "client": "The name of the client.",
    "consumer": "The number of the client's subscription.",
    "automatic": "Whether a delivery is also the acknowledgement.",
    "arrival_per_s": "y(k+1), the deliveries a second within the interval.",
    "arrival_before_per_s": "y(k), the deliveries a second within the previous interval; "
    "null after a gap.",
    "prefetch_before": "u(k), the prefetch at the end of the previous interval; null after a gap.",
    "role": "The kind of the process, such as node.",
    "member_id": "The id of the node in the membership table.",
    "connections": "The number of open connections at the end.",
    "queues": "The number of queues that the node owns at the end.",
    "packets_in": "The number of packets received within the interval.",
    "packets_out": "The number of packets sent within the interval.",
    "commits": "The number of transactions that stored messages.",
    "committed_messages": "The number of messages that these transactions stored.",
    "commit_s_sum": "The total time of these transactions.",
    "process_memory_bytes": "The resident memory of the process at the end.",
    "cpu_s": "The processor time of the process within the interval.",
    "messages_memory_bytes": "The memory of all messages of the node.",
    "rows_dropped": "The number of rows that could not be recorded since the last row of "
    "this kind.",
    "verb": "The packet that was answered.",
    "weight": "The number of requests or messages that the row stands for.",
    "wait_client_us": "The time from the end of the previous answer until the request arrived.",
    "parse_us": "The time until the message was parsed; null if it came by a transaction, "
    "a topic or another queue.",
    "store_us": "The time until the message was stored.",
    "wait_message_us": "The time for which a read waited for a message.",
    "respond_us": "The time until the answer was sent; null in the same cases as `parse_us`.",
    "total_us": "The sum of all these times.",
    "message_id": "The id of the message within its queue.",
    "payload_bytes": "The size of the payload.",
    "put_at": "The time at which the message arrived at the node.",
    "wait_us": "The time from when the message could be delivered to its first delivery; "
    "null if it was not delivered.",
    "service_us": "The time from the message's last delivery to its end; null if it was "
    "not delivered.",
    "response_us": "The time from the message's arrival to its end.",
    "deliveries": "The number of deliveries of the message.",
    "outcome": "The end of the message: acked, dead, dropped, expired, moved or purged.",
    "event": "The name of the event: join, leave, rejoin, own, takeover, disown; scale, "
    "boot, halt; violation, warned, eased, kept; reconfigured, ….",
    "subject": "The object of the event: a node, a queue, a machine or an agreement.",
    "duration_s": "The duration of the event; null if it has none.",
    "value": "The figure of the event, if it has one.",
    "detail": "Further details of the event.",
    "loop": "The control loop that decided.",
    "law": "The law that decided.",
    "inputs": "The sample that the law used.",
    "outputs": "The values that the law chose.",
    "action": "The action that was executed.",
    "reason": "The reason of the decision, as a sentence.",
    "mode": "The source of the decision: automatic (the controller), held, fallback or manual.",
    "target_per_s": "The wanted messages a second; null if the target is not known yet.",
    "rate_per_s": "The deliveries a second within the interval.",
    "used_per_s": "The rate that the controller used, without outliers and within the deadband.",
    "error_per_s": "The target minus the used rate.",
    "proportional": "The P part of `wanted`, in messages of prefetch.",
    "integral": "The I part of `wanted`.",
    "derivative": "The D part of `wanted`.",
    "wanted": "The sum of the three parts, before limits.",
    "level": "The prefetch after limits, with its fraction.",
    "output": "The whole number that the step set as the prefetch.",
    "saturated": "The limit that applies: low or high; empty if none applies.",
    "acked_per_s": "The acknowledgements a second within the interval.",
    "held": "The number of messages that wait in the consumer, as the node estimates it; "
    "null if it is unknown.",
    "starved": "Whether the consumer had credit that the queue did not use.",
    "notes": "Notes about the step: outlier, redesigned: …, the ceiling is ….",
    "service_time": "A histogram of the time from sending a request to an instance to the "
    "end of its answer.",
    "door": "The running door; a restarted door has another id.",
    "instance": "The instance; null if the row is about the door itself.",
    "accepted": "The number of requests that the door admitted.",
    "answered": "The number of complete answers of instances that went to clients.",
    "sent": "The number of requests sent to the instance.",
    "served": "The number of sent requests that the instance answered.",
    "server_errors": "The number of answers with a status of 500 or above.",
    "failed": "The number of requests without a complete answer of the instance.",
    "response": "A histogram of response times as clients see them, including the wait in "
    "the door.",
    "in_flight": "The number of requests that the door processes at the end.",
    "outstanding": "The number of requests that the instance has not answered at the end.",
    "version": "The deployed version of the service; null if the store does not know it.",
    "concurrency": "The maximum number of concurrent requests of the instance.",
    "free_memory_bytes": "The free memory that the machine of the instance measures.",
    "ejected": "The reason why the instance is out of the balancing; empty if it is in.",
    "trouble": "The function that the door cannot perform now; empty if it can perform all.",
    "address": "The address that the probe asked.",
    "ok": "Whether the answer was correct.",
    "status": "The status of the answer.",
    "failure": "The reason why the answer was not correct; empty if it was.",
    "method": "The method of the request.",
    "wait_door_us": "The time until an instance was free for the request.",
    "connect_us": "The time until the request was sent, including connecting and retries.",
    "server_us": "The time until the instance had sent its answer.",
}
COLUMN_TEXTS_OF_KIND = {
    ("requests", "at"): "The time at which the answer was sent.",
    ("requests", "parse_us"): "The time until the request was parsed.",
    ("requests", "store_us"): "The time until the store had done its part; 0 for reads.",
    ("requests", "respond_us"): "The time until the answer was sent.",
    ("lifecycles", "at"): "The time at which the message ended.",
    ("events", "at"): "The time of the event.",
    ("control_steps", "prefetch"): "The average prefetch within the interval.",
    ("decisions", "at"): "The time of the decision.",
    ("decisions", "service"): "The queue or application that the decision is about.",
    ("http_samples", "service"): "The HTTP service.",
    ("http_samples", "refused"): "The number of requests whose client got no complete "
    "answer of an instance.",
    ("http_samples", "waiting"): "The number of requests that wait in the door at the end.",
    ("http_samples", "weight"): "The instance's weight in the balancing; 0 means a spare.",
    ("http_samples", "rows_dropped"): "The number of the door's rows that could not be "
    "recorded since the last row.",
    ("http_probes", "at"): "The time at which the probe ended.",
    ("http_probes", "service"): "The HTTP service.",
    ("http_probes", "instance"): "The probed instance; null if the probe asked a door.",
    ("http_probes", "status"): "The status of the answer; null without an answer.",
    ("http_probes", "duration_s"): "The duration of the probe.",
    ("http_requests", "at"): "The time at which the request was answered.",
    ("http_requests", "service"): "The HTTP service.",
    ("http_requests", "instance"): "The instance that answered; null if the door itself answered.",
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
