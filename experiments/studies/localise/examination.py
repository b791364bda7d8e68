"""Discover and confirm: parts are ranked on half of the units, and what is claimed of them is measured on the others.

What is claimed holds in ``HOLDS`` of ``SPLITS`` such splits, which use the same measured effects. All else, the numbers
and intervals of single parts and the curves, is of the first split.

On the discover half every head and MLP has a slope (``interp.part_effects`` at the verdict, ``part_attribution``
elsewhere, with an exact sample beside it). On the confirm half everything is exact: the ``candidates`` parts of each
question with the steepest slopes, whichever their sign, one by one, with simultaneous intervals
(``experiments.metrics.slopes``); and, for k = 1, 2, 4, … up to a quarter of the parts, the k with the largest slopes
together (*faithfulness*: 1 if they carry it all), all but these (*completeness*: 0 if these alone keep the
prompt's own answer), the k best by direct attribution, and random sets that share no part with the k best.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import spearmanr

from experiments.metrics.findings import Answer, Finding, plain
from experiments.metrics.slopes import HOLDS, SPLITS, holding, ratios, split_claims, strongest, unit_sums
from experiments.studies.localise.cases import JOIN, TERMS, Cases, Half, Run
from experiments.studies.localise.measured import Measured
from experiments.studies.localise.necessity import (
    LITTLE,
    REPLACED,
    backups,
    direct_effects,
    lost,
    through_norm,
    without,
)
from interp.tools.part_effects import (
    Part,
    PartEffects,
    SetEffects,
    absent_parts,
    agreement,
    part_attribution,
    part_effects,
    part_set_effects,
    parts_of,
    random_alike,
)

if TYPE_CHECKING:
    from interp.vlm import VLM

CARRIES = "carries"
FIFTH = 0.2  # of the gap: the effect whose power is reported
SHOWN = 12  # parts of the discover half that localise.json lists
EXACT_SAMPLE = 12  # parts whose estimates are compared with exact effects, where gradients estimate
HALF, MOST = 0.5, 0.8  # of the gap, whose smallest k is reported


def examine(
    vlm: "VLM",
    cases: Cases,
    *,
    questions: Sequence[str],
    place: str = "verdict",
    candidates: int = 5,
    random_sets: int = 20,
    seed: int = 0,
    draws: int = 2000,
) -> dict[str, Any]:
    """The contents of localise.json, but for sentences; see ``experiments.studies.localise.study.Localise``.

    Raises:
        UserError: a question that cannot be asked of these cases, or as ``interp.part_effects``.
    """
    rng = np.random.default_rng(seed)
    parts = parts_of(vlm)
    halves = {"discover": cases.discover, "confirm": cases.confirm}
    runs = {name: half.runs(cases.references) for name, half in halves.items()}
    asked = [one for one in questions if all(name in runs["confirm"] for name, _ in TERMS[one])]
    needed = dict.fromkeys(name for question in asked for name, _ in TERMS[question])
    rank = part_effects if place == "verdict" else part_attribution
    ranked = {half: {name: rank(vlm, *of[name], place=place) for name in needed} for half, of in runs.items()}
    effects = ranked["discover"]
    sums = {one: _sums(one, ranked, halves) for one in asked}
    discovered = len(cases.discover.names)
    slopes = {one: top[:discovered].sum(0) / bottom[:discovered].sum() for one, (top, bottom) in sums.items()}
    order = {one: np.argsort(-values, kind="stable") for one, values in slopes.items()}
    written = {one: direct_effects(vlm, runs["discover"][TERMS[one][0][0]], parts) for one in asked if one != JOIN}
    direct = {one: _order(found) for one, found in written.items()}

    rules = {"seed": seed, "draws": draws}
    chosen = {
        one: [strongest(top[~where], bottom[~where], candidates) for where in cases.confirmed]
        for one, (top, bottom) in sums.items()
    }
    splits = _claims(vlm, runs, halves, sums, chosen, cases, place, **rules)
    single = sorted(
        {int(at) for one in asked for at in chosen[one][0]}
        | {at for one in asked for at, (_, times) in enumerate(splits[one]) if times >= HOLDS}
    )
    plans = {one: _planned(parts, order[one], direct[one], random_sets, rng) for one in direct}
    sets: dict[str, list[Sequence[int]]] = {name: [[at] for at in single] for name in needed}
    places: dict[str, range] = {}
    for one, plan in plans.items():
        (name, _) = TERMS[one][0]
        first = len(sets[name])
        sets[name] += [some for by_kind in plan for of_kind in by_kind.values() for some in of_kind]
        places[one] = range(first, len(sets[name]))
    exact = {
        name: part_set_effects(
            vlm, *runs["confirm"][name], [[parts[at] for at in some] for some in sets[name]], place=place
        )
        for name in needed
    }  # fmt: skip
    singles = {one: Measured.of(one, exact, range(len(single))) for one in asked}
    confirmed = {
        one: _confirmed(
            singles[one], cases.confirm, [parts[at] for at in single], np.isin(single, chosen[one][0]),
            [splits[one][at] for at in single], **rules,
        )
        for one in asked
    }  # fmt: skip
    backed: dict[str, list[dict[str, Any]]] = {one: [] for one in direct}
    if place == "verdict":
        _ask_without(vlm, runs["confirm"], cases.confirm, [parts[at] for at in single], needed, confirmed, **rules)
        for one in backed:
            rows = zip(single, confirmed[one]["parts"], strict=True)
            carriers = [at for at, row in rows if row["statement"] == Answer.ROSE.value
                        and row["without"]["zero"]["value"] < LITTLE * row["value"]]  # fmt: skip
            backed[one] = backups(vlm, one, TERMS[one][0][0], runs, halves, carriers, parts, **rules)
    described = {
        one: _curves(Measured.of(one, exact, places[one]), plan, cases.confirm, parts, **rules)
        for one, plan in plans.items()
    }
    findings = [
        Finding(CARRIES, Answer(row["statement"]),
                {key: row[key] for key in ("value", "low", "high", "clusters", "held", "of")}, f"{one}: {row['part']}")
        for one in asked for row in confirmed[one]["parts"] if row["found"]
    ]  # fmt: skip
    return plain({
        "questions": asked,
        "place": place,
        "parts": len(parts),
        "layers": sorted({part.layer for part in parts}),
        "absent": [*absent_parts(vlm), *_unasked(questions, asked)],
        "how": {"discover": next(iter(effects.values())).how, "confirm": next(iter(exact.values())).how},
        "rule": {"splits": len(cases.confirmed), "holds": HOLDS},
        "backups": backed,
        "halves": {name: {"units": list(half.names), "pairs": len(half.unsafe)} for name, half in halves.items()},
        "references": [one.text for one in cases.references],
        "discover": {one: _listed(parts, slopes[one], order[one]) for one in asked},
        "map": {one: [[*part, float(value)] for part, value in zip(parts, slopes[one], strict=True)] for one in asked},
        "agreement": _agreement(vlm, runs["discover"], effects, place),
        "across": _across(slopes),
        "confirm": confirmed,
        **{name: {one: found[name] for one, found in described.items()}
           for name in ("faithfulness", "completeness", "random", "smallest")},
        "findings": [one.as_json() for one in findings],
    })  # fmt: skip


Plan = list[dict[str, list[list[int]]]]
"""For k = 1, 2, 4, … the sets of a curve by kind, as places in the list of all parts.

