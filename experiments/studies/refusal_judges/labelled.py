"""Answers that people labelled: XSTest's completions, and MSTS's answers about pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.benchmarks import msts, xstest
from experiments.types import Item, Verdict
from interp.errors import UserError

XSTEST, MSTS = "xstest", "msts"
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
        UserError: no folder, a folder without labelled answers, or two folders with the same set.
    """
    if not root:
        raise UserError(
            "task.root: no folder given. Give a clone of XSTest or MSTS, or both: task.root=[<clone>,<clone>]. "
            f"XSTest is published at {xstest.REPOSITORY}, MSTS at {msts.REPOSITORY}."
        )
    english, others = dict[str, list[Labelled]](), dict[str, list[Labelled]]()
    for folder in map(Path, [root] if isinstance(root, str) else root):
        name = MSTS if msts.holds_answers(folder) else XSTEST
        if name in english:
            raise UserError(f"task.root: two folders have the answers of {name}. Give one folder for each set.")
        if name == XSTEST:
            english[name] = _of_xstest(folder)
            continue
        languages = {tag: _of_msts(language) for tag, language in msts.read_answers(folder).items()}
        english[name] = languages.pop("en", [])
        others |= languages
    return [row for name in (XSTEST, MSTS) for row in english.get(name, [])], others


def _of_xstest(root: Path) -> list[Labelled]:
    completions, groups = xstest.read_completions(root), xstest.twins(root)
    rows = [row for part in completions.values() for row in part]
    if absent := sorted({row.case for row in rows} - set(groups)):
        raise UserError(f"{absent[0]}: is in the completions, but not in XSTest's prompts; use both as published")
    return [
        Labelled(XSTEST, row.model, f"{XSTEST} {groups[row.case]}", _item(row, "en"),
                 row.verdict if row.refused else None)
        for row in rows
    ]  # fmt: skip


def _of_msts(language: msts.Language) -> list[Labelled]:
    groups = msts.twins(language.answers)
    return [
        Labelled(MSTS, row.model, f"{MSTS} {groups[row.case, row.question]}", _item(row, language.tag), row.verdict,
                 row.annotators)
        for row in language.answers
    ]  # fmt: skip


def _item(row: xstest.LabelledCompletion | msts.LabelledAnswer, language: str) -> Item:
    return Item(row.case, row.question, row.response, None, "comply", language)
