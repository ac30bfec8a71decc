"""What a client is told when it gets no completion: OpenAI's shape of an error, one sentence each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

LONGEST = 400  # characters of a sentence: it may repeat what the client sent


class ApiError(Exception):
    """An answer that is an error. param: the field that is wrong; code: for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code, self.headers = status, param, code, dict(headers or {})
        self.message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"

    @property
    def record(self) -> dict[str, Any]:
        """The JSON object."""
        kind = "server_error" if self.status >= 500 else "rate_limit_error" if self.status == 429 else None
        kind = kind or ("authentication_error" if self.status == 401 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def body(self) -> bytes:
        """The JSON object, encoded."""
        return json.dumps(self.record).encode()


class Gone(ApiError):
    """The client went away: nobody is told."""

    def __init__(self) -> None:
        super().__init__(499, "the client has gone", code="client_gone")


def unavailable(message: str, code: str, after: int = 1) -> ApiError:
    """503, with the seconds after which to ask again."""
    return ApiError(503, message, code=code, headers={"retry-after": str(after), "connection": "close"})


def bad(param: str | None, message: str, code: str | None = None) -> ApiError:
    """400: a field is wrong."""
    return ApiError(400, message, param=param, code=code)
