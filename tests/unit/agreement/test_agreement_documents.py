"""What people write is understood, and what cannot be meant is refused: file, line, key, reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from places import DOCS

from tidegate.agreements import Unit, Worse
from tidegate.agreements.document import (
    Agreement,
    AgreementInvalid,
    parse_agreement,
    read_agreements,
)
from tidegate.agreements.problems import lines_of_keys

ORDERS = """\
name = "orders"
queue = "orders.*"
window = "10s"
objective = 0.99
period = "7d"

[metrics.wait_p99]
breach = "6s"

[metrics.throughput]
breach = 100
warning = 110

[metrics.free_memory]
breach = "512MiB"
warning = "learned"

[metrics.availability]
breach = 0.99
"""

LINES = ORDERS.splitlines()
JUNK = (
    "", "= 1", "= -1", "= nan", "= inf", '= ""', '= "%"', '= "1s"', '= "-5%"', "= true", "= []",
    "= {}", '= { breach = "1s" }', "= 1979-05-27", '= "2GiB"', "= 99999999999999999999", ".x = 1",
)  # fmt: skip


def complaints(text: str) -> list[str]:
    with pytest.raises(AgreementInvalid) as caught:
        parse_agreement(text, "orders.toml")
    return caught.value.complaints


def test_a_document_says_what_is_promised() -> None:
    agreement = parse_agreement(ORDERS, "orders.toml")

    assert (agreement.name, agreement.queue, agreement.http) == ("orders", "orders.*", None)
    assert (agreement.window_s, agreement.period_s) == (10.0, 604800.0)
    assert agreement.windows_in_period == 60480.0
    wait, throughput, memory, availability = agreement.metrics
    # TAPAS: 6 s and 20 % give 4.8 s.
    assert (wait.breach, wait.warning) == pytest.approx((6.0, 4.8))
    assert (wait.percentile, wait.stem, wait.worse) == (0.99, "wait", Worse.LARGER)
    assert (throughput.breach, throughput.warning) == (100.0, 110.0)
    assert throughput.worse is Worse.SMALLER
    assert (memory.unit, memory.breach) == (Unit.BYTES, 512 * 1024**2)
    assert memory.learned
    assert memory.warning == pytest.approx(1.2 * memory.breach)
    # Of the one percent that may be missing, a fifth is the margin.
    assert availability.warning == pytest.approx(0.992)


def test_a_little_is_enough() -> None:
    agreement = parse_agreement(
        'name = "a"\nhttp = "shop"\nwarning = "10%"\nmetrics.response_p95.breach = "1s"', "a.toml"
    )

    assert agreement.metrics[0].warning == pytest.approx(0.9)
    assert (agreement.window_s, agreement.objective) == (10.0, 0.99)
    assert not agreement.governs_queue("shop")


def test_the_example_in_the_docs_is_an_agreement() -> None:
    page = DOCS / "agreements.md"
    example = page.read_text().partition("```toml\n")[2].partition("```")[0]

    agreement = parse_agreement(example, "example.toml")

    warnings = {metric.name: metric.warning for metric in agreement.metrics}
    assert warnings["wait_p99"] == pytest.approx(4.8)
    assert warnings["throughput"] == 130.0


@pytest.mark.parametrize(
    ("pattern", "governed", "not_governed"),
    [
        ("orders", ["orders"], ["orders.eu", "my.orders"]),
        ("orders.*", ["orders.eu", "orders."], ["orders", "xorders.eu", "ordersXeu"]),
        ("order?", ["orders"], ["order", "orderss"]),
        ("*", ["anything", "any\nthing", "any\n"], []),
        ("orders", ["orders"], ["orders\n"]),
        ("a+(b)", ["a+(b)"], ["aab"]),
    ],
)
def test_a_pattern_governs_the_queues_that_it_fits(
    pattern: str, governed: list[str], not_governed: list[str]
) -> None:
    agreement = parse_agreement(ORDERS.replace("orders.*", pattern), "orders.toml")

    assert all(agreement.governs_queue(queue) for queue in governed)
    assert not any(agreement.governs_queue(queue) for queue in not_governed)


@pytest.mark.parametrize(
    ("said", "instead", "complaint"),
    [
        ('window = "10s"', 'windwo = "10s"',
         "orders.toml:3: windwo: there is no such key, did you mean window?"),
        ("wait_p99", "wiat_p99",
         "orders.toml:7: metrics.wiat_p99: there is no such metric, did you mean wait_p99?"),
        ('breach = "6s"', 'breech = "6s"',
         "orders.toml:8: metrics.wait_p99.breech: there is no such key, did you mean breach?"),
        ('breach = "6s"', "breach = 6",
         "orders.toml:8: metrics.wait_p99.breach = 6: must be a duration"),
        ('breach = "6s"', 'breach = "0s"', "orders.toml:8: metrics.wait_p99.breach = '0s': must"),
        ("breach = 100", 'breach = "100"',
         "orders.toml:11: metrics.throughput.breach = '100': must be a number per second"),
        ("breach = 100", "breach = inf", "orders.toml:11: metrics.throughput.breach = inf"),
        ("breach = 100", "breach = true", "orders.toml:11: metrics.throughput.breach = True"),
        ('"learned"', '"clever"', "orders.toml:16: metrics.free_memory.warning = 'clever': must"),
        ('"learned"', '"120%"', "a margin lies between 0% and 100%"),
        ("warning = 110", "warning = 90",
         "orders.toml:12: metrics.throughput.warning = 90: must lie above the breaching point"),
        ("breach = 0.99", "breach = 99", "orders.toml:19: metrics.availability.breach = 99: must"),
        ("breach = 0.99", "breach = 0.9999999999999999",
         "metrics.availability.warning = '20%': must lie above the breaching point"),
        ("objective = 0.99", "objective = 1", "leaves no budget at all"),
        ("objective = 0.99", "objective = 0.9999999", "leaves less than one window of 10s"),
        ('window = "10s"', 'window = "100ms"', "orders.toml:3: window = '100ms': must be 1s or"),
        ('queue = "orders.*"', 'queue = "a"\nhttp = "b"', "orders.toml:2: queue: of queue and"),
        ('queue = "orders.*"', "", "of queue and http neither is set"),
        ('queue = "orders.*"', 'http = "shop"', "metrics.wait_p99: is known of queues only"),
        ('name = "orders"', "", "name: must be given"),
        ('name = "orders"', 'name = " "', "orders.toml:1: name = ' ': must be a text"),
        ('name = "orders"', "name = ", "orders.toml:1: is not TOML"),
        ("[metrics.availability]\nbreach = 0.99", '[metrics.wait_p50]\nbreach = "7s"',
         "orders.toml:19: metrics.wait_p50.breach: is longer than that of wait_p99"),
        ("[metrics.availability]\nbreach = 0.99", "[metrics.availability]",
         "orders.toml:18: metrics.availability.breach: must be given"),
    ],
)  # fmt: skip
def test_a_complaint_names_line_key_and_reason(said: str, instead: str, complaint: str) -> None:
    text = ORDERS.replace(said, instead, 1)
    assert text != ORDERS

    assert any(complaint in line for line in complaints(text)), complaints(text)


def test_all_complaints_come_at_once() -> None:
    text = ORDERS.replace("0.99", "7").replace('"6s"', '"soon"').replace("window", "widow")

    assert len(complaints(text)) == 4


def test_no_metrics_is_no_agreement() -> None:
    assert "at least one metric" in complaints('name = "a"\nqueue = "q"')[0]


def test_lines_are_found_past_texts_quotes_and_inline_tables() -> None:
    assert lines_of_keys("a = \"'''\"\nb = 1\n")[("b",)] == 2
    lines = lines_of_keys('a = """\nb = 1\n"""\n"c d".e = 2\n[x]\n# y = 1\ny = { z = 1 }\n')

    assert lines == {("a",): 1, ("c d",): 4, ("c d", "e"): 4, ("x",): 5, ("x", "y"): 7}


def test_files_and_folders_are_read_and_names_are_unique(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(ORDERS.replace('"orders"', '"b"'))
    (tmp_path / "a.toml").write_text(ORDERS)
    (tmp_path / "notes.txt").write_text("no agreement")

    found = read_agreements([tmp_path, tmp_path / "a.toml"])
    assert [agreement.name for agreement in found] == ["b", "orders"]

    (tmp_path / "b.toml").write_text(ORDERS)
    (tmp_path / "c.toml").write_bytes(b"\xff")
    with pytest.raises(AgreementInvalid) as caught:
        read_agreements([tmp_path, tmp_path / "gone.toml"])
    said = "\n".join(caught.value.complaints)
    assert "has the same name" in said
    assert "c.toml: is not TOML" in said
    assert "gone.toml: there is no such file" in said


def test_a_folder_without_agreements_is_no_agreement_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no agreement")
    with pytest.raises(AgreementInvalid, match="there is no agreement"):
        read_agreements([tmp_path])


@given(st.integers(0, len(LINES) - 1), st.sampled_from(JUNK))
def test_a_spoiled_line_is_an_agreement_or_a_complaint_and_never_a_crash(n: int, junk: str) -> None:
    key = LINES[n].partition("=")[0]
    text = "\n".join([*LINES[:n], key + junk, *LINES[n + 1 :]])

    try:
        read: Agreement | AgreementInvalid = parse_agreement(text, "x.toml")
    except AgreementInvalid as error:
        read = error

    if isinstance(read, AgreementInvalid):
        assert read.complaints
        assert all(line.startswith("x.toml") for line in read.complaints)
