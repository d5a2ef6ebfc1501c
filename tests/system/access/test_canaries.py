"""Secrets are found nowhere: not in logs, errors, numbers, lists, process lists, or the store.

Real processes, at their most talkative: `tidegate up` with TLS and a user, a client that succeeds,
one that fails, a payload. Then everything that anybody could read is searched.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import selectors
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from certificates import Certificate, authority, need_openssl, signed
from waiting import LIMIT_S

from tidegate.client.connect import connect
from tidegate.core.errors import TidegateError
from tidegate.storage.embedded import EmbeddedPostgres

PASSWORD = "canary-password-4711"
WRONG_PASSWORD = "canary-wrong-password-0815"
PAYLOAD = b"canary-payload-1234"
READY_S = 60.0


class Told:
    """Everything that was said anywhere."""

    def __init__(self) -> None:
        self.texts: dict[str, bytes] = {}

    def add(self, where: str, text: bytes | str) -> None:
        self.texts[where] = self.texts.get(where, b"") + (
            text.encode() if isinstance(text, str) else text
        )


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("canaries")


@pytest.fixture
def tls(folder: Path) -> tuple[Certificate, Certificate]:
    need_openssl()
    ca = authority(folder)
    return ca, signed(folder, ca)


def environment(folder: Path, tls: tuple[Certificate, Certificate]) -> dict[str, str]:
    ca, node = tls
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE_")}
    return clean | {
        "TIDEGATE_LOG__LEVEL": "debug",
        "TIDEGATE_STORE__DATA": str(folder / "data"),
        "TIDEGATE_TLS__CERTIFICATE": str(node.certificate),
        "TIDEGATE_TLS__KEY": str(node.key),
        "TIDEGATE_TLS__AUTHORITY": str(ca.certificate),
        "TIDEGATE_CA_FILE": str(ca.certificate),
    }


def run(
    told: Told, settings: dict[str, str], *arguments: str, stdin: str = "", **more: str
) -> subprocess.CompletedProcess[bytes]:
    """One command to its end; what it printed is told."""
    finished = subprocess.run(
        [sys.executable, "-m", "tidegate", *arguments],
        input=stdin.encode(),
        env=settings | more,
        capture_output=True,
        timeout=60,
        check=False,
    )
    told.add(f"tidegate {arguments[0]}", finished.stdout + finished.stderr)
    return finished


@contextlib.contextmanager
def up(told: Told, folder: Path, settings: dict[str, str]) -> Iterator[str]:
    log = folder / "up.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidegate", "up", "--port", "0", "--nodes", "2"],
            env=settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(READY_S), log.read_text()
        url = process.stdout.readline().decode().strip()
        assert url.startswith("tidegates://"), log.read_text()
        yield url
    finally:
        process.terminate()
        process.wait(LIMIT_S)
        told.add("log", log.read_bytes())
        told.add("PostgreSQL's log", (folder / "data" / "postgres.log").read_bytes())


def test_no_secret_is_found_anywhere(folder: Path, tls: tuple[Certificate, Certificate]) -> None:
    told = Told()
    settings = environment(folder, tls)
    added = run(told, settings, "user", "add", "ann", "--admin", stdin=PASSWORD + "\n")
    assert added.returncode == 0, added.stderr
    with up(told, folder, settings) as url:
        there = url.removeprefix("tidegates://")
        with_password = f"tidegates://ann:{PASSWORD}@{there}"
        ca = tls[0].certificate
        connector = connect(with_password, ca_file=ca)
        told.add("repr", repr(connector))
        with connector as mq:
            told.add("repr", repr(mq) + repr(vars(mq)))
            mq.create_queue("orders")
            mq.put("orders", PAYLOAD)
            told.add("stats", repr(mq.stats()))
            told.add("ps", _process_list())
        for bad_url in (
            f"tidegates://ann:{WRONG_PASSWORD}@{there}",
            f"tidegates://ann:{PASSWORD}@{there}:no-port",
            f"tidegatez://ann:{PASSWORD}@{there}",
            f"tidegates://ann:{PASSWORD}/{PASSWORD}@:1",
        ):
            with pytest.raises(TidegateError) as failure, connect(bad_url, ca_file=ca):
                pass
            told.add("errors", repr(failure.value) + repr(failure.value.__context__))
        for arguments in (
            ("queues", "--json"),
            ("status", "--json"),
            ("user", "list", "--json"),
            ("config",),
            ("config", "--json"),
            ("create", "orders"),
        ):
            run(told, settings, *arguments, TIDEGATE_URL=with_password)
        refused = run(told, settings, "queues", "--url", with_password)
        assert refused.returncode == 2
        assert b"TIDEGATE_PASSWORD" in refused.stderr
        wrong = with_password.replace(PASSWORD, WRONG_PASSWORD)
        assert run(told, settings, "queues", TIDEGATE_URL=wrong).returncode == 1
        passwd = run(told, settings, "user", "passwd", "ann", stdin=PASSWORD + "\n")
        assert passwd.returncode == 0
        keys = _keys(folder)
    secrets = {
        "the password": PASSWORD.encode(),
        "a wrong password": WRONG_PASSWORD.encode(),
        "the payload": PAYLOAD,
        "the TLS key": tls[1].key.read_bytes().splitlines()[1],
    }
    for name, key in keys.items():
        secrets |= {
            f"{name} raw": key,
            f"{name} in hex": key.hex().encode(),
            f"{name} in base64": base64.b64encode(key),
            f"{name} as Python shows it": repr(key)[2:-1].encode(),
        }
    assert b"login refused" in told.texts["log"], "the log is not the one"
    assert len(told.texts) >= 8
    found = [
        f"{name} in {where}: …{_around(text, secret)}…"
        for name, secret in secrets.items()
        for where, text in told.texts.items()
        if secret in text
    ]
    assert found == []


def _process_list() -> bytes:
    """What `ps` shows of every process."""
    lines = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            lines.append((process / "cmdline").read_bytes().replace(b"\0", b" "))
    # pytest's own is not ours to keep clean.
    return b"\n".join(line for line in lines if b"pytest" not in line)


def _keys(folder: Path) -> dict[str, bytes]:
    """The secrets that the store keeps; the password is not among them."""
    url = EmbeddedPostgres(folder / "data").url
    with psycopg.connect(url) as connection:
        rows = connection.execute("select stored_key, server_key from access_user").fetchall()
        state = connection.execute("select secret from access_state").fetchall()
        everything = connection.execute(
            "select string_agg(u::text, '') || string_agg(s::text, '')"
            " from access_user u, access_state s"
        ).fetchone()
    assert everything is not None
    assert PASSWORD not in everything[0]
    assert PASSWORD.encode().hex() not in everything[0]
    return {"stored key": rows[0][0], "server key": rows[0][1], "the nodes' secret": state[0][0]}


def _around(text: bytes, secret: bytes) -> str:
    at = text.index(secret)
    return re.sub(r"\s+", " ", text[max(at - 60, 0) : at].decode(errors="replace"))
