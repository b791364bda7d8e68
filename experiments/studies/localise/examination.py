"""Discover and confirm: parts are ranked on half of the units, and what is claimed of them is measured on the others.

On the discover half every head and MLP has a slope (``interp.part_effects`` at the verdict, ``part_attribution``
elsewhere, with an exact sample beside it). On the confirm half everything is exact: the ``candidates`` parts of each
question with the steepest slopes, whichever their sign, one by one, with simultaneous intervals
(``experiments.metrics.slopes``); and, for k = 1, 2, 4, … up to a quarter of the parts, the k with the largest slopes
together (*faithfulness*: 1 if they carry it all), all but these (*completeness*: 0 if these alone keep the
prompt's own answer), the k best by direct attribution, and random sets that share no part with the k best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from scipy.stats import spearmanr

from experiments.metrics.findings import SMALL, Answer, Finding, plain, statement
from experiments.metrics.slopes import ratios, unit_sums
from experiments.studies.localise.cases import JOIN, TERMS, Cases, Half, Run
from interp.errors import UserError
from interp.tools.part_effects import (
    Part,
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


@dataclass(frozen=True)
class LocaliseSettings:
    """See ``experiments.studies.localise.study.Localise``."""

    questions: tuple[str, ...]
    place: str = "verdict"
    candidates: int = 5
    random_sets: int = 20
    seed: int = 0
    draws: int = 2000


@dataclass
class Measured:
    """What a question's replaced sets do: ``moved`` and ``gap`` as in ``SetEffects``, the runs of ``TERMS`` added."""

    moved: Float[np.ndarray, "direction set row"]
    gap: Float[np.ndarray, "direction row"]
    signs: Float[np.ndarray, "direction row"] = field(default_factory=lambda: np.zeros((2, 0)))

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


