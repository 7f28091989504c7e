"""How much may be sent: whoever sends more is told so, before it is all taken in."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from torchloom.server.problems import BODY, ApiProblem, problem_response

MOST = 1 << 20  # bytes of a request


class BodyLimit:
    """Refuse bodies that are too large: by what they announce, or as they come."""

    def __init__(self, app: ASGIApp, most: int = MOST) -> None:
        self.app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _announced(scope) > self._most:
            error = self._refusal()
            response = problem_response(413, error.code, error.detail, error.field, error.remedy)
            await response(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > self._most:
                raise self._refusal()
            return message

        await self.app(scope, counted, send)

    def _refusal(self) -> ApiProblem:
        detail = f"a request has at most {self._most} bytes"
        return ApiProblem(413, "too_large", detail, BODY, "send less: specs are a few kilobytes")


def _announced(scope: Scope) -> int:
    """Return how many bytes the sender says there are."""
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
    return int(length) if length.isdigit() else 0
