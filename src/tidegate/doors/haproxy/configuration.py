"""The configuration file of one HAProxy: the gateway's behaviour, expressed as HAProxy rules.

HAProxy inherits two descriptors from the door:

- The listening socket (`fd@`). It stays open when HAProxy dies, so connections wait in its backlog
  until the next HAProxy accepts them.
- The write end of the pipe for the request log. One read of a pipe returns hundreds of lines. A
  UNIX datagram socket holds ten by default, and drops the rest.

The door sets three process variables while HAProxy runs:

- `proc.in_flight_max`: the admission limit.
- `proc.kept`: of how many in a thousand requests HAProxy logs a line.
- `proc.stand_in`: the name of the spare that serves while no server with weight is up.

The door reads a fourth one, `proc.probes`: how many of the leader's probes have arrived.

A request passes these rules in order:

1. Ordinary requests leave the frontend at once (`http-request allow`). All other requests exceed a
   limit, are unusual in version, method, target or host, or have a field that a later rule
   examines.
2. The leader's probe is recognised, counted, and logged with its own level.
3. Requests that two servers could parse differently are refused, to prevent request smuggling.
   Requests that exceed a limit are refused too.
4. Fields for one connection only, and untrusted statements about the client, are deleted.
5. In the backend section, every request gets the fields that a proxy adds (`Via`, …).
"""

from __future__ import annotations

import asyncio
import hmac
import re
import socket
from collections.abc import Iterable, Sequence
from hashlib import sha256
from ipaddress import ip_address, ip_network
from math import ceil

import msgspec

from tidegate.core.errors import InvalidValue, Unavailable
from tidegate.core.services import HEALTH_ANSWER_S, PROBE_HEADER, Backend
from tidegate.doors import ILL_FROM_STATUS, DoorSettings
from tidegate.gateway.gateway import GatewayLimits
from tidegate.laws.http.balancing import Policy

FRONTEND = "door"
BACKEND = "instances"
# Names the spare that serves while no server with weight is up.
BACKUP_VARIABLE = "proc.stand_in"
# Counts requests of the leader's probe that have arrived.
PROBES = "proc.probes"

# Server, status, termination state; then in ms: the total time as the client saw it, reading the
# request, and waiting in the queue; last, of how many in a thousand requests there is a line.
_LOG_FORMAT = '["%s",%ST,"%ts",%Ta,%TR,%Tw,%[var(proc.kept)]]'
# Marks a probe's line for the reader of the log; all other requests have `info`.
_PROBE_LEVEL = "notice"
_TOLD_BY_PROXIES = "x[-_]forwarded[-_]|x[-_]real[-_]ip|forwarded|true[-_]client[-_]ip"
_HOP_BY_HOP = (
    "(?:keep-alive|proxy-authenticate|proxy-authorization|proxy-connection|te|trailer"
    "|http2-settings)$"
)
# The header of the leader's probe; it must not reach an instance.
_PROBE = f"{PROBE_HEADER.lower()}$"
_HOPS_MAX = 8
_SERVER_ERROR = 500
# Matched against all header lines: control characters, and framing fields in disguise. An
# application behind CGI rules cannot distinguish `Content_Length:` from `Content-Length:`.
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_DISGUISED = "(content|transfer)_(length|encoding):"
_ODD = rf"'{_CONTROL}|(^|\n)({_DISGUISED})'"
# Matches if the request has at least one field that a rule below examines, by the beginning of its
# line.
_UNUSUAL = (
    rf"'{_CONTROL}|(^|\n)({_DISGUISED}|{_TOLD_BY_PROXIES}|keep-alive:|proxy-|te:|trailer:|http2-s"
    rf"|transfer-encoding:|upgrade:|loadbalanced:|{PROBE_HEADER.lower()}:"
    r"|connection:(?! (?i:keep-alive|close)\r))'"
)
_USUAL_METHODS = "GET POST PUT DELETE HEAD PATCH"
_USUAL_TARGET = "'^/[^#]*$'"
_TARGET = r"'^(/[^#]*|\*|https?://[^/?#@]+([/?][^#]*)?)$'"
_NOT_NOMINATED = "host content-length cookie authorization cache-control"
_HOST = r"'^(\[[0-9a-f:.]+\]|[a-z0-9._~!$&\x27()*+;=%-]+)(:[0-9]{1,5})?$'"
# The path is written between quotes, so it must contain no character that would end the word.
_PATH = re.compile(r"/[!$&(-;=?-Z_a-z~%]*")


