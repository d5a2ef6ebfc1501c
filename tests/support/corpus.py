"""Requests that two parsers could read differently, or that are none: each must get its status.

Named by what is wrong with it. A second request is hidden in some of them (`/hidden`), which no
server may ever see.
"""

from __future__ import annotations

HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: shop\r\n\r\n"


def _post(*fields: bytes, body: bytes = b"", version: bytes = b"1.1") -> bytes:
    lines = (b"POST /seen HTTP/" + version, b"Host: shop", *fields)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _get(*fields: bytes, host: bytes = b"Host: shop", line: bytes = b"GET / HTTP/1.1") -> bytes:
    return b"\r\n".join((line, host, *fields)) + b"\r\n\r\n"


_CHUNKED = b"Transfer-Encoding: chunked"
_END = b"0\r\n\r\n"

# Refused before any server hears of it.
BAD_HEADS: dict[str, bytes] = {
    "a length beside a coding": _post(b"Content-Length: 5", _CHUNKED, body=_END + HIDDEN),
    "a coding beside a length": _post(_CHUNKED, b"Content-Length: 5", body=_END + HIDDEN),
    "two lengths that differ": _post(b"Content-Length: 0", b"Content-Length: 44", body=HIDDEN),
    "two lengths that agree": _post(b"Content-Length: 4", b"Content-Length: 4", body=b"abcd"),
    "a list of lengths": _post(b"Content-Length: 4, 4", body=b"abcd"),
    "a length with a sign": _post(b"Content-Length: +4", body=b"abcd"),
    "a negative length": _post(b"Content-Length: -1", body=HIDDEN),
    "a length in hex": _post(b"Content-Length: 0x4", body=b"abcd"),
    "a length with an underscore": _post(b"Content-Length: 1_0", body=b"0123456789"),
    "an empty length": _post(b"Content-Length:", body=HIDDEN),
    "a length beyond 64 bits": _post(b"Content-Length: 18446744073709551620", body=HIDDEN),
    "a length with a blank in it": _post(b"Content-Length: 4 4", body=b"abcd"),
    "a length with a vertical tab": _post(b"Content-Length: \x0b4", body=b"abcd"),
    "a blank before the colon": _post(b"Content-Length : 4", body=b"abcd"),
    "a blank before the colon of a coding": _post(b"Transfer-Encoding : chunked", body=_END),
    "a tab before the colon": _post(b"Content-Length\t: 4", body=b"abcd"),
    "a blank before the first field": b"GET / HTTP/1.1\r\n Host: shop\r\n\r\n",
    "a folded field": _get(b"X: one\r\n two"),
    "a coding in a folded field": _post(b"Transfer-Encoding:\r\n chunked", body=_END + HIDDEN),
    "a field ended by a bare LF": b"GET / HTTP/1.1\r\nHost: shop\nX: y\r\n\r\n",
    "a coding behind a bare LF": _post(b"X: y\nTransfer-Encoding: chunked", body=_END + HIDDEN),
    "bare LFs only": b"GET / HTTP/1.1\nHost: shop\n\n",
    "a head ended by a bare LF": b"GET / HTTP/1.1\r\nHost: shop\r\n\n",
    "a line ended by a bare LF": b"GET / HTTP/1.1\nHost: shop\r\n\r\n",
    "a bare CR in a field": _get(b"X: one\rtwo"),
    "a coding behind a bare CR": _post(b"X: y\rTransfer-Encoding: chunked", body=_END),
    "NUL in a value": _get(b"X: one\0two"),
    "NUL in a name": _get(b"X\0Y: one"),
    "NUL in the target": _get(line=b"GET /\0 HTTP/1.1"),
    "a control character in a value": _get(b"X: \x01"),
    "DEL in a value": _get(b"X: \x7f"),
    "a field without a name": _get(b": one"),
    "a field without a colon": _get(b"nonsense"),
    "a name that is no token": _get(b"X(Y): one"),
    "a name in 8 bits": _get(b"X\xe4: one"),
    "some other coding": _post(b"Transfer-Encoding: gzip", body=_END),
    "a coding that looks like chunked": _post(b"Transfer-Encoding: xchunked", body=_END + HIDDEN),
    "a coding in quotes": _post(b'Transfer-Encoding: "chunked"', body=_END),
    "a coding behind a vertical tab": _post(b"Transfer-Encoding: \x0bchunked", body=_END),
    "chunked is not the last": _post(b"Transfer-Encoding: chunked, gzip", body=_END),
    "two codings": _post(b"Transfer-Encoding: gzip, chunked", body=_END),
    "chunked twice": _post(b"Transfer-Encoding: chunked, chunked", body=_END),
    "two fields of codings": _post(_CHUNKED, b"Transfer-Encoding: identity", body=_END + HIDDEN),
    "chunked in two fields": _post(_CHUNKED, _CHUNKED, body=_END),
    "identity": _post(b"Transfer-Encoding: identity", body=HIDDEN),
    "an empty coding": _post(b"Transfer-Encoding:", body=HIDDEN),
    "a coding in HTTP/1.0": _post(_CHUNKED, body=_END + HIDDEN, version=b"1.0"),
    "a length with an underscore for the dash": _post(b"Content_Length: 4", body=b"abcd"),
    "a coding with an underscore for the dash": _post(b"Transfer_Encoding: chunked", body=_END),
    "no host": b"GET / HTTP/1.1\r\nX: y\r\n\r\n",
    "two hosts": _get(b"Host: other"),
    "two hosts that agree": _get(b"Host: shop"),
    "an empty host": _get(host=b"Host:"),
    "a host with a path": _get(host=b"Host: shop/x"),
    "a host with a user": _get(host=b"Host: me@shop"),
    "a list of hosts": _get(host=b"Host: shop, other"),
    "a port that is none": _get(host=b"Host: shop:http"),
    "a target that is no path": _get(line=b"GET shop HTTP/1.1"),
    "a target of another scheme": _get(line=b"GET file:///etc/passwd HTTP/1.1"),
    "a target with a blank": _get(line=b"GET /a b HTTP/1.1"),
    "a target in 8 bits": _get(line=b"GET /\xe4 HTTP/1.1"),
    "a fragment": _get(line=b"GET /a#b HTTP/1.1"),
    "a star to GET": _get(line=b"GET * HTTP/1.1"),
    "a user in an absolute target": _get(line=b"GET http://me@shop/ HTTP/1.1"),
    "no target": _get(line=b"GET HTTP/1.1"),
    "a method that is no token": _get(line=b"GE(T / HTTP/1.1"),
    "a method in lower case": _get(line=b"get / HTTP/1.1"),
    "a method that nobody knows": _get(line=b"STEAL / HTTP/1.1"),
    "a version that is none": _get(line=b"GET / HTTP/1.10"),
    "a version without a number": _get(line=b"GET / HTTP/x.y"),
    "another protocol": _get(line=b"GET / ICAP/1.0"),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "noise": bytes(range(256)),
    "Connection names the length": _post(
        b"Connection: content-length", b"Content-Length: 4", body=b"abcd"
    ),
    "Connection names the host": _get(b"Connection: close, Host"),
    "an upgrade with a body": _post(
        b"Connection: upgrade", b"Upgrade: h2c", b"Content-Length: 44", body=HIDDEN
    ),
    "an upgrade with chunks": _post(
        b"Connection: upgrade", b"Upgrade: h2c", _CHUNKED, body=_END + HIDDEN
    ),
    "a WebSocket with a body": _get(
        b"Connection: upgrade", b"Upgrade: websocket", b"Content-Length: 44"
    )
    + HIDDEN,
    "a WebSocket by POST": _post(b"Connection: upgrade", b"Upgrade: websocket"),
}

