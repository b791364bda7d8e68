"""What interventions do to the margin: attention edges cut, states exchanged, priors and directions removed.

Margins in, rows out; no model is involved.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import percentile_interval
from experiments.metrics.estimates import Entry, Resamples, first_lasting
from experiments.metrics.statistical_tests import mcnemar, wilson
from experiments.studies.mechanism.cases import AnsweredCases, Selection
from interp.hooks.residual import place_name
from interp.segments import RowSegments
from interp.tools.knockout import Edge
from interp.tools.patching import LEAST_GAP, PatchEffects
from mitigation.prior_correction import prior_share

AS_IT_IS = "as it is"
PRIOR = "sentence’s prior taken away"
ALL_LAYERS = "all"
ARRIVED = 0.5  # of the way to the other prompt's margin
PLACES = {"image": "picture", "user": "question", "pointing": "“this”", "other_words": "its other words",
          "template": "template", "verdict": "verdict"}  # fmt: skip
"""What the places that are patched are called."""


def pointing(row: RowSegments) -> list[int]:
    """The columns of "this" and "these" in the question."""
    return sorted({column for word in row.words if word.text.lower() in ("this", "these") for column in word.columns})


def other_words(row: RowSegments) -> list[int]:
    """The columns of a question that says "this" or "these", without them."""
    points = pointing(row)
    return sorted(set(row.columns("user")) - set(points)) if points else []


def knockout_rows(
    cut: Float[np.ndarray, "edge window row"],
    margins: Float[np.ndarray, " case"],
    cases: AnsweredCases,
    selection: Selection,
    estimator: Resamples,
    *,
    edges: Sequence[Edge],
    windows: Sequence[str],
) -> list[dict[str, Any]]:
    """A row for each edge and window of layers (named by ``windows``): what cutting it does to the selected cases.

    ``failures`` and ``successes`` are the mean change of the margin towards the truth, ``difference`` is theirs.
    ``auroc`` is that of members and twins with the edge cut, ``change`` its difference from before, and ``right`` the
    share of failures whose margin then lies on the truth's side. The rows of ``cut`` are ``selection.everyone``.
    """
    towards = np.where(cases.safe, 1.0, -1.0)
    fails, successes = (np.isin(np.arange(len(margins)), of) for of in (selection.failures, selection.successes))
    rows = []
    for edge, by_window in zip(edges, cut, strict=True):
        for name, values in zip(windows, by_window, strict=True):
            now = np.full(len(margins), np.nan)
            now[selection.everyone] = values
            moved = towards * (now - margins)
            rows.append({
                "edge": f"{edge[0]} → {edge[1]}",
                "layers": name,
                "failures": estimator.effect(moved, fails),
                "successes": estimator.effect(moved, successes),
                "difference": estimator.gap(moved, fails, successes),
                "right": estimator.mean((towards * now > 0).astype(float), fails),
                "auroc": estimator.auroc(now, cases.safe),
                "change": estimator.auroc_change(margins, now, cases.safe),
            })  # fmt: skip
    return rows


def patching_rows(
    effects: PatchEffects, rows: Int[np.ndarray, " pair"], estimator: Resamples, *, other: str
) -> list[dict[str, Any]]:
    """A row for each position and layer: how much of the way to the other prompt's margin its states there bring.

    The mean over pairs weighs each by the distance of its two margins (Σ moved / Σ gap, both counted towards the
    other): where they hardly differ, there is hardly anything to bring. Pairs less than ``LEAST_GAP`` apart are left
    out, and so are a place that no pair has and image tokens in layers that the picture is added behind again. ``rows``
    are the clean prompts' cases.
    """
    gap = (effects.other - effects.clean).double().numpy()
    gap = np.where(np.abs(gap) < LEAST_GAP, np.nan, gap)
    found = []
    for i, position in enumerate(effects.places):
        for j, layer in enumerate(effects.layers):
            if not bool(effects.moved[i, j].isfinite().any()):
                continue
            top, bottom = np.full((2, estimator.cases), np.nan)
            top[rows] = np.sign(gap) * effects.moved[i, j].double().numpy()
            bottom[rows] = np.abs(gap)
            effect = estimator.ratio(top, bottom)
            found.append({"other": other, "place": place_name(position), "layer": layer, "effect": effect})
    return found


def mean_gap(effects: PatchEffects, rows: Int[np.ndarray, " pair"], estimator: Resamples) -> Entry:
    """The mean distance between the margins of a pair's two members, in logits."""
    values = np.full(estimator.cases, np.nan)
    values[rows] = (effects.other - effects.clean).abs().double().numpy()
    return estimator.mean(values)


