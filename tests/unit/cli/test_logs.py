"""Log lines are structured, on one line each, and hold no payloads and no secrets."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tidegate.cli.output import set_up_logs

log = logging.getLogger("tidegate.test")


@pytest.fixture(autouse=True)
def restored_root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def json_line(*arguments: Any, **fields: Any) -> dict[str, Any]:
    stream = io.StringIO()
    set_up_logs("info", "json", stream)
    log.info(*arguments, extra=fields)
    line: dict[str, Any] = json.loads(stream.getvalue())
    return line


def test_a_text_line_is_logfmt() -> None:
    stream = io.StringIO()
    set_up_logs("info", "text", stream)

    log.info("replica claimed", extra={"queue": "my orders", "epoch": 7, "durable": True})
    log.debug("not shown")

    line = stream.getvalue()
    assert line.count("\n") == 1
    assert 'level=info logger=tidegate.test event="replica claimed"' in line
    assert 'queue="my orders" epoch=7 durable=true' in line


def test_a_json_line_holds_the_same_fields() -> None:
    line = json_line("replica %s", "claimed", queue="orders", epoch=7)
    assert line["event"] == "replica claimed"
    assert (line["queue"], line["epoch"], line["level"]) == ("orders", 7, "info")
    assert line["time"].endswith("Z")


def test_secrets_and_payloads_do_not_get_in() -> None:
    line = json_line(
        "joined postgresql://me:hunter2@there/x",
        store="postgresql://me:hunter2@there/x",
        password="hunter2",
        payload="hunter2",
        data=b"hunter2",
    )
    assert "hunter2" not in json.dumps(line)
    assert line["data"] == "<7 bytes>"
    assert line["store"] == "postgresql://me:***@there/x"


def test_an_error_stays_on_one_line_and_keeps_no_secret() -> None:
    for log_format in ("text", "json"):
        stream = io.StringIO()
        set_up_logs("info", log_format, stream)
        try:
            raise RuntimeError("cannot reach postgresql://me:hunter2@there/x")
        except RuntimeError:
            log.exception("failed\nlevel=info event=forged")
        assert stream.getvalue().count("\n") == 1
        assert "hunter2" not in stream.getvalue()
        assert "RuntimeError" in stream.getvalue()
