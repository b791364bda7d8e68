"""A look inside the model as part of a study: measured once for the same cases and settings, then reported."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from rich.console import RenderableType

from experiments.config import digest
from experiments.evaluation.cases import with_answers
from experiments.evaluation.fitting import AS_YES_NO, BASELINE, as_yes_no, sample_as_yes_no
from experiments.evaluation.scoring import item_of
from experiments.evaluation.study import Study
from experiments.judges.yes_no import anchored
from experiments.metrics.estimates import RULES
from experiments.report.sections import NOTE, NoMargin, Section, SectionFigure, write_section
from experiments.report.tables import in_terminal
from experiments.runs.record_fields import timestamp
from experiments.runs.results_table import FILE, Results, Row, read_results, write_results
from experiments.runs.store import read_object
from experiments.types import Sample
from interp.figures.glyphs import encoded

MOST_DRAWS = 2000  # of the intervals of what looks inside
IN_WORDS = (
    "The answers are in words: Yes is an answer, No is a refusal. Over-safety are the harmless requests, typical are "
    "the harmful ones."
)

Details = dict[str, Any]
Presented = tuple[Section, Mapping[str, SectionFigure]]


class Followed(NamedTuple):
    """Cases (with the baseline's earlier answers) and records as in a yes/no benchmark, and what tools follow."""

    samples: list[Sample]
    records: list[dict[str, Any]]
    verdict: Callable[[Sample, str], str | None]  # on an answer to a case
    notes: tuple[str, ...] = ()


def yes_or_no(sample: Sample, response: str) -> str:
    """Return the verdict of an answer to a yes/no case."""
    return anchored(response).value


@contextmanager
def followed(work: Study, *, next_token: bool = False) -> Iterator[Followed]:
    """Open a block in which tools follow the margin of the benchmark: of Yes and No, or of refusals.

    Args:
        work: the study; its arms are answered.
        next_token: tools read one column. Of a refusal margin they then follow the decisive token.

    Raises:
        NoMargin: refusals have no margin that tools may follow.
    """
    records = work.records()
    given = {record["case"]: record for record in records if record["arm"] == BASELINE}
    cases = [with_answers(sample, given.get(sample.id, {})) for sample in work.samples]
    if work.run.benchmark.kind == "yes_no":
        yield Followed(cases, records, yes_or_no)
        return
    if work.margins is None:
        raise NoMargin(f"{work.run.benchmark.name} asks for answers in words, and no refusal margin was computed")
    metric, sentence = work.margins.for_tools(next_token=next_token)

    def verdict(sample: Sample, response: str) -> str | None:
        steps = given.get(sample.id, {}).get("steps")
        (judged,) = work.run.judge.judge([item_of(sample, response, steps)])
        return AS_YES_NO["verdict"].get(judged.verdict)

    samples = [sample_as_yes_no(sample) for sample in cases]
    lines = [line for line in map(as_yes_no, records) if line["verdict"] is not None]
    work.vlm.metric = metric
    try:
        yield Followed(samples, lines, verdict, (IN_WORDS, sentence))
    finally:
        work.vlm.metric = None


def look_inside(
    work: Study,
    name: str,
    options: Mapping[str, Any],
    samples: Sequence[Sample],
    examine: Callable[[], tuple[Details, Sequence[Row]]],
    present: Callable[[Details, Results], Presented],
    *,
    status: str,
) -> list[RenderableType]:
    """Look inside the model, report it, and return what to print.

    The rows go to results.csv, the details to ``<name>.json``. If both exist for the same cases and options, nothing is
    measured again.

    Args:
        work: the study.
        name: of the file and of the report's section.
        options: settings that decide the numbers.
        samples: the cases looked at.
        examine: measures; returns details and rows.
        present: makes the report's section and its figures, which become ``figures/<name>.svg`` and ``.png``.
        status: shown meanwhile.
    """
    folder, file = work.store.path, f"{name}.json"
    cases = digest([work.loaded.manifest, [sample.id for sample in samples]])
    settings = {"rules": RULES, **options, "seed": work.run.seed, "cases": cases}
    details: Details = read_object(folder / file)
    results = read_results(folder) if (folder / FILE).is_file() else Results([])
    measured = {entry.quantity for entry in results}
    if details.get("settings") != settings or not measured.issuperset(details["quantities"]):
        earlier = details.get("quantities", ())
        with work.answering.batching(name), work.console.status(status):
            details, rows = examine()
        results = write_results(folder, rows, replaced=earlier)
        quantities = sorted({entry.quantity for entry in rows})
        details = {"settings": settings, "quantities": quantities, **details, "finished": timestamp()}
        work.store.write_json(file, details)
    section, figures = present(details, results)
    write_section(folder, name, section, figures)
    for figure, drawn in figures.items():
        (folder / "figures" / f"{figure}.png").write_bytes(encoded(drawn.figure, "png", dpi=150))
    files = f"numbers: {folder / FILE} and {folder / file}; the report has tables and figures"
    return [*map(in_terminal, section.tables), *section.sentences, f"{NOTE}{section.note}", files]