def twin_gaps(
    margins: Float[np.ndarray, " case"], cases: AnsweredCases, twin: Int[np.ndarray, " case"], estimator: Resamples
) -> dict[str, Entry]:
    """What the picture adds under one sentence, beside what sentences add.

    ``gap`` is the mean margin of the safe minus the unsafe member of a pair, in logits, ``ranked`` the share of pairs
    in the right order, ``apart`` the distance of the two in either direction, and ``spread`` the distance of cases of
    different sentences. ``difference`` is spread − apart. ``twin`` is each case's twin, −1 without one.
    """
    gap = np.where(cases.safe & (twin >= 0), margins - margins[twin], np.nan)
    codes = np.unique(cases.questions, return_inverse=True)[1]
    sizes = np.bincount(codes)
    # Each case against the mean of every other sentence, weighted by the sentence's cases: one number a case.
    others = sizes * (codes[:, None] != np.arange(len(sizes)))
    away = np.abs(margins[:, None] - np.bincount(codes, margins) / sizes)
    spread = (away * others).sum(1) / np.maximum(others.sum(1), 1) if len(sizes) > 1 else np.full(len(codes), np.nan)
    return {
        "gap": estimator.effect(gap),
        "apart": estimator.mean(np.abs(gap)),
        "ranked": estimator.mean(np.where(np.isnan(gap), np.nan, gap > 0)),
        "spread": estimator.mean(spread),
        "difference": estimator.further(spread, np.abs(gap)),
    }


def effect_at(rows: Sequence[dict[str, Any]], position: str, layer: int) -> Entry:
    """One effect of ``patching_rows``."""
    return next(row["effect"] for row in rows if (row["place"], row["layer"]) == (position, layer))


def arrives_at(
    rows: Sequence[dict[str, Any]], position: str, layers: Sequence[int], *, share: float = ARRIVED
) -> int | None:
    """The first layer from which on patching ``position`` alone brings at least ``share``; None where none does."""
    reached = [int((effect_at(rows, position, layer)["value"] or 0.0) >= share) for layer in layers]
    first = first_lasting(reached, 1)
    return None if first is None else layers[first]


def reversal_rows(
    margins: Float[np.ndarray, " case"],
    arms: Mapping[str, Float[np.ndarray, " case"]],
    safe: Bool[np.ndarray, " case"],
    estimator: Resamples,
) -> list[dict[str, Any]]:
    """A row for each arm (name → margins), the model as it is first; a case is called safe where its margin is above 0.

    ``change`` is the AUROC minus that of the margins as they are, on the same cases. ``fixed`` wrong answers turn right
    and ``broken`` right ones wrong. ``shift`` is what a constant does that is added to every margin and says Yes as
    often: it moves the threshold and discriminates no better.
    """
    rows = []
    for name, now in {AS_IT_IS: margins, **arms}.items():
        yes = int((now > 0).sum())
        rows.append({
            "arm": name,
            "auroc": estimator.auroc(now, safe),
            "change": None if name == AS_IT_IS else estimator.auroc_change(margins, now, safe),
            "yes": yes / len(now),
            **_flips(margins, now, safe, estimator),
            "shift": _flips(margins, shifted_margins(margins, yes), safe, estimator),
        })  # fmt: skip
    return rows


def shifted_margins(margins: Float[np.ndarray, " case"], yes: int) -> Float[np.ndarray, " case"]:
    """The margins plus the constant with which ``yes`` of them are above 0 (but for ties)."""
    ordered = np.sort(margins)[::-1]
    if yes <= 0:
        return margins - ordered[0] - 1.0
    edge = ordered[yes - 1]
    below = ordered[yes] if yes < len(ordered) else edge - 1.0
    return margins - (edge + below) / 2


def _flips(before: np.ndarray, after: np.ndarray, safe: np.ndarray, estimator: Resamples) -> dict[str, Any]:
    was, now = (before > 0) == safe, (after > 0) == safe
    flips = mcnemar(was, now)
    wrong, right = int((~was).sum()), int(was.sum())
    return {
        "fixed": flips.fixed,
        "wrong": wrong,
        "fixed_interval": wilson(flips.fixed, wrong, clusters=estimator.bootstrap.clusters(~was)),
        "broken": flips.broken,
        "right": right,
        "broken_interval": wilson(flips.broken, right, clusters=estimator.bootstrap.clusters(was)),
        "p": flips.p,
    }


def prior_shares(
    margins: np.ndarray, priors: np.ndarray, questions: np.ndarray, estimator: Resamples
) -> dict[str, Any]:
    """``mitigation.prior_correction.prior_share`` of the cases, with a bootstrap interval of R²."""
    share = prior_share(margins, priors, questions.tolist())
    bootstrap = estimator.bootstrap
    with np.errstate(divide="ignore", invalid="ignore"):
        covariances = [
            np.cov(margins, priors, fweights=weights) for weights in bootstrap.multiplicity[:, bootstrap.cluster]
        ]
        explained = np.array([table[0, 1] ** 2 / (table[0, 0] * table[1, 1]) for table in covariances])
    clusters = bootstrap.clusters()
    interval = percentile_interval(np.where(np.isfinite(explained), explained, np.nan), clusters=clusters)
    low, high = interval or (None, None)
    r2 = {"value": share.explained, "low": low, "high": high, "n": len(margins), "clusters": clusters}
    return {**share._asdict(), "r2": r2}