# The head is well, and may be on its way before the body proves to be none.
BAD_BODIES: dict[str, bytes] = {
    "a chunk size in 0x": _post(_CHUNKED, body=b"0x1\r\na\r\n" + _END),
    "a chunk size with a sign": _post(_CHUNKED, body=b"+1\r\na\r\n" + _END),
    "a negative chunk size": _post(_CHUNKED, body=b"-1\r\na\r\n" + _END),
    "a chunk size with a blank behind": _post(_CHUNKED, body=b"1 \r\na\r\n" + _END),
    "a chunk size with a blank before": _post(_CHUNKED, body=b" 1\r\na\r\n" + _END),
    "a chunk size with an underscore": _post(_CHUNKED, body=b"1_0\r\na\r\n" + _END),
    "a chunk size of 80 bits": _post(_CHUNKED, body=b"f" * 20 + b"\r\na\r\n" + _END),
    "a chunk size that wraps to 1": _post(_CHUNKED, body=b"10000000000000001\r\na\r\n" + _END),
    "no chunk size": _post(_CHUNKED, body=b"\r\na\r\n" + _END),
    "a chunk size ended by a bare LF": _post(_CHUNKED, body=b"1\na\r\n" + _END),
    "a chunk size ended by a bare CR": _post(_CHUNKED, body=b"1\ra\r\n" + _END),
    "a bare LF in an extension": _post(_CHUNKED, body=b"1;a\nb\r\na\r\n" + _END + HIDDEN),
    "a chunk that is longer than it says": _post(_CHUNKED, body=b"1\r\nabc\r\n" + _END),
    "a chunk without an end": _post(_CHUNKED, body=b"1\r\na" + _END),
    "a chunk ended by a bare LF": _post(_CHUNKED, body=b"1\r\na\n" + _END),
    "a last chunk ended by a bare LF": _post(_CHUNKED, body=b"1\r\na\r\n0\n\n" + HIDDEN),
    "a trailer with a blank before the colon": _post(_CHUNKED, body=b"0\r\nX : y\r\n\r\n"),
    "a folded trailer": _post(_CHUNKED, body=b"0\r\nX: y\r\n z\r\n\r\n"),
    "a trailer with NUL": _post(_CHUNKED, body=b"0\r\nX: \0\r\n\r\n"),
}

