"""Refusals of both servers. Each is one sentence with an HTTP status. Imports nothing of the web framework."""

from interp.errors import UserError


class BadRequest(UserError):
    """A request that cannot be answered as it is.

    Args:
        sentence: what is wrong, and what to do.
        field: the parameter at fault.
        status: the HTTP status.
        code: OpenAI's short name of the error.
    """

    def __init__(self, sentence: str, field: str | None = None, *, status: int = 400, code: str | None = None) -> None:
        super().__init__(sentence)
        self.field, self.status_code, self.code = field, status, code


class Full(BadRequest):
    """No room for more requests."""

    def __init__(self) -> None:
        sentence = "this server has as many requests waiting as it takes; try again in a moment"
        super().__init__(sentence, status=429, code="rate_limit_exceeded")


class Failed(BadRequest):
    """A fault of this program. The log says which."""

    def __init__(self) -> None:
        super().__init__(
            "something went wrong here, and the model is as it was; the server's terminal says what", status=500
        )


class Dropped(BadRequest):
    """Nobody wants this work any more."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, status=499)
