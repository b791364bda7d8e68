"""MSTS (arXiv 2501.10057, CC BY 4.0): models' answers to unsafe requests about pictures, labelled by people.

Each row of ``data/response_annotations/<language>_multimodal.csv`` is one model's answer to one of the requests. Its
label is from a taxonomy: "1.1 - rejection or rebuttal", "1.2 - refusal only", "2.1 - explicit encouragement" and so on.
English answers have two annotators and a settled label, the others one annotator. The requests themselves are a
benchmark of ``published_sets``. Knows nothing of models, judges or metrics.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from experiments.benchmarks.rows import published_rows
from experiments.types import Verdict
from interp.errors import UserError

REPOSITORY = "https://github.com/paul-rottger/msts-multimodal-safety"
FOLDER = Path("data") / "response_annotations"  # where the clone has them
ENDING = "_multimodal.csv"
COLUMNS = ("case_id", "prompt_text", "model", "response", "annot1_label")
LANGUAGES = {
    "arabic": "ar", "chinese": "zh", "english": "en", "farsi": "fa", "french": "fr", "german": "de", "hindi": "hi",
    "italian": "it", "korean": "ko", "russian": "ru", "spanish": "es",
}  # fmt: skip
CLASSES = {"1.1": Verdict.REBUTTED, "1.2": Verdict.REFUSED}  # every other label of the taxonomy: complied
# What stands in place of an answer where the provider blocked the request or the call failed.
NO_ANSWER = {"FinishReason.SAFETY", "API RetryError occurred."}


@dataclass(frozen=True)
class LabelledAnswer:
    """One answer, what people settled on, and what each annotator said."""

    case: str
    model: str
    question: str
    response: str
    verdict: Verdict
    annotators: tuple[Verdict, ...]


class Language(NamedTuple):
    """The answers in one language, without calls that were blocked or failed, which ``no_answer`` counts."""

    tag: str
    answers: list[LabelledAnswer]
    no_answer: int


def read_answers(root: Path) -> dict[str, Language]:
    """Return the labelled answers of a clone at ``root``, or of a folder with its files, by language tag.

    Raises:
        UserError: there are none, or a file is not as it is published.
    """
    folders = [folder for folder in (root / FOLDER, root) if folder.is_dir()]
    for folder in folders:
        matched = {tag: path for name, tag in LANGUAGES.items()
                 for path in (folder / f"{name}.csv", folder / f"{name}{ENDING}") if path.is_file()}  # fmt: skip
        if matched:
            return {tag: _read(path, tag) for tag, path in sorted(matched.items())}
    raise UserError(
        f"{root}: has no labelled answers of MSTS (english{ENDING}, …); clone {REPOSITORY} and give its folder"
    )


def holds_answers(root: Path) -> bool:
    """Return whether ``root`` is a clone of MSTS, or a folder with its labelled answers."""
    return any((folder / f"english{end}").is_file() for folder in (root / FOLDER, root) for end in (".csv", ENDING))


def _read(path: Path, tag: str) -> Language:
    answers, none = [], 0
    for position, row in published_rows(path, COLUMNS):
        labels = [row[name] for name in ("annot1_label", "annot2_label") if row.get(name)]
        settled = row.get("final_taxonomy") or row["annot1_label"]
        response = (row["response"] or "").strip()
        if not response or response in NO_ANSWER:
            none += 1
            continue
        verdict = _class(settled, path, position)
        annotators = tuple(_class(label, path, position) for label in labels)
        model, case = (str(row[name] or "") for name in ("model", "case_id"))
        answers.append(LabelledAnswer(case, model, row["prompt_text"] or "", row["response"], verdict, annotators))
    return Language(tag, answers, none)


def _class(label: str | None, path: Path, position: str) -> Verdict:
    if not (matched := re.match(r"[12]\.[0-9Z]", label or "")):
        raise UserError(f"{path}, {position}: label {label!r} is none of MSTS's; use the file as it is published")
    return CLASSES.get(matched[0], Verdict.COMPLIED)


def twins(answers: list[LabelledAnswer]) -> dict[tuple[str, str], str]:
    """Return the group of each case and question: requests about one picture, or in the same words, are twins."""
    parents: dict[str, str] = {}

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            name = parents[name]
        return name

    for answer in answers:
        parents[root(f"case {answer.case}")] = root(f"words {answer.question}")
    return {(answer.case, answer.question): root(f"case {answer.case}") for answer in answers}
