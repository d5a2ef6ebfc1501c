"""A synthetic telemetry lake with known parameters of its consumer groups.

Each subject (a consumer group or a queue) gives one row per simulated second, in the format of the
recorder. A file holds whole seconds within one hour. All random numbers follow from one seed, so
the same options give the same lake. A lake grows by further files: ten million rows contain the
first million. numpy computes a file at a time, while threads write the files before it.

Consumers follow `y(k+1) = a·y(k) + b·min(u(k), knee) + noise`. Their prefetch `u` is constant for
some seconds and then jumps. The jumps excite the system enough to be identified, and some levels
lie beyond the knee.
"""

from __future__ import annotations

import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tidegate.telemetry.meters import bucket_of
from tidegate.telemetry.schemas import CONSUMER_SAMPLES, LIFECYCLES, QUEUE_SAMPLES, RowKind
from tidegate_lab.loadgen.processes import answer

Numbers = NDArray[np.float64]
Integers = NDArray[np.int64]

SECOND_US = 1_000_000
HOUR_S = 3_600
# A Monday at noon, UTC.
BEGINS_S = int(datetime(2026, 3, 2, 12, tzinfo=UTC).timestamp())
WRITERS = 2
COMPRESSION = "zstd"
PREFETCH_MAX = 30
PREFETCH_HELD_S = 5
# Once in this period, a row of each subject lacks the values of the second before, as after a
# restart of the recorder.
GAP_EVERY_S = 1_000
WAIT_BUCKETS = 8
SERVICE_BUCKETS = 3


@dataclass(frozen=True)
class PlantParameters:
    """The true parameters of the consumer groups, which the identification should find."""

    a: Numbers
    b: Numbers
    knee: Integers
    noise_per_s: Numbers

    @staticmethod
    def drawn(count: int, random: np.random.Generator) -> PlantParameters:
        b = random.uniform(5.0, 60.0, count)
        return PlantParameters(
            a=random.uniform(0.2, 0.6, count),
            b=b,
            knee=random.integers(12, 23, count),
            noise_per_s=0.3 * b,
        )


@dataclass(frozen=True)
class SyntheticOptions:
    """The size of a synthetic lake and its seed."""

    # The number of consumer groups or queues; each gives one row per second.
    subjects: int = 2_000
    nodes: int = 4
    rows_per_file: int = 1_000_000
    seed: int = 4


class SyntheticLake:
    """A telemetry lake in a folder that grows by files of synthetic rows."""

    def __init__(self, lake: Path, options: SyntheticOptions | None = None) -> None:
        self.lake = lake
        self.options = options or SyntheticOptions()
        self._random = np.random.default_rng(self.options.seed)
        self.plants = PlantParameters.drawn(self.options.subjects, self._random)
        self._kinds: dict[str, _Series] = {
            CONSUMER_SAMPLES.name: _ConsumerSeries(self.options, self.plants),
            QUEUE_SAMPLES.name: _QueueSeries(self.options),
            LIFECYCLES.name: _LifecycleSeries(self.options),
        }

    def names(self, what: str) -> list[str]:
        """Return the names of the subjects; groups are in the order of `plants`."""
        return _names(what, self.options.subjects)

    def grow_to(self, kind: str, rows: int) -> None:
        """Add files until the kind has at least `rows` rows; seconds are always complete."""
        series = self._kinds[kind]
        with ThreadPoolExecutor(WRITERS) as writers:
            waiting: list[Future[None]] = []
            for table, begins_s in series.until(rows):
                if len(waiting) == WRITERS:
                    waiting.pop(0).result()
                path = self._path(series.kind, begins_s)
                waiting.append(writers.submit(_write, table, series.kind, path))
            for write in waiting:
                write.result()

    def rows(self, kind: str) -> int:
        return self._kinds[kind].rows

    def begins(self) -> datetime:
        return datetime.fromtimestamp(BEGINS_S, UTC)

    def ends(self, kind: str) -> datetime:
        """Return a time after all rows of the kind."""
        return datetime.fromtimestamp(self._kinds[kind].next_s + 1, UTC)

    def _path(self, kind: RowKind, begins_s: int) -> Path:
        begins = datetime.fromtimestamp(begins_s, UTC)
        folder = self.lake / kind.name / f"date={begins:%Y-%m-%d}" / f"hour={begins:%H}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"synthetic-{begins_s}.parquet"


