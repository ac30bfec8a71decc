"""`POST /v1/completions`, as plain ASGI: between a token and the socket lies as little as possible.

Each request ends in one place, `Completions.__call__`: with its answer, with one error, or with nobody to tell.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
import traceback
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import replace
from os import environ
from typing import Any

from nanoinfer.async_llm import AsyncLLM
from nanoinfer.requests import Completion
from nanoinfer.serve.answers import DONE, Answer
from nanoinfer.serve.errors import ApiError, Gone, bad, unavailable
from nanoinfer.serve.fields import Asked, from_library, parse, read
from nanoinfer.serve.service import Service, Ticket

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OVER = "nanoinfer.over"  # in a scope: its connection is one too many
LEFT = "nanoinfer.left"  # in a scope: what is to be called when its client goes
EVENTS_PER_S = 5000  # of all streams together: where there are many, each has its tokens in fewer, larger pieces
LONG_BODY = 1 << 16  # bytes; texts of a longer one are tokenized in another thread
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"


class Completions:
    """The endpoint."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        ticket = self.service.open(request_id(scope))
        reply = Reply(send, ticket)
        scope[LEFT].add(ticket.leave)
        try:
            await self._serve(scope, receive, reply, ticket)
            ticket.outcome = "finished"
        except ApiError as error:
            ticket.cause = ticket.cause or error
            ticket.outcome = "failed" if ticket.stream else "refused"
            if isinstance(error, Gone):
                ticket.outcome = "cancelled"
            await reply.fail(error)
        except asyncio.CancelledError:
            ticket.outcome = "cancelled"
            raise
        except Exception as error:  # of the engine, or a mistake of ours
            if environ.get("NANOINFER_TRACEBACK"):
                traceback.print_exception(error)
            dead = self.service.llm is None or not self.service.llm.alive
            code = "engine_dead" if dead else "internal_error"
            ticket.cause = ApiError(500, "the engine has died" if dead else "an error of the server's own", code=code)
            if not dead:
                self.service.log(event="error", id=ticket.name, cause=type(error).__name__)
            await reply.fail(ticket.cause)
        finally:
            scope[LEFT].discard(ticket.leave)
            self.service.close(ticket)

    async def _serve(self, scope: Message, receive: Receive, reply: Reply, ticket: Ticket) -> None:
        service, config = self.service, self.service.config
        if scope["method"] != "POST":
            raise ApiError(405, "use POST for /v1/completions", headers={"allow": "POST", "connection": "close"})
        if scope.get(OVER):
            raise unavailable(f"more than {config.connections} connections are open", "too_many_connections")
        llm = service.check_open()
        _check_headers(dict(scope["headers"]), config.max_body)
        body = await _body(receive, config.max_body, config.body_timeout)
        asked = read(parse(body), config, llm.facts.end_of_text)
        if asked.model != service.name:
            raise ApiError(404, f"there is no model {asked.model!r:.100} here", param="model", code="model_not_found")
        most = llm.facts.max_batch + config.queue
        if asked.rows > most:
            raise bad("n", f"{asked.rows} completions are more than the {most} that may run or wait")
        llm = service.admit(ticket, asked.rows)  # ahead of tokenizing: who is refused costs little
        timer = asyncio.get_running_loop().call_later(config.request_timeout, lambda: ticket.end(_too_late(config)))
        try:
            await self._submit(llm, asked, len(body), ticket)
            answer = Answer(asked, ticket.name, int(time.time()), llm.tokenizer)
            await (self._stream if asked.stream else self._whole)(answer, reply, ticket)
        finally:
            timer.cancel()
            if ticket.stream:
                await ticket.stream.aclose()

    async def _submit(self, llm: AsyncLLM, asked: Asked, size: int, ticket: Ticket) -> None:
        """Let the engine have it. ApiError for what is wrong with a prompt."""
        try:
            if size > LONG_BODY:
                asked = replace(asked, prompts=await asyncio.to_thread(_token_ids, llm, asked.prompts))
            ticket.check()
            most = self.service.config.max_prompt_tokens
            if most is not None:
                asked = replace(asked, prompts=_token_ids(llm, asked.prompts))
                if (longest := max(map(len, asked.prompts))) > most:
                    raise bad("prompt", f"prompt has {longest} tokens, and may have {most} here")
            ticket.stream = llm.submit(asked.prompts, asked.params, every_token=asked.stream)
        except ValueError as error:
            raise from_library(error) from None
        rows = ticket.stream.rows
        ticket.prompt_tokens = sum(len(row.request.prompt_token_ids) for row in rows if row.request.sample == 0)

    async def _whole(self, answer: Answer, reply: Reply, ticket: Ticket) -> None:
        assert ticket.stream
        try:
            done = await ticket.stream.completions()
        except StopAsyncIteration:  # it was closed meanwhile
            done = []
        ticket.check()
        await reply.send(200, answer.whole(done))

    async def _stream(self, answer: Answer, reply: Reply, ticket: Ticket) -> None:
        assert ticket.stream
        done: list[Completion] = []
        prompts = {row.request.index: row.request.prompt_token_ids for row in ticket.stream.rows}
        async for piece in ticket.stream:
            event = answer.event(piece, prompts[piece.index])
            if piece.completion:
                done.append(piece.completion)
                if len(done) == len(ticket.stream.rows):
                    await reply.event(event + answer.usage_event(done) + DONE, last=True)
                    break
            if event:
                await reply.event(event)
            if self.service.streams > 1 and not piece.finish_reason:  # tokens that come meanwhile join the next piece
                await asyncio.sleep(self.service.streams / EVENTS_PER_S / len(prompts))
        ticket.check()


