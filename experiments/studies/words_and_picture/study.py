"""``+exp=words_and_picture``: the same cases with the picture, in words, and with neither."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType

from experiments.benchmarks.iconworld.perception import names_thing
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.admission import admit
from experiments.evaluation.analyses import Analysis
from experiments.evaluation.looking_inside import MOST_DRAWS, Presented, look_inside
from experiments.evaluation.perception import captions
from experiments.report.sections import Section, write_section
from experiments.report.sentences import transplant as wording
from experiments.report.sentences.words_and_picture import NOTE, TITLE, sentences
from experiments.report.table import terminal
from experiments.runs.launch import sharded
from experiments.runs.records import current, now
from experiments.runs.resumption import read_object
from experiments.studies.words_and_picture.analysis import summarise
from experiments.studies.words_and_picture.conditions import (
    CONDITIONS,
    PICTURE,
    caption_questions,
    in_words,
    thing_of,
)
from experiments.types import Loaded, Sample
from interp.errors import UserError

RESULT, TRANSPLANT = "words_and_picture", "transplant"
CONDITIONS_FILE = f"{RESULT}.jsonl"
CAPTION_TOKENS = 24


@sharded
@dataclass(frozen=True)
class WordsAndPicture:
    """The task, on IconWorld, whose pictures can be said in words.

    Writes the baseline's study (the condition with the picture), words_and_picture.jsonl (a record a case and further
    condition), captions.jsonl, words_and_picture.json, and a section of the report.

    ``transplant`` are decoder layers (from 0) after which the noun's state in words is put onto "this" in the run with
    the picture; None leaves that out. It is kept under ``transplant`` in words_and_picture.json, with a section and a
    figure. ``cases`` is how many scored cases it looks at, whole pairs spread over the benchmark (None: all).
    """

    transplant: list[int] | None = None
    cases: int | None = None

    def __post_init__(self) -> None:
        """Checks the layers and the number of cases.

        Raises:
            UserError: no layers, one twice, or one below 0; or fewer than 2 cases.
        """
        if self.cases is not None and self.cases < 2:
            raise UserError(f"task.cases={self.cases}: must be at least 2, a pair; or null for all")
        if self.transplant is not None and (
            not self.transplant or len(set(self.transplant)) < len(self.transplant) or min(self.transplant) < 0
        ):
            raise UserError(
                f"task.transplant={list(self.transplant)}: must be decoder layers from 0, each once; or null"
            )

    def __call__(self, run: Run) -> None:
        """Answers what is missing, and prints what may be said of the model.

        Raises:
            UserError: the benchmark is not IconWorld with its question, or the model cannot be used.
        """
        if run.benchmark.kind != "yes_no":
            raise UserError(
                f"benchmark={run.benchmark.name}: asks for answers in words; the study compares verdicts; "
                "choose benchmark=iconworld"
            )
        if self.transplant is not None:
            _ = run.weights  # what looks inside needs them here
        alone = study.baseline_only(run)
        admitted = admit(alone)
        _known(admitted.complete)
        with study.opened(alone, admitted=admitted) as work:
            if self.transplant is not None:
                from experiments.studies.words_and_picture.transplant import check_layers

                check_layers(work.vlm, self.transplant)
                study.check_first_token(work.vlm, "task.transplant")
            work.answer_all()
            # All processes of a launch ask the conditions; only what follows is rank 0's.
            analyses = [Analysis(RESULT, "words and picture were not compared", self._compared, together=True)]
            if self.transplant is not None:
                analyses.append(Analysis(TRANSPLANT, "no state was put in the place of another", self._transplanted))
            work.conclude(analyses)

    def _compared(self, work: study.Study) -> list[RenderableType]:
        from experiments.studies.words_and_picture.tables import conditions_table

        result = self.compare(work)
        tables = [conditions_table(result)]
        folder = work.store.path
        if work.store.launch.first:
            write_section(folder, RESULT, Section(TITLE, result["sentences"], tables, note=NOTE))
        return [*map(terminal, tables), *result["sentences"], f"numbers: {folder / f'{RESULT}.json'}"]

    def compare(self, work: study.Study) -> dict[str, Any]:
        """The contents of words_and_picture.json, of a study that holds the baseline's answers."""
        run, store = work.run, work.store
        baseline = run.arms["baseline"]
        for name, asked in in_words(work.samples).items():
            work.answering.answer({name: baseline}, asked, file=CONDITIONS_FILE, labels=CONDITIONS)
        things = {sample.id: thing_of(sample) for sample in work.samples if sample.subset != "control"}
        own = [{**record, "arm": PICTURE} for record in work.records() if record["case"] in things]
        others = [r for r in current(store.records(CONDITIONS_FILE)) if r["case"] in things and r["arm"] in CONDITIONS]
        caption_of = captions(work, caption_questions(work.samples), longest=CAPTION_TOKENS)
        right = {case: names_thing(thing, caption_of[case]) for case, thing in things.items() if case in caption_of}
        result = summarise([*own, *others], right, seed=run.seed, draws=run.draws)
        result["sentences"] = sentences(result, where=f"{work.model_title} on {run.benchmark.name}")
        result["finished"] = now()
        before = read_object(store.path / f"{RESULT}.json")
        kept = {TRANSPLANT: before[TRANSPLANT]} if TRANSPLANT in before else {}
        store.write_json(f"{RESULT}.json", result | kept)
        return result

    def _transplanted(self, work: study.Study) -> list[RenderableType]:
        """The look inside, as sentences, table and figure; what is there of the same cases and settings is kept."""
        from experiments.studies.words_and_picture import transplant
        from experiments.studies.words_and_picture.tables import transplant_figure, transplant_table

        layers, draws = list(self.transplant or []), min(work.run.draws, MOST_DRAWS)
        samples = spread(work.samples, self.cases)

        def examine() -> dict[str, Any]:
            found = transplant.examine(work.vlm, samples, layers, seed=work.run.seed, draws=draws)
            return found | {"sentences": wording.sentences(found)}

        def present(result: dict[str, Any]) -> Presented:
            section = Section(wording.TITLE, result["sentences"], [transplant_table(result)], note=wording.NOTE)
            return section, {TRANSPLANT: transplant_figure(result)}

        settings = {"layers": layers, "draws": draws}
        return look_inside(work, TRANSPLANT, settings, samples, examine, present, status=wording.TITLE, within=RESULT)


def spread(samples: Sequence[Sample], count: int | None) -> list[Sample]:
    """At most ``count`` of the scored cases, whole pairs as evenly over the benchmark as whole numbers allow."""
    scored = [sample for sample in samples if sample.subset != "control"]
    units = list(dict.fromkeys(sample.pair or sample.id for sample in scored))
    if count is None or count >= len(scored):
        return scored
    most = max(1, count * len(units) // len(scored))
    kept = {units[at * len(units) // most] for at in range(most)}
    return [sample for sample in scored if (sample.pair or sample.id) in kept]


def _known(loaded: Loaded) -> None:
    """Refuses cases whose picture is not known, before any weights."""
    for sample in loaded.samples:
        thing_of(sample)
