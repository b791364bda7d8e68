"""What interventions do to the margin: attention edges cut, states exchanged, priors and directions removed.

Margins in, rows out; no model is involved.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import mcnemar, percentile_interval, wilson
from experiments.metrics.estimates import Resamples, first_lasting
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.studies.mechanism.cases import ARM, AnsweredCases, Selection
from interp.hooks.residual import place_name
from interp.segments import RowSegments
from interp.tools.knockout import Edge
from interp.tools.patching import LEAST_GAP, PatchEffects
from mitigation.prior_correction import PriorShare, prior_share

PRIOR = "sentence’s prior taken away"
CONSTANT = "a constant that says Yes as often"
ALL_LAYERS = "all"
PICTURE, SENTENCE = "picture", "sentence"  # what another prompt differs in
ARRIVED = 0.5  # of the way to the other prompt's margin
POSITIONS = {"image": "picture", "user": "question", "pointing": "“this”", "other_words": "its other words",
             "template": "template", "verdict": "verdict"}  # fmt: skip
"""What the positions that are patched are called."""


def pointing(segments: RowSegments) -> list[int]:
    """Return the columns of "this" and "these" in the question."""
    words = (word for word in segments.words if word.text.lower() in ("this", "these"))
    return sorted({column for word in words for column in word.columns})


def other_words(segments: RowSegments) -> list[int]:
    """Return the columns of a question that says "this" or "these", without them."""
    points = pointing(segments)
    return sorted(set(segments.columns("user")) - set(points)) if points else []


def knockout_rows(
    cut: Float[np.ndarray, "edge window row"],
    margins: Float[np.ndarray, " case"],
    cases: AnsweredCases,
    selection: Selection,
    estimator: Resamples,
    *,
    edges: Sequence[Edge],
    windows: Sequence[str],
) -> list[Row]:
    """Return what cutting each edge in each window of layers (named by ``windows``) does to the selected cases.

    ``knockout_margin`` is the mean change of the margin towards the truth, of failures, of successes, and their
    difference. ``knockout_right`` is the share of failures whose margin is then on the truth's side. ``knockout_auroc``
    is over members and twins. The rows of ``cut`` are ``selection.everyone``.
    """
    towards = np.where(cases.safe, 1.0, -1.0)
    members = selection.failures, selection.successes
    fails, successes = (np.isin(np.arange(len(margins)), chosen) for chosen in members)
    rows = []
    for edge, by_window in zip(edges, cut, strict=True):
        for name, values in zip(windows, by_window, strict=True):
            after = np.full(len(margins), np.nan)
            after[selection.everyone] = values
            moved = towards * (after - margins)
            key = {"arm": f"{edge[0]} → {edge[1]} cut", "group": group_of(layers=name)}
            changes = {"failures": estimator.effect(moved, fails), "successes": estimator.effect(moved, successes),
                       "failures − successes": estimator.gap(moved, fails, successes)}  # fmt: skip
            rows += [
                *(row("knockout_margin", **key, against=ARM, subset=subset, entry=entry)
                  for subset, entry in changes.items()),
                row("knockout_right", **key, subset="failures",
                    entry=estimator.mean((towards * after > 0).astype(float), fails)),
                row("knockout_auroc", **key, entry=estimator.auroc(after, cases.safe)),
                row("knockout_auroc", **key, against=ARM, entry=estimator.auroc_change(margins, after, cases.safe)),
            ]  # fmt: skip
    return rows


def patching_rows(
    effects: PatchEffects, members: Int[np.ndarray, " pair"], estimator: Resamples, *, other: str
) -> list[Row]:
    """Return how much of the way to the other prompt's margin its states bring, for each position and layer.

    The mean over pairs weighs each by the distance of its two margins (Σ moved / Σ gap, both counted towards the
    other): if they hardly differ, there is hardly anything to bring. Left out are pairs less than ``LEAST_GAP`` apart,
    a position that no pair has, and image tokens in layers after which the picture is added again. The clean prompts'
    cases are ``members``. ``patching_gap`` is the mean distance between the two margins of a pair, in logits.
    """
    gap = (effects.other - effects.clean).double().numpy()
    distance = np.full(len(estimator.bootstrap.cluster), np.nan)
    distance[members] = np.abs(gap)
    gap = np.where(np.abs(gap) < LEAST_GAP, np.nan, gap)
    rows = [row("patching_gap", arm=ARM, group=group_of(other=other), entry=estimator.mean(distance))]
    for i, position in enumerate(effects.places):
        for j, layer in enumerate(effects.layers):
            if not bool(effects.moved[i, j].isfinite().any()):
                continue
            top, bottom = np.full((2, len(estimator.bootstrap.cluster)), np.nan)
            top[members] = np.sign(gap) * effects.moved[i, j].double().numpy()
            bottom[members] = np.abs(gap)
            group = group_of(other=other, position=place_name(position), layer=layer)
            rows.append(row("patching_effect", arm=ARM, group=group, entry=estimator.ratio(top, bottom)))
    return rows


def effect_at(results: Results, other: str, position: str, layer: int) -> Row | None:
    """Return one effect of ``patching_rows``."""
    return results.get(ARM, "patching_effect", group=group_of(other=other, position=position, layer=layer))


def arrives_at(
    results: Results, other: str, position: str, layers: Sequence[int], *, share: float = ARRIVED
) -> int | None:
    """Return the first layer from which on patching only ``position`` brings at least ``share``; None if none does."""
    effects = [effect_at(results, other, position, layer) for layer in layers]
    first = first_lasting([int(((effect and effect.value) or 0.0) >= share) for effect in effects], 1)
    return None if first is None else layers[first]


def twin_rows(
    margins: Float[np.ndarray, " case"], cases: AnsweredCases, twin: Int[np.ndarray, " case"], estimator: Resamples
) -> list[Row]:
    """Return what the picture adds under one sentence, compared with what sentences add.

    ``twin_gap`` is the mean margin of the safe minus the unsafe member of a pair, in logits. ``twins_ordered`` is the
    share of pairs in the right order. ``margin_distance`` is the distance of the two in either direction, and the
    distance of cases of different sentences. ``twin`` is the twin of each case, −1 without one.
    """
    gap = np.where(cases.safe & (twin >= 0), margins - margins[twin], np.nan)
    codes = np.unique(cases.questions, return_inverse=True)[1]
    sizes = np.bincount(codes)
    # Each case against the mean of every other sentence, weighted by the sentence's cases: one number a case.
    others = sizes * (codes[:, None] != np.arange(len(sizes)))
    away = np.abs(margins[:, None] - np.bincount(codes, margins) / sizes)
    spread = (away * others).sum(1) / np.maximum(others.sum(1), 1) if len(sizes) > 1 else np.full(len(codes), np.nan)
    sentences, pictures = group_of(between="sentences"), group_of(between="pictures")
    every = np.full(len(gap), True)
    difference = estimator.gap(spread, every, every, than=np.abs(gap))
    return [
        row("twin_gap", arm=ARM, against="unsafe twins", entry=estimator.effect(gap)),
        row("twins_ordered", arm=ARM, entry=estimator.mean(np.where(np.isnan(gap), np.nan, gap > 0))),
        row("margin_distance", arm=ARM, group=pictures, entry=estimator.mean(np.abs(gap))),
        row("margin_distance", arm=ARM, group=sentences, entry=estimator.mean(spread)),
        row("margin_distance", arm=ARM, group=sentences, against="pictures", entry=difference),
    ]


def reversal_rows(
    margins: Float[np.ndarray, " case"],
    arms: Mapping[str, Float[np.ndarray, " case"]],
    safe: Bool[np.ndarray, " case"],
    estimator: Resamples,
) -> list[Row]:
    """Return the AUROC of the model as it is and of each arm (name → margins), and what becomes of the verdicts.

    A case is called safe if its margin is above 0. ``undo_mended`` is the share of wrong answers that turn right,
    ``undo_broken`` the share of right answers that turn wrong. The rule ``CONSTANT`` has what a constant does that is
    added to every margin and says Yes as often. It moves the threshold and discriminates no better.
    """
    rows = []
    for name, after in {ARM: margins, **arms}.items():
        yes = int((after > 0).sum())
        rows += [
            row("undo_auroc", arm=name, entry=estimator.auroc(after, safe)),
            row("undo_yes_rate", arm=name, value=yes / len(after)),
            *_flips(name, margins, after, safe, estimator),
            *_flips(name, margins, shifted_margins(margins, yes), safe, estimator, rule=CONSTANT),
        ]
        if name != ARM:
            change = estimator.auroc_change(margins, after, safe)
            rows.append(row("undo_auroc", arm=name, against=ARM, entry=change))
    return rows


def shifted_margins(margins: Float[np.ndarray, " case"], yes: int) -> Float[np.ndarray, " case"]:
    """Return the margins plus the constant with which ``yes`` of them are above 0 (but for ties)."""
    ordered = np.sort(margins)[::-1]
    if yes <= 0:
        return margins - ordered[0] - 1.0
    edge = ordered[yes - 1]
    below = ordered[yes] if yes < len(ordered) else edge - 1.0
    return margins - (edge + below) / 2


def _flips(
    arm: str, before: np.ndarray, after: np.ndarray, safe: np.ndarray, estimator: Resamples, *, rule: str = ""
) -> list[Row]:
    was, is_right = (before > 0) == safe, (after > 0) == safe
    flips, rows = mcnemar(was, is_right), []
    for quantity, count, where in (("undo_mended", flips.fixed, ~was), ("undo_broken", flips.broken, was)):
        n, clusters = int(where.sum()), estimator.bootstrap.clusters(where)
        low, high = wilson(count, n, clusters=clusters) or (None, None)
        rows.append(row(quantity, arm=arm, rule=rule, value=count / n if n else None, low=low, high=high, n=n,
                        clusters=clusters, p=flips.p))  # fmt: skip
    return rows


def prior_rows(
    margins: np.ndarray, priors: np.ndarray, questions: np.ndarray, estimator: Resamples
) -> tuple[PriorShare, list[Row]]:
    """Return ``mitigation.prior_correction.prior_share`` of the cases, and R² with a bootstrap interval."""
    share = prior_share(margins, priors, questions.tolist())
    bootstrap = estimator.bootstrap
    with np.errstate(divide="ignore", invalid="ignore"):
        covariances = [
            np.cov(margins, priors, fweights=weights) for weights in bootstrap.multiplicity[:, bootstrap.cluster]
        ]
        explained = np.array([table[0, 1] ** 2 / (table[0, 0] * table[1, 1]) for table in covariances])
    clusters = bootstrap.clusters()
    explained[~np.isfinite(explained)] = np.nan
    low, high = percentile_interval(explained, clusters=clusters) or (None, None)
    r2 = row("prior_r2", arm=ARM, value=share.explained, low=low, high=high, n=len(margins), clusters=clusters)
    return share, [r2, row("prior_weight", arm=ARM, value=share.weight)]