class Reply:
    """What goes back to one client."""

    def __init__(self, send: Send, ticket: Ticket) -> None:
        self._send, self._ticket = send, ticket
        self._streaming = False

    async def send(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """A whole answer."""
        await self._start(status, JSON, [(b"content-length", b"%d" % len(body)), *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def event(self, event: bytes, last: bool = False) -> None:
        """A part of a stream, whose first part is the answer's beginning."""
        if not self._streaming:
            self._streaming = True
            await self._start(200, EVENTS, [(b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no")])
        await self._send({"type": "http.response.body", "body": event, "more_body": not last})

    async def fail(self, error: ApiError) -> None:
        """The one end of a request that has no other: an error, or an error event and nothing after it."""
        if isinstance(error, Gone):
            return
        if self._streaming:
            await self.event(b"data: " + error.body + b"\n\n", last=True)
        else:
            headers = [(name.encode(), value.encode()) for name, value in error.headers.items()]
            await self.send(error.status, error.body, headers)

    async def _start(self, status: int, kind: bytes, headers: list[tuple[bytes, bytes]]) -> None:
        self._ticket.status = status
        headers += [(b"content-type", kind), (b"x-request-id", self._ticket.name.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


def request_id(scope: Message) -> str:
    """The client's X-Request-Id, where it is short and plain, or a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and re.fullmatch(rb"[A-Za-z0-9._-]{1,64}", value):
            return str(value.decode())
    return f"cmpl-{random.getrandbits(128):032x}"


def _too_late(config: Any) -> ApiError:
    return ApiError(504, f"the request took more than {config.request_timeout:g} seconds", code="timeout")


def _check_headers(headers: dict[bytes, bytes], most: int) -> None:
    """ApiError for a body that would be refused, before a client that asks first is told to send it."""
    if int(headers.get(b"content-length", 0)) > most:
        raise _too_large(most)
    if (coding := headers.get(b"content-encoding", b"identity").lower()) != b"identity":
        what = f"a body must come as it is, without content-encoding {coding.decode('latin-1')!r:.80}"
        raise ApiError(415, what, headers={"connection": "close"})


def _too_large(most: int) -> ApiError:
    what = f"the body has more than {most:,} bytes, which is the most that is read"
    return ApiError(413, what, code="body_too_large", headers={"connection": "close"})


async def _body(receive: Receive, most: int, seconds: float) -> bytearray:
    """The body. ApiError where it is too long, or too long on its way."""
    body, task, late = bytearray(), asyncio.current_task(), "the body is late"
    assert task
    timer = task.get_loop().call_later(seconds, task.cancel, late)  # `wait_for` would make a task of it
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            body += message.get("body", b"")
            if len(body) > most:
                raise _too_large(most)
            if not message.get("more_body"):
                return body
    except asyncio.CancelledError as error:
        if error.args != (late,):
            raise
        what = f"the body did not come within {seconds:g} seconds"
        raise ApiError(408, what, code="body_timeout", headers={"connection": "close"}) from None
    finally:
        timer.cancel()


def _token_ids(llm: AsyncLLM, prompts: Sequence[Any]) -> list[Any]:
    """Prompts as token ids. ValueError for a text that is none, or that no context could hold."""
    context = llm.facts.max_len
    names = [f"prompt {i}" if len(prompts) > 1 else "prompt" for i in range(len(prompts))]
    return [
        llm.tokenizer.encode(prompt, context=context, name=name) if isinstance(prompt, str) else prompt
        for prompt, name in zip(prompts, names, strict=True)
    ]
