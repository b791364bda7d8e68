"""Effects of replaced parts as numbers by question, pair and direction, and their sums over units."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from experiments.metrics.slopes import unit_sums
from experiments.studies.localise.cases import TERMS
from interp.tools.part_effects import SetEffects


@dataclass
class Measured:
    """What a question's replaced sets do: ``moved`` and ``gap`` as in ``SetEffects``, the runs of ``TERMS`` added."""

    moved: Float[np.ndarray, "direction set row"]
    gap: Float[np.ndarray, "direction row"]
    signs: Float[np.ndarray, "direction row"]

    @classmethod
    def of(cls, question: str, effects: Mapping[str, SetEffects], sets: Sequence[int] | None = None) -> "Measured":
        """From the effects by run; ``sets`` are the places of the question's own sets among those that were run."""
        chosen = slice(None) if sets is None else list(sets)
        parts = [(effects[name], sign) for name, sign in TERMS[question]]
        margins = np.stack([parts[0][0].clean.double().numpy(), parts[0][0].other.double().numpy()])
        return cls(
            np.sum([sign * one.moved.double().numpy()[:, chosen] for one, sign in parts], axis=0),
            np.sum([sign * one.gap.double().numpy() for one, sign in parts], axis=0),
            margins,
        )

    def slope_sums(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ moved·gap and Σ gap² by unit: what carries the difference, whatever its sign."""
        top, bottom = (self.moved * self.gap[:, None]).sum(0).T, (self.gap**2).sum(0)
        return unit_sums(top, unit), unit_sums(bottom, unit)

    def truth_sums(self, unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Σ moved towards the other member and Σ gap by unit: what carries the truth."""
        return unit_sums((self.moved[0] - self.moved[1]).T, unit), unit_sums(2 * self.gap[0], unit)

    @property
    def flips(self) -> tuple[Float[np.ndarray, " set"], float]:
        """The share of verdicts that change sign with each set replaced, and with everything replaced."""
        before = self.signs
        after = before[:, None] + self.moved
        whole = float((np.sign(before) != np.sign(before[::-1])).mean())
        return (np.sign(after) != np.sign(before)[:, None]).mean((0, 2)), whole
