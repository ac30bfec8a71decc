"""What a client is told when it gets no completion: OpenAI's shape of an error, one sentence each."""

from __future__ import annotations

import json

from starlette.responses import Response

LONGEST = 400  # characters of a sentence: it may repeat what the client sent
KINDS = {401: "authentication_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """An answer that is an error. param: the field that is wrong; code: for programs."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, **headers: str
    ) -> None:
        message = message if len(message) <= LONGEST else message[: LONGEST - 1] + "…"
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = "server_error" if status >= 500 else KINDS.get(status, "invalid_request_error")
        self.body = json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()

    def response(self) -> Response:
        """Return the whole answer."""
        return Response(self.body, self.status, self.headers, "application/json")


GONE = ApiError(499, "the client has gone", code="client_gone")  # why a request ends to which no answer is sent


def unavailable(message: str, code: str, after: int = 1) -> ApiError:
    """503, with the seconds after which to ask again."""
    return ApiError(503, message, code=code, retry_after=str(after), connection="close")


def bad(param: str | None, message: str, code: str | None = None) -> ApiError:
    """400: a field is wrong."""
    return ApiError(400, message, param=param, code=code)
