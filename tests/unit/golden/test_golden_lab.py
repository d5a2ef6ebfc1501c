"""JSON that benchmarks and experiments of the lab print."""

from __future__ import annotations

from golden_files import Golden
from golden_shapes import printed_shapes

from tidegate_lab.bench.backlog import BacklogReport
from tidegate_lab.bench.compare_report import CompareReport
from tidegate_lab.bench.control import ControlReport
from tidegate_lab.bench.pipeline import PipelineReport
from tidegate_lab.bench.queue import AliasReport, ClientsReport, RecordingReport
from tidegate_lab.faults.kills import KillReport
from tidegate_lab.faults.scale_storm import StormReport
from tidegate_lab.loadgen.load import LoadReport
from tidegate_lab.report import ExperimentsReport


def test_json_of_the_lab_is_as_it_was(golden: Golden) -> None:
    reports = {
        "bench run": LoadReport,
        "bench compare": CompareReport,
        "bench backlog": BacklogReport,
        "bench clients": ClientsReport,
        "bench recording": RecordingReport,
        "bench control": ControlReport,
        "bench alias": AliasReport,
        "bench pipeline": PipelineReport,
        "lab run (experiments)": ExperimentsReport,
        "lab run kills": KillReport,
        "lab run storm": StormReport,
    }
    golden("json/lab.txt", printed_shapes(reports))