``best``: the k best; ``rest``: all but these; ``direct``: the best by direct attribution, where there is an order;
``random``: several.
"""


def _planned(
    parts: Sequence[Part], order: np.ndarray, direct: np.ndarray | None, random_sets: int, rng: np.random.Generator
) -> Plan:
    best, counts = order.tolist(), [2**power for power in range(max(1, len(parts) // 4).bit_length())]
    return [
        {
            "best": [best[:k]],
            "rest": [best[k:]],
            **({} if direct is None else {"direct": [direct[:k].tolist()]}),
            "random": [random_alike(parts, best[:k], rng) for _ in range(random_sets)],
        }
        for k in counts
    ]


def _curves(found: Measured, plan: Plan, half: Half, parts: Sequence[Part], *, seed: int, draws: int) -> dict[str, Any]:
    """Faithfulness, completeness and random sets by k, with intervals, and the smallest k of those tried."""
    top, bottom = found.slope_sums(half.unit)
    flips, ceiling = found.flips
    faithfulness: list[dict[str, Any]] = []
    completeness, random = [], []
    column = itertools.count()
    for sets in plan:
        columns = {kind: [next(column) for _ in some] for kind, some in sets.items()}
        sums = {kind: top[:, some].mean(1) for kind, some in columns.items()}
        sums["above"] = sums["best"] - sums["random"]
        entry = {
            kind: ratios(values[:, None], bottom, seed=seed, draws=draws).entries[0] for kind, values in sums.items()
        }
        (best,) = sets["best"]
        k, layers = {"k": len(best)}, {parts[at].layer for at in best}
        faithfulness.append({
            **k, **entry["best"], "parts": [str(parts[at]) for at in best],
            "flips": float(flips[columns["best"]].mean()), "flips_of_all": ceiling,
            "direct": entry.get("direct"), "above_random": entry["above"],
        })  # fmt: skip
        completeness.append({**k, **entry["rest"]})
        values = top[:, columns["random"]].sum(0) / bottom.sum()
        shared = [np.mean([parts[at].layer in layers for at in some]) for some in sets["random"]]
        random.append({
            **k, **entry["random"], "sets": len(sets["random"]), "least": float(values.min()),
            "most": float(values.max()), "same_layers": float(np.mean(shared)),
            "flips": float(flips[columns["random"]].mean()),
        })  # fmt: skip
    smallest = {
        str(share): next((row["k"] for row in faithfulness if abs(1 - row["value"]) <= 1 - share), None)
        for share in (HALF, MOST)
    }
    return {"faithfulness": faithfulness, "completeness": completeness, "random": random, "smallest": smallest}


def _sums(
    question: str, effects: Mapping[str, Mapping[str, SetEffects]], halves: Mapping[str, Half]
) -> tuple[Float[np.ndarray, "unit part"], Float[np.ndarray, " unit"]]:
    """Σ moved·gap and Σ gap² of the units of both halves, those of the first one first."""
    each = [Measured.of(question, effects[name]).slope_sums(half.unit) for name, half in halves.items()]
    return np.concatenate([top for top, _ in each]), np.concatenate([bottom for _, bottom in each])


def _claims(
    vlm: "VLM",
    runs: Mapping[str, Mapping[str, Run]],
    halves: Mapping[str, Half],
    sums: Mapping[str, tuple[np.ndarray, np.ndarray]],
    chosen: Mapping[str, Sequence[np.ndarray]],
    cases: Cases,
    place: str,
    *,
    seed: int,
    draws: int,
) -> dict[str, list[tuple[Answer, int]]]:
    """By question, what the splits say of every part, and in how many of them.

    All splits use the effects that were measured once; where gradients ranked the parts, those of the candidates of
    any split are measured exactly.
    """
    parts = parts_of(vlm)
    every = sorted({int(at) for some in chosen.values() for of in some for at in of})
    exact = {}
    if place != "verdict":
        exact = {
            half: {name: part_effects(vlm, *run, place=place, parts=[parts[at] for at in every])
                   for name, run in of.items() if name == "own"}
            for half, of in runs.items()
        }  # fmt: skip
    found = {}
    for one, (top, bottom) in sums.items():
        if exact:
            top = np.full_like(top, np.nan)
            top[:, every] = _sums(one, exact, halves)[0]
        rose, fell = holding(split_claims(chosen[one], top, bottom, cases.confirmed, seed=seed, draws=draws))
        found[one] = [_answer(int(up), int(down)) for up, down in zip(rose, fell, strict=True)]
    return found


def _answer(rose: int, fell: int) -> tuple[Answer, int]:
    answer = Answer.ROSE if rose >= HOLDS else Answer.FELL if fell >= HOLDS else Answer.NOT_SHOWN
    return answer, max(rose, fell)


def _order(direct: SetEffects | None) -> np.ndarray | None:
    """Parts by the slope of what they write into the margin themselves."""
    if direct is None:
        return None
    return np.argsort(-direct.picture.double().numpy(), kind="stable")


def _ask_without(
    vlm: "VLM",
    runs: Mapping[str, Run],
    half: Half,
    parts: Sequence[Part],
    needed: Iterable[str],
    confirmed: Mapping[str, dict[str, Any]],
    *,
    seed: int,
    draws: int,
) -> None:
    """Adds to each candidate what is lost without it, its straight and direct effect, and whether it is not counted.

    That is where it moves the margin mostly through the final norm's scale: nothing is then claimed of it.
    """
    rules, names = {"seed": seed, "draws": draws}, list(needed)
    found = without(vlm, runs, parts, names)
    direct = {name: direct_effects(vlm, runs[name], parts) for name in names}
    for one, block in confirmed.items():
        gone = {how: lost(Measured.of(one, found[how]), half, **rules) for how in REPLACED}
        straight = _slopes(Measured.of(one, found["straight"]), half)
        known = {name: effects for name, _ in TERMS[one] if (effects := direct[name]) is not None}
        linear = _slopes(Measured.of(one, known), half) if len(known) == len(TERMS[one]) else None
        for at, row in enumerate(block["parts"]):
            own = None if linear is None else float(linear[at])
            row |= {"without": {how: gone[how][at] for how in REPLACED}, "straight": float(straight[at]),
                    "direct": own, "through_norm": through_norm(row["value"], float(straight[at]), own)}  # fmt: skip
            if row["through_norm"] and row["statement"] in (Answer.ROSE.value, Answer.FELL.value):
                row["statement"] = Answer.NOT_SHOWN.value


def _slopes(found: Measured, half: Half) -> Float[np.ndarray, " part"]:
    top, bottom = found.slope_sums(half.unit)
    return top.sum(0) / bottom.sum()


def _confirmed(
    found: Measured,
    half: Half,
    parts: Sequence[Part],
    own: Bool[np.ndarray, " part"],
    claims: Sequence[tuple[Answer, int]],
    *,
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """Each candidate's slope and share of the truth (Σ moved / Σ gap), the power, and its claim over all splits.

    Intervals are simultaneous within a family: the question's ``own`` candidates, and those of the other questions. The
    truth is refused where the interval of the mean gap meets 0, or is missing.
    """

    def by_family(top: np.ndarray, bottom: np.ndarray) -> list[tuple[dict[str, Any], float]]:
        """Each ratio's entry and power."""
        rows: dict[int, tuple[dict[str, Any], float]] = {}
        for family in (np.flatnonzero(own), np.flatnonzero(~own)):
            some = ratios(top[:, family], bottom, seed=seed, draws=draws)
            rows |= zip(family.tolist(), zip(some.entries, some.power(FIFTH).tolist(), strict=True), strict=True)
        return [rows[at] for at in range(len(own))]

    count = np.bincount(half.unit).astype(float)
    (gap,) = ratios(unit_sums(found.gap[0][:, None], half.unit), count, seed=seed, draws=draws).entries
    low, high = gap["low"], gap["high"]
    refused = low is None or high is None or low <= 0 <= high
    slopes, truths = by_family(*found.slope_sums(half.unit)), [] if refused else by_family(*found.truth_sums(half.unit))
    return {
        "parts": [
            {"part": str(part), **part._asdict(), "found": bool(is_own or answer is not Answer.NOT_SHOWN), **entry,
             "power": None if np.isnan(power) else power, "held": times, "of": SPLITS, "statement": answer.value}
            for part, is_own, (entry, power), (answer, times) in zip(parts, own, slopes, claims, strict=True)
        ],
        "gap": {"size": float(np.sqrt((found.gap[0] ** 2).mean())), **gap},
        "truth": {
            "refused": refused,
            "parts": [{"part": str(part), **entry} for part, (entry, _) in zip(parts, truths, strict=not refused)],
        },
    }  # fmt: skip


