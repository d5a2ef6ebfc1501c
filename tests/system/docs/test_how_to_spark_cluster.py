"""The how-to about a Spark cluster is done on one: a master and a worker, on this computer.

What all see is a folder here, and names are addresses. A node that the page takes for granted
records, and has an order.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from free_ports import free_ports
from places import DOCS
from reader import Block, Reader, parts_of
from waiting import eventually

from tidegate.pipeline.session import archive_of, find_java

PAGE = DOCS / "how-to" / "my-spark-cluster.md"
AGREEMENT = """
name = "orders"
queue = "orders"
window = "5s"
[metrics.wait_p99]
breach = "6s"
"""
# Six Javas end before better code would pay for its making.
BRIEF = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
ORDER = Block("sh", "tidegate create orders\ntidegate put orders 'a pound of tea'\n", 0)


# It starts six Javas, which take half a minute of a core.
@pytest.mark.only_with_all
@pytest.mark.timeout(900)
def test_a_reader_learns_on_a_cluster(folder: Path) -> None:
    agreements = folder / "agreements"
    agreements.mkdir()
    (agreements / "orders.toml").write_text(AGREEMENT)
    names = {
        "/mnt/shared": str(folder),
        "/etc/tidegate/agreements": str(agreements),
        "tidegates://mq.example": "tidegate://127.0.0.1:7411",
        "spark.example": "127.0.0.1",
        "here.example": "127.0.0.1",
        # What others of this computer have to themselves.
        "--host 127.0.0.1": "--host 127.0.0.1 --webui-port 0",
        "7077": str(free_ports()),
        # One job is as much on a cluster as eleven.
        "tidegate learn": "tidegate learn --only compliance",
    }
    # They map Spark's classes where they have been written down, as a Spark of ours does by itself.
    for_java = " ".join((*BRIEF, *archive_of(find_java(os.environ)).options))
    reader = Reader(folder, names=names, environment={"JAVA_TOOL_OPTIONS": for_java})
    said = ""
    try:
        for part in parts_of(PAGE):
            said += reader.do(part)
            if isinstance(part, Block) and part.language == "toml":
                reader.stay("tidegate up --no-console", "tidegate://")
                reader.do(ORDER)
                eventually(lambda: [*folder.glob("lake/queue_samples/**/*.parquet")], "it records")
    finally:
        reader.end()

    assert "a pound of tea" in said
    assert (folder / "knowledge" / "latest.json").exists()
    told = "".join(one.read_text(errors="replace") for one in folder.glob(".said-*"))
    assert "Registered app tidegate" in told, "the master knows of it"
