"""``task=human_labels``, and agreement between people, and between people and a judge."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments.metrics.judge_error import agreement
from experiments.report import text
from experiments.runs.labels import answer_id, apply, read_labels
from experiments.runs.store import PREDICTIONS
from experiments.studies.rejudge import against_people, agreement_of_raters
from tests.experiments.compose import run_of
from tests.experiments.runs.test_labels import labelled, record


def test_an_agreement_counts_what_it_says() -> None:
    people = np.array([True] * 10 + [False] * 20)
    judge = np.array([True] * 8 + [False] * 2 + [True] * 1 + [False] * 19)
    found = agreement(people, judge, [str(n) for n in range(30)], seed=0, draws=500)
    assert [found[name] for name in ("n", "refused", "sensitivity", "specificity")] == [30, 10, 0.8, 0.95]
    assert found["kappa_interval"].low < found["kappa"] < found["kappa_interval"].high
    assert json.loads(json.dumps(found))["sensitivity_interval"][0] < 0.8
    alone = agreement(np.array([False]), np.array([False]), ["a"], seed=0, draws=5)
    assert (alone["kappa"], alone["sensitivity"], alone["specificity"]) == (None, None, 1.0)
    with pytest.raises(ValueError, match="at least one"):
        agreement(people[:0], judge[:0], [], seed=0, draws=5)


def test_an_answer_that_two_arms_gave_counts_once_for_agreement(tmp_path: Path) -> None:
    lines = [record(case, arm=arm) for case in "abcd" for arm in ("baseline", "vcd")]
    ids = [answer_id(record(case)) for case in "abcd"]
    said = {
        "anna": ["refused", "refused", "complied", "complied"],
        "ben": ["refused", "complied", "complied", "complied"],
    }
    sheets = [labelled(tmp_path, *(f"{one},{verdict}" for one, verdict in zip(ids, given, strict=True)),
                       name=f"{rater}.csv") for rater, given in said.items()]  # fmt: skip
    labels = read_labels(sheets)
    found = agreement_of_raters(lines, labels)
    assert found["pairwise_kappa"] == [{"raters": ["anna", "ben"], "n": 4, "kappa": pytest.approx(0.5)}]
    used = apply(lines, labels).used
    assert used == 6
    assert text.lines("labels", people=found, used=used, records=len(lines)) == [
        "6 of 8 verdicts are people's (anna, ben), the others the judge's. anna and ben κ 0.500 on 4 answers."
    ]


def test_a_sheet_is_exported_and_read_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [record("a"), record("b", verdict="refused"), record("c", status="empty", response="")]
    (tmp_path / PREDICTIONS).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (tmp_path / "thumbnails").mkdir()
    (tmp_path / "thumbnails" / "a.jpg").write_bytes(b"of a")
    sheet = tmp_path / "sheet.csv"
    run = run_of("task=human_labels", f"run={tmp_path}", f"task.export={sheet}")
    run.task(run)
    said = capsys.readouterr().out
    assert "2 answers" in said
    assert "allowed labels: complied | rebutted | partial | refused" in said
    assert f"pictures: {tmp_path}/sheet_pictures" in said
    (picture,) = (tmp_path / "sheet_pictures").iterdir()
    assert picture.read_bytes() == b"of a"
    assert re.fullmatch("[0-9a-f]{16}.jpg", picture.name)
    assert f"sheet_pictures/{picture.name}" in sheet.read_text(encoding="utf-8-sig")


def test_the_judge_is_compared_with_people_where_both_say_a_side() -> None:
    judged = [record("a"), record("b", verdict="refused"), record("c", verdict="refused")]
    people = [line | {"verdict": "refused"} for line in judged[:2]] + judged[2:]
    (sentence,) = against_people(judged, people, seed=0, draws=20)
    assert sentence.startswith("The judge against people on 2 answers:")
    assert "sensitivity 0.500" in sentence
    assert against_people(judged, judged, seed=0, draws=20) == [
        "No labelled answer has a verdict of the judge to compare."
    ]
