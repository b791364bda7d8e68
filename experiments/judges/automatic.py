"""The default judge of each kind of benchmark. Imports no torch."""

from dataclasses import dataclass

from experiments.judges.yes_no import YesNo
from experiments.types import Judge, Kind


@dataclass(frozen=True)
class Automatic:
    """The default judge of each kind of benchmark: anchored Yes/No, or the offline classifier of refusals.

    The classifier's κ with people is .86 on text models' answers to requests (XSTest) and .91 on vision-language
    models' to questions for a judgement (MSTS), models and requests left out; that of the phrase rules .80 and .17
    (judge_card.json). Answers to these sets' own prompts it judges by weights that have not learned from them.
    """

    def for_kind(self, kind: Kind) -> Judge:
        """The judge that reads answers of ``kind``."""
        if kind == "yes_no":
            return YesNo()
        from experiments.judges.refusal_classifier import RefusalClassifier

        return RefusalClassifier()
