"""The connections of a client: one for what it asks, one on which Redis tells it news.

While the first one lives, so does its token: what was taken under it is ours. When it breaks, the
token is another one, what we had is others', and everything is asked for again until `reconnect_s`
are over.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable
from typing import Any

import redis.asyncio as redis
from redis import exceptions
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tidegate.core.errors import NotAuthenticated, QueueNotExisting, Unavailable
from tidegate_redis.scripts import NEWS, NO_QUEUE

_AGAIN_FIRST_S = 0.02
_AGAIN_MAX_S = 0.5
_NAME = "tidegate-"


class Link:
    """Opened once, closed once."""

    def __init__(self, url: str, *, reconnect_s: float, **login: str | None) -> None:
        self._url = url
        self._reconnect_s = reconnect_s
        said = {"username": login.get("user"), "password": login.get("password")}
        self._login = {name: value for name, value in said.items() if value is not None}
        # Where replies come to.
        self.channel = f"tidegate:replies:{secrets.token_hex(8)}"
        # Of the connection that there is; empty: there is none.
        self.token = ""
        self._listening: asyncio.Task[None] | None = None
        self._is_listening = asyncio.Event()

    async def open(self, on_news: Callable[[str], None], on_reply: Callable[[bytes], None]) -> None:
        self._redis = self._connection(redis_connect_func=self._connected)
        self._ear = self._connection()
        self._listening = asyncio.create_task(self._listen(on_news, on_reply))
        try:
            await self.ask(lambda: self._redis.ping())
            await self._is_listening.wait()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Without a word about what is held: others see that we are gone."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})
        for one in (self._redis, self._ear):
            with contextlib.suppress(exceptions.RedisError):
                await one.aclose()
        self.token = ""

    def _connection(self, **more: Any) -> redis.Redis:
        # Whoever asks again has to know that it did, so nobody else does.
        never = Retry(NoBackoff(), 0)
        return redis.Redis.from_url(
            self._url, single_connection_client=True, retry=never, **self._login, **more
        )

    async def _connected(self, connection: Any) -> None:
        await connection.on_connect()
        token = secrets.token_hex(8)
        await connection.send_command("CLIENT", "SETNAME", _NAME + token)
        await connection.read_response()
        self.token = token

    async def run(self, script: str, queue: str, *arguments: object) -> Any:
        """A script about a queue, again if its answer was lost: for what may be done twice."""
        return await self.ask(lambda: self._redis.eval(script, 1, queue, *arguments), queue)

    async def run_resent(self, script: str, queue: str, *arguments: object) -> Any:
        """The same; its last argument says whether it may have been done before."""
        tries = 0

        async def once() -> Any:
            nonlocal tries
            tries += 1
            return await self._redis.eval(script, 1, queue, *arguments, int(tries > 1))

        return await self.ask(once, queue)

    async def command(self, *words: object) -> Any:
        return await self.ask(lambda: self._redis.execute_command(*words))

    async def ask(self, question: Callable[[], Any], queue: str = "") -> Any:
        deadline = time.monotonic() + self._reconnect_s
        wait_s = _AGAIN_FIRST_S
        while True:
            try:
                # A command that is cut off in the middle takes its connection along.
                return await asyncio.shield(asyncio.ensure_future(question()))
            except exceptions.AuthenticationError as refused:
                raise NotAuthenticated(f"Redis refuses the login: {refused}") from None
            except (exceptions.ConnectionError, exceptions.TimeoutError) as lost:
                self.token = ""
                if time.monotonic() + wait_s > deadline:
                    raise Unavailable(f"Redis does not answer: {lost}") from None
            except exceptions.ResponseError as refused:
                if str(refused).startswith(NO_QUEUE):
                    raise QueueNotExisting(f"there is no queue {queue!r}") from None
                raise
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _AGAIN_MAX_S)

    async def living(self) -> set[str]:
        """Tokens of everybody's connections."""
        clients = await self.ask(lambda: self._redis.client_list())
        names = (one["name"] for one in clients)
        return {name.removeprefix(_NAME) for name in names if name.startswith(_NAME)}

    async def ready(self) -> str:
        """The token of a connection that lives, as far as anybody knows."""
        if not self.token:
            await self.ask(lambda: self._redis.ping())
        return self.token

    async def _listen(
        self, on_news: Callable[[str], None], on_reply: Callable[[bytes], None]
    ) -> None:
        while True:
            try:
                async with self._ear.pubsub() as ear:
                    await ear.subscribe(NEWS, self.channel)
                    async for heard in ear.listen():
                        if heard["type"] == "subscribe":
                            self._is_listening.set()
                        elif heard["channel"] == NEWS.encode():
                            on_news(heard["data"].decode())
                        else:
                            on_reply(heard["data"])
            except (exceptions.RedisError, OSError):
                # Meanwhile everybody looks now and then.
                await asyncio.sleep(_AGAIN_MAX_S)
