"""Everything that can be set: the sections, each from its own file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tidegate.cli.settings.alerts import AlertSettings
from tidegate.cli.settings.console import ConsoleSettings
from tidegate.cli.settings.field import Field, fields_of
from tidegate.cli.settings.fleet import FleetSettings
from tidegate.cli.settings.log import LogSettings
from tidegate.cli.settings.metrics import MetricsSettings
from tidegate.cli.settings.node import NodeSettings
from tidegate.cli.settings.pipeline import PipelineSettings
from tidegate.cli.settings.spark import SparkSettings
from tidegate.cli.settings.store import StoreSettings
from tidegate.cli.settings.telemetry import TelemetrySettings
from tidegate.cli.settings.tls import TlsSettings
from tidegate.core.prefetch import PrefetchGoal
from tidegate.core.scaling import Scaling

# Sections below this one are each about a queue.
QUEUES = "queues"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    store: StoreSettings = StoreSettings()
    node: NodeSettings = NodeSettings()
    tls: TlsSettings = TlsSettings()
    metrics: MetricsSettings = MetricsSettings()
    console: ConsoleSettings = ConsoleSettings()
    spark: SparkSettings = SparkSettings()
    pipeline: PipelineSettings = PipelineSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()
    fleet: FleetSettings = FleetSettings()
    alerts: AlertSettings = AlertSettings()
    # By name, each in a section [queues.NAME]; one that says nothing but `prefetch` does not scale.
    queues: dict[str, Scaling] = {}
    # Of the same sections, what the prefetch of consumers is steered to.
    prefetch_goals: dict[str, PrefetchGoal] = {}

    @property
    def knowledge_folder(self) -> Path:
        """Where what was learned is kept."""
        if self.pipeline.knowledge is not None:
            return Path(self.pipeline.knowledge).expanduser()
        return self.store.data_folder / "knowledge"

    @property
    def lake(self) -> str:
        """Where telemetry is recorded."""
        return self.telemetry.lake or str(self.store.data_folder / "lake")

    def with_data(self, folder: Path | None) -> Settings:
        """The same over another data folder, as `up --data` has it; None changes nothing."""
        if folder is None:
            return self
        store = msgspec.structs.replace(self.store, data=str(folder))
        return msgspec.structs.replace(self, store=store)


SECTIONS: dict[str, dict[str, Field]] = {
    "store": fields_of(StoreSettings),
    "node": fields_of(NodeSettings),
    "tls": fields_of(TlsSettings),
    "metrics": fields_of(MetricsSettings),
    "console": fields_of(ConsoleSettings),
    # Its properties are whatever Spark knows.
    "spark": {k: f for k, f in fields_of(SparkSettings).items() if k != "properties"},
    "pipeline": fields_of(PipelineSettings),
    "telemetry": fields_of(TelemetrySettings),
    "log": fields_of(LogSettings),
    "fleet": fields_of(FleetSettings),
    "alerts": fields_of(AlertSettings),
}
