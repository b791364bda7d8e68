"""When to send the next request: an even pace, backoff after a fault, and what a Retry-After asks for. No network."""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock

FIRST_BACKOFF = 0.5  # seconds
LONGEST_BACKOFF = 30.0


class Pace:
    """Spaces the requests of all threads evenly, and holds them all back while the endpoint asks for it."""

    def __init__(self, requests_per_minute: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval = 60 / requests_per_minute if requests_per_minute else 0.0
        self._clock = clock
        self._free = clock()  # when the next request may leave
        self._lock = Lock()

    def reserve(self) -> float:
        """Takes the next free moment and returns the seconds until then."""
        with self._lock:
            now = self._clock()
            at = max(now, self._free)
            self._free = at + self._interval
            return at - now

    def hold(self, seconds: float) -> None:
        """Lets no further request leave for ``seconds``."""
        with self._lock:
            self._free = max(self._free, self._clock() + seconds)


def backoff(attempt: int, rng: random.Random) -> float:
    """Seconds before attempt ``attempt`` + 1: doubling from half a second, of which jitter takes up to a half."""
    return min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(attempt, 16)) * rng.uniform(0.5, 1.0)


def retry_after(value: str | None, now: datetime | None = None) -> float | None:
    """The seconds that a Retry-After header asks for (a number or a date), None where it says nothing readable."""
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            date = parsedate_to_datetime(value)
        except (ValueError, TypeError, IndexError):
            return None
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        seconds = (date - (now or datetime.now(UTC))).total_seconds()
    return max(0.0, seconds) if seconds == seconds else None  # NaN is no number of seconds
