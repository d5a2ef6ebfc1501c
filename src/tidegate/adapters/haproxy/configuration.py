"""HAProxy's configuration, written for one door: what the gateway does by itself, said to HAProxy.

Both sockets are ours and inherited: the listener (`fd@`), so that connections wait in its backlog
while a HAProxy that died is started again, and the pipe of its request log, of which one read gets
hundreds of lines (a UNIX datagram socket holds ten by default, and drops the rest).

Three process variables are set while it runs: `proc.in_flight_max`, the admission, `proc.kept`,
of how many in a thousand requests the log keeps a line, and `proc.stand_in`, the spare that serves
where nobody else can. A fourth is read: `proc.probes`.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_network
from math import ceil

from tidegate.adapters.door_settings import ILL_FROM_STATUS, DoorSettings
from tidegate.adapters.haproxy.balance import balance_of
from tidegate.adapters.haproxy.server_line import server_line, stand_in
from tidegate.core.errors import InvalidValue
from tidegate.core.health import HEALTH_ANSWER_S
from tidegate.core.hosting import Backend
from tidegate.core.probe_mark import FIELD
from tidegate.gateway.limits import GatewayLimits

FRONTEND = "door"
BACKEND = "instances"
# The name of the spare that is asked while no server of weight is up.
STAND_IN = "proc.stand_in"
# How many requests of the leader's probe have come.
PROBES = "proc.probes"

# Server, status, how it ended; in ms the whole time as the client saw it, and of it: reading the
# request, and waiting in line; of how many in a thousand requests there is a line.
_LOG_FORMAT = '["%s",%ST,"%ts",%Ta,%TR,%Tw,%[var(proc.kept)]]'
# By which the reader of the log knows a probe: others have `info`.
_PROBE_LEVEL = "notice"
_TOLD_BY_PROXIES = "x[-_]forwarded[-_]|x[-_]real[-_]ip|forwarded|true[-_]client[-_]ip"
_HOP_BY_HOP = (
    "(?:keep-alive|proxy-authenticate|proxy-authorization|proxy-connection|te|trailer"
    "|http2-settings)$"
)
# The leader's, and nobody's behind us.
_PROBE = f"{FIELD.lower()}$"
_HOPS_MAX = 8
_SERVER_ERROR = 500
# In the fields, as lines: control characters, and framing in disguise. Applications behind CGI's
# rules cannot tell `Content_Length` from the real one.
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
_DISGUISED = "(content|transfer)_(length|encoding):"
_ODD = rf"'{_CONTROL}|(^|\n)({_DISGUISED})'"
# Of fields that any rule of ours asks for, one is there: by the beginning of its line.
_UNUSUAL = (
    rf"'{_CONTROL}|(^|\n)({_DISGUISED}|{_TOLD_BY_PROXIES}|keep-alive:|proxy-|te:|trailer:|http2-s"
    rf"|transfer-encoding:|upgrade:|loadbalanced:|{FIELD.lower()}:"
    r"|connection:(?! (?i:keep-alive|close)\r))'"
)
_USUAL_METHODS = "GET POST PUT DELETE HEAD PATCH"
_USUAL_TARGET = "'^/[^#]*$'"
_TARGET = r"'^(/[^#]*|\*|https?://[^/?#@]+([/?][^#]*)?)$'"
_NOT_NOMINATED = "host content-length cookie authorization cache-control"
_HOST = r"'^(\[[0-9a-f:.]+\]|[a-z0-9._~!$&\x27()*+;=%-]+)(:[0-9]{1,5})?$'"
# A path that is written into a configuration, in quotes, must not end its word there.
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
    """The whole file."""
    limits = settings.limits
    return "\n".join(
        (
            "global",
            f"    stats socket {runtime_socket} mode 600 level admin",
            # Loopback health checks and requests share it; beyond, connections wait to be accepted.
            f"    maxconn {limits.connections_max}",
            # As many as this user may have, rather than none.
            "    no strict-limits",
            f"    tune.bufsize {limits.header_bytes_max + 1024}",
            "    tune.maxrewrite 1024",
            f"    set-var proc.in_flight_max int({in_flight_max})",
            f"    set-var proc.kept int({kept})",
            f"    set-var {STAND_IN} str({stand_in(backends)})",
            f"    set-var {PROBES} int(0)",
            "",
            "defaults",
            "    mode http",
            # Whoever hangs up while its request stands in line takes it along. In the section of a
            # backend HAProxy 2.6 would not notice (its issue 2344).
            "    option abortonclose",
            *_timeouts(limits),
            *_own_answers(limits),
            "",
            f"frontend {FRONTEND}",
            f"    bind fd@{listener_fd}",
            f"    log fd@{log_fd} len 512 format short daemon",
            f"    log-format '{_LOG_FORMAT}'",
            "    option dontlognull",
            # Who connects and says nothing is hung up on without a word, as the gateway does.
            "    option http-ignore-probes",
            # X-Forwarded-For, behind what a trusted peer has said.
            "    option forwardfor",
            *_requests(settings, token),
            f"    default_backend {BACKEND}",
            "",
            f"backend {BACKEND}",
            *_balancing(settings),
            # Here, since those that are usual leave the rules of the frontend early.
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
    # HAProxy counts denied requests apart: so it can be told that a 501 was no server's fault.
    verb = "return" if status < _SERVER_ERROR else "deny"
    # Whoever sent what two servers could read differently may mean anything by what follows.
    return (
        f"    http-request {verb} status {status} content-type text/plain"
        f" string '{status}: {why}' hdr Connection close if {condition}"
    )


def _requests(settings: DoorSettings, token: str) -> list[str]:
    """What is asked of a request before it goes on to an instance.

    Every rule costs a request a part of a microsecond, and nearly all ask for something that a
    usual request does not have: it leaves them early.
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
    """The leader's probe is logged, always, and not as the others are."""
    if not settings.probe_mark:
        return []
    # By its hash: how long a comparison takes tells nothing then, and the mark stands in no file.
    digest = sha256(settings.probe_mark).hexdigest().upper()
    return [
        f"    acl probe req.fhdr({FIELD}),sha2(256),hex -m str {digest}",
        f"    http-request set-log-level {_PROBE_LEVEL} if probe",
        # Counted when it begins: the log tells of it at its end only.
        f"    http-request set-var({PROBES}) var({PROBES}),add(1) if probe",
    ]


