"""The default judge of each kind of benchmark. Imports no torch."""

from dataclasses import dataclass

from experiments.judges.yes_no import YesNo
from experiments.types import Judge, Kind


@dataclass(frozen=True)
class Automatic:
    """The default judge of each kind of benchmark: anchored Yes/No, or the offline classifier of refusals.

    The classifier agrees better with people than the phrase rules do (mean κ .87 against .74 on XSTest, each model left
    out; docs/log.md).
    """

    def for_kind(self, kind: Kind) -> Judge:
        """The judge that reads answers of ``kind``."""
        if kind == "yes_no":
            return YesNo()
        from experiments.judges.refusal_classifier import RefusalClassifier

        return RefusalClassifier()
