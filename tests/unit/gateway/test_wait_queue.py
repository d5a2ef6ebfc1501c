"""The line before full servers: in order, and a session keeps nobody else waiting."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.gateway.client_connection import WaitQueue


class Request:
    def __init__(self, number: int, *tried: str) -> None:
        self.number = number
        self.tried = set(tried)


def test_a_server_takes_who_has_waited_longest_of_its_own_and_of_all() -> None:
    line: WaitQueue[Request] = WaitQueue(5)
    first, session, third, other = Request(1, "a"), Request(2), Request(3), Request(4)
    line.put(first, None)
    line.put(session, "a")
    line.put(third, None)
    line.put(other, "b")
    # The first has failed on a; of the others the session came before the third.
    assert line.first_for("a") is session
    assert line.first_for("b") is first
    assert line.first_for("b", only_sessions=True) is other
    assert line.first_for("c") is first
    assert line.first_for("c", only_sessions=True) is None
    line.leave(session)
    assert line.first_for("a") is third
    assert line.waited_for() == ["b"]
    line.leave(session)
    assert [len(line), line.full] == [3, False]
    for number in (5, 6):
        line.put(Request(number), None)
    assert line.full


@given(st.lists(st.tuples(st.sampled_from(["put", "leave", "take"]), st.integers(0, 3))))
def test_wait_queue_gives_each_server_its_oldest_request(steps: list[tuple[str, int]]) -> None:
    line: WaitQueue[Request] = WaitQueue(1000)
    servers = [None, "a", "b", "c"]
    # As a list with the rule said in one line.
    model: list[tuple[Request, str | None]] = []
    for number, (step, choice) in enumerate(steps):
        server = servers[choice]
        if step == "put":
            request = Request(number)
            line.put(request, server)
            model.append((request, server))
        elif step == "leave" and model:
            request, _ = model.pop(choice % len(model))
            line.leave(request)
        elif step == "take" and server is not None:
            expected = next((one for one, want in model if want in (None, server)), None)
            taken = line.first_for(server)
            assert taken is expected
            if taken is not None:
                line.leave(taken)
                model = [pair for pair in model if pair[0] is not taken]
        assert len(line) == len(model)
