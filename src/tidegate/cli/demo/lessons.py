"""What the demo teaches: Spark learns from what just happened, and a page shows it.

The three queues have agreements of their own, so that there is a service level to report on: the
burst is meant to spend some of the budget of `clicks`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.learning import progress, warn, with_spark
from tidegate.cli.output import Output

if TYPE_CHECKING:
    from tidegate.agreement.document import Agreement
    from tidegate.telemetry.knowledge import Run

# Queue, and the wait that its agreement calls a breach.
_PROMISES = {"orders": "1s", "emails": "2s", "clicks": "500ms"}
_WINDOW = "5s"
# A page of it shows a run of seconds, not of weeks.
_PERIOD = "1h"


def teach(lake: Path, knowledge: Path, page: Path, output: Output) -> Run:
    """Learn from the lake, write the page."""
    now = datetime.now(UTC)
    with with_spark():
        from tidegate.pipeline.jobs import JOBS
        from tidegate.pipeline.learning import Assignment, learn
        from tidegate.pipeline.session import SparkOptions
        from tidegate.pipeline.survey import Place
        from tidegate.report.learned import Learned
        from tidegate.report.report import document_of, write_report
        from tidegate.telemetry.knowledge import Knowledge

        promised = agreements()
        assignment = Assignment(
            lake=Place.of(str(lake)),
            jobs=JOBS,
            agreements=promised,
            since=now - timedelta(days=1),
            until=now,
        )
        with progress(output) as steps:
            run = learn(assignment, Knowledge(knowledge, warn), SparkOptions(), steps)
        write_report(document_of(Learned(knowledge), agreements=promised), page)
    return run


def agreements() -> list[Agreement]:
    """What each queue of the demo promises."""
    from tidegate.agreement.document import parse_agreement

    return [
        parse_agreement(
            f'name = "{queue}"\nqueue = "{queue}"\nwindow = "{_WINDOW}"\nobjective = 0.9\n'
            f'period = "{_PERIOD}"\n[metrics.wait_p99]\nbreach = "{breach}"\n',
            f"the demo's agreement for {queue}",
        )
        for queue, breach in _PROMISES.items()
    ]