def examine(vlm: "VLM", cases: Cases, settings: LocaliseSettings) -> dict[str, Any]:
    """The contents of localise.json, but for sentences.

    Raises:
        UserError: a question that cannot be asked of these cases, or as ``interp.part_effects``.
    """
    rng = np.random.default_rng(settings.seed)
    parts = parts_of(vlm)
    runs = {
        name: half.runs(cases.references) for name, half in (("discover", cases.discover), ("confirm", cases.confirm))
    }
    asked = [one for one in settings.questions if all(name in runs["confirm"] for name, _ in TERMS[one])]
    needed = dict.fromkeys(name for question in asked for name, _ in TERMS[question])
    effects = {name: _ranked(vlm, runs["discover"][name], settings) for name in needed}
    slopes = {one: _slopes(Measured.of(one, effects), cases.discover) for one in asked}
    order = {one: np.argsort(-values, kind="stable") for one, values in slopes.items()}
    direct = {one: _direct_order(vlm, runs["discover"], one, parts, cases.discover) for one in asked if one != JOIN}

    strongest = {one: np.argsort(-abs(values), kind="stable")[: settings.candidates] for one, values in slopes.items()}
    found_for = {at: [one for one in asked if at in strongest[one]] for at in range(len(parts))}
    single = [at for at, names in found_for.items() if names]
    plans = {one: Plan.of(parts, order[one], direct[one], settings.random_sets, rng) for one in direct}
    sets: dict[str, list[Sequence[int]]] = {name: [[at] for at in single] for name in needed}
    places: dict[str, range] = {}
    for one, plan in plans.items():
        (name, _) = TERMS[one][0]
        places[one] = range(len(sets[name]), len(sets[name]) + len(plan.sets))
        sets[name] += plan.sets
    exact = {
        name: part_set_effects(
            vlm, *runs["confirm"][name], [[parts[at] for at in some] for some in sets[name]], place=settings.place
        )
        for name in needed
    }  # fmt: skip
    rules = {"seed": settings.seed, "draws": settings.draws}
    singles = {one: Measured.of(one, exact, range(len(single))) for one in asked}
    curves = {one: Measured.of(one, exact, places[one]) for one in plans}
    confirmed = {one: _confirmed(singles[one], cases.confirm, [parts[at] for at in single],
                                 [one in found_for[at] for at in single], **rules) for one in asked}  # fmt: skip
    described = {one: plans[one].described(curves[one], cases.confirm, parts, **rules) for one in plans}
    findings = [
        Finding(CARRIES, Answer(row["statement"]), {key: row[key] for key in ("value", "low", "high", "clusters")},
                f"{one}: {row['part']}")
        for one in asked for row in confirmed[one]["parts"] if row["found"]
    ]  # fmt: skip
    return plain({
        "questions": asked,
        "place": settings.place,
        "parts": len(parts),
        "layers": sorted({part.layer for part in parts}),
        "absent": [*absent_parts(vlm), *_unasked(settings.questions, asked)],
        "how": {"discover": next(iter(effects.values())).how, "confirm": next(iter(exact.values())).how},
        "halves": {name: {"units": list(half.names), "pairs": len(half.unsafe)}
                   for name, half in (("discover", cases.discover), ("confirm", cases.confirm))},
        "references": [one.text for one in cases.references],
        "discover": {one: _listed(parts, slopes[one], order[one]) for one in asked},
        "map": {one: [[*part, float(value)] for part, value in zip(parts, slopes[one], strict=True)] for one in asked},
        "agreement": _agreement(vlm, runs["discover"], effects, settings),
        "across": _across(slopes),
        "confirm": confirmed,
        "faithfulness": {one: found["faithfulness"] for one, found in described.items()},
        "completeness": {one: found["completeness"] for one, found in described.items()},
        "random": {one: found["random"] for one, found in described.items()},
        "smallest": {one: found["smallest"] for one, found in described.items()},
        "findings": [one.as_json() for one in findings],
    })  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """The sets of one question's curves: for each of ``counts`` the best, all but these, the best by direct attribution
    (where there is an order), and random ones. Parts are places in the list of all."""

    counts: tuple[int, ...]
    sets: list[Sequence[int]]
    random_sets: int
    direct: bool

    @classmethod
    def of(
        cls, parts: Sequence[Part], order: np.ndarray, direct: np.ndarray | None, random_sets: int,
        rng: np.random.Generator,
    ) -> "Plan":  # fmt: skip
        most = max(1, len(parts) // 4)
        counts = tuple(2**power for power in range(most.bit_length()) if 2**power <= most)
        sets: list[Sequence[int]] = []
        for count in counts:
            best = order[:count].tolist()
            sets += [best, order[count:].tolist(), *([] if direct is None else [direct[:count].tolist()])]
            sets += [random_alike(parts, best, rng) for _ in range(random_sets)]
        return cls(counts, sets, random_sets, direct is not None)

    def described(self, found: Measured, half: Half, parts: Sequence[Part], *, seed: int, draws: int) -> dict[str, Any]:
        """Faithfulness, completeness and random sets by k, with intervals, and the smallest k of those tried."""
        top, bottom = found.slope_sums(half.unit)
        flips, ceiling = found.flips
        faithfulness: list[dict[str, Any]] = []
        completeness, random = [], []
        step = 2 + self.direct + self.random_sets
        for at, count in enumerate(self.counts):
            best, rest = at * step, at * step + 1
            drawn = slice(at * step + 2 + self.direct, (at + 1) * step)
            columns = {
                "best": top[:, best],
                "rest": top[:, rest],
                "random": top[:, drawn].mean(1),
                "above": top[:, best] - top[:, drawn].mean(1),
                **({"direct": top[:, at * step + 2]} if self.direct else {}),
            }
            entry = {
                name: ratios(values[:, None], bottom, seed=seed, draws=draws).entries[0]
                for name, values in columns.items()
            }
            chosen = [parts[place] for place in self.sets[best]]
            faithfulness.append({
                "k": count, **entry["best"], "parts": [str(part) for part in chosen],
                "flips": float(flips[best]), "flips_of_all": ceiling,
                "direct": entry.get("direct"), "above_random": entry["above"],
            })  # fmt: skip
            completeness.append({"k": count, **entry["rest"]})
            values = top[:, drawn].sum(0) / bottom.sum()
            layers = {part.layer for part in chosen}
            shared = [np.mean([parts[one].layer in layers for one in some]) for some in self.sets[drawn]]
            random.append({
                "k": count, **entry["random"], "sets": self.random_sets, "least": float(values.min()),
                "most": float(values.max()), "same_layers": float(np.mean(shared)),
                "flips": float(flips[drawn].mean()),
            })  # fmt: skip
        smallest = {
            str(share): next((row["k"] for row in faithfulness if row["value"] >= share), None)
            for share in (HALF, MOST)
        }
        return {"faithfulness": faithfulness, "completeness": completeness, "random": random, "smallest": smallest}


def _ranked(vlm: "VLM", run: Run, settings: LocaliseSettings) -> SetEffects:
    if settings.place == "verdict":
        return part_effects(vlm, *run)
    return part_attribution(vlm, *run, place=settings.place)


def _slopes(found: Measured, half: Half) -> Float[np.ndarray, " part"]:
    top, bottom = found.slope_sums(half.unit)
    return top.sum(0) / bottom.sum()


def _direct_order(
    vlm: "VLM", runs: Mapping[str, Run], question: str, parts: Sequence[Part], half: Half
) -> np.ndarray | None:
    """Parts by the slope of what they write into the margin themselves; None where the model cannot be read so."""
    from interp.tools.logit_attribution import direct_logit_attribution

    ((name, _),) = TERMS[question]
    try:
        clean, other = (direct_logit_attribution(vlm, prompts) for prompts in runs[name])
    except UserError:
        return None
    gap = (other.metric - clean.metric).double()
    heads, mlps = other.heads - clean.heads, other.mlps - clean.mlps
    values = [
        float(((mlps[clean.layers.index(part.layer)] if part.head is None
                else heads[clean.layers.index(part.layer), part.head]) * gap).sum())
        if part.layer in clean.layers else 0.0
        for part in parts
    ]  # fmt: skip
    return np.argsort(-np.array(values), kind="stable")


def _confirmed(
    found: Measured, half: Half, parts: Sequence[Part], own: Sequence[bool], *, seed: int, draws: int
) -> dict[str, Any]:
    """Each candidate's slope and share of the truth, and the power.

    Intervals are simultaneous within a family: the question's own candidates, and those of the other questions.
    """
    top, bottom = found.slope_sums(half.unit)
    rows = _by_family(top, bottom, own, seed, draws)
    lines = [
        {"part": str(part), **part._asdict(), "found": bool(own[at]), **rows[at][0],
         "power": None if np.isnan(rows[at][1]) else rows[at][1],
         "statement": statement(rows[at][0], small=SMALL).value}
        for at, part in enumerate(parts)
    ]  # fmt: skip
    size = float(np.sqrt((found.gap[0] ** 2).mean()))
    (mean,) = ratios(
        unit_sums(found.gap[0][:, None], half.unit), np.bincount(half.unit).astype(float), seed=seed, draws=draws
    ).entries
    return {
        "parts": lines,
        "gap": {"size": size, **mean},
        "truth": _truth(found, half, parts, own, mean, seed, draws),
    }


def _truth(
    found: Measured,
    half: Half,
    parts: Sequence[Part],
    own: Sequence[bool],
    gap: Mapping[str, Any],
    seed: int,
    draws: int,
) -> dict[str, Any]:
    """Σ moved / Σ gap of each candidate; refused where the interval of the mean gap meets 0, or is missing."""
    if gap["low"] is None or gap["low"] <= 0 <= gap["high"]:
        return {"refused": True, "parts": []}
    top, bottom = found.truth_sums(half.unit)
    rows = _by_family(top, bottom, own, seed, draws)
    return {"refused": False, "parts": [{"part": str(part), **rows[at][0]} for at, part in enumerate(parts)]}


def _by_family(
    top: np.ndarray, bottom: np.ndarray, own: Sequence[bool], seed: int, draws: int
) -> dict[int, tuple[dict[str, Any], float]]:
    """Each ratio's entry and power, by its place; those of ``own`` are one family, all others another."""
    found: dict[int, tuple[dict[str, Any], float]] = {}
    for family in (np.flatnonzero(own), np.flatnonzero(~np.asarray(own))):
        rows = ratios(top[:, family], bottom, seed=seed, draws=draws)
        found |= dict(zip(family.tolist(), zip(rows.entries, rows.power(FIFTH).tolist(), strict=True), strict=True))
    return found


def _listed(parts: Sequence[Part], slopes: np.ndarray, order: np.ndarray) -> list[dict[str, Any]]:
    return [{"part": str(parts[at]), "slope": float(slopes[at])} for at in order[:SHOWN]]


def _agreement(
    vlm: "VLM", runs: Mapping[str, Run], effects: Mapping[str, SetEffects], settings: LocaliseSettings
) -> list[dict[str, Any]] | None:
    """Where gradients estimate: their Spearman correlation with the exact effects of parts spread over the layers."""
    if settings.place == "verdict":
        return None
    parts = parts_of(vlm)
    sample = [parts[at * len(parts) // EXACT_SAMPLE] for at in range(min(EXACT_SAMPLE, len(parts)))]
    exact = part_effects(vlm, *runs["own"], place=settings.place, parts=list(dict.fromkeys(sample)))
    table = agreement(effects["own"], exact)  # type: ignore[arg-type]
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
    return [f"{one}: the benchmark does not say what its pictures show" for one in wanted if one not in asked]
