"""The default judge of each kind of benchmark. Imports no torch."""

from dataclasses import dataclass

from experiments.judges.yes_no import YesNo
from experiments.types import Judge, Kind


@dataclass(frozen=True)
class Automatic:
    """The default judge of each kind of benchmark: anchored Yes/No, or the offline classifier of refusals.

    The classifier's κ with people is .88 on text models' answers to requests (XSTest) and .93 on vision-language
    models' answers to questions for a judgement (MSTS). It learned neither from the models nor from the requests. The
    phrase rules have .80 and .17 (judge_card.json).
    """

    def for_kind(self, kind: Kind) -> Judge:
        """Return the judge that reads answers of ``kind``."""
        if kind == "yes_no":
            return YesNo()
        from experiments.judges.refusal_classifier import RefusalClassifier

        return RefusalClassifier()
