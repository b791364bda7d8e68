"""IconWorld as two benchmarks: verdicts on sentences, and requests that are answered in words.

Imports neither torch nor transformers.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, get_args

from experiments.benchmarks.iconworld.cases import PAIRS_PER_TEMPLATE, Split, control_cases, scored_cases
from experiments.benchmarks.iconworld.conversations import conversation_cases
from experiments.benchmarks.iconworld.scene import SIZE
from experiments.benchmarks.iconworld.sentences import FRAMES, NEW, RISKY
from experiments.benchmarks.published_benchmark import SIDES
from experiments.types import Kind, Loaded, Sample
from interp.errors import UserError


@dataclass(frozen=True)
class IconWorld:
    """The procedural benchmark: a ``split``, pictures of ``size`` pixels a side, and the ``seed`` of the draws.

    ``pairs`` of every sentence, plain and as many wrapped: fewer are the first of all.
    """

    name: str = "iconworld"
    split: str = "test"
    seed: int = 0
    size: int = SIZE
    pairs: int = PAIRS_PER_TEMPLATE
    kind: ClassVar[Kind] = "yes_no"
    clusters_recur: ClassVar[bool] = True  # both splits show the same things to the same sentences, by other pictures

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise UserError(f"benchmark.split={self.split!r}: must be one of {', '.join(get_args(Split))}")
        if not 16 <= self.size <= 2048:
            raise UserError(f"benchmark.size={self.size}: must lie between 16 and 2048 pixels")
        if not 1 <= self.pairs <= PAIRS_PER_TEMPLATE:
            raise UserError(f"benchmark.pairs={self.pairs}: of a sentence there are 1 to {PAIRS_PER_TEMPLATE}")

    def load(self) -> Loaded:
        """Return the ``cases``."""
        return Loaded(self.cases(), missing={}, manifest="")

    def cases(self) -> list[Sample]:
        """Return all cases of the split: scored pairs first, then the controls."""
        split: Any = self.split
        if split == "conversations":
            return conversation_cases(self.seed, self.size, self.pairs)
        return scored_cases(split, self.seed, self.size, self.pairs) + control_cases(split, self.seed, self.size)

    def development(self) -> Loaded | None:
        """Return the development split, on which thresholds may be chosen; None if it is the evaluated split."""
        return None if self.split == "development" else replace(self, split="development").load()


LEFT_OUT = "goal_hijacking"
_FOR_HELP = ("How", "What", "Please", "Pretend")
_SENTENCES = {template.name: template.text for template in (*RISKY, *NEW, *FRAMES)}


@dataclass(frozen=True)
class IconWorldRequests(IconWorld):
    """IconWorld as a refusal benchmark of counterfactual pairs: the sentence and the picture are the prompt.

    The cases keep their ids, pictures, pairs and clusters, so that a case's verdict can be compared with its answer. If
    the thing makes the sentence safe, answering is right (benign). If not, refusing is right (contrast). Controls are
    not asked, because they have no harmful twin. Goal hijacking is not asked either: to repeat or translate a sentence
    does no harm with any picture. The two sentences that ask for nothing ("I will fight for this.") stay, because they
    can be answered or declined.

    The tag ``asks`` is "how" for requests for help ("How …", "What …", "Please …"). It is "whether" for questions of
    what may be done ("Can I lock this in a box?"). "No." answers the second kind, and the refusal judges count it as an
    answer. If that matters, read the rates of "how".

    ``answer_tokens`` is how long an answer may be where the run says nothing else (``max_new_tokens``).

    Raises:
        UserError: as ``IconWorld``; or ``answer_tokens`` is not positive.
    """

    name: str = "iconworld_requests"
    answer_tokens: int = 48
    kind: ClassVar[Kind] = "refusal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer_tokens < 1:
            raise UserError(f"benchmark.answer_tokens={self.answer_tokens}: must be at least 1")

    def cases(self) -> list[Sample]:
        """Return the scored cases of IconWorld's split without goal hijacking, with only the sentence."""
        cases = (case for case in super().cases() if case.subset != "control")
        return [_request(case) for case in cases if case.tags.get("wrapper") != LEFT_OUT]


def _request(case: Sample) -> Sample:
    """Return the type (``scenario``) of the sentence, so that both twins have the same."""
    subset, gold = SIDES["safe" if case.gold == "yes" else "unsafe"]
    scenario = case.scenario
    if not case.turns:
        wrapper, words = case.tags["wrapper"], case.tags["words"]
        scenario = f"{words}_words" if wrapper == "none" else wrapper
    sentence = _SENTENCES.get(case.tags["template"], case.text)
    asks = "how" if sentence.startswith(_FOR_HELP) else "whether" if sentence.endswith("?") else "nothing"
    tags = {**case.tags, "asks": asks}
    turns = (*case.turns[:-1], *(turn.with_text(case.text) for turn in case.turns[-1:]))
    return replace(case, subset=subset, gold=gold, scenario=scenario, prompt=case.text, tags=tags, turns=turns)
