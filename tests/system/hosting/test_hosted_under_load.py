"""An application that is hosted, as its users see it while something goes wrong or changes.

One `tidegate host` for each engine serves all of these, in the order in which they stand.
"""

from __future__ import annotations

import collections
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from hosted import Answer, Hosted, Load, ask
from missing_peer import skipped_where_missing
from waiting import LIMIT_S, eventually

from tidegate.cli.door import check_engine
from tidegate.core.errors import Unavailable
from tidegate.core.services import Engine

ENOUGH = 60
# What does not depend on the engine is shown with one.
with_gateway = pytest.mark.parametrize("hosted", ["gateway"], indirect=True, scope="module")


@pytest.fixture(scope="module", params=["gateway", "haproxy"])
def hosted(request: pytest.FixtureRequest) -> Iterator[Hosted]:
    with skipped_where_missing(Unavailable):
        check_engine(Engine(request.param))
    running = Hosted("--engine", request.param, "--sticky", "--health-path", "/well", doors=2)
    yield running
    assert running.end() == 0
    eventually(lambda: not running.left_behind(), "everything ends with it")


def pids(hosted: Hosted, count: int = 40) -> set[int]:
    """Who answers."""
    answers = [ask(hosted.address) for _ in range(count)]
    assert {one.status for one in answers} == {200}, answers
    return {int(one.body.split()[1]) for one in answers}


def page(address: str) -> str:
    where, slashes, path = address.rpartition("/")
    return ask(where, slashes + path).body


def two_instances(hosted: Hosted) -> set[int]:
    return eventually(
        lambda: found if len(found := pids(hosted)) == 2 else None, "two instances answer"
    )


def test_a_killed_instance_costs_no_get_and_sends_no_post_twice(hosted: Hosted) -> None:
    (victim, _) = two_instances(hosted)
    with Load(hosted.address) as gets, Load(hosted.address, 2, "POST") as posts:
        eventually(lambda: min(len(gets.answers), len(posts.answers)) > ENOUGH, "load is there")
        os.kill(victim, signal.SIGKILL)
        there = len(gets.answers), len(posts.answers)
        eventually(lambda: len(gets.answers) > there[0] + 2 * ENOUGH, "GETs go on")
        eventually(lambda: len(posts.answers) > there[1] + ENOUGH, "POSTs go on")

    assert gets.failed == []
    booked = collections.Counter(hosted.seen.read_text().split())
    assert [path for path, times in booked.items() if times > 1] == []
    assert victim not in two_instances(hosted), "another one stands in for it"


def test_a_new_version_rolls_over_the_old_one_without_a_failed_request(hosted: Hosted) -> None:
    """No request fails, and who asks after the deploy has ended is answered by the new version.

    A request that was asked before may be answered by the old version after the announcement: it
    answers what it has. A request that is asked later may not, unless it belongs to a session.
    This was once not so: an old instance that keeps its sessions counted as gone as soon as the
    store said that it drains, while doors look at the store four times a second. HAProxy got its
    order over a socket after that, so one more request went to the old version now and then.
    """
    before = two_instances(hosted)
    code = (hosted.code / "hosted_shop.py").read_text()
    hosted.write_code(code.replace('VERSION = "one"', 'VERSION = "two"'))
    with Load(hosted.address) as load, Load(hosted.address, 2, "POST") as posts:
        deployed = hosted.again()
        over_at = time.monotonic()

        def later() -> list[Answer]:
            return [one for one in load.answers if one.asked_at > over_at]

        eventually(lambda: len(later()) > ENOUGH, "load goes on")

    assert deployed.returncode == 0, deployed.stderr.decode()
    assert deployed.stderr.decode().endswith("shop: version 2 serves\n")
    assert load.failed + posts.failed == []
    assert {one.body.split()[0] for one in load.answers} == {"one", "two"}
    assert {one.body.split()[0] for one in later()} == {"two"}
    assert not pids(hosted) & before


@with_gateway
def test_a_version_that_does_not_start_replaces_nothing(hosted: Hosted) -> None:
    before = two_instances(hosted)
    code = (hosted.code / "hosted_shop.py").read_text()
    begins = '    if scope["type"] != "http":\n'
    fails = (
        '    if scope["type"] == "lifespan":\n'
        "        await receive()\n"
        '        await send({"type": "lifespan.startup.failed", "message": "no database"})\n'
    )
    hosted.write_code(code.replace(begins, fails + begins))
    with Load(hosted.address, 2) as load:
        failed = hosted.again()

    assert failed.returncode == 1
    assert "no database" in failed.stderr.decode().splitlines()[-1]
    assert load.failed == []
    assert pids(hosted) == before, hosted.service()
    hosted.write_code(code)


@with_gateway
def test_a_deploy_whose_leader_is_killed_is_finished_by_the_next(hosted: Hosted) -> None:
    before = two_instances(hosted)
    begun = ask(hosted.address)
    code = (hosted.code / "hosted_shop.py").read_text()
    hosted.write_code(code.replace('VERSION = "two"', 'VERSION = "three"'))
    with Load(hosted.address, 2) as load, hosted.deploying() as deploying:
        eventually(
            lambda: any(one.body.startswith("three") for one in load.answers),
            "the first new one serves",
        )
        os.kill(hosted.node_pid(), signal.SIGKILL)
        _, said = deploying.communicate(timeout=90)

    assert deploying.returncode == 0, said.decode()
    assert load.failed == []
    assert not pids(hosted) & before
    # A session that was begun before goes on where it was, for a minute; nobody new comes there.
    again = ask(hosted.address, headers={"Cookie": begun.cookie})
    assert (again.body, again.cookie) == (begun.body, "")


def test_a_session_goes_on_at_the_other_door_when_one_is_killed(hosted: Hosted) -> None:
    first, second = hosted.addresses
    begun = ask(first)
    session = {"Cookie": begun.cookie}
    assert {ask(first, headers=session).body for _ in range(10)} == {begun.body}

    port = int(first.rpartition(":")[2])
    os.kill(hosted.door_pids()[port], signal.SIGKILL)

    assert {ask(second, headers=session).body for _ in range(10)} == {begun.body}
    eventually(lambda: ask(first).status == 200, "the first door is started again")
    assert ask(first, headers=session).body == begun.body


@with_gateway
def test_second_door_serves_the_same_instances(hosted: Hosted) -> None:
    instances = two_instances(hosted)
    door = subprocess.Popen(
        [sys.executable, "-m", "tidegate", "door", "shop", "--port", "0", "--data", hosted.data],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert door.stdout is not None
        assert door.stderr is not None
        address = door.stdout.readline().strip()
        shown = next(line for line in door.stderr if line.startswith("metrics: "))
        assert "tidegate_http_requests_total{" in page(shown.split()[1])
        assert {int(ask(address).body.split()[1]) for _ in range(20)} <= instances
        # One that was killed before is listed until its last word is old.
        eventually(
            lambda: address in {one["address"] for one in hosted.service()["doors"]},
            "it is one of the service's doors",
        )
    finally:
        door.terminate()
        assert door.wait(LIMIT_S) == 0


@with_gateway
def test_people_are_told_whether_it_is_kept_and_why_it_is_as_it_is(hosted: Hosted) -> None:
    # Nobody has asked but the probe, which does not count.
    with Load(hosted.address, 1):
        kept = eventually(
            lambda: (
                line if "\tmet\t" in (line := hosted.run("sla", "shop").stdout.decode()) else ""
            ),
            "a window was judged",
        )
    assert "response_p95 was" in kept
    assert b"shop: " in hosted.run("explain", "shop").stdout
    assert hosted.run("sla", "orders").returncode == 1
