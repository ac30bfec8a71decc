"""The middleware that bounds what one request may take: bytes of its body, and seconds to send it and to take answers.

A server calls an application once a request's headers have come. What happens before is bounded by the server's own
settings and by a proxy: chapters/SERVING.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoinfer.serve.config import ServeConfig
from nanoinfer.serve.errors import ApiError

LATE = "late"  # why a task is cancelled whose time is up


def limited(app: ASGIApp, config: ServeConfig) -> ASGIApp:
    """This application, whose `receive` raises ApiError beyond a limit, and `send` ClientDisconnect."""

    def check_size(size: int) -> None:
        if size > config.max_body:
            what = f"the body has more than {config.max_body:,} bytes, which is the most that is read"
            raise ApiError(413, what, code="body_too_large", connection="close")

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)
        headers, size, whole, loop = Headers(scope=scope), 0, False, asyncio.get_running_loop()
        until = loop.time() + config.body_timeout

        async def limited_receive() -> Message:
            nonlocal size, whole
            if whole:  # only the client's going can still come
                return await receive()
            check_size(int(headers.get("content-length", 0)))  # ahead of `receive`, at which a server asks for the body
            if (coding := headers.get("content-encoding", "identity").lower()) != "identity":
                what = f"a body must come as it is, without content-encoding {coding!r:.80}"
                raise ApiError(415, what, connection="close")
            try:
                message: Message = await within(until, receive())
            except TimeoutError:
                what = f"the body did not come within {config.body_timeout:g} seconds"
                raise ApiError(408, what, code="body_timeout", connection="close") from None
            size += len(message.get("body", b""))
            check_size(size)
            whole = not message.get("more_body", False)
            return message

        async def limited_send(message: Message) -> None:
            try:
                await within(loop.time() + config.stall_timeout, send(message))
            except OSError:  # of the server: it has gone; or TimeoutError: it takes nothing
                raise ClientDisconnect from None

        await app(scope, limited_receive, limited_send)

    return bounded


async def within(until: float, work: Awaitable[Any]) -> Any:
    """Await it, and raise TimeoutError when the event loop's time is `until`.

    `asyncio.wait_for` would make a task for each token of each stream, and a scope of anyio's takes 3.6 times as long.
    """
    task = asyncio.current_task()
    assert task
    timer = asyncio.get_running_loop().call_at(until, task.cancel, LATE)
    try:
        return await work
    except asyncio.CancelledError as error:
        if error.args != (LATE,):
            raise
        raise TimeoutError from None
    finally:
        timer.cancel()
