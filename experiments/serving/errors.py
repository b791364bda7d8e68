"""Refusals of both servers. Each is one sentence with an HTTP status. Imports nothing of the web framework."""

from interp.errors import UserError

FULL = "this server has as many requests waiting as it takes; try again in a moment"
DROPPED = 499  # the status of what nobody wants any more


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
        super().__init__(FULL, status=429, code="rate_limit_exceeded")


class Failed(BadRequest):
    """A fault of this program. The log says which."""

    def __init__(self) -> None:
        super().__init__(
            "something went wrong here, and the model is as it was; the server's terminal says what", status=500
        )
