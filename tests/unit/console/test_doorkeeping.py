"""Who comes in: logins, cookies and tokens, foreign origins and hosts, what browsers are told."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from long_sleeps import LONG_S, long_sleeps
from people import PASSWORD, add_user
from serving_console import Console, console_of, events

from tidegate.broker.node import Node
from tidegate.client.client import Client
from tidegate.console import sessions as bounds


@contextlib.asynccontextmanager
async def _logged_in(console: Console) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    async with console.browser() as browser:
        answer = await browser.post("/api/session", json={"user": "ann", "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        yield browser, answer.json()["token"]


async def test_a_login_is_one_at_the_broker_and_its_cookie_is_for_us_alone(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    async with console_of(node) as console:
        assert (await console.http.get("/api/session")).status_code == 401
        assert (await console.http.get("/api/overview")).status_code == 401
        async with _logged_in(console) as (browser, token):
            who = (await browser.get("/api/session")).json()
            assert (who["user"], who["is_admin"], who["token"]) == ("ann", True, token)
            cookie = (
                await browser.post("/api/session", json={"user": "ann", "password": PASSWORD})
            ).headers["set-cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=strict" in cookie.replace("Strict", "strict")
            assert str(console.port) in cookie

            without = await browser.post("/api/queues", json={"name": "orders"})
            assert (without.status_code, without.json()["error"]) == (403, "WRONG_TOKEN")
            token = (await browser.get("/api/session")).json()["token"]
            done = await browser.post(
                "/api/queues", json={"name": "orders"}, headers={"x-tidegate-token": token}
            )
            assert done.status_code == 204, done.text

            out = await browser.delete("/api/session", headers={"x-tidegate-token": token})
            assert out.status_code == 204
            assert (await browser.get("/api/overview")).status_code == 401


async def test_a_wrong_password_and_a_user_that_is_not_there_are_refused_alike(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "GUESSES_MAX", 2)
    monkeypatch.setattr(bounds, "REFUSAL_S", LONG_S)
    slept_s = long_sleeps(monkeypatch)
    await add_user(node, "ann", admin="*")
    async with console_of(node) as console, console.browser() as browser:

        async def guess(user: str) -> tuple[int, str]:
            answer = await browser.post("/api/session", json={"user": user, "password": "wrong"})
            return answer.status_code, answer.text

        (status, text), other = await guess("ann"), await guess("nobody")
        assert (status, text) == other == (401, text)
        # Each was answered when REFUSAL_S was over, less what the check itself had taken.
        assert len(slept_s) == 2
        assert max(slept_s) < LONG_S
        await guess("ann")
        refused = await browser.post("/api/session", json={"user": "ann", "password": PASSWORD})
        assert refused.status_code == 429


async def test_a_user_who_is_removed_is_out(node: Node) -> None:
    await add_user(node, "ann", admin="*")
    await add_user(node, "bob", admin="*")
    async with console_of(node) as console, _logged_in(console) as (browser, _):
        stream = events(browser, "/api/live")
        await anext(stream)
        await node.store.remove_user("ann")
        await node.accounts.refresh()
        async for _ in stream:
            pass  # ends by itself
        assert (await browser.get("/api/overview")).status_code == 401
        again = await browser.post("/api/session", json={"user": "ann", "password": PASSWORD})
        assert again.status_code == 401


async def test_an_idle_session_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    await add_user(node, "ann", admin="*")
    async with console_of(node) as console, _logged_in(console) as (browser, _):
        assert (await browser.get("/api/overview")).status_code == 200
        monkeypatch.setattr(bounds, "IDLE_S", -1.0)
        assert (await browser.get("/api/overview")).status_code == 401


async def test_two_users_see_what_each_may_see(node: Node, connect: object) -> None:
    client: Client = await connect(node)  # type: ignore[operator]
    await client.create_queue("orders")
    await client.create_queue("secret")
    await add_user(node, "ann", read="orders")
    await add_user(node, "root", admin="*")
    async with console_of(node) as console:
        for user, seen in (("ann", ["orders"]), ("root", ["orders", "secret"])):
            answer = await console.http.get("/api/overview", auth=(user, PASSWORD))
            assert [row["name"] for row in answer.json()["services"]] == seen
        hidden = await console.http.get("/api/services/queue/secret", auth=("ann", PASSWORD))
        assert hidden.status_code == 404
        assert (await console.http.get("/api/overview", auth=("ann", "no"))).status_code == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_a_foreign_origin_is_refused(console: Console, origin: str) -> None:
    token = (await console.json("/session"))["token"]
    headers = {"origin": origin, "x-tidegate-token": token}

    answer = await console.http.post("/api/queues", json={"name": "orders"}, headers=headers)

    assert (answer.status_code, answer.json()["error"]) == (403, "FOREIGN_ORIGIN")
    assert (await console.json("/overview"))["services"] == []
    assert "access-control-allow-origin" not in answer.headers


async def test_a_page_needs_the_token_also_where_nobody_logs_in(console: Console) -> None:
    async with console.browser() as browser:
        token = (await browser.get("/api/session")).json()["token"]
        refused = await browser.post("/api/queues", json={"name": "orders"})
        assert refused.status_code == 403
        done = await browser.post(
            "/api/queues", json={"name": "orders"}, headers={"x-tidegate-token": token}
        )
        assert done.status_code == 204


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", ""])
async def test_a_host_that_is_not_ours_is_refused(console: Console, host: str) -> None:
    for path in ("/", "/api/overview"):
        answer = await console.http.get(path, headers={"host": host})

        assert answer.status_code in (400, 421)
        assert "orders" not in answer.text


async def test_everything_has_the_headers_that_keep_browsers_safe(console: Console) -> None:
    for path in ("/api/overview", "/api/nothing", "/page/nothing.js", "/api/results/0/x.html"):
        headers = (await console.http.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert ("sandbox" in policy) == path.startswith("/api/results/")
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        if path.startswith("/api"):
            assert headers["cache-control"] == "no-store"
        assert "server" not in headers


@pytest.mark.parametrize(
    "path", ["/page/../model.py", "/page/%2e%2e/model.py", "/page/..%2fmodel.py", "/page/.hidden"]
)
async def test_unknown_paths_are_not_found(console: Console, path: str) -> None:
    answer = await console.http.get(httpx.URL(console.address, raw_path=path.encode()))

    assert answer.status_code == 404


async def test_a_body_that_is_too_large_or_no_json_is_refused_with_what_to_do(
    console: Console,
) -> None:
    large = await console.http.post("/api/queues", content=b'{"name": "' + b"a" * 2_000_000)
    assert large.status_code == 413, large.text
    broken = await console.http.post("/api/queues", content=b"{")
    assert (broken.status_code, broken.json()["error"]) == (400, "INVALID")
    unknown = await console.http.post("/api/queues", json={"name": "a", "x": 1})
    assert unknown.status_code == 400
    assert "x" in unknown.json()["detail"]


async def test_results_are_sandboxed_and_nothing_beside_them_is_served(
    node: Node, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    (folder / "run").mkdir(parents=True)
    (folder / "run" / "report.html").write_text("<title>A &amp; B</title><script>1</script>")
    (tmp_path / "secret.html").write_text("secret")
    (folder / "link.html").symlink_to(tmp_path / "secret.html")
    (folder / "program.py").write_text("secret")
    async with console_of(node, results=(folder,)) as console:
        (one,) = await console.json("/results")
        assert (one["title"], one["path"]) == ("A & B", "0/run/report.html")
        page = await console.http.get(f"/api/results/{one['path']}")
        assert page.text.startswith("<title>")
        assert page.headers["content-security-policy"].startswith("sandbox;")
        assert page.headers["x-frame-options"] == "SAMEORIGIN"
        for path in (
            "0/../secret.html",
            "0/%2e%2e/secret.html",
            "0/link.html",
            "0/program.py",
            "1/x",
        ):
            raw = httpx.URL(console.address, raw_path=f"/api/results/{path}".encode())
            assert (await console.http.get(raw)).status_code == 404


async def test_the_description_is_there_and_no_viewer_from_elsewhere(console: Console) -> None:
    described = (await console.http.get("/api/openapi.json")).json()

    assert described["openapi"].startswith("3.1")
    assert "/api/queues/{name}/shares" in described["paths"]
    assert "ServiceView" in str(described["components"]["schemas"].keys())
    for path in ("/api", "/schema", "/api/swagger", "/api/redoc", "/api/elements", "/api/scalar"):
        answer = await console.http.get(path)
        assert answer.status_code == 404, path
        assert "html" not in answer.headers["content-type"]
        assert "cdn" not in answer.text
