"""The peaks and seconds of one step of a plan, and what a longer answer adds to them."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from mitigation.steps import asking

if TYPE_CHECKING:
    from experiments.shapes.ledger import Ledger
    from interp.vlm import VLM

SETTLING = 2  # tokens more of a beam search, until each takes as much as the one before


@dataclass(frozen=True)
class Cost:
    """One batch of a step: the most bytes held, weights included, and the seconds that it takes.

    ``reading`` of these go into the first forward, of ``prompts``: rows and columns; None where no cache was kept.
    """

    peak: int
    seconds: float
    prompts: tuple[int, int] | None = None
    reading: float = 0.0


@dataclass
class Forward:
    """One forward of the model: when it began, then up to the next one the seconds and the most bytes held; and which
    of the caches it wrote to, counted as they come (None: it kept none)."""

    began: float
    seconds: float = 0.0
    peak: int = 0
    cache: int | None = None
    prompts: tuple[int, int] | None = None  # rows and columns, of the first one on its cache


class Recorder:
    """Peaks and seconds of a step, and of each forward of it."""

    def __init__(self, ledger: "Ledger") -> None:
        self.ledger = ledger
        self.begin()

    def begin(self) -> None:
        """Forgets what was before."""
        gc.collect()
        self.ledger.restart()
        self.start = self.ledger.seconds
        self.forwards: list[Forward] = []
        self._caches: list[weakref.ref[Any]] = []
        self.peak = 0
        self.stepping = False  # whether what runs is a question that comes before an answer

    @contextmanager
    def following(self, vlm: "VLM") -> Iterator[None]:
        """Notes where each forward of the model begins, or of another of its class; but for questions that a method
        asks before its answer, which do not grow with the answer."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        kind = type(vlm.speaker)

        def began(module: Any, _: Any) -> None:
            if type(module) is kind:
                self._next(step=asking())

        def ended(module: Any, _: Any, output: Any) -> None:
            if type(module) is kind and self.forwards and not self.stepping:
                cache = getattr(output, "past_key_values", None)
                if cache is not None and all(known() is not cache for known in self._caches):
                    self.forwards[-1].prompts = (len(output.logits), int(cache.get_seq_length()))
                self.forwards[-1].cache = self._number(cache)

        handles = [register_module_forward_pre_hook(began), register_module_forward_hook(ended)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _next(self, *, step: bool) -> None:
        self._close()
        self.stepping = step
        if not step:
            self.forwards.append(Forward(self.ledger.seconds))

    def _close(self) -> None:
        most = self.ledger.most
        self.peak = max(self.peak, most)
        if self.forwards and not self.stepping:
            self.forwards[-1].peak = most
            self.forwards[-1].seconds = self.ledger.seconds - self.forwards[-1].began
        self.ledger.restart()

    def end(self) -> None:
        """After the last forward."""
        self._close()
        self.seconds = self.ledger.seconds - self.start

    def cost(self) -> Cost:
        """Of what was done."""
        return self._cost(self.peak, self.seconds)

    def _cost(self, peak: int, seconds: float) -> Cost:
        first = next((forward for forward in self.forwards if forward.prompts is not None), None)
        return Cost(peak, seconds) if first is None else Cost(peak, seconds, first.prompts, first.seconds)

    def longer(self, done: int, tokens: int) -> Cost:
        """Of the same with answers of ``tokens`` tokens instead of ``done``: each adds as much as the last did.

        An answer's forwards are those on one cache, and another branch of it has another. Prompts that are scored keep
        none. A beam search feeds the last token too, and the first tokens have fewer beams than the later ones.

        Raises:
            UserError: no forwards of an answer, not one a token, or too few tokens.
        """
        peak, seconds, more = self.peak, self.seconds, tokens - done
        answers = [[self.forwards[at] for at in own] for own in self._by_cache() if len(own) > 2]
        least = 3 + SETTLING * any(len(own) == done + 1 for own in answers)
        if done < least or not answers or any(len(own) not in (done, done + 1) for own in answers):
            counts = ", ".join(str(len(own)) for own in answers) or "no"
            raise UserError(f"{counts} forwards for {done} tokens: what a longer answer takes cannot be told from them")
        for own in answers:
            seconds += own[-2].seconds * more
            peak = max(peak, own[-1].peak + more * max(0, own[-1].peak - own[-2].peak))
        return self._cost(peak, seconds)

    def _by_cache(self) -> list[list[int]]:
        """The positions of the forwards on each cache."""
        found: list[list[int]] = [[] for _ in self._caches]
        for position, forward in enumerate(self.forwards):
            if forward.cache is not None:
                found[forward.cache].append(position)
        return found

    def _number(self, cache: Any) -> int | None:
        if cache is None:
            return None
        for number, known in enumerate(self._caches):
            if known() is cache:
                return number
        self._caches.append(weakref.ref(cache))
        return len(self._caches) - 1
