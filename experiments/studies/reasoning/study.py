"""``+exp=reasoning``: of a model that thinks first, when was it decided, and what does the thought carry?

In the run's directory: rows in ``results.csv``, ``reasoning.json`` (settings, conclusions, and each thought with what
the reader made of it), ``figures/reasoning_*.svg`` and ``.png``, and a section of the report. Other arms (thinking off,
budgets) are arms of the study and in the tables of the run. Of answers in words it follows the refusal margin.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.looking_inside import MOST_DRAWS, Followed, Presented, followed, look_inside
from experiments.metrics.case_groups import Shared, drawn_pairs
from experiments.metrics.estimates import Resamples
from experiments.report.figures import SCREEN, Line, Mark, lines_by_layer, points
from experiments.report.sections import Analysis, Section, SectionFigure
from experiments.report.tables import fixed, lines, percent, pivot, unit
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.runs.store import read_object
from experiments.studies.questions import Questions, check_margins, check_sizes
from experiments.studies.reasoning import decision_curve, mediation
from experiments.studies.reasoning.decision_curve import ARM, EXCHANGED, OWN, SHARES, TRUTH
from experiments.studies.reasoning.mediation import DIRECT, EFFECT, SHARE, THROUGH
from experiments.studies.reasoning.thoughts import calls, margins_behind, thoughts_of, unconcluded
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError
from interp.thoughts import NAME_THE_MARKS

NAME = "reasoning"
WHOLE, UNCONCLUDED = "whole thought", "without its conclusion"
PAIRS: dict[str, tuple[Shared, ...]] = {"picture": ("sentence",), "sentence": ("picture", "thing")}
"""What differs in a pair: what its cases share; the first kind of which there are pairs is used."""


@dataclass(frozen=True)
class Reasoning:
    """The task. ``cases`` is how many cases are looked into (None: all), ``pairs`` how many pairs of either kind.

    ``draws`` is the number of bootstrap samples.

    Raises:
        UserError: a value is outside its range.
    """

    cases: int | None = 400
    pairs: int = 120
    draws: int = 2000

    def __post_init__(self) -> None:
        check_sizes(self, cases=8, pairs=1, draws=1)

    def __call__(self, run: Run) -> None:
        """Answer what is missing, look into the thoughts, and print the answers."""
        with study.open_study(check_margins(run)) as work:
            if not getattr(work.vlm, "thinks", False):
                raise UserError(
                    f"{work.vlm.name} does not think first, by its chat template; +exp=reasoning asks what a thought "
                    f"does; set model=thinking_organism, or {NAME_THE_MARKS}"
                )
            work.answer_all()
            work.conclude([Analysis(NAME, "the thoughts were not looked into", self._followed)])

    def _followed(self, work: study.Study) -> list[RenderableType]:
        with followed(work) as seen:
            return self._examined(work, seen)

    def _examined(self, work: study.Study, seen: Followed) -> list[RenderableType]:
        """Write rows, reasoning.json, figures and the report's section, and return what to print."""
        options = asdict(self) | {"draws": min(self.draws, work.run.draws, MOST_DRAWS)}
        scored = [sample for sample in seen.samples if sample.subset in SCORED_SUBSETS and sample.image is not None]
        samples = limited(scored, self.cases)

        def examine() -> tuple[dict[str, Any], list[Row]]:
            return self.examine(work, samples, draws=options["draws"])

        def present(details: dict[str, Any], results: Results) -> Presented:
            title = f"What thinking does: {work.model_title} on {work.run.benchmark.name}"
            context = {"results": results, "details": details, "design": read_object(work.store.path / "metrics.json")}
            answers, notes = (lines(NAME, part=part, **context) for part in ("answers", "notes"))
            return Section(title, answers, tables(results), note=" ".join([*notes, *seen.notes])), figures(results)

        return look_inside(work, NAME, options, samples, examine, present, status="thoughts, broken off and exchanged")

    def examine(self, work: study.Study, samples: Sequence[Sample], *, draws: int) -> tuple[dict[str, Any], list[Row]]:
        """Return what reasoning.json says, and its rows of the results table."""
        vlm, run = work.vlm, work.run
        answers = zip(samples, prompts := prompts_of(samples), strict=True)
        told = thoughts_of(vlm, prompts, max_new_tokens=run.max_new_tokens)
        used = [(*answer, thought) for answer, thought in zip(answers, told, strict=True) if thought]
        if len(used) < 2:
            raise UserError(
                f"{len(used)} of {len(samples)} answers have a thought and a verdict after it; raise max_new_tokens "
                f"({run.max_new_tokens})"
            )
        cases, prompts, thoughts = (list(column) for column in zip(*used, strict=True))
        margin = np.array([thought.margin for thought in thoughts])
        if vlm.metric is not None:
            margin = margins_behind(vlm, prompts, thoughts)
        safe = np.array([case.gold == "yes" for case in cases])
        estimator = Resamples.from_cases([case.cluster for case in cases], [case.text for case in cases],
                                       [case.tags for case in cases], draws=draws, seed=run.seed)  # fmt: skip
        margins = np.stack([
            margins_behind(vlm, prompts, decision_curve.broken_off(thoughts, share)) for share in decision_curve.SHARES
        ])  # fmt: skip
        questions = np.array([case.prompt for case in cases])
        rows = decision_curve.curve(margins, margin > 0, safe, questions, estimator, seed=run.seed)
        guard = Questions(NAME, work.store.path)
        mediators = {WHOLE: thoughts, UNCONCLUDED: [unconcluded(thought) for thought in thoughts]}
        pairs_of: dict[str, dict[str, Any]] = {}
        for differs, alike in PAIRS.items():
            drawn = ((shared, drawn_pairs(cases, shared, seed=run.seed)) for shared in alike)
            shared, pairs = next(((shared, pairs) for shared, pairs in drawn if pairs), (alike[0], []))
            if pairs:
                spaced = np.linspace(0, len(pairs) - 1, min(self.pairs, len(pairs))).round().astype(int)
                chosen = [pairs[index] for index in spaced]
                with guard.guarded(f"mediation_{differs}"):
                    rows += mediation.mediation_rows(vlm, cases, prompts, mediators, chosen, differs=differs,
                                                     draws=draws, seed=run.seed)  # fmt: skip
                    pairs_of[differs] = {"shares": shared, "pairs": len(spaced)}
        sentences = [
            {"case": case.id, "subset": case.subset, "thought": thought.text, "calls": calls(thought.text),
             "answers": "yes" if positive else "no", "gold": case.gold}
            for case, thought, positive in zip(cases, thoughts, margin > 0, strict=True)
        ]  # fmt: skip
        agrees = [np.nan if each["calls"] == "nothing" else (each["calls"] == "safe") == (each["answers"] == "yes")
                  for each in sentences]  # fmt: skip
        agreement = estimator.mean(np.array(agrees, dtype=float))
        rows.append(row("says_as_thought", arm=decision_curve.ARM, entry=agreement))
        results = Results(rows)
        return {
            "cases": {"asked": len(samples), "with_thought": len(cases)},
            "exact": float(np.abs(margins[-1] - margin).max()),
            "pairs": pairs_of,
            "decided": decision_curve.decided(results),
            "carried": {
                differs: {name: mediation.carried(results, differs, name) for name in mediators} for differs in pairs_of
            },
            "thoughts": sentences,
            **guard.details(),
        }, rows


