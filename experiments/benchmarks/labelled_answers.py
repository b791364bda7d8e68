"""Answers that people labelled: XSTest's completions of its prompts, and MSTS's answers about pictures.

- XSTest (arXiv 2308.01263, CC BY 4.0): each ``xstest_v2_completions_<model>.csv`` holds one model's answers to the 450
  prompts, with a final label: full compliance, full refusal or partial refusal.
- MSTS (arXiv 2501.10057, CC BY 4.0): each row of ``data/response_annotations/<language>_multimodal.csv`` is one model's
  answer. Its label is from a taxonomy: "1.1 - rejection or rebuttal", "1.2 - refusal only", "2.1 - explicit
  encouragement" and so on. English answers have two annotators and a settled label, the others one annotator.

The requests themselves are benchmarks of ``published_sets``. Knows nothing of models, judges or metrics.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.benchmarks.rows import published_rows
from experiments.types import Item, Verdict
from interp.errors import UserError

XSTEST, MSTS = "xstest", "msts"
XSTEST_REPOSITORY = "https://github.com/paul-rottger/xstest"
PROMPTS, COMPLETIONS = "xstest_prompts.csv", "xstest_v2_completions_"
LABELS = {
    "1_full_compliance": Verdict.COMPLIED,
    "2_full_refusal": Verdict.REFUSED,
    "3_partial_refusal": Verdict.PARTIAL,
}
MSTS_REPOSITORY = "https://github.com/paul-rottger/msts-multimodal-safety"
FOLDER = Path("data") / "response_annotations"  # where the clone of MSTS has them
ENDING = "_multimodal.csv"
COLUMNS = ("case_id", "prompt_text", "model", "response", "annot1_label")
LANGUAGES = {
    "arabic": "ar", "chinese": "zh", "english": "en", "farsi": "fa", "french": "fr", "german": "de", "hindi": "hi",
    "italian": "it", "korean": "ko", "russian": "ru", "spanish": "es",
}  # fmt: skip
TAXONOMY = {"1.1": Verdict.REBUTTED, "1.2": Verdict.REFUSED}  # every other label of the taxonomy: complied
# The text in place of an answer if the provider blocked the request or the call failed.
NO_ANSWER = {"FinishReason.SAFETY", "API RetryError occurred."}
CLASSES = ("refused", "rebutted", "answered")


@dataclass(frozen=True)
class Labelled:
    """An answer and its label. ``verdict`` is None if people only say that it is no refusal.

    ``group`` names the twins of its request. ``annotators`` has each annotator's label before both were settled.
    """

    source: str  # the set
    model: str  # unique over the sets
    group: str
    item: Item
    verdict: Verdict | None
    annotators: tuple[Verdict, ...] = ()

    @property
    def label(self) -> int:
        """Return the index of the label in ``CLASSES``; −1 if people only say that it is no refusal."""
        return -1 if self.verdict is None else label_of(self.verdict)


def label_of(verdict: Verdict) -> int:
    """Return the index of a verdict in ``CLASSES``. A partial refusal is a refusal."""
    return 0 if verdict in (Verdict.REFUSED, Verdict.PARTIAL) else 1 if verdict is Verdict.REBUTTED else 2


def read_labelled(root: str | Sequence[str] | None) -> tuple[list[Labelled], dict[str, list[Labelled]]]:
    """Return the English answers of all sets, and MSTS's answers in each other language.

    ``root`` is one folder or several: XSTest's labelled completions, or a clone of MSTS.

    Raises:
        UserError: no folder, a folder without labelled answers, two folders with the same set, or a file that is not as
            it is published.
    """
    if not root:
        raise UserError(
            "task.root: no folder given. Give a clone of XSTest or MSTS, or both: task.root=[<clone>,<clone>]. "
            f"XSTest is published at {XSTEST_REPOSITORY}, MSTS at {MSTS_REPOSITORY}."
        )
    english, others = dict[str, list[Labelled]](), dict[str, list[Labelled]]()
    for folder in map(Path, [root] if isinstance(root, str) else root):
        files = _files_of_msts(folder)
        name = MSTS if files else XSTEST
        if name in english:
            raise UserError(f"task.root: two folders have the answers of {name}. Give one folder for each set.")
        languages = {tag: _msts(path, tag) for tag, path in files.items()}
        english[name] = languages.pop("en", []) if files else _xstest(folder)
        others |= languages
    return [row for name in (XSTEST, MSTS) for row in english.get(name, [])], others


def _files_of_msts(root: Path) -> dict[str, Path]:
    """Return language tag → file, of a clone or of a folder with its files; empty if there is none."""
    for folder in (root / FOLDER, root):
        paths = {tag: [folder / f"{name}.csv", folder / f"{name}{ENDING}"] for name, tag in LANGUAGES.items()}
        if files := {tag: path for tag, both in sorted(paths.items()) for path in both if path.is_file()}:
            return files
    return {}


def _xstest(root: Path) -> list[Labelled]:
    """Read completions. Prompts with the same focus ("kill", "date of birth") are twins.

    The prompts on discrimination have no focus in the file and vary each other's sentences: they are one group. The
    file of prompts is in the folder of the completions, or in the folder above, as it is published.
    """
    files = sorted(root.glob(f"{COMPLETIONS}*.csv")) if root.is_dir() else []
    # Two kinds of files have the verdicts of the authors' own judges.
    paths = [path for path in files if not path.stem.endswith(("_gpteval", "_streval"))]
    if len(paths) < 3:
        needed = f"at least three files {COMPLETIONS}<model>.csv, published at {XSTEST_REPOSITORY}"
        raise UserError(f"{root}: has the labelled completions of {len(paths)} models; task.root needs {needed}")
    prompts = [folder / PROMPTS for folder in (root, root.parent) if (folder / PROMPTS).is_file()]
    if not prompts:
        raise UserError(
            f"{root}: has no {PROMPTS}, which lists the twins; copy it from {XSTEST_REPOSITORY} and put it next to the "
            "completions"
        )
    lines = published_rows(prompts[0], ("id", "focus"))
    groups = {f"v2-{row['id']}": (row["focus"] or "").strip().casefold() for _, row in lines}
    rows = []
    for path in paths:
        answers = published_rows(path, ("id", "prompt", "completion", "final_label"))
        for _, row in answers:
            if row["final_label"] not in LABELS:
                raise UserError(f"{path}: label {row['final_label']!r} of {row['id']} is none of {', '.join(LABELS)}")
            if row["id"] not in groups:
                raise UserError(
                    f"{row['id']}: is in the completions, but not in XSTest's prompts; use the published files"
                )
            verdict = LABELS[row["final_label"]]
            item = Item(row["id"], row["prompt"], row["completion"] or "", None, "comply", "en")
            model, group = path.stem.removeprefix(COMPLETIONS), f"{XSTEST} {groups[row['id']]}"
            rows.append(Labelled(XSTEST, model, group, item, None if verdict is Verdict.COMPLIED else verdict))
        if len({row["id"] for _, row in answers}) < len(answers):
            raise UserError(f"{path}: an id occurs twice; use the file as it is published")
    return rows


def _msts(path: Path, tag: str) -> list[Labelled]:
    """Read answers. Requests about one picture, or in the same words, are twins."""
    rows, parents = [], dict[str, str]()

    def root(name: str) -> str:
        while parents.setdefault(name, name) != name:
            name = parents[name]
        return name

    for position, row in published_rows(path, COLUMNS):
        if (row["response"] or "").strip() in {"", *NO_ANSWER}:
            continue
        labels = [row[name] for name in ("annot1_label", "annot2_label") if row.get(name)]
        verdict = _class(row.get("final_taxonomy") or row["annot1_label"], path, position)
        annotators = tuple(_class(label, path, position) for label in labels)
        item = Item(str(row["case_id"] or ""), row["prompt_text"] or "", row["response"], None, "comply", tag)
        parents[root(f"case {item.case}")] = root(f"words {item.question}")
        rows.append(Labelled(MSTS, str(row["model"] or ""), "", item, verdict, annotators))
    return [replace(row, group=f"{MSTS} {root(f'case {row.item.case}')}") for row in rows]


def _class(label: str | None, path: Path, position: str) -> Verdict:
    if not (matched := re.match(r"[12]\.[0-9Z]", label or "")):
        raise UserError(f"{path}, {position}: label {label!r} is none of MSTS's; use the file as it is published")
    return TAXONOMY.get(matched[0], Verdict.COMPLIED)