class _Series(ABC):
    """A generator of rows of one kind, second by second."""

    kind: RowKind

    def __init__(self, options: SyntheticOptions) -> None:
        self.options = options
        self.random = np.random.default_rng([options.seed, *self.kind.name.encode()])
        self.rows = 0
        self.next_s = BEGINS_S

    def until(self, rows: int) -> Iterator[tuple[pa.Table, int]]:
        """Yield tables of whole seconds and their first seconds, until there are `rows` rows."""
        per_file_s = max(self.options.rows_per_file // self.options.subjects, 1)
        while self.rows < rows:
            begins_s = self.next_s
            wanted_s = -(-(rows - self.rows) // self.options.subjects)
            seconds = min(per_file_s, wanted_s, HOUR_S - begins_s % HOUR_S)
            columns = self.columns(seconds)
            self.rows += seconds * self.options.subjects
            self.next_s += seconds
            yield pa.table(columns, schema=self.kind.columns), begins_s

    @abstractmethod
    def columns(self, seconds: int) -> dict[str, Any]:
        """Return the columns of the next seconds, with a row of every subject for each."""

    def at(self, seconds: int) -> pa.Array:
        return _timestamps(np.repeat(self.ends_us(seconds), self.options.subjects))

    def ends_us(self, seconds: int) -> Integers:
        return (self.next_s + np.arange(seconds, dtype=np.int64)) * SECOND_US

    def per_subject(self, what: str, seconds: int) -> pa.DictionaryArray:
        """Return a column with the names of the subjects, repeated for each second."""
        subjects = self.options.subjects
        indices = np.tile(np.arange(subjects, dtype=np.int32), seconds)
        return _dictionary(indices, _names(what, subjects))

    def nodes(self, seconds: int) -> pa.DictionaryArray:
        nodes = self.options.nodes
        indices = np.tile(np.arange(self.options.subjects, dtype=np.int32) % nodes, seconds)
        return _dictionary(indices, [f"node-{number}" for number in range(nodes)])


def _names(what: str, count: int) -> list[str]:
    # Names of realistic length, because Spark reads, hashes and compares them.
    forms = {
        "queue": "orders.region-{number:04d}",
        "group": "orders.region-{number:04d}/billing-worker",
        "client": "billing-worker#{number:04d}",
    }
    return [forms[what].format(number=number) for number in range(count)]


def _dictionary(indices: NDArray[np.int32], names: list[str]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(names))


def _timestamps(microseconds: Integers) -> pa.Array:
    return pa.array(microseconds).view(pa.timestamp("us", tz="UTC"))


class _ConsumerSeries(_Series):
    kind = CONSUMER_SAMPLES

    def __init__(self, options: SyntheticOptions, plants: PlantParameters) -> None:
        super().__init__(options)
        self._plants = plants
        self._rate_per_s = plants.b * 5.0 / (1.0 - plants.a)
        self._prefetch = np.full(options.subjects, 5, dtype=np.int32)

    def columns(self, seconds: int) -> dict[str, Any]:
        subjects = self.options.subjects
        rows = seconds * subjects
        before, after, prefetch_before, prefetch = self._simulate(seconds)
        # As after a restart of the recorder, the values of the second before are unknown.
        ends_s = np.repeat(self.ends_us(seconds) // SECOND_US - BEGINS_S, subjects)
        unknown = (ends_s + np.tile(np.arange(subjects), seconds)) % GAP_EVERY_S == 0
        unknown |= ends_s == 0
        delivered = np.rint(after).astype(np.int64)
        service_s = 0.002 * delivered
        return {
            "at": self.at(seconds),
            "interval_s": np.ones(rows),
            "node": self.nodes(seconds),
            "queue": self.per_subject("queue", seconds),
            "group": self.per_subject("group", seconds),
            "client": self.per_subject("client", seconds),
            "consumer": np.tile(np.arange(subjects, dtype=np.int64), seconds),
            "automatic": np.zeros(rows, dtype=np.bool_),
            "delivered": delivered,
            "acked": delivered,
            "service_s_sum": service_s,
            "service": _histograms(self.random, delivered, [0.002], SERVICE_BUCKETS),
            "prefetch": prefetch,
            "unacknowledged": prefetch.astype(np.int64),
            "arrival_per_s": after,
            "arrival_before_per_s": pa.array(before, mask=unknown),
            "prefetch_before": pa.array(prefetch_before, mask=unknown),
        }

    def _simulate(self, seconds: int) -> tuple[Numbers, Numbers, Any, Any]:
        """Return rates before and after, and prefetches before and after, second by second."""
        plants, subjects = self._plants, self.options.subjects
        steps = -(-seconds // PREFETCH_HELD_S)
        drawn = self.random.integers(1, PREFETCH_MAX + 1, (steps, subjects), dtype=np.int32)
        prefetch = np.empty((seconds + 1, subjects), dtype=np.int32)
        prefetch[0] = self._prefetch
        prefetch[1:] = np.repeat(drawn, PREFETCH_HELD_S, axis=0)[:seconds]
        pushed = plants.b * np.minimum(prefetch, plants.knee)
        pushed += plants.noise_per_s * self.random.standard_normal((seconds + 1, subjects))
        rate = np.empty((seconds + 1, subjects))
        rate[0] = self._rate_per_s
        for second in range(seconds):
            np.multiply(plants.a, rate[second], out=rate[second + 1])
            rate[second + 1] += pushed[second]
            np.maximum(rate[second + 1], 0.0, out=rate[second + 1])
        self._rate_per_s, self._prefetch = rate[-1].copy(), prefetch[-1].copy()
        return rate[:-1].ravel(), rate[1:].ravel(), prefetch[:-1].ravel(), prefetch[1:].ravel()


class _QueueSeries(_Series):
    kind = QUEUE_SAMPLES

    def columns(self, seconds: int) -> dict[str, Any]:
        subjects = self.options.subjects
        rows = seconds * subjects
        # A sine over the day, with a phase and an amplitude for each queue.
        size = 20.0 + 480.0 * (np.arange(subjects) % 97) / 97.0
        phase = 2.0 * np.pi * (self.ends_us(seconds)[:, None] / SECOND_US) / 86_400.0
        wave = 1.0 + 0.5 * np.sin(phase + np.arange(subjects) % 11)
        put = self.random.poisson((size * wave).ravel()).astype(np.int64)
        acked = np.maximum(put + self.random.integers(-3, 4, rows), 0)
        zeros = np.zeros(rows, dtype=np.int64)
        typical_wait_s = 0.004 * (1.0 + np.arange(subjects) % 7)
        wait_s = np.tile(typical_wait_s, seconds)
        waiting = self.random.integers(0, 50, rows)
        return {
            "at": self.at(seconds),
            "interval_s": np.ones(rows),
            "node": self.nodes(seconds),
            "queue": self.per_subject("queue", seconds),
            "replica": np.zeros(rows, dtype=np.int32),
            "epoch": np.ones(rows, dtype=np.int64),
            "put": put,
            "delivered": acked,
            "acked": acked,
            **dict.fromkeys(
                (
                    "returned",
                    "redelivered",
                    "refused",
                    "dead_lettered",
                    "dropped",
                    "expired",
                    "deduplicated",
                ),
                zeros,
            ),
            "wait_s_sum": acked * wait_s,
            "service_s_sum": acked * 0.002,
            "wait": _histograms(self.random, acked, typical_wait_s.tolist(), WAIT_BUCKETS),
            "service": _histograms(self.random, acked, [0.002], SERVICE_BUCKETS),
            "waiting": waiting,
            "waiting_in_store": zeros,
            "delayed": zeros,
            "unacknowledged": np.full(rows, 8, dtype=np.int64),
            "oldest_age_s": waiting * 0.001,
            "resident_bytes": waiting * 400,
            "prefetch": np.full(rows, 20, dtype=np.int64),
            "producers": np.full(rows, 2, dtype=np.int32),
            "consumers": np.full(rows, 4, dtype=np.int32),
            "readers": np.zeros(rows, dtype=np.int32),
        }


class _LifecycleSeries(_Series):
    kind = LIFECYCLES

    def columns(self, seconds: int) -> dict[str, Any]:
        subjects = self.options.subjects
        rows = seconds * subjects
        random = self.random
        ends_us = np.repeat(self.ends_us(seconds), subjects) + random.integers(0, SECOND_US, rows)
        wait_us = 4_000.0 * np.exp(0.8 * random.standard_normal(rows))
        service_us = 2_000.0 * np.exp(0.4 * random.standard_normal(rows))
        parse_us, respond_us = 3.0 + random.random(rows), 5.0 + random.random(rows)
        store_us = 900.0 + 300.0 * random.random(rows)
        response_us = parse_us + store_us + respond_us + wait_us + service_us
        outcome = (random.random(rows) < 0.001).astype(np.int32)
        return {
            "at": _timestamps(ends_us),
            "node": self.nodes(seconds),
            "queue": self.per_subject("queue", seconds),
            "message_id": np.arange(self.rows, self.rows + rows, dtype=np.int64),
            "weight": np.full(rows, 100.0),
            "payload_bytes": np.full(rows, 256, dtype=np.int32),
            "put_at": _timestamps(ends_us - response_us.astype(np.int64)),
            "parse_us": parse_us,
            "store_us": store_us,
            "respond_us": respond_us,
            "wait_us": wait_us,
            # Dead-lettered messages have no service time.
            "service_us": pa.array(service_us, mask=outcome.astype(np.bool_)),
            "response_us": response_us,
            "deliveries": np.ones(rows, dtype=np.int32),
            "outcome": _dictionary(outcome, ["acked", "dead"]),
        }


def _histograms(
    random: np.random.Generator, counts: Integers, typical_s: Sequence[float], buckets: int
) -> pa.ListArray:
    """Return sparse histograms of `counts` durations around each subject's typical duration."""
    rows = counts.size
    shape = np.array([0.5**distance for distance in _distances(buckets)])
    parts = np.floor(counts[:, None] * (shape / shape.sum())).astype(np.int32)
    # Add the remainder of the rounding to the middle bucket.
    parts[:, buckets // 2] += (counts - parts.sum(axis=1)).astype(np.int32)
    typical = np.array([bucket_of(one_s) for one_s in typical_s], dtype=np.int16)
    middle = np.tile(typical, rows // typical.size)
    first = middle + random.integers(-4, 5, rows, dtype=np.int16) - np.int16(buckets // 2)
    bucket = (first[:, None] + np.arange(buckets, dtype=np.int16)).astype(np.int16)
    seen = parts > 0
    offsets = np.zeros(rows + 1, dtype=np.int32)
    np.cumsum(seen.sum(axis=1), out=offsets[1:])
    pairs = pa.StructArray.from_arrays(
        [pa.array(bucket[seen]), pa.array(parts[seen])],
        fields=[pa.field("bucket", pa.int16(), False), pa.field("count", pa.int32(), False)],
    )
    return pa.ListArray.from_arrays(pa.array(offsets), pairs)


def _distances(buckets: int) -> list[int]:
    return [abs(position - buckets // 2) for position in range(buckets)]


def _write(table: pa.Table, kind: RowKind, path: Path) -> None:
    file_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{kind.name}/{path.name}"))
    metadata = {**(table.schema.metadata or {}), **kind.file_metadata(file_id)}
    # The same metadata and compression as the recorder's.
    pq.write_table(table.replace_schema_metadata(metadata), path, compression=COMPRESSION)


# A child process that writes a synthetic lake, so that its memory does not count as Spark's.
#
#     python -m tidegate_lab.bench.synthetic_lake <folder> <subjects>
#
# Each input line is a `LakeSizeRequest` with a kind and a number of rows. The process answers with
# a
# `LakeSize` when the lake has them.


class LakeSizeRequest(msgspec.Struct, frozen=True):
    """The requested size of the lake."""

    kind: str
    rows: int


class LakeSize(msgspec.Struct, frozen=True):
    """The actual size of the lake, and the time range of its rows."""

    rows: int
    since: datetime
    until: datetime


def main(folder: Path, subjects: int) -> None:
    lake = SyntheticLake(folder, SyntheticOptions(subjects=subjects))
    for line in sys.stdin.buffer:
        wanted = msgspec.json.decode(line, type=LakeSizeRequest)
        lake.grow_to(wanted.kind, wanted.rows)
        answer(LakeSize(lake.rows(wanted.kind), lake.begins(), lake.ends(wanted.kind)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
