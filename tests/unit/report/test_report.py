"""The report of an afternoon: everything in it, safe to open anywhere, and true to its tables."""

from __future__ import annotations

import re
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from afternoon import FLOOD, QUEUES, SCRIPT
from knowledge_of import EVENING, NOON, KnowledgeOf

from tidegate.agreements.document import parse_agreement
from tidegate.pipeline.watch import ANOMALY_SCHEMA as ANOMALIES
from tidegate.report.charts import count, percent
from tidegate.report.page import document_of, html_of
from tidegate.report.queues import WaitWindow, wait_chart
from tidegate.telemetry.learned import LearnedModels, NothingLearned, QueryResults


class Parsed(HTMLParser):
    """What a browser would make of a page, as far as these tests ask."""

    _VOID = ("meta", "br", "hr", "img", "input", "link")

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.sections: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "section":
            self.sections.append(dict(attrs)["id"] or "")
        if tag not in self._VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def page(an_afternoon: KnowledgeOf) -> str:
    return html_of(document_of(LearnedModels(an_afternoon.folder)))


@pytest.fixture(scope="module")
def parsed(page: str) -> Parsed:
    return Parsed(page)


def test_every_section_is_there_in_the_order_in_which_people_ask(parsed: Parsed) -> None:
    queues = [f"queue-{number}" for number in range(1, len(QUEUES) + 1)]
    others = ["phases", "consumers", "provisioning", "models", "origin"]
    assert parsed.sections == ["glance", *queues, *others]


def test_a_page_refers_to_nothing_but_itself(page: str, parsed: Parsed) -> None:
    references = {
        value for name, value in parsed.attributes if name in ("href", "src", "srcset", "action")
    }
    assert references
    assert all(reference.startswith("#") for reference in references)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    # Names of namespaces are no requests, but a page inside HTML needs none of them either.
    assert "http://" not in page
    assert "https://" not in page


def test_ids_are_unique_and_every_reference_has_its_target(parsed: Parsed) -> None:
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    wanted = {value[1:] for name, value in parsed.attributes if name == "href"}
    wanted |= {
        found for name, value in parsed.attributes for found in re.findall(r"url\(#(\w+)\)", value)
    }
    assert wanted <= set(ids)


def test_names_are_shown_and_never_obeyed(page: str, parsed: Parsed) -> None:
    assert "<script" not in page
    assert SCRIPT in parsed.text
    assert "$mail$ #1c2228 0.12345" in parsed.text
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert r"quiet\x1b\u202e" in parsed.text


def test_every_chart_says_in_words_what_it_shows_and_has_its_numbers_behind_it(
    page: str, parsed: Parsed
) -> None:
    charts = page.count('<figure class="chart">')
    assert charts >= 10
    labels = [value for name, value in parsed.attributes if name == "aria-label"]
    assert sum(label.count(". ") > 0 for label in labels) >= charts
    assert page.count("<details>") == charts
    assert all(label.strip() for label in labels)


def test_no_colour_of_a_chart_is_fixed_so_that_it_follows_light_and_dark(page: str) -> None:
    charts = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    assert charts
    for chart in charts:
        assert not re.search(r"(?:fill|stroke): #", chart)


def test_numbers_in_sentences_are_those_of_the_tables(
    parsed: Parsed, an_afternoon: KnowledgeOf
) -> None:
    stability = pq.read_table(an_afternoon.table_file("stability")).to_pylist()
    orders = [row for row in stability if row["queue"] == "orders"]
    flooded = sum(row["stability"] == "flooded" for row in orders) / len(orders)
    assert flooded == len(FLOOD) / 360
    assert f"flooded in {percent(flooded)}" in parsed.text
    came_in = sum(row["produced_per_s"] * row["seconds"] for row in orders)
    assert f"The busiest of 4: {count(came_in)} messages came in" in parsed.text
    assert f"UTC: {count(98765)}." in parsed.text
    assert f"17 clients reach 95 % of the plateau of {count(1234.5)} msg/s" in parsed.text
    assert "6 producers and 11 consumers" in parsed.text
    assert "y(k+1) = 0.263 y(k) + 59.7 u(k) + 3:" in parsed.text
    assert "explains 93.1 %, off by 61.3 msg/s (RMSE)" in parsed.text
    assert "432 msg/s expected on average" in parsed.text
    assert "erred 23.4 % less than the baseline, and 91.2 %" in parsed.text
    assert "2 machines: while a machine boots" in parsed.text
    assert "98.8 % of the time of all requests is store: 9.57 ms of 9.69 ms" in parsed.text
    assert "9.10 ms to 10.1 ms" in parsed.text
    assert "37.5 %" in parsed.text
    assert "half of the messages waited at most 4 ms" in parsed.text
    assert "14 Mar 15:30:00 UTC, had a p99 of 1.23 s" in parsed.text
    assert f"Rows read {count(21_600)}" in parsed.text


