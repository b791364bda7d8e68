"""OPERA's rule as settings: the penalty on a beam that trusts a summary token, and when it goes back behind one.

Importing this module loads neither torch nor transformers.
"""

from dataclasses import dataclass

from mitigation.validation import check_count, check_number


@dataclass(frozen=True)
class OverTrustRule:
    """The beam search of ``mitigation.peers.opera_beam_search``; ``OPERA`` says what each setting means."""

    beams: int = 5
    candidates: int = 5
    scale: float = 50.0
    weight: float = 1.0
    threshold: int | None = 15
    rollbacks: int = 5
    early: int = 10
    unit: float = 1e-7

    def __post_init__(self) -> None:
        for name, least in (("beams", 1), ("candidates", 1), ("rollbacks", 1), ("early", 0)):
            check_count(name, getattr(self, name), least)
        if self.threshold is not None:
            check_count("threshold", self.threshold, 2)
        check_number("scale", self.scale, 1e-6, hint="50 is the paper's")
        check_number("unit", self.unit, 0.0)
        check_number("weight", self.weight, 0.0)

    @property
    def looks(self) -> bool:
        """Whether it needs any attention."""
        return bool(self.weight) or self.threshold is not None
