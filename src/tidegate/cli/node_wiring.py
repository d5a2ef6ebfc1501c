"""The parts of a node that the settings determine: TLS, recorder and limits."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.cli.settings.settings import Settings
    from tidegate.node.limits import Limits
    from tidegate.node.tls import NodeTls
    from tidegate.telemetry.recorder import Recorder


def tls_of(settings: Settings) -> NodeTls | None:
    from tidegate.node.tls import NodeTls

    chosen = settings.tls
    if chosen.certificate is None or chosen.key is None:
        return None
    authority = None if chosen.authority is None else Path(chosen.authority).expanduser()
    return NodeTls(Path(chosen.certificate).expanduser(), Path(chosen.key).expanduser(), authority)


def recorder_of(settings: Settings) -> Recorder | None:
    from tidegate.storage.data_folder import mark_as_data
    from tidegate.telemetry.recorder import Recorder, RecorderOptions

    chosen = settings.telemetry
    if not chosen.enabled:
        return None
    data = settings.store.data_folder
    if settings.lake == str(data / "lake"):
        # If the folder cannot be written yet, the recorder reports that.
        with contextlib.suppress(OSError):
            mark_as_data(data)
    return Recorder(
        RecorderOptions(
            lake=settings.lake,
            interval_s=chosen.interval_s,
            flush_s=chosen.flush_s,
            retention_s=chosen.retention_s,
            requests_per_s=chosen.requests_per_s,
            lifecycles_per_s=chosen.lifecycles_per_s,
        )
    )


def limits_of(settings: Settings) -> Limits:
    from tidegate.node.limits import Limits

    chosen = settings.node
    return Limits(
        memory_bytes=chosen.memory_bytes_max,
        message_bytes_max=chosen.message_bytes_max,
        frame_before_login_bytes=chosen.frame_before_login_bytes_max,
        connections_max=chosen.connections_max,
        connections_per_address_max=chosen.connections_per_address_max,
        connections_per_user_max=chosen.connections_per_user_max,
        slow_reader_s=chosen.slow_reader_s,
        handshake_s=chosen.handshake_s,
        heartbeat_s=chosen.heartbeat_s,
        lease_s=chosen.lease_s,
        delivery_lease_s=chosen.delivery_lease_s,
        writers=chosen.writers,
        settle_linger_s=chosen.settle_linger_s,
    )
