"""Every row of Telesto's tables 3.4, 3.5 and 4.1 is named by a test of this suite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROWS = {
    "3_4": "queue_id receiver_id sender_id context mode",
    "3_5": (
        "request_id identify delete_client create_queue delete_queue get_queue_id get_queue_name "
        "list_queues get_active_queues get_messages_from_queue put_message put_messages "
        "read_message_by_priority read_message_by_timestamp read_response_message"
    ),
    "4_1": (
        "ping connect_by_name_and_mode connect_by_client_id create_queue delete_queue "
        "get_queue_by_name get_queue_by_id get_queues get_active_queues read_messages "
        "put_message put_messages send_request_response_message retrieve_message_by_priority "
        "retrieve_message_by_read_mode retrieve_message_from_a_sender_by_read_mode"
    ),
}


@pytest.fixture(scope="module")
def names() -> list[str]:
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    return [name for text in texts for name in re.findall(r"def (test_\w+)", text)]


@pytest.mark.parametrize(
    ("table", "row"), [(table, row) for table, rows in ROWS.items() for row in rows.split()]
)
def test_a_row_of_a_table_has_a_test(table: str, row: str, names: list[str]) -> None:
    assert any(re.search(rf"_{table}_{row}(_|$)", name) for name in names)
