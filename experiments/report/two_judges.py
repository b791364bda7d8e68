"""The report's section on two judges of the same answers: both rates, and the answers on which they differ."""

from collections.abc import Mapping
from typing import Any

from experiments.metrics.statistical_tests import wilson
from experiments.report.cases import LONGEST_NAME, LONGEST_TEXT, VERDICT_WORDS
from experiments.report.numbers import percent, percent_interval
from experiments.report.sentences.refusal import differing
from experiments.report.table import Cell, Table
from experiments.runs.saved_run import SavedRun

LISTED = 20  # answers on the page; the others are in the records


def two_judges(run: SavedRun) -> dict[str, Any] | None:
    """The section of a run for ``templates/two_judges.html.j2``; None where one judge read its answers.

    Returns:
        ``title``, ``table`` (both judges' rates), ``cases`` (the first answers on which they differ, all of it shown as
        text) and ``more`` (how many more differ).
    """
    block: Mapping[str, Any] | None = run.metrics.get("two_judges")
    if block is None:
        return None
    records = {(str(record["case"]), str(record["arm"])): record for record in run.predictions}
    shown = [_answer(records[case, arm], block) for case, arm in block["differ"][:LISTED] if (case, arm) in records]
    title = f"Read these: {differing(block)}" if block["differ"] else differing(block)
    more = len(block["differ"]) - len(shown)
    return {"title": title.removesuffix("."), "table": rates_table(block), "cases": shown, "more": more}


def rates_table(block: Mapping[str, Any]) -> Table:
    """The refusal rate of every arm and subset by each judge, and on how many answers they differ."""
    return Table.of("Refusals by two judges", [
        {"arm": arm, "requests": subset, "answers": str(one["n"]),
         f"by {block['judge']}": _rate(one["refused"], one["n"]),
         f"by {block['second']}": _rate(one["refused_second"], one["n"]), "differ": str(one["differ"])}
        for arm, of_arm in block["arms"].items()
        for subset, one in of_arm.items()
    ])  # fmt: skip


def _rate(refused: int, n: int) -> Cell:
    return Cell(percent(refused / n), percent_interval(wilson(refused, n)))


def _answer(record: Mapping[str, Any], block: Mapping[str, Any]) -> dict[str, str]:
    def words(verdict: str) -> str:
        return str(VERDICT_WORDS.get(verdict, verdict))  # type: ignore[call-overload]

    return {
        "case": str(record["case"])[:LONGEST_NAME],
        "arm": str(record["arm"]),
        "subset": str(record["subset"]),
        "text": str(record["text"])[:LONGEST_TEXT],
        "response": str(record["response"] or "")[:LONGEST_TEXT],
        "judge": str(block["judge"]),
        "verdict": words(record["verdict"]),
        "second": str(block["second"]),
        "second_verdict": words(record["second"]["verdict"]),
        "explanation": str(record.get("explanation") or "")[:LONGEST_TEXT],
    }