def configuration(
    settings: DoorSettings,
    backends: Iterable[Backend],
    *,
    runtime_socket: str,
    listener_fd: int,
    log_fd: int,
    token: str,
    in_flight_max: int,
    kept: int,
) -> str:
    """Return the text of the whole file.

    `listener_fd` and `log_fd` are the inherited descriptors; `token` identifies this door in the
    field LoadBalanced. `in_flight_max` and `kept` are the initial values of the process variables.
    """
    limits = settings.limits
    return "\n".join(
        (
            "global",
            f"    stats socket {runtime_socket} mode 600 level admin",
            # Health checks over loopback count too. Connections beyond the limit wait to be
            # accepted.
            f"    maxconn {limits.connections_max}",
            # Start with the descriptors that this user may have, instead of refusing to start.
            "    no strict-limits",
            f"    tune.bufsize {limits.header_bytes_max + 1024}",
            "    tune.maxrewrite 1024",
            f"    set-var proc.in_flight_max int({in_flight_max})",
            f"    set-var proc.kept int({kept})",
            f"    set-var {BACKUP_VARIABLE} str({backup_server_name(backends)})",
            f"    set-var {PROBES} int(0)",
            "",
            "defaults",
            "    mode http",
            # Drop a queued request when its client disconnects. In a backend section HAProxy 2.6
            # ignores this option (its issue 2344).
            "    option abortonclose",
            *_timeouts(limits),
            *_own_answers(limits),
            "",
            f"frontend {FRONTEND}",
            f"    bind fd@{listener_fd}",
            f"    log fd@{log_fd} len 512 format short daemon",
            f"    log-format '{_LOG_FORMAT}'",
            "    option dontlognull",
            # Close a connection that sends nothing without an error response, as the gateway does.
            "    option http-ignore-probes",
            # Append the client to X-Forwarded-For, after the entries of a trusted peer.
            "    option forwardfor",
            *_requests(settings, token),
            f"    default_backend {BACKEND}",
            "",
            f"backend {BACKEND}",
            *_balancing(settings),
            # In the backend section, because ordinary requests leave the frontend's rules early.
            *_added(settings, token),
            *(f"    server {server_line(one, backends)}" for one in backends),
            "",
        )
    )


def _timeouts(limits: GatewayLimits) -> list[str]:
    times = {
        "http-request": limits.head_timeout_s,
        "http-keep-alive": limits.idle_timeout_s,
        "client": limits.send_stall_s,
        "client-fin": limits.linger_s,
        "connect": limits.connect_timeout_s,
        "server": limits.answer_timeout_s,
        "queue": limits.wait_s,
        "tunnel": limits.tunnel_idle_s,
        "check": HEALTH_ANSWER_S,
    }
    return [f"    timeout {name} {ceil(time_s * 1000)}ms" for name, time_s in times.items()]


def _own_answers(limits: GatewayLimits) -> list[str]:
    return [
        "    http-error status 503 content-type text/plain string"
        " '503 Service Unavailable: no server had room; try again'"
        f" hdr Retry-After {limits.retry_after_s}"
    ]


def _refusal(status: int, why: str, condition: str) -> str:
    # HAProxy counts denied requests apart (`dreq`), so the sensor can tell that a 501 was no
    # server's fault.
    verb = "return" if status < _SERVER_ERROR else "deny"
    # Close the connection: after an ambiguous request the next bytes may be anything.
    return (
        f"    http-request {verb} status {status} content-type text/plain"
        f" string '{status}: {why}' hdr Connection close if {condition}"
    )


def _requests(settings: DoorSettings, token: str) -> list[str]:
    """Return the rules for a request in the frontend.

    Each rule costs a fraction of a microsecond per request, and nearly all of them examine
    something that an ordinary request does not have. Such a request leaves the rules early.
    """
    beyond, refusals = _bounds(settings.limits)
    return [
        "    http-request set-log-level silent if { rand(1000),sub(proc.kept) ge 0 }",
        *beyond,
        f"    acl usual_target url -m reg {_USUAL_TARGET}",
        f"    acl unusual_field req.hdrs -m reg {_UNUSUAL}",
        f"    acl good_host req.fhdr(Host) -m reg -i {_HOST}",
        f"    http-request allow if !beyond HTTP_1.1 {{ method {_USUAL_METHODS} }} usual_target"
        " good_host !unusual_field",
        *_probes(settings),
        *_strictness(),
        *refusals,
        *_rewriting(settings, token),
    ]


