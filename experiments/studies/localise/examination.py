"""Discover and confirm: rank parts on half of the units, and measure on the others what is claimed of them.

A claim holds in ``HOLDS`` of ``SPLITS`` random splits, which share the same measured effects. All other numbers and
intervals are of the first split. Every effect is exact, at the verdict (``interp.part_effects``).

On the confirm half, the ``candidates`` parts with the steepest slopes of each question, of either sign, are
measured one by one with simultaneous intervals. Slopes are Σ moved·gap / Σ gap²: ratios
of sums over units (``metrics.bootstrap.ratios``). Each draw's error is needed: if units differ in their effects,
intervals are far too short without it (``docs/metrics.md``).

The *straight* effect has all later parts held. The *direct* one also holds the scale of the final norm. A part whose
two effects differ much acts through that scale: it makes everything that others say louder or lower.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

from experiments.metrics.bootstrap import RATIO_DRAWS, ratios, unit_sums
from experiments.metrics.estimates import HIGHER, INCONCLUSIVE, LOWER, NOT_TESTED, claim_of
from experiments.runs.results_table import Row, row
from experiments.studies.localise.cases import TERMS, Cases, PromptPairs
from interp.errors import UserError
from interp.tools.part_effects import Part, PartEffects, absent_parts, part_effects, parts_of

if TYPE_CHECKING:
    from interp.vlm import VLM

HOLDS = 8  # splits (of ``cases.SPLITS``) in which a part must hold to be claimed
SIDES = {HIGHER: 1, LOWER: -1}


def strongest(top: Float[np.ndarray, "unit ratio"], bottom: Float[np.ndarray, " unit"], count: int) -> np.ndarray:
    """Return the places of the ``count`` ratios furthest from 0, the furthest first."""
    return np.argsort(-abs(top.sum(0) / bottom.sum()), kind="stable")[:count]


def split_claims(
    chosen: Sequence[Int[np.ndarray, " candidate"]],
    top: Float[np.ndarray, "unit ratio"],
    bottom: Float[np.ndarray, " unit"],
    confirm: Sequence[Bool[np.ndarray, " unit"]],
    *,
    seed: int,
    draws: int = RATIO_DRAWS,
) -> Int[np.ndarray, "split ratio"]:
    """Return 1 or −1 for each ``chosen`` ratio that the split's units ``confirm`` show to differ from 0, else 0.

    The intervals of a split hold for its chosen ratios at once. A claim needs ``HOLDS`` splits on one side, since one
    split may be luck.
    """
    held = np.zeros((len(chosen), top.shape[1]), dtype=int)
    for line, best, where in zip(held, chosen, confirm, strict=True):
        entries = ratios(top[where][:, best], bottom[where], seed=seed, draws=draws)
        line[best] = [SIDES.get(claim_of(entry, small=None), 0) for entry in entries]
    return held


def slope_sums(
    question: str, effects: Mapping[str, PartEffects], unit: Int[np.ndarray, " row"]
) -> tuple[Float[np.ndarray, "unit part"], Float[np.ndarray, " unit"]]:
    """Return Σ moved·gap of each part and Σ gap², by unit, over the pairs and directions of a question's runs.

    Args:
        question: a key of ``TERMS``.
        effects: by run.
        unit: of each pair, a code from 0.
    """
    moved, gap = (
        np.sum([sign * getattr(effects[run], name).double().numpy() for run, sign in TERMS[question]], axis=0)
        for name in ("moved", "gap")
    )
    return unit_sums((moved * gap[:, None]).sum(0).T, unit), unit_sums((gap**2).sum(0), unit)


THROUGH_NORM = 0.5  # of a part's slope: nothing is claimed if more comes through the scale of the final norm


@dataclass
class Examination:
    """The measurements of one model; options as in ``experiments.studies.localise.study.Localise``."""

    vlm: "VLM"
    cases: Cases
    questions: Sequence[str]
    candidates: int = 5
    seed: int = 0
    draws: int = 2000

    def examine(self) -> tuple[dict[str, Any], list[Row]]:
        """Return the contents of localise.json and the rows of the results table.

        Raises:
            UserError: as ``interp.part_effects``.
        """
        halves = (self.cases.discover, self.cases.confirm)
        self.parts, self.unit, self.n = parts_of(self.vlm), self.cases.confirm.unit, len(self.cases.confirm.unsafe)
        self.ratios = partial(ratios, seed=self.seed, draws=self.draws)
        needed = list(dict.fromkeys(run for name in self.questions for run, _ in TERMS[name]))
        both = [{run: self._begun(half.runs(self.cases.references)[run]) for run in needed} for half in halves]
        effects = [self._effects(pairs, self.parts) for pairs in both]
        self.runs, slopes = both[1], {}
        held, chosen = {}, {}
        for name in self.questions:
            sums = [slope_sums(name, by_run, half.unit) for by_run, half in zip(effects, halves, strict=True)]
            slopes[name] = sums[0][0].sum(0) / sums[0][1].sum()
            top, bottom = (np.concatenate(of_halves) for of_halves in zip(*sums, strict=True))
            best = [strongest(top[~where], bottom[~where], self.candidates) for where in self.cases.confirmed]
            signs = split_claims(best, top, bottom, self.cases.confirmed, seed=self.seed, draws=self.draws)
            chosen[name], held[name] = best[0], np.stack([(signs > 0).sum(0), (signs < 0).sum(0)])
        single = {int(i) for name in held for i in (*chosen[name], *np.flatnonzero(held[name].max(0) >= HOLDS))}
        rows = list(self._parts(sorted(single), effects[1], chosen, held))
        details = {
            "questions": list(self.questions),
            "parts": [str(part) for part in self.parts],
            "slopes": {name: values.tolist() for name, values in slopes.items()},  # of all parts, on the first half
            "absent": list(absent_parts(self.vlm)),
            "rule": {"splits": len(self.cases.confirmed), "holds": HOLDS, "candidates": self.candidates},
            "units": [int(half.unit.max()) + 1 for half in halves],
            "pairs": [len(half.unsafe) for half in halves],
            "references": [sample.text for sample in self.cases.references],
        }
        return details, rows

    def _effects(
        self, runs: Mapping[str, PromptPairs], parts: Sequence[Part], **options: Any
    ) -> dict[str, PartEffects]:
        return {run: part_effects(self.vlm, *pairs, parts=parts, **options) for run, pairs in runs.items()}

    def _parts(
        self,
        single: Sequence[int],
        effects: Mapping[str, PartEffects],
        chosen: Mapping[str, np.ndarray],
        held: Mapping[str, np.ndarray],
    ) -> Iterator[Row]:
        """Yield what the confirm half says of each candidate of any question.

        Intervals hold for all candidates of a question at once, and for all candidates of the others at once.

        Args:
            single: places of the candidates among all parts.
            effects: of all parts, by run.
            chosen: question → its candidates.
            held: question → in how many splits each part held above 0, and below.
        """
        parts = [self.parts[i] for i in single]
        straight = self._effects(self.runs, parts, hold_later=True)
        direct = {run: direct_effects(self.vlm, pairs, parts) for run, pairs in self.runs.items()}
        readable = {run: effect for run, effect in direct.items() if effect is not None}
        for question, signs in held.items():
            gap = np.sum([sign * effects[run].gap[0].double().numpy() for run, sign in TERMS[question]], axis=0)
            (mean,) = self.ratios(unit_sums(gap[:, None], self.unit), np.bincount(self.unit))
            yield row("margin_gap", subset=question, entry=mean, n=self.n)
            yield row("margin_gap_rms", subset=question, value=np.sqrt((gap**2).mean()), n=self.n)
            top, bottom = slope_sums(question, effects, self.unit)
            candidate = np.isin(single, chosen[question])
            entries: dict[int, dict[str, Any]] = {}
            for family in (np.flatnonzero(candidate), np.flatnonzero(~candidate)):
                entries |= zip(family.tolist(), self.ratios(top[:, single][:, family], bottom), strict=True)
            later = self._slopes(question, straight)
            written = self._slopes(question, readable) if len(readable) == len(direct) else None
            for i, part in enumerate(parts):
                add, entry = partial(row, arm=str(part), subset=question), entries[i]
                rose, fell = signs[:, single[i]].tolist()
                claim = HIGHER if rose >= HOLDS else LOWER if fell >= HOLDS else ""
                if claim or candidate[i]:
                    yield add("part_power", value=entry["power"])
                scaled = written is not None and abs(later[i] - written[i]) > THROUGH_NORM * abs(entry["value"])
                silent = scaled if claim else not candidate[i]
                yield add("part_slope", entry=entry, n=self.n, claim=NOT_TESTED if silent else claim or INCONCLUSIVE)
                splits, times = len(self.cases.confirmed), max(rose, fell)
                yield add("part_splits_held", value=times / splits, n=times, n_of=splits)
                yield add("part_straight", value=later[i], n=self.n)
                if written is not None:
                    yield add("part_direct", value=written[i], n=self.n)

    def _begun(self, pairs: PromptPairs) -> PromptPairs:
        """Return the pairs up to the token that ``vlm.metric`` follows."""
        metric = self.vlm.metric
        return pairs if metric is None else PromptPairs(metric.begin(pairs.clean), metric.begin(pairs.other))

    def _slopes(self, question: str, effects: Mapping[str, PartEffects]) -> np.ndarray:
        top, bottom = slope_sums(question, effects, self.unit)
        return np.asarray(top.sum(0) / bottom.sum())


def direct_effects(vlm: "VLM", pairs: PromptPairs, parts: Sequence[Part]) -> PartEffects | None:
    """Return what each part writes into the margin itself, with the final norm's scale held; None if unreadable."""
    from interp.tools.logit_attribution import direct_logit_attribution

    try:
        clean, other = (direct_logit_attribution(vlm, prompts) for prompts in pairs)
    except UserError:
        return None
    writes = [
        torch.stack([
            torch.zeros_like(read.metric) if part.layer not in read.layers
            else read.mlps[read.layers.index(part.layer)] if part.head is None
            else read.heads[read.layers.index(part.layer), part.head]
            for part in parts
        ])
        for read in (clean, other)
    ]  # fmt: skip
    scale = clean.scale / other.scale  # the receiving prompt's scale is held
    moved = torch.stack([writes[1] * scale - writes[0], writes[0] / scale - writes[1]])
    return PartEffects(moved, clean.metric, other.metric, tuple(parts))
