"""A node on memory, with real clients on real sockets, behaves as the model in node_model.py."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from node_model import NodeMachine
from thoroughness import examples


# On a busy machine the thousands of steps take minutes.
@pytest.mark.timeout(600)
def test_a_node_on_memory_behaves_as_the_model() -> None:
    run_state_machine_as_test(
        NodeMachine,
        settings=settings(max_examples=examples(60), stateful_step_count=60, deadline=None),
    )
