"""The Yes/No margin that the model would give if it stopped at each point of the residual stream, and where it parts.

Logit lens: the state goes through the final norm and the output head as if no layer came after (nostalgebraist 2020,
"interpreting GPT: the logit lens"). Early points speak another basis than the last one, so a margin near 0 there says
that nothing is *written as a verdict* yet, not that nothing is known: for that, see ``interp.probes``. Knows nothing of
benchmarks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from interp.errors import UserError
from interp.hooks.residual import residuals
from interp.probes import auroc

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


def lens(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    *,
    points: Sequence[int] | None = None,
    place: str = "verdict",
    batch_size: int = 32,
) -> Float[Tensor, "point row"]:
    """Margins at ``points`` (default: 0, the embeddings, to L) of ``place``; float32 on the CPU.

    The last point of the verdict is ``vlm.score``. Elsewhere than at the verdict the mean state of the place is read,
    NaN where a prompt has no such place.

    Raises:
        UserError: as ``interp.hooks.residual.residuals``.
    """
    read = residuals(vlm, prompts, places=(place,), points=points, batch_size=batch_size)
    return torch.stack([spoken(vlm, read.at(place, point), batch_size) for point in read.points])


def spoken(vlm: "VLM", hidden: Float[Tensor, "row width"], batch_size: int = 32) -> Float[Tensor, "row"]:
    """The margins of states that were read already: through the final norm and the output head; float32 on the CPU."""
    norm, head = (vlm.layout.module(vlm.model, part) for part in ("final_norm", "lm_head"))
    cap = getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None)
    found = []
    with torch.no_grad():
        for some in hidden.split(batch_size):  # a vocabulary's logits of all cases at once would be gigabytes
            logits = head(norm(some.to(vlm.device, vlm.dtype)))
            found.append(vlm.margin(logits if cap is None else (logits / cap).tanh() * cap).cpu())
    return torch.cat(found)


@dataclass(frozen=True)
class Departure:
    """How the margins of failures differ from those of successes, point by point.

    ``gap`` is the mean margin of failures less that of successes, ``auroc`` the chance that a failure's margin is above
    a success's; both within strata if there are any. ``draws`` are the gap in each resample, NaN where one side is
    missing from it; successes and failures without a counterpart in their stratum are not counted.
    """

    gap: Float[np.ndarray, "point"]
    auroc: Float[np.ndarray, "point"]
    draws: Float[np.ndarray, "draw point"]
    failures: int
    successes: int


def departure(
    margins: Float[Tensor, "point row"],
    failed: Sequence[bool] | Bool[np.ndarray, "row"],
    multiplicity: np.ndarray,
    *,
    strata: Sequence[str] | np.ndarray | None = None,
) -> Departure:
    """Compares the failures and successes of *one* subset, where the same answer is right for all.

    Args:
        multiplicity: draw × row, how often each case stands in each resample (of clusters: every case as often as its
            cluster; ``experiments.metrics.bootstrap.draw_clusters``). No draws are fine.
        strata: what a failure is compared within (its template, a matched pair), so that sentences on which all fail
            are not set against others on which none does. A stratum counts with n₁n₂/(n₁ + n₂) of its two sides.

    Raises:
        UserError: columns of unlike lengths, or no stratum with both a failure and a success.
    """
    fails = np.asarray(failed, dtype=bool)
    stratum = np.zeros(len(fails), dtype=int) if strata is None else np.unique(strata, return_inverse=True)[1]
    if not len(fails) == len(stratum) == multiplicity.shape[1] == margins.shape[1]:
        raise UserError(f"margins of {margins.shape[1]} rows with columns of other lengths; there must be one for each")
    values = margins.double().numpy()
    both = [s for s in range(int(stratum.max()) + 1) if 0 < fails[stratum == s].sum() < (stratum == s).sum()]
    if not both:
        raise UserError(
            f"{int(fails.sum())} failures of {len(fails)} cases, and no stratum with both a failure and a success; "
            "a comparison needs them; take wider strata or another subset"
        )
    counted = np.isin(stratum, both)
    once = np.ones((1, len(fails)))
    sizes = np.array([[fails[stratum == s].sum(), (~fails[stratum == s]).sum()] for s in both])
    weight = _weight(sizes[:, 0], sizes[:, 1])
    areas = [[auroc(row[stratum == s], fails[stratum == s]) for s in both] for row in values]
    return Departure(
        gap=_gaps(values, fails, once, [stratum == s for s in both])[0],
        auroc=np.asarray(areas) @ weight / weight.sum(),
        draws=_gaps(values, fails, multiplicity, [stratum == s for s in both]),
        failures=int(fails[counted].sum()),
        successes=int((~fails[counted]).sum()),
    )


def departs_at(low: Float[np.ndarray, "point"], high: Float[np.ndarray, "point"]) -> int | None:
    """The first index from which on, to the last, every interval lies on one and the same side of 0; None if none."""
    side = np.where(low > 0, 1, np.where(high < 0, -1, 0))
    if not side[-1]:
        return None
    away = np.flatnonzero(side != side[-1])
    return int(away[-1] + 1) if len(away) else 0


def _weight(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of a stratum: the inverse of the variance of a difference of means of so many cases."""
    total = one + other
    return np.divide(one * other, total, out=np.zeros_like(total, dtype=float), where=total > 0)


def _gaps(
    values: Float[np.ndarray, "point row"],
    fails: Bool[np.ndarray, "row"],
    multiplicity: np.ndarray,
    strata: Sequence[Bool[np.ndarray, "row"]],
) -> Float[np.ndarray, "draw point"]:
    """Weighted mean over strata of the difference of means in each resample; NaN where no stratum has both sides."""
    top = np.zeros((len(multiplicity), len(values)))
    bottom = np.zeros(len(multiplicity))
    for here in strata:
        means, counts = [], []
        for side in (here & fails, here & ~fails):
            times = multiplicity[:, side].astype(float)
            counts.append(times.sum(1))
            means.append(times @ values[:, side].T / np.maximum(counts[-1], 1)[:, None])
        weight = _weight(*counts)
        top += weight[:, None] * (means[0] - means[1])
        bottom += weight
    return np.divide(top, bottom[:, None], out=np.full_like(top, np.nan), where=bottom[:, None] > 0)