def _listed(parts: Sequence[Part], slopes: np.ndarray, order: np.ndarray) -> list[dict[str, Any]]:
    return [{"part": str(parts[at]), "slope": float(slopes[at])} for at in order[:SHOWN]]


def _agreement(
    vlm: "VLM", runs: Mapping[str, Run], effects: Mapping[str, PartEffects], place: str
) -> list[dict[str, Any]] | None:
    """Where gradients estimate: their Spearman correlation with the exact effects of parts spread over the layers."""
    if place == "verdict":
        return None
    parts = parts_of(vlm)
    sample = [parts[at * len(parts) // EXACT_SAMPLE] for at in range(min(EXACT_SAMPLE, len(parts)))]
    exact = part_effects(vlm, *runs["own"], place=place, parts=list(dict.fromkeys(sample)))
    table = agreement(effects["own"], exact)
    return [
        {str(key): value for key, value in row.items()}
        for row in table.astype(object).where(table.notna(), None).to_dict("records")
    ]


def _across(slopes: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """How alike the questions rank all parts on the discover half, by Spearman's correlation of the slopes."""
    names = list(slopes)
    return [
        {"one": one, "other": other, "correlation": float(spearmanr(slopes[one], slopes[other]).statistic)}
        for at, one in enumerate(names) for other in names[at + 1 :]
    ]  # fmt: skip


def _unasked(wanted: Sequence[str], asked: Sequence[str]) -> list[str]:
    return [
        f"{one}: the benchmark does not say what its pictures show (in a table the column “shows”)"
        for one in wanted
        if one not in asked
    ]