# Odd, and yet there is one way only to read them.
GOOD: dict[str, tuple[bytes, int]] = {
    "empty lines before a request": (b"\r\n\r\n" + _get(b"Connection: close"), 1),
    "a chunk extension": (_post(_CHUNKED, b"Connection: close", body=b"1;a=b\r\na\r\n" + _END), 1),
    "leading zeros of a chunk size": (
        _post(_CHUNKED, b"Connection: close", body=b"0001\r\na\r\n" + _END),
        1,
    ),
    "a trailer": (_post(_CHUNKED, b"Connection: close", body=b"0\r\nX: y\r\n\r\n"), 1),
    "chunked in capitals": (
        _post(b"Transfer-Encoding: CHUNKED", b"Connection: close", body=_END),
        1,
    ),
    "an absolute target": (_get(b"Connection: close", line=b"GET http://shop/x HTTP/1.1"), 1),
    "two requests in one write": (_get() + _get(b"Connection: close"), 2),
    "a post and then a get": (
        _post(b"Content-Length: 4", body=b"abcd") + _get(b"Connection: close"),
        2,
    ),
    "chunks and then a get": (
        _post(_CHUNKED, body=b"4\r\nabcd\r\n" + _END) + _get(b"Connection: close"),
        2,
    ),
    "a body with a GET": (_get(b"Content-Length: 4", b"Connection: close") + b"abcd", 1),
    "HTTP/1.0 without a host": (b"GET / HTTP/1.0\r\n\r\n", 1),
    "an h2c upgrade is no upgrade": (
        _get(b"Connection: upgrade", b"Upgrade: h2c") + _get(b"Connection: close"),
        2,
    ),
    "a value in 8 bits": (_get(b"X: \xe4", b"Connection: close"), 1),
}
