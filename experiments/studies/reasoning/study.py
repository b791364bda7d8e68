"""``+exp=reasoning``: of a model that thinks first, when was it decided, what does the thought carry, where does it look?

In the run's directory: rows in ``results.csv``, ``reasoning.json`` (settings, conclusions, and each thought with what
the reader made of it), ``figures/reasoning_*.svg`` and ``.png``, and a section of the report. Other arms (thinking off,
budgets) are arms of the study and in its tables.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool
from rich.console import RenderableType

from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.attention_log import prompts_of
from experiments.evaluation.cases import limited
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, look_inside
from experiments.metrics.estimates import Resamples
from experiments.metrics.pairs import Shared, drawn_pairs
from experiments.report.sections import Section
from experiments.report.text import lines
from experiments.runs.results_table import Results, Row, group_of, row
from experiments.runs.resumption import read_object
from experiments.studies.reasoning import decision_curve, looks, mediation, reader
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError
from interp.thoughts import NAME_THE_MARKS

if TYPE_CHECKING:
    from experiments.studies.reasoning.thoughts import Thought
    from interp.vlm import Prompt

NAME = "reasoning"
WHOLE, UNCONCLUDED, NAMING = "whole thought", "without its conclusion", "up to the name"
PAIRS: dict[str, tuple[Shared, ...]] = {"picture": ("sentence",), "sentence": ("picture", "thing")}
"""What differs in a pair: what its cases share; the first kind of which there are pairs is used."""


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
        """Write rows, reasoning.json, figures and the report's section, and return what to print."""
        from experiments.studies.reasoning.tables import figures, tables

        options = asdict(self) | {"draws": min(self.draws, work.run.draws, MOST_DRAWS)}
        scored = [sample for sample in work.samples if sample.subset in SCORED_SUBSETS and sample.image is not None]
        samples = limited(scored, self.cases)

        def examine() -> tuple[dict[str, Any], list[Row]]:
            return self.examine(work, samples, draws=options["draws"])

        def present(details: dict[str, Any], results: Results) -> Presented:
            title = f"What thinking does: {work.model_title} on {work.run.benchmark.name}"
            sentences, notes = (
                lines(NAME, part=part, results=results, details=details) for part in ("answers", "notes")
            )
            shown = tables(read_object(work.store.path / "metrics.json"), results)
            return Section(title, sentences, shown, note=" ".join(notes)), figures(results)

        return look_inside(work, NAME, options, samples, examine, present, status="thoughts, broken off and exchanged")

    def examine(self, work: study.Study, samples: Sequence[Sample], *, draws: int) -> tuple[dict[str, Any], list[Row]]:
        """Return what reasoning.json says, and its rows of the results table."""
        from experiments.studies.reasoning.thoughts import margins_behind, thoughts_of

        vlm, run = work.vlm, work.run
        asked = prompts_of(samples)
        answers = thoughts_of(vlm, asked, max_new_tokens=run.max_new_tokens)
        told = [
            (case, prompt, thought) for case, prompt, thought in zip(samples, asked, answers, strict=True) if thought
        ]
        if len(told) < 2:
            raise UserError(
                f"{len(told)} of {len(samples)} answers have a thought and a verdict behind it; raise max_new_tokens "
                f"({run.max_new_tokens})"
            )
        cases, prompts, thoughts = (list(column) for column in zip(*told, strict=True))
        margin = np.array([thought.margin for thought in thoughts])
        safe = np.array([case.gold == "yes" for case in cases])
        estimator = _resamples(cases, draws, run.seed)
        margins = np.stack([
            margins_behind(vlm, prompts, decision_curve.broken_off(thoughts, share)) for share in decision_curve.SHARES
        ])  # fmt: skip
        questions = np.array([case.prompt for case in cases])
        rows = decision_curve.curve(margins, margin > 0, safe, questions, estimator, seed=run.seed)
        things = [str(case.tags.get("concept") or case.described) for case in cases]
        others = sorted(set(filter(None, things)))
        mediators = {
            WHOLE: thoughts,
            UNCONCLUDED: [reader.unconcluded(thought) for thought in thoughts],
            NAMING: [reader.naming(thought, thing, others) for thought, thing in zip(thoughts, things, strict=True)],
        }
        pairs_of: dict[str, dict[str, Any]] = {}
        for differs, alike in PAIRS.items():
            drawn = ((shared, drawn_pairs(cases, shared, seed=run.seed)) for shared in alike)
            shared, pairs = next(((shared, pairs) for shared, pairs in drawn if pairs), (alike[0], []))
            if pairs:
                spaced = np.linspace(0, len(pairs) - 1, min(self.pairs, len(pairs))).round().astype(int)
                rows += mediation.mediation_rows(vlm, cases, prompts, mediators, [pairs[index] for index in spaced],
                                                 differs=differs, draws=draws, seed=run.seed)  # fmt: skip
                pairs_of[differs] = {"shares": shared, "pairs": len(spaced)}
        said = [_said(*read, others) for read in zip(cases, thoughts, things, strict=True)]
        agrees = [np.nan if each["calls"] == "nothing" else (each["calls"] == "safe") == (each["answers"] == "yes")
                  for each in said]  # fmt: skip
        rows += [
            *_counted(said),
            row("says_as_thought", arm=decision_curve.ARM, entry=estimator.mean(np.array(agrees, float))),
        ]
        looked, reason = self._looks(work, cases, prompts, (margin > 0) != safe, draws)
        results = Results(rows)
        details = {
            "cases": {"asked": len(samples), "with_thought": len(cases)},
            "exact": float(np.abs(margins[-1] - margin).max()),
            "pairs": pairs_of,
            "decided": decision_curve.decided(results),
            "carried": {
                differs: {name: mediation.carried(results, differs, name) for name in (WHOLE, UNCONCLUDED)}
                for differs in pairs_of
            },
            "no_looks": reason,
            "thoughts": said,
        }
        return details, [*rows, *looked]

    def _looks(
        self, work: study.Study, cases: Sequence[Sample], prompts: "Sequence[Prompt]", failed: Bool[np.ndarray, " case"],
        draws: int,
    ) -> tuple[list[Row], str | None]:  # fmt: skip
        """Return rows of attention along the thought, or none and why."""
        chosen = limited(cases, self.attention) if self.attention else []
        if not chosen:
            return [], "no attention was asked for (task.attention=0)"
        index_of = {case.id: index for index, case in enumerate(cases)}
        where = [index_of[case.id] for case in chosen]
        batch = [prompts[index] for index in where]
        try:
            shares = looks.shares_along(work.vlm, batch, max_new_tokens=work.run.max_new_tokens)
        except UserError as error:
            return [], str(error)
        return looks.look_rows(shares, failed[where], _resamples(chosen, draws, work.run.seed)), None


def _resamples(cases: Sequence[Sample], draws: int, seed: int) -> Resamples:
    return Resamples.of_cases([case.cluster for case in cases], [case.text for case in cases],
                              [case.tags for case in cases], draws=draws, seed=seed)  # fmt: skip


def _said(case: Sample, thought: "Thought", thing: str, others: Sequence[str]) -> dict[str, Any]:
    """Return a thought with what the reader makes of it."""
    return {
        "case": case.id, "subset": case.subset, "thought": thought.text, "sentences": len(thought.sentences),
        "tokens": len(thought.content), "names": reader.names(thought.text, thing, others) if thing else "not known",
        "calls": reader.calls(thought.text), "answers": "yes" if thought.margin > 0 else "no", "gold": case.gold,
    }  # fmt: skip


def _counted(said: Sequence[dict[str, Any]]) -> list[Row]:
    """Return how many cases of a subset name a thing so, call the request so, and answer so."""
    counts = Counter((each["subset"], each["names"], each["calls"], each["answers"]) for each in said)
    return [
        row("thoughts_said", arm=decision_curve.ARM, subset=subset, value=count,
            group=group_of(names=names, calls=calls, answers=answers))
        for (subset, names, calls, answers), count in sorted(counts.items())
    ]  # fmt: skip
