"""OPERA's rule as settings: the penalty on a beam that trusts a summary token, and when it goes back behind one.

Importing this module loads neither torch nor transformers.
"""

from dataclasses import dataclass

from interp.errors import UserError
from mitigation.validation import check_number, check_weight


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
            _check_count(name, getattr(self, name), least)
        if self.threshold is not None:
            _check_count("threshold", self.threshold, 2)
        check_number("scale", self.scale, least=1e-6)
        check_number("unit", self.unit, least=0.0)
        check_weight(self.weight, least=0.0)

    @property
    def looks(self) -> bool:
        """Whether it needs any attention."""
        return bool(self.weight) or self.threshold is not None


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name}={value!r}; {name} is a whole number of at least {least}; choose one")