def _probes(settings: DoorSettings) -> list[str]:
    """Return the rules that recognise the leader's probe, log it always, and mark its log line."""
    if not settings.probe_mark:
        return []
    # Compare hashes: the duration of the comparison then reveals nothing, and the file does not
    # contain the mark.
    digest = sha256(settings.probe_mark).hexdigest().upper()
    return [
        f"    acl probe req.fhdr({PROBE_HEADER}),sha2(256),hex -m str {digest}",
        f"    http-request set-log-level {_PROBE_LEVEL} if probe",
        # Count a probe when it arrives: its line in the log appears only when it has ended.
        f"    http-request set-var({PROBES}) var({PROBES}),add(1) if probe",
    ]


def _bounds(limits: GatewayLimits) -> tuple[list[str], list[str]]:
    """Return the ACLs named `beyond`, and the rules that refuse what they match."""
    too_many = f"be_conn({BACKEND}),sub(proc.in_flight_max) ge 0"
    full_line = f"queue({BACKEND}) ge {limits.waiting_max}"
    too_long = f"req.hdr_val(content-length) gt {limits.body_bytes_max}"
    found = [(too_many, _shed(limits, "too many requests", too_many))]
    # Each waiting request has its own connection, so otherwise this rule could never match.
    if limits.waiting_max < limits.connections_max:
        found.append((full_line, _shed(limits, "too many wait already", full_line)))
    if limits.body_bytes_max is not None:
        refusal = _refusal(413, "the body is too long", f"{{ {too_long} }}")
        found.append((too_long, refusal))
    return [f"    acl beyond {test}" for test, _ in found], [rule for _, rule in found]


def _shed(limits: GatewayLimits, why: str, test: str) -> str:
    return (
        "    http-request return status 503 content-type text/plain"
        f" string '503 Service Unavailable: {why}; try again'"
        f" hdr Retry-After {limits.retry_after_s} if {{ {test} }}"
    )


def _rewriting(settings: DoorSettings, token: str) -> list[str]:
    """Return the rules that refuse loops and delete fields that must not reach an instance."""
    trusted = [str(ip_network(one)) for one in settings.trusted_peers]
    loops = f"{{ req.hdr(LoadBalanced) {token} }} or {{ req.hdr_cnt(LoadBalanced) ge {_HOPS_MAX} }}"
    rules = [
        _refusal(508, "this request has been here before", loops),
        # Only WebSocket may upgrade: h2c would tunnel requests past these rules.
        "    http-request del-header Upgrade unless { req.hdr(Upgrade) -i websocket }",
    ]
    if not trusted:
        told = f"{_TOLD_BY_PROXIES}|{_HOP_BY_HOP}|{_PROBE}"
        return [*rules, f"    http-request del-header ^({told}) -m reg"]
    return [
        *rules,
        # Delete spellings with underscores even from trusted peers: a peer may have passed on a
        # field that it did not know, and many applications read an underscore as a dash.
        f"    http-request del-header ^((?=.*_)({_TOLD_BY_PROXIES})|{_HOP_BY_HOP}|{_PROBE}) -m reg",
        f"    acl trusted src {' '.join(trusted)}",
        f"    http-request del-header ^({_TOLD_BY_PROXIES}) -m reg unless trusted",
    ]


def _added(settings: DoorSettings, token: str) -> list[str]:
    """Return the rules that add fields to every request, after the deletions."""
    added = "    http-request add-header"
    # Without trusted peers these fields were deleted, so the rule needs no condition.
    proto, host = (
        (f" unless {{ req.hdr(X-Forwarded-{name}) -m found }}" if settings.trusted_peers else "")
        for name in ("Proto", "Host")
    )
    return [
        f"{added} LoadBalanced {token}",
        f"{added} Via '1.1 tidegate'",
        f"{added} X-Forwarded-Proto http{proto}",
        f"{added} X-Forwarded-Host %[req.hdr(Host)]{host}",
    ]


