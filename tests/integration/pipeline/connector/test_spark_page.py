"""docs/spark-connector.md does what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from places import DOCS

if TYPE_CHECKING:
    from conftest import Queues


PAGE = DOCS / "spark-connector.md"


def test_the_snippets_of_the_page_run(
    queues: Queues,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "as it was")  # the page sets it, for its own process
    snippets = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    text = "\n".join(snippets).replace("tidegate://127.0.0.1:7411", queues.url)
    names: dict[str, Any] = {}
    exec(compile(text.replace("/data/", f"{tmp_path}/"), PAGE, "exec"), names)

    assert names["spark"] is queues.spark
    assert "13" in capfd.readouterr().out
    read = queues.spark.read.parquet(f"{tmp_path}/orders").select("payload").collect()
    assert len(read) == 2
    assert queues.waiting("invoices") == 0
    assert sorted(queues.payloads("orders")) == [b'{"total": 4}', b'{"total": 9}']
