"""``+exp=reasoning``: of a model that thinks first, when it was decided, what the thought carries, and where it looks.

In the run's directory, beside the study: ``reasoning.json`` (all numbers, the sentences, and each thought with what the
reader made of it), ``figures/reasoning.svg`` and ``.png``, and a section of the report. Other arms (thinking off,
budgets) are the study's own and stand in its tables.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, look_inside
from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import plain
from experiments.metrics.pairs import Shared, drawn_pairs
from experiments.report.sections import Section, SectionFigure
from experiments.report.sentences.reasoning import notes, sentences
from experiments.runs.resumption import read_object
from experiments.studies.reasoning import decision_curve, looks, mediation, reader
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError
from interp.thoughts import NAME_THE_MARKS

if TYPE_CHECKING:
    from interp.vlm import Prompt

NAME = "reasoning"
ALT = ("Three panels: how often the margin orders two cases of one sentence, by how much of the thought is kept; the "
       "picture's share of attention along the thought; and how much of the difference between two cases goes through "
       "the thought.")  # fmt: skip
CAPTION = ("When it was decided; where it looks while it thinks; what the thought carries (bars: 95% intervals over "
           "cases and sentences).")  # fmt: skip
WHOLE, UNCONCLUDED, NAMING = "whole thought", "without its conclusion", "up to the name"
PAIRS: dict[str, tuple[Shared, ...]] = {"picture": ("sentence",), "sentence": ("picture", "thing")}
"""What differs in a pair: what its cases share, the first of which there are pairs."""


@dataclass(frozen=True)
class Reasoning:
    """The task. ``cases`` is how many cases are looked into (None: all), ``pairs`` how many pairs of either kind.

    ``attention`` is how many cases' attention along the thought is recorded (0: none); ``draws`` are the intervals'.

    Raises:
        UserError: a value is outside its range.
    """

    cases: int | None = 400
    pairs: int = 120
    attention: int = 200
    draws: int = 2000

    def __post_init__(self) -> None:
        for name, value, least in (("cases", self.cases, 8), ("pairs", self.pairs, 1), ("attention", self.attention, 0),
                                   ("draws", self.draws, 1)):  # fmt: skip
            if value is not None and value < least:
                raise UserError(f"task.{name}={value}: must be at least {least}")

    def __call__(self, run: Run) -> None:
        """Answers what is missing, looks into the thoughts, and prints the findings."""
        if run.benchmark.kind != "yes_no":
            raise UserError(f"benchmark {run.benchmark.name} asks for no Yes or No; the tools here follow that margin")
        _ = run.weights  # what looks inside needs them here
        with study.opened(run) as work:
            if not getattr(work.vlm, "thinks", False):
                raise UserError(
                    f"{work.vlm.name} does not think first, by its chat template; +exp=reasoning asks what a thought "
                    f"does; take model=thinking_organism, or {NAME_THE_MARKS}"
                )
            work.answer_all()
            work.conclude([Analysis(NAME, "the thoughts were not looked into", self._examined)])

    def _examined(self, work: study.Study) -> list[RenderableType]:
        """Writes reasoning.json, the figure and the report's section; what to print."""
        from experiments.studies.reasoning import figure, tables

        options = asdict(self) | {"draws": min(self.draws, work.run.draws, MOST_DRAWS)}
        scored = [one for one in work.samples if one.subset in SCORED_SUBSETS and one.image is not None]
        samples = limited(scored, self.cases)

        def examine() -> dict[str, Any]:
            result = self.examine(work, samples, draws=options["draws"])
            return result | {"sentences": sentences(result), "notes": notes(result)}

        def present(result: dict[str, Any]) -> Presented:
            title = f"What thinking does: {work.model_title} on {work.run.benchmark.name}"
            metrics = read_object(work.store.path / "metrics.json")
            section = Section(
                title, result["sentences"], tables.tables(result, metrics), note=" ".join(result["notes"])
            )
            return section, {NAME: SectionFigure(figure.draw(result), ALT, CAPTION)}

        return look_inside(work, NAME, options, samples, examine, present, status="thoughts, broken off and exchanged")

    def examine(self, work: study.Study, samples: Sequence[Sample], *, draws: int) -> dict[str, Any]:
        """The contents of reasoning.json, without its sentences."""
        from experiments.studies.reasoning.thoughts import margins_behind, thoughts_of

        vlm, run = work.vlm, work.run
        asked = prompts_of(samples)
        told = thoughts_of(vlm, asked, max_new_tokens=run.max_new_tokens)
        kept = [at for at, one in enumerate(told) if one is not None]
        counts = {"asked": len(samples), "with a thought and a verdict": len(kept)}
        if len(kept) < 2:
            raise UserError(
                f"{len(kept)} of {len(samples)} answers have a thought and a verdict behind it; raise max_new_tokens "
                f"({run.max_new_tokens})"
            )
        cases, prompts = [samples[at] for at in kept], [asked[at] for at in kept]
        thoughts = [one for one in told if one is not None]
        own = np.array([one.margin for one in thoughts])
        safe = np.array([one.gold == "yes" for one in cases])
        estimator = Resamples.of_cases(
            [one.cluster for one in cases], [one.text for one in cases], [one.tags for one in cases],
            draws=draws, seed=run.seed,
        )  # fmt: skip
        margins = np.stack([
            margins_behind(vlm, prompts, decision_curve.broken_off(thoughts, place))
            for place in decision_curve.PLACES
        ])  # fmt: skip
        questions = np.array([one.prompt for one in cases])
        curve = decision_curve.curve(margins, own > 0, safe, questions, estimator, seed=run.seed)
        shown = [str(one.tags.get("concept") or one.described) for one in cases]
        others = sorted({one for one in shown if one})
        findings = [decision_curve.finding(curve)]
        mediated: dict[str, Any] = {}
        for differs, alike in PAIRS.items():
            drawn = ((shared, drawn_pairs(cases, shared, seed=run.seed)) for shared in alike)
            shared, pairs = next(((shared, two) for shared, two in drawn if two), (alike[0], []))
            if not pairs:
                continue
            pairs = [
                pairs[at] for at in np.linspace(0, len(pairs) - 1, min(self.pairs, len(pairs))).round().astype(int)
            ]
            mediators = {
                WHOLE: thoughts,
                UNCONCLUDED: [reader.unconcluded(one) for one in thoughts],
                NAMING: [reader.naming(one, what, others) for one, what in zip(thoughts, shown, strict=True)],
            }
            rows = mediation.mediation_rows(vlm, cases, prompts, mediators, pairs, draws=draws, seed=run.seed)
            mediated[differs] = {"shares": shared, "pairs": len(pairs), "rows": rows}
            findings += [mediation.finding(rows, name, differs) for name in (WHOLE, UNCONCLUDED)]
        said = [
            {
                "case": case.id, "subset": case.subset, "thought": one.text, "sentences": len(one.sentences),
                "tokens": len(one.content), "names": reader.names(one.text, what, others) if what else None,
                "calls": reader.calls(one.text), "answers": "yes" if one.margin > 0 else "no", "gold": case.gold,
            }
            for case, one, what in zip(cases, thoughts, shown, strict=True)
        ]  # fmt: skip
        return plain({
            "cases": counts, "curve": curve, "exact": float(np.abs(margins[-1] - own).max()),
            "mediation": mediated, "said": _counted(said), "thoughts": said,
            "says": estimator.mean(np.array([_agrees(one) for one in said])),
            "looks": self._looks(work, cases, prompts, own > 0, safe, draws),
            "findings": [one.as_json() for one in findings],
        })  # fmt: skip

    def _looks(
        self,
        work: study.Study,
        cases: Sequence[Sample],
        prompts: "Sequence[Prompt]",
        says_yes: np.ndarray,
        safe: np.ndarray,
        draws: int,
    ) -> dict[str, Any]:
        chosen = limited(cases, self.attention) if self.attention else []
        if not chosen:
            return {"rows": [], "reason": "no attention was asked for (task.attention=0)"}
        place = {one.id: at for at, one in enumerate(cases)}
        where = [place[one.id] for one in chosen]
        try:
            shares = looks.shares_along(work.vlm, [prompts[at] for at in where], max_new_tokens=work.run.max_new_tokens)
        except UserError as error:
            return {"rows": [], "reason": str(error)}
        estimator = Resamples.of_cases(
            [one.cluster for one in chosen], [one.text for one in chosen], [one.tags for one in chosen],
            draws=draws, seed=work.run.seed,
        )  # fmt: skip
        return {"rows": looks.rows(shares, (says_yes != safe)[where], estimator), "reason": None}


def _agrees(said: dict[str, Any]) -> float:
    """Whether the answer is what the thought calls the request; NaN where it calls it nothing."""
    if said["calls"] == "nothing":
        return float("nan")
    return float((said["calls"] == "safe") == (said["answers"] == "yes"))


def _counted(said: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """How many cases of a subset name a thing so, call the request so, and answer so."""
    keys = ("subset", "names", "calls", "answers")
    found: dict[tuple[Any, ...], int] = {}
    for one in said:
        key = tuple(one[name] for name in keys)
        found[key] = found.get(key, 0) + 1
    order = sorted(found, key=lambda key: [str(part) for part in key])
    return [dict(zip(keys, key, strict=True)) | {"n": found[key]} for key in order]
