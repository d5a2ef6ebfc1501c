"""`tidegate agreement`: check, plan, import and export, as people and scripts use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidegate.cli.app import app

ORDERS = """\
name = "orders"
queue = "orders"
window = "1m"
capacity = 100

[metrics.throughput]
breach = 250
warning = 300
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.toml"
    file.write_text(ORDERS)
    return file


def run(*arguments: object, exit_code: int = 0) -> str:
    result = CliRunner().invoke(app, ["agreement", *map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result.stdout


def test_check_shows_the_points_of_what_is_well_written(orders: Path) -> None:
    shown = run("check", orders)
    assert "throughput\t300/s\t250/s\t1m\t0.99\t28d" in shown

    [found] = json.loads(run("check", orders, "--json"))["agreements"]
    assert found["metrics"][0]["warning"] == 300.0
    assert found["capacity_per_s"] == 100.0


def test_check_names_file_line_key_reason_and_remedy(orders: Path) -> None:
    orders.write_text(ORDERS.replace("300", "200"))

    result = CliRunner().invoke(app, ["agreement", "check", str(orders)])
    assert (result.exit_code, result.stdout) == (1, "")
    told = f"tidegate: {orders}:8: metrics.throughput.warning = 200: must"
    assert result.stderr.startswith(told)

    found = json.loads(run("check", orders, "--json", exit_code=1))
    [complaint] = found["complaints"]
    assert (complaint["file"], complaint["line"]) == (str(orders), 8)
    assert complaint["key"] == "metrics.throughput.warning"
    assert complaint["instead"] == 'warning = "20%"'


def test_plan_says_what_it_takes_and_ends_with_1_when_refused(orders: Path) -> None:
    nothing = orders.parent / "nothing-learned"

    found = json.loads(run("plan", orders, "--json", "--knowledge", nothing, "--slots", 2))
    assert (found["state"], found["replicas"], found["machines_working"]) == ("offered", 4, 2)

    shown = run("plan", orders, "--knowledge", nothing, "--machines", 2, exit_code=1)
    assert "Not enough: 4 replicas are needed, and 2 machine(s)" in shown
    assert "Refused: orders cannot be kept with this." in shown

    orders.write_text(f'insufficient = "reduce"\n{ORDERS}')
    shown = run("plan", orders, "--knowledge", nothing, "--machines", 2)
    assert "Offered, reduced to what there is:" in shown
    assert "throughput\t190/s\t158.3/s" in shown

    assert not nothing.exists()


def test_plan_refuses_a_load_that_is_none(orders: Path) -> None:
    result = CliRunner().invoke(app, ["agreement", "plan", str(orders), "--load", "many"])
    assert result.exit_code == 2


def test_there_and_back(orders: Path) -> None:
    exported, back = orders.with_suffix(".yaml"), orders.with_name("back.toml")

    run("export", orders, "--out", exported)
    run("import", exported, "--out", back)

    # But for what OpenSLO cannot say, and a warning of a fifth, which is taken for granted.
    assert back.read_text() == ORDERS.replace("capacity = 100\n", "").replace("warning = 300\n", "")
    # What people wrote is not overwritten.
    result = CliRunner().invoke(app, ["agreement", "import", str(exported), "--out", str(back)])
    assert "exists: remove it" in str(result.exception)


def test_export_tells_what_openslo_cannot_say(orders: Path) -> None:
    result = CliRunner().invoke(app, ["agreement", "export", str(orders)])

    assert f"{orders}:4: capacity: OpenSLO has no word" in result.stderr
    assert "op: gte" in result.stdout


def test_an_slo_of_another_source_is_imported_when_it_is_said_what_it_measures(
    tmp_path: Path,
) -> None:
    file = tmp_path / "checkout.yaml"
    file.write_text(
        """\
apiVersion: openslo/v1
kind: SLO
metadata: {name: checkout}
spec:
  service: shop
  description: How long a checkout takes.
  indicator:
    metadata: {name: checkout}
    spec:
      thresholdMetric:
        metricSource: {type: Prometheus, spec: {query: checkout_ms}}
  timeWindow: [{duration: 4w, isRolling: true}]
  budgetingMethod: Timeslices
  objectives:
  - {op: lte, value: 250, targetPercent: 99.9, timeSliceTarget: 0.95, timeSliceWindow: 5m}
"""
    )

    result = CliRunner().invoke(
        app,
        ["agreement", "import", str(file), "--metric", "checkout=response:ms", "--http", "shop"],
    )

    assert result.stdout.splitlines() == [
        'name = "shop"', 'http = "shop"', 'window = "5m"', "objective = 0.999", "",
        "[metrics.response_p95]", 'breach = "250ms"',
    ]  # fmt: skip
    assert f"{file}:6: spec.description: has no place in an agreement: left out" in result.stderr
    assert f"{file}:15: spec.objectives.0.op = 'lte': taken as lt" in result.stderr


def test_tapas_xml_is_imported(tmp_path: Path) -> None:
    file = tmp_path / "shop.xml"
    file.write_text(
        '<HostingSLA application="shop">\n  <ResponseTime breachingPoint="6s" '
        'warningMargin="20%"/>\n</HostingSLA>\n'
    )

    result = CliRunner().invoke(app, ["agreement", "import", str(file)])

    assert '[metrics.response_p99]\nbreach = "6s"' in result.stdout
    assert f"{file}:2: ResponseTime.percentile: no worst case can be promised" in result.stderr
