"""All sections of the settings."""

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

# The table [queues] has one section for each queue.
QUEUES = "queues"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of all sections."""

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
    # By queue name, from the sections [queues.NAME]. A section with only `prefetch` is not in here.
    queues: dict[str, Scaling] = {}
    # By queue name, from the same sections: the goals of automatic prefetch.
    prefetch_goals: dict[str, PrefetchGoal] = {}

    @property
    def knowledge_folder(self) -> Path:
        """The folder of learned models."""
        if self.pipeline.knowledge is not None:
            return Path(self.pipeline.knowledge).expanduser()
        return self.store.data_folder / "knowledge"

    @property
    def lake(self) -> str:
        """The location of recorded telemetry."""
        return self.telemetry.lake or str(self.store.data_folder / "lake")

    def with_data(self, folder: Path | None) -> Settings:
        """Return the settings with another data folder, for `up --data`; None changes nothing."""
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
    # Properties have arbitrary names, which Spark defines.
    "spark": {k: f for k, f in fields_of(SparkSettings).items() if k != "properties"},
    "pipeline": fields_of(PipelineSettings),
    "telemetry": fields_of(TelemetrySettings),
    "log": fields_of(LogSettings),
    "fleet": fields_of(FleetSettings),
    "alerts": fields_of(AlertSettings),
}
