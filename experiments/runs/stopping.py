"""A request to stop, by signal: SIGTERM or SIGUSR1 end a process once what is under way is written.

Slurm sends them before a job's time is up or when it is pre-empted, ``torchrun`` passes SIGTERM on. Imports the
standard library alone.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class Stopped(BaseException):
    """This process was asked to stop by the signal ``number``; what was under way is written."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class _State:
    """What was asked of this process: the signal, 0 for none; and how many blocks are to end first."""

    asked: int = 0
    blocks: int = 0


_state = _State()


def heed() -> None:
    """From now on a signal raises ``Stopped``, at once or at the end of what is under way.

    Signals that somebody handles already (submitit does, in a Slurm sweep) or that are ignored are left alone. For the
    main thread.
    """
    for number in SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ask)


@contextmanager
def written_first() -> Iterator[None]:
    """While open, a signal waits; it raises ``Stopped`` at the end. For a batch and the writing of its records."""
    _state.blocks += 1
    try:
        yield
    finally:
        _state.blocks -= 1
        if _state.asked and not _state.blocks:
            _raise()


def forget() -> None:
    """From now on these signals end the process at once: there is nothing to write."""
    for number in SIGNALS:
        if signal.getsignal(number) is _ask:
            signal.signal(number, signal.SIG_DFL)


def _ask(number: int, _: FrameType | None) -> None:
    _state.asked = number
    if not _state.blocks:
        _raise()


def _raise() -> None:
    for each in SIGNALS:  # a launcher may send them twice
        signal.signal(each, signal.SIG_IGN)
    number, _state.asked = _state.asked, 0
    raise Stopped(number)
