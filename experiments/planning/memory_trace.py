"""The peaks and seconds of one step of a plan, and what a longer answer adds to them."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from experiments.shapes.ledger import Ledger
from interp.errors import UserError
from interp.vlm import VLM
from mitigation.steps import asking

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
    """One forward of the model: when it began, then up to the next one the seconds and the most bytes held."""

    began: float
    seconds: float = 0.0
    peak: int = 0


class Recorder:
    """Peaks and seconds of a step, and of each forward of it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.begin()

    def begin(self) -> None:
        """Forgets what was before."""
        gc.collect()
        self.ledger.restart()
        self.start = self.ledger.seconds
        self.peak = 0
        self.stepping = False  # whether what runs is a question that comes before an answer
        self.forwards: list[Forward] = []
        self.answers: dict[weakref.ref[Any], list[Forward]] = {}  # those that wrote to each cache
        self.prompts: tuple[int, int] | None = None  # rows and columns of the first one with a cache

    @contextmanager
    def following(self, vlm: VLM) -> Iterator[None]:
        """Notes where each forward of the model begins, or of another of its class; but for questions that a method
        asks before its answer, which do not grow with the answer."""
        kind = type(vlm.speaker)

        def began(module: Any, _: Any) -> None:
            if type(module) is kind:
                self._close()
                self.stepping = asking()
                if not self.stepping:
                    self.forwards.append(Forward(self.ledger.seconds))

        def ended(module: Any, _: Any, output: Any) -> None:
            cache = getattr(output, "past_key_values", None)
            if type(module) is kind and cache is not None and self.forwards and not self.stepping:
                self.prompts = self.prompts or (len(output.logits), int(cache.get_seq_length()))
                self.answers.setdefault(weakref.ref(cache), []).append(self.forwards[-1])

        handles = [register_module_forward_pre_hook(began), register_module_forward_hook(ended)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

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
        first = next(iter(self.answers.values()), None)
        return Cost(self.peak, self.seconds, self.prompts, first[0].seconds if first else 0.0)

    def longer(self, done: int, tokens: int) -> Cost:
        """Of the same with answers of ``tokens`` tokens instead of ``done``: each adds as much as the last did.

        An answer's forwards are those on one cache, and another branch of it has another. Prompts that are scored keep
        none. A beam search feeds the last token too, and the first tokens have fewer beams than the later ones.

        Raises:
            UserError: no forwards of an answer, not one a token, or too few tokens.
        """
        cost, more = self.cost(), tokens - done
        peak, seconds = cost.peak, cost.seconds
        answers = [forwards for forwards in self.answers.values() if len(forwards) > 2]
        least = 3 + SETTLING * any(len(own) == done + 1 for own in answers)
        if done < least or not answers or any(len(own) not in (done, done + 1) for own in answers):
            counts = ", ".join(str(len(own)) for own in answers) or "no"
            raise UserError(f"{counts} forwards for {done} tokens: what a longer answer takes cannot be told from them")
        for own in answers:
            seconds += own[-2].seconds * more
            peak = max(peak, own[-1].peak + more * max(0, own[-1].peak - own[-2].peak))
        return replace(cost, peak=peak, seconds=seconds)
