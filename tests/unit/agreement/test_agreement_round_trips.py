"""What is written or exported says the same when it is read again."""

from __future__ import annotations

from dataclasses import replace
from xml.sax.saxutils import quoteattr

from hypothesis import assume, given
from hypothesis import strategies as st
from written_documents import PRINTED, documents

from tidegate.agreements import Unit
from tidegate.agreements.document import (
    Agreement,
    AgreementInvalid,
    Resources,
    format_agreement,
    format_metric_value,
    parse_agreement,
)
from tidegate.agreements.openslo import export_openslo, parse_openslo, shorthand, shorthand_s
from tidegate.agreements.problems import format_exact_duration, format_exact_size, lines_of_keys
from tidegate.agreements.tapas import parse_tapas
from tidegate.core.text import parse_duration_s, parse_size_bytes


def agreement_of(text: str) -> Agreement:
    """Whatever is no agreement is no case."""
    try:
        return parse_agreement(text, "")
    except AgreementInvalid:
        assume(False)
        raise


@given(documents())
def test_a_written_agreement_is_the_one_that_was_read(text: str) -> None:
    agreement = agreement_of(text)

    assert parse_agreement(format_agreement(agreement), "") == agreement


@given(documents())
def test_openslo_brings_back_all_that_it_can_say_and_the_rest_is_named(text: str) -> None:
    agreement = agreement_of(text)

    exported, notes = export_openslo(agreement, lines_of_keys(text))
    back, left_out = parse_openslo(exported, "")

    assert back == [replace(agreement, resources=Resources())]
    assert not left_out
    named = {note.key for note in notes}
    uses = agreement.resources
    said = {
        "sla_delta": uses.sla_delta_per_s2 is not None,
        "capacity": uses.capacity_per_s is not None,
        "reconfiguration": uses.reconfiguration_s is not None,
        "replicas": uses.replicas_min != 1 or uses.replicas_max is not None,
        "insufficient": uses.insufficient is not Resources().insufficient,
        "load_max": uses.load_max_per_s is not None,
    }
    assert {key for key in said if key in named} == {
        key for key, is_said in said.items() if is_said
    }
    assert all(note.line is not None for note in notes if note.key in said)


@given(documents())
def test_openslo_export_is_equal_after_a_round_trip(text: str) -> None:
    agreement = agreement_of(text)

    exported, _ = export_openslo(agreement, {})
    [back], _ = parse_openslo(exported, "")

    assert export_openslo(back, {})[0] == exported


@given(documents(PRINTED))
def test_tapas_says_what_toml_says(text: str) -> None:
    agreement = agreement_of(text)

    read, notes = parse_tapas(tapas(agreement).encode(), "")

    assert read == agreement
    assert not notes


@given(st.floats(1e-9, 1e12))
def test_durations_are_written_exactly(value: float) -> None:
    assert parse_duration_s(format_exact_duration(value)) == value


@given(st.integers(1, 10**18))
def test_sizes_are_written_exactly(value: int) -> None:
    assert parse_size_bytes(format_exact_size(value)) == value


@given(st.integers(1, 10**7))
def test_whole_minutes_are_a_shorthand(minutes: int) -> None:
    assert shorthand_s(shorthand(60.0 * minutes)) == 60.0 * minutes


def tapas(agreement: Agreement) -> str:
    """The XML of an agreement; only tests write it."""
    uses = agreement.resources
    governs = (
        f"queue={attribute(agreement.queue)}"
        if agreement.queue
        else (f"application={attribute(agreement.http or '')}")
    )
    cluster = {
        "minMembers": uses.replicas_min,
        "maxMembers": uses.replicas_max,
        "slaDelta": uses.sla_delta_per_s2,
        "memberCapacity": uses.capacity_per_s,
        "reconfigurationTime": uses.reconfiguration_s
        and format_exact_duration(uses.reconfiguration_s),
        "insufficientResources": uses.insufficient.value,
        "loadMax": uses.load_max_per_s,
    }
    said = " ".join(f'{key}="{value}"' for key, value in cluster.items() if value is not None)
    elements = {
        "response": "ResponseTime", "wait": "WaitingTime", "service": "ServiceTime",
        "throughput": "Throughput", "free_memory": "FreeMemory", "oldest_age": "OldestAge",
        "availability": "Availability",
    }  # fmt: skip
    lines = []
    for metric in agreement.metrics:
        digits = metric.name.rpartition("_p")[2]
        point = metric.name.startswith(metric.stem + "_p")
        percentile = f' percentile="{digits[:2]}.{digits[2:]}"' if point else ""
        warning = "learned" if metric.learned else amount(metric.unit, metric.warning)
        slope = metric.slope_per_s
        lines.append(
            f"<{elements[metric.stem]}{percentile} "
            f'breachingPoint="{amount(metric.unit, metric.breach)}" warningPoint="{warning}"'
            + (f' slope="{amount(metric.unit, slope)}"' if slope is not None else "")
            + "/>"
        )
    return (
        f"<HostingSLA name={attribute(agreement.name)} {governs} "
        f'window="{format_exact_duration(agreement.window_s)}" objective="{agreement.objective!r}" '
        f'period="{format_exact_duration(agreement.period_s)}"><Cluster {said}/>{"".join(lines)}'
        "</HostingSLA>"
    )


def amount(unit: Unit, value: float) -> str:
    return format_metric_value(unit, value).strip('"')


def attribute(text: str) -> str:
    return quoteattr(text)