def _strictness() -> list[str]:
    """Return the rules that refuse requests which two servers could parse differently.

    The gateway refuses the same requests (gateway/http1.py). HAProxy itself repairs lines that end
    in LF, folded fields and equal lengths. It writes every request in one canonical form, so
    servers can read it in one way only.
    """
    return [
        f"    acl odd req.hdrs -m reg {_ODD}",
        f"    acl odd req.hdr(Connection) -i {_NOT_NOMINATED}",
        # Some servers treat `get` as a method other than `GET`.
        "    acl good_method method -m reg '^[A-Z-]+$'",
        f"    acl good_target url -m reg -i {_TARGET}",
        "    acl has_body req.hdr(Transfer-Encoding) -m found",
        "    acl has_body req.hdr_val(Content-Length) gt 0",
        "    acl has_host req.fhdr(Host) -m found",
        # Without this rule HAProxy would accept HTTP/2 with prior knowledge, where bodies have no
        # length.
        _refusal(400, "this door speaks HTTP/1.1", "!HTTP_1.1 !HTTP_1.0"),
        _refusal(
            400,
            "two servers could read this request differently",
            "odd or !good_method or !good_target or has_host !good_host or !has_host !HTTP_1.0"
            " or HTTP_1.0 { req.hdr(Transfer-Encoding) -m found }"
            " or { req.hdr(Connection) -i upgrade } has_body"
            " or { url * } !METH_OPTIONS",
        ),
        _refusal(501, "this method is not passed on", "METH_CONNECT or METH_TRACE"),
    ]


def check_deadline(deadline_s: float | None) -> None:
    """Raise InvalidValue if a deadline is set: HAProxy has no deadline for a whole request."""
    if deadline_s is not None:
        raise InvalidValue(
            "HAProxy knows no deadline of a whole request: bound its silence with an answer "
            "timeout, or take the engine gateway"
        )


def _balancing(settings: DoorSettings) -> list[str]:
    limits = settings.limits
    check_deadline(limits.deadline_s)
    lines = [
        f"    balance {balance_of(settings.balancing)}",
        # Reuse connections for the first request of a client too, as the gateway does, so that
        # instances accept fewer connections. If the instance closes the connection at that moment,
        # HAProxy retries the request where that is safe, and answers 502 otherwise.
        "    http-reuse always",
        f"    retries {limits.retries_max}",
        "    option redispatch 1",
        # A failed connection has sent nothing, so any request may be retried. A request that was
        # sent is retried only if its method is idempotent.
        "    retry-on conn-failure empty-response",
        "    http-request disable-l7-retry unless { method GET HEAD OPTIONS PUT DELETE }",
        # A spare is no HAProxy `backup` server: that flag is permanent, and spares get promoted. A
        # session cookie takes precedence, so a session stays with its instance.
        f"    use-server %[var({BACKUP_VARIABLE})] if {{ nbsrv({BACKEND}) eq 0 }}",
    ]
    if settings.health_path is not None:
        if _PATH.fullmatch(settings.health_path) is None:
            raise InvalidValue(
                f"health_path is {settings.health_path!r}; it must be a path, percent-encoded"
            )
        lines += [
            "    option httpchk",
            f"    http-check send meth GET uri '{settings.health_path}' ver HTTP/1.1"
            f" hdr Host localhost hdr User-Agent tidegate hdr Connection close",
            f"    http-check expect status 200-{ILL_FROM_STATUS - 1}",
        ]
    if settings.session_secret is not None:
        lines += [
            # HAProxy hashes an instance's address with the key. Doors with the same secret produce
            # the same cookies, and clients learn no addresses.
            "    cookie StickyHost insert indirect nocache httponly dynamic attr SameSite=Lax",
            f"    dynamic-cookie-key {_cookie_key(settings.session_secret)}",
        ]
    return lines


def _cookie_key(secret: bytes) -> str:
    # Derive a key: the secret itself signs the gateway's cookies, and no file contains it.
    return hmac.digest(secret, b"haproxy cookie", sha256).hex()


# Names of balancing policies in HAProxy's configuration.
#
# `random` is missing on purpose. HAProxy's `random(n)` draws n servers. If the best of them is
# full,
# the request waits in the backend's queue, even while another server is idle.
#
# `better-of-two` maps to `leastconn`, which skips full servers. The gateway draws two servers
# because
# its counts may be outdated; HAProxy's counts are exact, so the smallest is safe to use.


_ALGORITHMS = {
    "round-robin": "roundrobin",
    "least-outstanding": "leastconn",
    "better-of-two": "leastconn",
}


def balance_of(policy: str | Policy) -> str:
    """Return HAProxy's name of a policy; raise InvalidValue if HAProxy has none."""
    algorithm = _ALGORITHMS.get(policy) if isinstance(policy, str) else None
    if algorithm is None:
        raise InvalidValue(
            f"HAProxy cannot balance by {policy!r}; choose one of {', '.join(_ALGORITHMS)}, or "
            "take the engine gateway"
        )
    return algorithm


