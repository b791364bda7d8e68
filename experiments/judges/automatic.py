"""The judge of whoever names none. Imports neither torch nor scikit-learn."""

from dataclasses import dataclass

from experiments.benchmarks.sample import Kind
from experiments.judges.judge import Judge
from experiments.judges.yes_no import YesNo


@dataclass(frozen=True)
class Automatic:
    """The default judge of each kind of benchmark: anchored Yes/No, or the phrase rules for refusals."""

    def for_kind(self, kind: Kind) -> Judge:
        """The judge that reads answers of ``kind``."""
        if kind == "yes_no":
            return YesNo()
        from experiments.judges.refusal_rule import RefusalRule

        return RefusalRule()
