"""Results of lmms-eval and VLMEvalKit as arms; the files here have the layouts that these tools write."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.runs.responses import Answer, Responses, read_answers
from experiments.types import Sample, Status
from interp.errors import UserError


def sample(identity: str) -> Sample:
    return Sample(identity, "benign", "", "comply", "Why?", "Why?", None, "")


def lmms_eval(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "mossbench_samples.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def pairs(path: Path) -> list[tuple[str, str | None]]:
    return [(answer.case, answer.response) for answer in read_answers(path)]


def test_samples_of_lmms_eval(tmp_path: Path) -> None:
    path = lmms_eval(
        tmp_path,
        {"doc_id": 0, "doc": {"question_id": "q7", "text": "?"}, "resps": [["No."]], "filtered_resps": ["no"]},
        {"doc_id": 1, "doc": {"text": "?"}, "resps": [["Sure."]], "target": ""},
        {"doc_id": 2, "doc": None, "resps": "Yes."},
    )
    assert pairs(path) == [("q7", "No."), ("1", "Sure."), ("2", "Yes.")]
    with pytest.raises(UserError, match="line 1: 2 responses of one document"):
        pairs(lmms_eval(tmp_path, {"doc_id": 0, "resps": [["a", "b"]]}))


@pytest.mark.parametrize("ending", ["xlsx", "tsv", "csv"])
def test_predictions_of_vlmevalkit(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"GPT4o_MOSSBench.{ending}"
    table = pd.DataFrame({"index": [1, 2, 3], "question": ["a", "b", "c"],
                          "prediction": ["Sure, why not?", "Failed to obtain answer via API.", None]})  # fmt: skip
    if ending == "xlsx":
        table.to_excel(path, index=False)
    else:
        table.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    assert pairs(path) == [("1", "Sure, why not?"), ("2", "Failed to obtain answer via API."), ("3", "")]
    _, generation = Responses(str(path)).answers([sample("1"), sample("2"), sample("3")])
    assert generation.statuses == [Status.ANSWERED, Status.TRANSPORT_FAILED, Status.EMPTY]


def test_what_is_no_such_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"only \.jsonl, \.csv, \.tsv, \.xlsx are read"):
        Responses(str(tmp_path / "log.eval"))
    with pytest.raises(UserError, match="is missing; responses come from lines of id and response"):
        pairs(tmp_path / "absent.jsonl")


def test_lines_of_id_and_response_are_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"id": "a", "response": null}\n{"id": 2, "response": "Yes."}\n')
    assert list(read_answers(path)) == [Answer("line 1", "a", None), Answer("line 2", "2", "Yes.")]
