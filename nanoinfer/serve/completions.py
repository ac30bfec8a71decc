"""`POST /v1/completions`.

Each request ends in one place, `Completions.__call__`: with its answer, with one error, or with nobody to tell.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from os import environ

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from nanoinfer.async_llm import AsyncLLM, TokenStream
from nanoinfer.serve.answers import Answer
from nanoinfer.serve.errors import GONE, ApiError, bad
from nanoinfer.serve.fields import CompletionRequest, from_library, parse, read
from nanoinfer.serve.service import Service, Ticket

EVENTS_PER_S = 5000  # of all streams together: where there are many, each has its tokens in fewer, larger pieces
LONG_BODY = 1 << 16  # bytes; texts of a longer one are tokenized in another thread
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class Completions:
    """The endpoint, an ASGI application."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reply = Reply(scope, send)
        self.service.open(reply)
        try:
            await self._serve(Request(scope, receive), reply)
        except (asyncio.CancelledError, Exception) as error:
            if isinstance(error, asyncio.CancelledError) and not reply.cause:  # by the server that runs this
                reply.outcome = "cancelled"
                raise
            reply.cause = reply.cause or self._cause(error, reply.name)
            gone, refused = reply.cause is GONE, isinstance(error, (ApiError, asyncio.CancelledError))
            reply.outcome = "cancelled" if gone else "refused" if refused and not reply.stream else "failed"
            if not gone:
                with suppress(ClientDisconnect):
                    await reply.fail(reply.cause)
        finally:
            self.service.close(reply)

    def _cause(self, error: BaseException, name: str) -> ApiError:
        """Return what a client is told: of the engine's errors and our own mistakes, only whose they are."""
        if isinstance(error, ClientDisconnect):
            return GONE
        if isinstance(error, ApiError):
            return error
        if environ.get("NANOINFER_TRACEBACK"):
            traceback.print_exception(error)
        if self.service.llm is None or not self.service.llm.alive:
            return ApiError(500, "the engine has died", code="engine_dead")
        self.service.log(event="error", id=name, cause=type(error).__name__)
        return ApiError(500, "an error of the server's own", code="internal_error")

    async def _serve(self, request: Request, reply: Reply) -> None:
        service, config = self.service, self.service.config
        llm = service.check_open()
        body = await request.body()
        asked = read(parse(body), config, llm.facts.end_of_text)
        if asked.model != service.name:
            raise ApiError(404, f"there is no model {asked.model!r:.100} here", param="model", code="model_not_found")
        service.admit(reply, asked.rows)  # ahead of tokenizing: who is refused costs little
        late = ApiError(504, f"the request took more than {config.request_timeout:g} seconds", code="timeout")
        timer = asyncio.get_running_loop().call_later(config.request_timeout, reply.end, late)
        listener = asyncio.ensure_future(_end_with_client(request.receive, reply))
        try:
            reply.stream = stream = await self._submit(llm, asked, len(body) > LONG_BODY)
            answer = Answer(asked, reply.name, llm.tokenizer)
            if asked.stream:
                await self._stream(answer, reply, stream)
            else:
                await reply.part(answer.whole(await stream.completions(), reply.usage))
        finally:
            timer.cancel()
            listener.cancel()
            if reply.stream:
                await reply.stream.aclose()

    async def _submit(self, llm: AsyncLLM, asked: CompletionRequest, long: bool) -> TokenStream:
        """Let the engine have it. ApiError for what is wrong with a prompt."""
        make, most = partial(llm.llm.requests, asked.prompts, asked.params), self.service.config.max_prompt_tokens
        try:
            requests = await asyncio.to_thread(make) if long else make()
        except ValueError as error:
            raise from_library(error) from None
        longest = max(len(request.prompt_token_ids) for request in requests)
        if most is not None and longest > most:
            raise bad("prompt", f"prompt has {longest} tokens, and may have {most} here")
        return llm.begin(requests, asked.stream, time.perf_counter())

    async def _stream(self, answer: Answer, reply: Reply, stream: TokenStream) -> None:
        left = len(stream.rows)
        prompts = {row.request.index: row.request.prompt_token_ids for row in stream.rows}
        async for piece in stream:
            event = answer.event(piece, prompts[piece.index])
            left -= piece.completion is not None
            if not left:
                return await reply.part(event + answer.last_events(reply.usage), EVENTS)
            if event:
                await reply.part(event, EVENTS, last=False)
            if self.service.streams > 1 and not piece.finish_reason:  # tokens that come meanwhile join the next piece
                await asyncio.sleep(self.service.streams / EVENTS_PER_S / len(prompts))


class Reply(Ticket):
    """A request, and what goes back to its client, in parts; all at once in HTTP/1.0, which knows no chunks."""

    def __init__(self, scope: Scope, send: Send) -> None:
        super().__init__(request_id(Headers(scope=scope)))
        self._send = send
        self._in_parts, self._held = scope["http_version"] != "1.0", b""

    async def part(self, data: bytes, headers: Mapping[str, str] = JSON, status: int = 200, last: bool = True) -> None:
        """Send a part of the answer. The first one begins it; a part that is first and last has a length."""
        self._held += data
        if not (last or self._in_parts):
            return
        self.answered = last
        if not self.status:
            self.status = status
            headers = {**headers, "x-request-id": self.name}
            if last:
                headers["content-length"] = str(len(self._held))
            pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
            await self._send({"type": "http.response.start", "status": status, "headers": pairs})
        data, self._held = self._held, b""
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    async def fail(self, error: ApiError) -> None:
        """Send the one end of a request that has no other: an error, or an error event and nothing after it."""
        self._held = b""
        if self.status:
            await self.part(b"data: " + error.body + b"\n\n")
        else:
            await self.part(error.body, {**error.headers, **JSON}, status=error.status)


async def _end_with_client(receive: Receive, ticket: Ticket) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    ticket.end(GONE)


def request_id(headers: Headers) -> str:
    """The client's X-Request-Id, where it is short and plain, or a new one."""
    name = headers.get("x-request-id", "")
    return name if re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) else f"cmpl-{random.getrandbits(128):032x}"
