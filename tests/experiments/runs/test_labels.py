"""Sheets of answers out, people's labels in."""

import csv
import io
import re
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from experiments.runs.labels import (
    HUMAN,
    Labels,
    answer_id,
    apply,
    distinct_answers,
    plain_cell,
    random_part,
    read_labels,
    safe_cell,
    write_sheet,
)
from experiments.types import Verdict


def record(case: str, *, arm: str = "baseline", **changes: Any) -> dict[str, Any]:
    return {
        "case": case, "arm": arm, "settings": "s1", "gold": "comply", "status": "answered", "verdict": "complied",
        "judge": "refusal_rule", "explanation": "why", "text": "Why?", "response": f"answer {case}",
    } | changes  # fmt: skip


def labelled(folder: Path, *lines: str, name: str = "anna.csv", head: str = "id,label") -> Path:
    path = folder / name
    path.write_text("\n".join([head, *lines]), encoding="utf-8")
    return path


@given(st.text())
def test_a_cell_is_no_formula_and_comes_back(value: str) -> None:
    assert safe_cell(value)[:1] not in {*"=+-@\t\r＝＋－＠"} - {""}
    assert plain_cell(safe_cell(value)) == value


def test_a_sheet_filled_in_comes_back_as_labels(tmp_path: Path) -> None:
    records = [record("=1"), record("b", response="=HYPERLINK(1)"), record("c", response=None), record("d")]
    path = tmp_path / "sheet.csv"
    write_sheet(records, path)
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    of = {answer_id(one): one["case"] for one in records}
    assert sorted(of[row["id"]] for row in rows) == ["=1", "b", "d"]
    assert {row["response"] for row in rows} == {"answer =1", "'=HYPERLINK(1)", "answer d"}
    assert {row["allowed"] for row in rows} == {"complied | rebutted | partial | refused"}
    assert read_labels([path]) == Labels((), [])
    for row in rows:
        row |= {"label": {"=1": "Refused", "b": "", "d": " partial "}[of[row["id"]]], "annotator": "Ben"}
    with path.open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    labels = read_labels([path])
    assert sorted((of[one.answer], one.annotator, one.verdict) for one in labels.labels) == [
        ("=1", "Ben", Verdict.REFUSED), ("d", "Ben", Verdict.PARTIAL)]  # fmt: skip
    applied = apply(records, labels)
    assert (applied.used, applied.notes) == (2, [])
    assert [one["verdict"] for one in applied.records] == ["refused", "complied", "complied", "partial"]
    first = applied.records[0]
    assert first["judge"] == HUMAN
    assert first["judged_before"] == {"verdict": "complied", "judge": "refusal_rule"}
    assert first["labels"] == {"Ben": "refused"}
    assert "explanation" not in first
    assert applied.records[1] == records[1]
    assert records[0]["verdict"] == "complied"


def test_the_sheet_is_blind_and_asks_an_answer_once(tmp_path: Path) -> None:
    arms = [record(f"test-{gold}-{n}", arm=arm, gold=gold, verdict=verdict, response=f"yes, {n}", settings=arm)
            for arm, verdict in (("baseline", "refused"), ("vcd", "complied"))
            for gold in ("comply", "refuse") for n in range(6)]  # fmt: skip
    text = written(arms, tmp_path)
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == 12
    assert len({row["id"] for row in rows}) == 12
    for told in ("baseline", "vcd", "test-", "comply", 'refuse"', "refusal_rule"):
        assert told not in text
    assert [row["response"] for row in rows] != [line["response"] for line in arms[:12]]
    assert all(re.fullmatch("[0-9a-f]{16}", row["id"]) for row in rows)


def written(records: list[dict[str, Any]], folder: Path) -> str:
    path = folder / f"sheet{len(list(folder.iterdir()))}.csv"
    write_sheet(records, path)
    return path.read_text(encoding="utf-8-sig")


def test_a_label_of_an_answer_counts_for_every_arm_that_gave_it(tmp_path: Path) -> None:
    records = [record("a"), record("a", arm="vcd", settings="s2"), record("a", arm="prompt", response="No.")]
    path = labelled(tmp_path, f"{answer_id(records[0])},refused", "0123456789abcdef,refused")
    applied = apply(records, read_labels([path]))
    assert [line["verdict"] for line in applied.records] == ["refused", "refused", "complied"]
    assert applied.used == 2
    assert len(applied.notes) == 1
    assert "'0123456789abcdef' by anna: the run has no such answer" in applied.notes[0]


def test_a_rebuttal_is_a_label_and_a_blocked_request_takes_none(tmp_path: Path) -> None:
    records = [record("a", verdict="rebutted"), record("b", status="provider_blocked", verdict=None)]
    assert written(records, tmp_path).count("complied | rebutted") == 1
    path = labelled(tmp_path, *(f"{answer_id(line)},{word}" for line, word in zip(records, ("rebutted", "complied"),
                                                                                   strict=True)))  # fmt: skip
    applied = apply(records, read_labels([path]))
    assert [line["verdict"] for line in applied.records] == ["rebutted", None]
    assert applied.notes == ["label of case b in arm baseline by anna: the provider blocked the request; left out"]


def test_what_cannot_be_used_is_named_and_left_out(tmp_path: Path) -> None:
    records = [record("a"), record("b"), record("c"), record("d", response=None)]
    a, b, c, d = map(answer_id, records)
    path = labelled(tmp_path, f"{a},refused", f"{b},perhaps", "zz,refused", f"{c},yes", f"{d},refused", "short")
    applied = apply(records, read_labels([path]))
    assert applied.used == 1
    assert applied.records[1:] == records[1:]
    text = "\n".join(applied.notes)
    for expected in ("'perhaps'", "'zz'", "yes is no verdict", "no response"):
        assert expected in text, expected
    assert len(applied.notes) == 4


def test_most_annotators_decide_and_an_even_split_leaves_the_judge(tmp_path: Path) -> None:
    records = [record("a"), record("b", verdict="partial")]
    a, b = map(answer_id, records)
    sheets = [
        labelled(tmp_path, f"{a},refused", f"{b},refused", name="anna.csv"),
        labelled(tmp_path, f"{a},partial", f"{b},complied", name="ben.csv"),
        labelled(tmp_path, f"{a},refused", f"{a},complied", name="cleo.csv"),
    ]
    applied = apply(records, read_labels(sheets))
    assert [line["verdict"] for line in applied.records] == ["refused", "partial"]
    assert applied.records[0]["labels"] == {"anna": "refused", "ben": "partial", "cleo": "refused"}
    assert ["twice" in applied.notes[0], "annotators disagree" in applied.notes[1], len(applied.notes)] == [1, 1, 2]


def test_labels_decide_if_they_are_all_or_the_first_of_the_sheet(tmp_path: Path) -> None:
    records = [record(case, arm=arm, response=f"{case} {arm}") for case in "abcdefgh" for arm in ("baseline", "vcd")]
    records.append(record("blocked", status="provider_blocked"))
    order = list(distinct_answers(records))
    cases = list(dict.fromkeys(line["case"] for line in distinct_answers(records).values()))

    def part(answers: list[str]) -> set[str] | None:
        return random_part(records, read_labels([labelled(tmp_path, *(f"{answer},refused" for answer in answers))]))

    assert part(order) == {*"abcdefgh", "blocked"}
    assert part(order[:6]) == {*cases[:3]}
    assert part(order[:7]) == {*cases[:3]}, "the fourth case has one label of two"
    assert part(order[:1]) == set()
    assert part(order[6:]) is None
    assert part(order[::2]) is None
    assert part([]) is None