# Resolution of backend host names to addresses.
#
# HAProxy resolves no host name of a server that is added at run time. Numeric addresses also keep
# arbitrary text, such as a machine's name for itself, out of HAProxy commands.


async def by_number(backends: Sequence[Backend]) -> tuple[list[Backend], str]:
    """Return the backends with numeric addresses, and an error text for those left out.

    A backend whose host name does not resolve is left out. The text is empty if there is none.
    Raises InvalidValue if two backends have the same instance_id.
    """
    names = [one.name for one in backends]
    if len(set(names)) < len(names):
        raise InvalidValue("two backends have one instance_id; each instance is there once")
    found: list[Backend] = []
    unknown: list[str] = []
    for one in backends:
        try:
            found.append(msgspec.structs.replace(one, host=await _number_of(one)))
        except Unavailable as failure:
            unknown.append(str(failure))
    return found, "; ".join(unknown)


async def _number_of(backend: Backend) -> str:
    try:
        return str(ip_address(backend.host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            backend.host, backend.port, type=socket.SOCK_STREAM
        )
    except (OSError, UnicodeError) as failure:
        raise Unavailable(
            f"{backend.name} is at {backend.host!r}, which has no address: {failure}"
        ) from failure
    return str(found[0][4][0])


# An instance as a server line of HAProxy's configuration, or as arguments of `add server`.


# HAProxy's weights are integers up to 256.
_WEIGHT_MOST = 100
_LIMITS = GatewayLimits()


def weight_of(backend: Backend, among: Iterable[Backend]) -> int:
    """Return the weight of a backend on HAProxy's scale; the heaviest among `among` has 100.

    A weight above 0 becomes at least 1. A draining backend has weight 0: only requests of its
    sessions go there. HAProxy calls this the state `drain`, which a configuration file cannot
    express.
    """
    heaviest = max((one.weight for one in among), default=0.0)
    if backend.draining or backend.weight <= 0.0 or heaviest <= 0.0:
        return 0
    return max(round(backend.weight / heaviest * _WEIGHT_MOST), 1)


def is_in_maintenance(backend: Backend) -> bool:
    """Return whether a backend is in maintenance: it drains and keeps no sessions."""
    return backend.draining and backend.sessions_until is None


def backup_server_name(backends: Iterable[Backend]) -> str:
    """Return the name of the spare that serves while no server with weight is up; "" if none."""
    spares = (one for one in backends if one.weight <= 0.0 and not one.draining)
    first = min(spares, key=lambda one: one.instance_id, default=None)
    return "" if first is None else first.name


def server_line(backend: Backend, among: Iterable[Backend]) -> str:
    """Return the server line for the configuration, in its final state from the start."""
    disabled = " disabled" if is_in_maintenance(backend) else ""
    return f"{_server(backend, weight_of(backend, among))}{disabled}"


def new_server(backend: Backend, among: Iterable[Backend]) -> str:
    """Return the arguments of `add server`, with a weight of at least 1.

    `add server` leaves the server in maintenance; the weight is lowered to 0 afterwards. A server
    that is added with weight 0 and then selected by name counts as a candidate of `leastconn`
    (HAProxy 2.6.12, tests/integration/doors). A server whose weight was lowered later does not.
    """
    return _server(backend, max(weight_of(backend, among), 1))


def _server(backend: Backend, weight: int) -> str:
    host = f"[{backend.host}]" if ":" in backend.host else backend.host
    return (
        f"{backend.name} {host}:{backend.port} weight {weight}"
        f" maxconn {backend.concurrency}"
        # Failed connections count as failed checks. Three in a row take the server out until a
        # check passes.
        " check inter 1s fall 2 rise 1 observe layer4 error-limit 3 on-error mark-down"
        f" pool-purge-delay {_LIMITS.pool_idle_s:g}s pool-max-conn {_LIMITS.pool_idle_max}"
    )


# The session grace of draining instances.
#
# A draining instance keeps its sessions until a given time; then they go to other instances.
# HAProxy has no such timer. The door checks the time before every command, and four times a second
# in between.


def within_grace(backends: Iterable[Backend], now_s: float) -> list[Backend]:
    """Return the backends; a `sessions_until` that has passed becomes None."""
    return [
        msgspec.structs.replace(one, sessions_until=None)
        if one.sessions_until is not None and one.sessions_until <= now_s
        else one
        for one in backends
    ]
