"""A node on PostgreSQL, with real clients, behaves as the model in node_model.py."""

from __future__ import annotations

import pytest
from backing import PostgresBacking
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from node_model import NodeMachine
from thoroughness import examples


# On a busy machine the thousands of steps take minutes.
@pytest.mark.timeout(600)
def test_a_node_on_postgresql_behaves_as_the_model(embedded_url: str) -> None:
    run_state_machine_as_test(
        lambda: NodeMachine(PostgresBacking("embedded", embedded_url)),  # type: ignore[arg-type]
        settings=settings(max_examples=examples(10), stateful_step_count=30, deadline=None),
    )
