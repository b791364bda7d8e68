"""How picture and sentence travel: margins with edges cut, and with one place's states exchanged. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.studies.mechanism.cases import Cases, Looked
from experiments.studies.mechanism.estimates import Entry, Resampling
from interp.attention_knockout import Edge
from interp.patching import LEAST_GAP, PatchEffects

ALL_LAYERS = "all"


def knockouts(
    cut: Float[np.ndarray, "edge window row"],
    margins: Float[np.ndarray, "case"],
    cases: Cases,
    looked: Looked,
    resampling: Resampling,
    *,
    edges: Sequence[Edge],
    layers: Sequence[str],
) -> list[dict[str, Any]]:
    """A row for each edge and window (``layers`` names them): what cutting it does to the cases looked at.

    ``failures`` and ``successes`` are the mean change of the margin towards the truth, ``difference`` theirs; ``auroc``
    is that of everyone (members and twins) with the edge cut, ``change`` from what it was; ``right`` is the share of
    failures whose margin is on the truth's side then. Rows of ``cut`` are those of ``looked.everyone``.
    """
    everyone = looked.everyone
    towards = np.where(cases.safe, 1.0, -1.0)
    fails, wins = _mask(len(margins), looked.failures), _mask(len(margins), looked.successes)
    rows = []
    for edge, windows in zip(edges, cut, strict=True):
        for name, values in zip(layers, windows, strict=True):
            now = np.full(len(margins), np.nan)
            now[everyone] = values
            moved = towards * (now - margins)
            rows.append({
                "edge": f"{edge[0]} → {edge[1]}",
                "layers": name,
                "failures": resampling.mean(moved, fails),
                "successes": resampling.mean(moved, wins),
                "difference": resampling.gap(moved, fails, wins),
                "right": resampling.mean((towards * now > 0).astype(float), fails),
                "auroc": resampling.auroc(now, cases.safe),
                "change": resampling.auroc(now, cases.safe, less=np.where(np.isnan(now), np.nan, margins)),
            })  # fmt: skip
    return rows


def patching(
    effects: PatchEffects, rows: Int[np.ndarray, "pair"], resampling: Resampling, *, other: str
) -> list[dict[str, Any]]:
    """A row for each place and point: how much of the way to the other prompt's margin its states there bring.

    The mean over pairs weighs each by how far its two margins lie apart (Σ moved / Σ gap, both counted towards the
    other): where they hardly differ, there is hardly anything to bring, and less than ``LEAST_GAP`` apart they are
    left out. ``rows`` are the clean prompts' cases.
    """
    gap = (effects.other - effects.clean).double().numpy()
    gap = np.where(np.abs(gap) < LEAST_GAP, np.nan, gap)
    found = []
    for i, place in enumerate(effects.places):
        for j, point in enumerate(effects.points):
            top, bottom = np.full((2, len(resampling.cluster)), np.nan)
            top[rows] = np.sign(gap) * effects.moved[i, j].double().numpy()
            bottom[rows] = np.abs(gap)
            effect = resampling.ratio(top, bottom)
            found.append({"other": other, "place": place, "point": point, "effect": effect})
    return found


def gaps(effects: PatchEffects, rows: Int[np.ndarray, "pair"], resampling: Resampling) -> Entry:
    """The mean distance between the margins of a pair's two members, in logits."""
    values = np.full(len(resampling.cluster), np.nan)
    values[rows] = (effects.other - effects.clean).abs().double().numpy()
    return resampling.mean(values)


def twins_gap(
    margins: Float[np.ndarray, "case"], cases: Cases, twin: Int[np.ndarray, "case"], resampling: Resampling
) -> dict[str, Entry]:
    """What the picture adds in the truth's direction: of each pair (same sentence), safe margin less unsafe margin.

    ``twin`` is each case's, −1 without one. ``gap`` in logits, ``ranked`` the share of pairs in the right order;
    ``apart`` how far the two lie apart in either direction, and ``spread`` the same of cases of different sentences.
    """
    gap = np.where(cases.safe & (twin >= 0), margins - margins[twin], np.nan)
    names, codes = np.unique(cases.sentences, return_inverse=True)
    means = np.bincount(codes, margins) / np.bincount(codes)
    # Each case against the mean of another sentence, weighted by that one's cases: one number a case, to be resampled.
    away = np.abs(margins[:, None] - means) * (codes[:, None] != np.arange(len(names)))
    weight = np.bincount(codes) * (codes[:, None] != np.arange(len(names)))
    spread = (away * np.bincount(codes)).sum(1) / np.maximum(weight.sum(1), 1)
    return {
        "gap": resampling.mean(gap),
        "apart": resampling.mean(np.abs(gap)),
        "ranked": resampling.mean(np.where(np.isnan(gap), np.nan, gap > 0)),
        "spread": resampling.mean(np.where(len(names) > 1, spread, np.nan)),
    }


def effect_at(rows: Sequence[dict[str, Any]], place: str, point: int) -> Entry:
    """One effect of ``patching``."""
    return next(row["effect"] for row in rows if (row["place"], row["point"]) == (place, point))


def arrives(rows: Sequence[dict[str, Any]], place: str, points: Sequence[int], *, share: float = 0.5) -> int | None:
    """The first point from which on patching ``place`` alone brings at least ``share``; None where it never does."""
    reached = [(effect_at(rows, place, point)["value"] or 0.0) >= share for point in points]
    late = [index for index, there in enumerate(reached) if not there]
    first = late[-1] + 1 if late else 0
    return points[first] if first < len(points) else None


def _mask(length: int, indices: Int[np.ndarray, "some"]) -> Bool[np.ndarray, "case"]:
    found = np.zeros(length, dtype=bool)
    found[indices] = True
    return found