def test_close_to_all_is_not_all_and_next_to_nothing_is_not_nothing() -> None:
    shown = [percent(part) for part in (1.0, 0.99999, 0.9999, 0.5, 0.0001, 0.00001, 0.0)]
    assert shown == ["100 %", "over 99.99 %", "99.99 %", "50 %", "0.01 %", "under 0.01 %", "0 %"]


def test_a_typical_window_is_one_and_a_crowd_that_waited_longer_is_told() -> None:
    def window(minute: int, messages: int, wait_s: float) -> WaitWindow:
        begins = NOON + timedelta(minutes=minute)
        return WaitWindow(begins, 60.0, messages, wait_s, 2 * wait_s, 3 * wait_s)

    quiet = [window(minute, 10, 50e-6) for minute in range(9)]

    assert wait_chart(quiet).sentence == (
        "In a typical window half of the messages waited at most 50.0 µs; the slowest, at "
        "14 Mar 12:00:00 UTC, had a p99 of 150 µs."
    )
    assert wait_chart([*quiet, window(9, 10_000, 0.825)]).sentence == (
        "In a typical window half of the messages waited at most 50.0 µs; the slowest, at "
        "14 Mar 12:09:00 UTC, had a p99 of 2.47 s. Most messages came in crowded windows, whose "
        "median was 825 ms or longer."
    )


def test_each_agreement_has_a_card_with_its_standing_in_words_the_worst_first(
    page: str, parsed: Parsed
) -> None:
    cards = re.findall(r'<article class="card".*?</article>', page, re.DOTALL)
    told = [re.sub(r"<[^>]*>", "|", card) for card in cards]
    standings = [re.search(r"Met|Warned|Breached|No data", one) for one in told]
    assert [found and found[0] for found in standings] == ["Breached", "Warned", "No data", "Met"]
    assert "4 agreements: 1 breached, 1 warned, 1 met, 1 without data." in parsed.text
    assert "overdrawn &lt;script&gt;" in told[0]
    assert "−25 %" in told[0]
    assert f"{count(320)}, {count(0)}, {count(40)}" in told[0]
    assert "87.7 % of waits below the limit of p99" in told[0]
    assert "14 Mar 12:03:00 UTC" in told[0]
    # A shape, beside word and colour: a square, a triangle, a ring, a disc.
    assert [("<circle" in card, "<path" in card) for card in cards] == [
        *((False, True), (False, True)),
        *((True, False), (True, False)),
    ]


def test_report_states_and_draws_the_promises_of_given_agreements(
    an_afternoon: KnowledgeOf,
) -> None:
    agreement = parse_agreement(
        'name = "kept"\nqueue = "ord*"\n[metrics.wait_p99]\nbreach = "250ms"', "kept.toml"
    )
    page = html_of(document_of(LearnedModels(an_afternoon.folder), agreements=[agreement]))
    text = Parsed(page).text
    assert "ord*: wait p99 below 250 ms in 99 % of windows of 60 s over 28 d" in text
    # At its line in the chart, too.
    assert "kept: wait p99 below 250 ms" in text


def test_agreements_that_were_not_judged_are_not_called_undeclared(
    knowledge_of: KnowledgeOf,
) -> None:
    knowledge_of.agreements = ["orders"]
    knowledge_of.write()
    text = Parsed(html_of(document_of(LearnedModels(knowledge_of.folder)))).text
    assert "Agreements were declared but not judged" in text


def test_a_refused_model_is_told_with_its_reason(parsed: Parsed) -> None:
    assert "Refused: R² of 0.31 on held-out data is below 0.8." in parsed.text


def test_the_same_knowledge_gives_the_same_bytes(page: str, an_afternoon: KnowledgeOf) -> None:
    assert html_of(document_of(LearnedModels(an_afternoon.folder))) == page


