"""JSON that benchmarks and experiments of the lab print."""

from __future__ import annotations

from golden_files import Golden
from golden_shapes import printed_shapes

from tidegate.lab.bench.alias import AliasReport
from tidegate.lab.bench.backlog import BacklogReport
from tidegate.lab.bench.clients import ClientsReport
from tidegate.lab.bench.compare_report import CompareReport
from tidegate.lab.bench.control import ControlReport
from tidegate.lab.bench.load import LoadReport
from tidegate.lab.bench.pipeline import PipelineReport
from tidegate.lab.bench.recording import RecordingReport
from tidegate.lab.faults.kills import KillReport
from tidegate.lab.faults.scale_storm import StormReport
from tidegate.lab.report.experiments import ExperimentsReport


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
