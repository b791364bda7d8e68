"""What a judge is: answers in, verdicts out. Knows nothing of files, arms or rates; imports neither torch nor PIL.

A judge sees only what it is shown in an :class:`Item`. Whether a request was answered at all is its *status* (see
``experiments.outcomes``), which is not a judge's business: an empty or failed answer is not to be handed in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from experiments.benchmarks.sample import Kind
from experiments.outcomes import Verdict

if TYPE_CHECKING:
    from PIL import Image


@dataclass(frozen=True)
class Item:
    """One answer to be judged.

    ``image`` draws or opens the picture only for a judge that looks at it; None for a case of text alone. ``gold`` is
    the right answer of the case, which the published yes/no rule needs; no other judge may look at it. ``language`` is
    a BCP 47 tag, of which the first part alone counts.
    """

    case: str
    question: str
    response: str
    image: "Callable[[], Image.Image] | None"
    gold: str
    language: str = "en"


@dataclass(frozen=True)
class Judgement:
    """What an answer means, why in a few words, and the single votes where there were several (majority verdicts)."""

    verdict: Verdict
    explanation: str = ""
    votes: tuple[str, ...] = ()


class Judge(Protocol):
    """Reads answers; one judgement an item, in the order given."""

    @property
    def name(self) -> str:
        """What tables and files call it; two judges of one run have different names."""
        ...

    @property
    def kind(self) -> Kind:
        """Which benchmarks it judges, and so which verdicts it gives."""
        ...

    def judge(self, items: Sequence[Item]) -> list[Judgement]:
        """One judgement an item, in their order. What cannot be judged is ``Verdict.JUDGE_FAILED``, never left out."""
        ...