def test_thousands_of_queues_make_no_thousands_of_charts(knowledge_of: KnowledgeOf) -> None:
    window = {
        "window": NOON,
        "seconds": 60.0,
        "consumed_per_s": 1.0,
        "growth_per_s": 0.0,
        "waiting": 0.0,
        "replicas": 1,
        "stability": "stable",
        "every_replica_stable": True,
    }
    rows = [{"queue": f"q{n:04}", "produced_per_s": float(n), **window} for n in range(3000)]
    knowledge_of.add("stability", rows).write()
    page = html_of(document_of(LearnedModels(knowledge_of.folder), 5))
    assert len(page) < 400_000
    assert [q for q in ("q2999", "q2995", "q2994") if f">{q}</h2>" in page] == ["q2999", "q2995"]
    assert f"{count(2995)} more queues are not drawn" in Parsed(page).text


def test_without_tables_each_section_says_what_is_missing_and_how_to_get_it(
    knowledge_of: KnowledgeOf,
) -> None:
    knowledge_of.failures = {"stability": "OutOfMemory: <b>too little"}
    knowledge_of.write()
    parsed = Parsed(html_of(document_of(LearnedModels(knowledge_of.folder))))
    assert "figure" not in parsed.tags
    assert parsed.text.count("tidegate learn") >= 5
    assert "No agreement was declared" in parsed.text
    assert "OutOfMemory: <b>too little" in parsed.text


def test_an_empty_table_is_as_good_as_none(knowledge_of: KnowledgeOf) -> None:
    for table in ("stability", "capacity", "identification", "prefetch_levels", "forecast"):
        knowledge_of.add(table, [])
    knowledge_of.write()
    assert "figure" not in Parsed(html_of(document_of(LearnedModels(knowledge_of.folder)))).tags


def test_a_broken_table_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    from afternoon import afternoon

    knowledge = afternoon(tmp_path)
    knowledge.write()
    file = knowledge.table_file("capacity")
    file.write_bytes(file.read_bytes()[:100])
    learned = LearnedModels(knowledge.folder)
    parsed = Parsed(html_of(document_of(learned)))
    assert "Throughput against clients" not in parsed.text
    assert "Stability" in parsed.text
    assert "of the table capacity cannot be read and was left out" in parsed.text
    assert len(learned.complaints) == 1


def test_a_table_of_another_version_is_told(tmp_path: Path) -> None:
    from afternoon import afternoon

    knowledge = afternoon(tmp_path)
    knowledge.write()
    file = knowledge.table_file("forecast")
    pq.write_table(pq.read_table(file).drop_columns(["low_per_s"]), file)
    parsed = Parsed(html_of(document_of(LearnedModels(knowledge.folder))))
    assert "the table forecast has no column low_per_s" in parsed.text


def test_before_the_first_run_a_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NothingLearned, match=r"nothing has been learned yet.*`tidegate learn`"):
        LearnedModels(tmp_path)


def test_report_head_names_left_out_rows_and_files(knowledge_of: KnowledgeOf) -> None:
    knowledge_of.reading["queue_samples"].rows_left_out["NaN"] = 1204
    knowledge_of.reading["queue_samples"].files_left_out["cut"] = 1
    knowledge_of.write()
    facts = dict(document_of(LearnedModels(knowledge_of.folder)).facts)
    assert facts["Left out"] == f"{count(1204)} rows NaN; 1 file cut"
    assert facts["Learned"] == f"{EVENING:%-d %b %Y, %H:%M} UTC"


def test_the_newest_anomalies_are_shown_where_somebody_watches(knowledge_of: KnowledgeOf) -> None:
    rows = [
        {
            "at": NOON + timedelta(minutes=minute),
            "subject": "queue <b>",
            "what": "rate in",
            "change": "began",
            "since": NOON,
            "expected": 100.0,
            "seen": 543.2 + minute,
            "score": 12.0,
        }
        for minute in range(30)
    ]
    watch = knowledge_of.write() / "watch"
    QueryResults(watch / "rates").store(
        1, {"anomalies": pa.Table.from_pylist(rows, ANOMALIES)}, carried=b"{}"
    )
    parsed = Parsed(html_of(document_of(LearnedModels(knowledge_of.folder))))
    assert "anomalies" in parsed.sections
    assert "rate in of queue <b> began, 572 where 100 was expected" in parsed.text
    assert "Shown are 20 of 30 rows" in parsed.text
