"""The plugin in projects of other people: each brings its own way to run async tests."""

from __future__ import annotations

import tomllib
from importlib import import_module

import pytest
from places import ROOT

pytest_plugins = ["pytester"]

STORY = """
    mq = await tidegate_broker.connect()
    await mq.create_queue("orders", exist_ok=True)
    await mq.put("orders", b"one")
    await mq.get("orders", lease=60)
    await tidegate_broker.advance(61)
    assert (await mq.get("orders")).redelivered
"""


def run_project(pytester: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test)
    return pytester.runpytest_subprocess(
        # Under this name whether Tidegate is installed with its entry point or not.
        *("-p", "no:tidegate", "-p", "tidegate.testing.plugin", "-p", "no:cacheprovider"),
        *("-W", "error", *arguments),
    )


def test_the_entry_point_names_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    plugin = import_module(project["project"]["entry-points"]["pytest11"]["tidegate"])
    assert hasattr(plugin, "tidegate_broker")


@pytest.mark.parametrize("scope", ["function", "session"])
def test_with_pytest_asyncio(pytester: pytest.Pytester, scope: str) -> None:
    test = f"""
import pytest
pytestmark = pytest.mark.asyncio(loop_scope="{scope}")
async def test_one(tidegate_broker):{STORY}
async def test_another(tidegate_broker):{STORY}
"""
    run_project(
        pytester, test, "-p", "no:anyio", "-o", "asyncio_default_fixture_loop_scope=function"
    ).assert_outcomes(passed=2)


def test_with_anyio(pytester: pytest.Pytester) -> None:
    test = f"""
import pytest
pytestmark = pytest.mark.anyio
@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"
async def test_one(tidegate_broker):{STORY}
async def test_another(tidegate_broker):{STORY}
"""
    run_project(pytester, test, "-p", "no:asyncio").assert_outcomes(passed=2)


def test_with_no_plugin_at_all(pytester: pytest.Pytester) -> None:
    test = f"""
from tidegate.testing.virtual_time import run
def test_one(tidegate_broker):
    async def story():{STORY.replace(chr(10), chr(10) + "    ")}
    run(story())
def test_a_test_that_asks_for_nothing(tidegate_broker):
    pass
"""
    run_project(pytester, test, "-p", "no:asyncio", "-p", "no:anyio").assert_outcomes(passed=2)


def test_a_failed_test_fails_for_its_own_reason(pytester: pytest.Pytester) -> None:
    test = f"""
from tidegate.testing.virtual_time import run
def test_one(tidegate_broker):
    async def story():{STORY.replace(chr(10), chr(10) + "    ")}
        async with mq.subscribe("orders"):
            assert 1 == 2
    run(story())
"""
    result = run_project(pytester, test, "-p", "no:asyncio", "-p", "no:anyio")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E *assert 1 == 2"])