def _bounds(limits: GatewayLimits) -> tuple[list[str], list[str]]:
    """What is beyond one (ACLs), and the refusals of it."""
    too_many = f"be_conn({BACKEND}),sub(proc.in_flight_max) ge 0"
    full_line = f"queue({BACKEND}) ge {limits.waiting_max}"
    too_long = f"req.hdr_val(content-length) gt {limits.body_bytes_max}"
    found = [(too_many, _shed(limits, "too many requests", too_many))]
    # Each of those that wait has a connection of its own.
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
    """Of unusual requests, what goes: loops, and fields that are about one connection only."""
    trusted = [str(ip_network(one)) for one in settings.trusted_peers]
    loops = f"{{ req.hdr(LoadBalanced) {token} }} or {{ req.hdr_cnt(LoadBalanced) ge {_HOPS_MAX} }}"
    rules = [
        _refusal(508, "this request has been here before", loops),
        # Only WebSocket is passed through: h2c would tunnel requests past us.
        "    http-request del-header Upgrade unless { req.hdr(Upgrade) -i websocket }",
    ]
    if not trusted:
        told = f"{_TOLD_BY_PROXIES}|{_HOP_BY_HOP}|{_PROBE}"
        return [*rules, f"    http-request del-header ^({told}) -m reg"]
    return [
        *rules,
        # Spelt with underscores it counts from nobody: many applications cannot tell them from
        # dashes, and a trusted peer may have passed on what it did not know.
        f"    http-request del-header ^((?=.*_)({_TOLD_BY_PROXIES})|{_HOP_BY_HOP}|{_PROBE}) -m reg",
        f"    acl trusted src {' '.join(trusted)}",
        f"    http-request del-header ^({_TOLD_BY_PROXIES}) -m reg unless trusted",
    ]


def _added(settings: DoorSettings, token: str) -> list[str]:
    """Fields that every request gets, behind what is left of its own."""
    added = "    http-request add-header"
    # What nobody is believed is gone, and need not be looked for.
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
    """What HAProxy would pass on, and two servers could read differently (gateway/request_head.py).

    What it mends by itself is left to it: lines that end in LF, folded fields, equal lengths. It
    writes every request anew, so that there is one way only to read what servers get.
    """
    return [
        f"    acl odd req.hdrs -m reg {_ODD}",
        f"    acl odd req.hdr(Connection) -i {_NOT_NOMINATED}",
        # `get` is another method than `GET`, to some.
        "    acl good_method method -m reg '^[A-Z-]+$'",
        f"    acl good_target url -m reg -i {_TARGET}",
        "    acl has_body req.hdr(Transfer-Encoding) -m found",
        "    acl has_body req.hdr_val(Content-Length) gt 0",
        "    acl has_host req.fhdr(Host) -m found",
        # It would take up HTTP/2 with whoever begins with it, whose bodies have no length.
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
    """InvalidValue if there is one."""
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
        # Also the first request of a client finds a connection, as at the gateway, and no instance
        # has to take a new one for it. What its instance closes at that moment is sent again if it
        # may be, and is answered 502 otherwise.
        "    http-reuse always",
        f"    retries {limits.retries_max}",
        "    option redispatch 1",
        # A connection that failed has sent nothing. What was sent is sent again only where doing
        # it twice is as good as once.
        "    retry-on conn-failure empty-response",
        "    http-request disable-l7-retry unless { method GET HEAD OPTIONS PUT DELETE }",
        # Not as `backup`: a server is that for good, and spares are promoted. Behind its cookie: a
        # session stays where it is.
        f"    use-server %[var({STAND_IN})] if {{ nbsrv({BACKEND}) eq 0 }}",
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
            # HAProxy hashes an instance's address with the key: doors with one secret agree, and
            # clients learn nothing of addresses.
            "    cookie StickyHost insert indirect nocache httponly dynamic attr SameSite=Lax",
            f"    dynamic-cookie-key {_cookie_key(settings.session_secret)}",
        ]
    return lines


def _cookie_key(secret: bytes) -> str:
    # The secret itself is for the gateway's signatures and stands in no file.
    return hmac.digest(secret, b"haproxy cookie", sha256).hex()
