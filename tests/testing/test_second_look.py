"""What failed is looked at again only where that cannot hide anything."""

from __future__ import annotations

import second_look

WELL = "tests/testing/test_second_look.py::test_whatever"


def test_a_handful_that_failed_is_looked_at_again() -> None:
    assert second_look.verdict([WELL]) == ""


def test_lost_messages_and_kills_have_no_second_look() -> None:
    for file in ("tests/conformance/test_logical_queue_turmoil.py", "tests/faults/test_kills.py"):
        assert (second_look.ROOT / file).is_file(), file
        assert file in second_look.verdict([WELL, f"{file}::test_x[a-1]"])


def test_what_cannot_be_read_and_more_than_a_handful_have_failed() -> None:
    assert second_look.verdict([])
    assert second_look.verdict(["tests/node"])
    assert second_look.verdict(["tests/nowhere/test_gone.py::test_x"])
    assert second_look.verdict([f"{WELL}[{n}]" for n in range(second_look.FLAKY_MAX + 1)])