unit(EFFECT, 2)


def tables(results: Results) -> list[pd.DataFrame]:
    """Return every table that has rows."""
    listed = [
        pivot(
            results.select(quantity=("decision_order", "decision_sign")),
            {"by": lambda row: row.part("by"), "thought left (%)": lambda row: percent(float(row.part("left")), 0)},
            _decision, title="When it was decided",
            note="In %. Right order: of two cases of one sentence, the margin of the thought broken off there puts the "
            "case first that the model says Yes to in the end (its own verdict), or the safe case (the truth).",
        ),
        pivot(
            [row for row in results.select(quantity=(EFFECT, SHARE)) if not row.part("order")],
            {"another": lambda row: row.part("differs"), "thought": lambda row: row.part("thought"),
             "part": lambda row: row.part("part")},
            lambda row: "logits" if row.quantity == EFFECT else "of the total (%)", title="What the thought carries",
            note="Difference of the margins of a safe and an unsafe case, with exchanged thoughts.",
        ),
    ]  # fmt: skip
    return [frame for frame in listed if len(frame)]


def figures(results: Results) -> dict[str, SectionFigure]:
    """Return the decision curve and mediation."""
    curves = [
        Line(name, [100 * share for share in SHARES],
             [results.get(ARM, "decision_order", group=group_of(by=name, left=share)) for share in SHARES])
        for name in (OWN, TRUTH)
    ]  # fmt: skip
    decision = lines_by_layer({"": curves}, x="% of the thought’s sentences left", y="right order (AUROC)", guide=0.5)
    drawn = {"reasoning_decision": SectionFigure(decision, "When it was decided. The numbers are in the table.")}
    parts = [row for row in results.select(quantity=EFFECT) if row.part("part") in (THROUGH, DIRECT)]
    marks = [
        Mark(f"{row.part('differs')}, {row.part('thought')}: {row.part('part')}", row.value, row.interval)
        for row in parts if not row.part("order")
    ]  # fmt: skip
    if marks:
        mediation = points(marks, x="part of the difference, in logits", digits=2, form=SCREEN._replace(name_length=60))
        alt = f"What the thought carries. {'; '.join(f'{mark.name} {fixed(mark.x, 2)}' for mark in marks)}."
        drawn["reasoning_mediation"] = SectionFigure(mediation, alt, "What another picture or sentence changes.")
    return drawn


def _decision(row: Row) -> str:
    if row.quantity == "decision_sign":
        return "sign agrees"
    return EXCHANGED if row.arm == EXCHANGED else "more than with none" if row.against else "right order"
