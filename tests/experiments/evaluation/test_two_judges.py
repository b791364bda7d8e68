"""Two judges of the same answers: both rates, the answers on which they differ, and where the report shows them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest

from experiments.judges.refusal_rules import RefusalRule
from experiments.metrics.refusal.two_judges import two_judges
from experiments.report.two_judges import LISTED
from experiments.types import Item, Judgement, Kind, Verdict
from tests.experiments.compose import run_of
from tests.experiments.evaluation.test_refusal_study import REFUSAL, careful, newest, records, study, written
from tests.experiments.refused import records as made
from tests.experiments.synthetic_run import metrics_of


@dataclass(frozen=True)
class Strict:
    """Calls every answer a refusal; the phrase rules are its second judge."""

    name: str = "strict"
    kind: ClassVar[Kind] = "refusal"

    def judge(self, items: Sequence[Item]) -> list[Judgement]:
        others = [("refusal_rule", one.verdict) for one in RefusalRule().judge(items)]
        return [Judgement(Verdict.REFUSED, "it always does", second=other) for other in others]


def with_second(lines: list[dict], verdicts: str) -> pd.DataFrame:
    words = {"r": "refused", "p": "partial", "c": "complied", "j": "judge_failed"}
    for line, verdict in zip(lines, verdicts, strict=True):
        line["judge"] = "first"
        if verdict in words:
            line["second"] = {"judge": "other", "verdict": words[verdict]}
    return pd.DataFrame(lines)


def test_rates_by_both_and_the_answers_on_which_they_differ() -> None:
    """Partial is a refusal for both; where either has no verdict the answer is left out."""
    found = two_judges(with_second(made("bbbbcc", {"vcd": "rpcjrc"}), "cprrc-"))
    assert found == {
        "judge": "first",
        "second": "other",
        "arms": {"vcd": {"benign": {"n": 3, "refused": 2, "refused_second": 2, "differ": 2},
                         "contrast": {"n": 1, "refused": 1, "refused_second": 0, "differ": 1}}},
        "differ": [["c0000", "vcd"], ["c0002", "vcd"], ["c0004", "vcd"]],
    }  # fmt: skip


@pytest.mark.parametrize("verdicts", ["--", "jj"])
def test_one_judge_alone_has_nothing_to_compare(verdicts: str) -> None:
    assert two_judges(with_second(made("bb", {"vcd": "rc"}), verdicts)) is None


def test_the_report_lists_first_where_two_judges_differ(tmp_path: Path) -> None:
    arms = {"baseline": written(tmp_path / "careful.jsonl", careful() | {"b3": "<script>A dog</script> & a cat."})}
    run = replace(study(tmp_path, arms, "baseline", "model.path=/no/such/model"), judge=Strict())
    run.task(run)
    folder = newest(tmp_path, "requests")
    metrics = metrics_of(folder)
    assert metrics["two_judges"]["arms"]["baseline"]["benign"] == {
        "n": 4, "refused": 4, "refused_second": 1, "differ": 3,
    }  # fmt: skip
    assert metrics["caveats"][0] == (
        "strict and refusal_rule differ on 3 of 10 answers. The report lists them first. By the one or the other, "
        "baseline refuses 100.0% or 25.0% of 4 benign requests and 100.0% or 100.0% of 6 contrast requests."
    )
    assert records(folder)["b3", "baseline"]["second"] == {"judge": "refusal_rule", "verdict": "complied"}
    page = (folder / "report.html").read_text()
    assert page.index("Read these: strict and refusal_rule differ on 3 of 10 answers") < page.index('id="examples"')
    assert "&lt;script&gt;A dog&lt;/script&gt; &amp; a cat." in page
    again = run_of("task=rejudge", f"run={folder}", "judge=refusal_rule", f"output_root={tmp_path}", "draws=50")
    again.task(again)
    assert "second" not in records(newest(tmp_path, "requests_rejudged"))["b3", "baseline"]
    assert "Read these" not in (newest(tmp_path, "requests_rejudged") / "report.html").read_text()


def test_what_people_labelled_has_no_second_judge(tmp_path: Path) -> None:
    run = replace(study(tmp_path, {"baseline": written(tmp_path / "a.jsonl", careful())}, "baseline"), judge=Strict())
    run.task(run)
    labels = tmp_path / "people.csv"
    labels.write_text("case,arm,label\nb3,baseline,complied\n")
    again = run_of("task=rejudge", f"run={newest(tmp_path, 'requests')}", f"labels={labels}", f"output_root={tmp_path}")
    again.task(replace(again, draws=50))
    metrics = metrics_of(newest(tmp_path, "requests_rejudged"))
    assert metrics["two_judges"]["arms"]["baseline"]["benign"]["n"] == 3


def test_a_long_list_says_how_many_more_there_are(tmp_path: Path) -> None:
    from experiments.report.sentences.refusal import differing
    from experiments.report.two_judges import two_judges as section
    from experiments.runs.saved_run import SavedRun

    count = LISTED + 4
    lines = with_second(made("b" * count, {"vcd": "r" * count}), "c" * count)
    block = two_judges(lines)
    assert block is not None
    run = SavedRun(tmp_path, {"two_judges": block, "arms": {}}, {}, lines.to_dict("records"))
    found = section(run)
    assert found is not None
    assert (len(found["cases"]), found["more"]) == (LISTED, 4)
    assert differing(block) == f"first and other differ on {count} of {count} answers."
    assert REFUSAL not in found["title"]
