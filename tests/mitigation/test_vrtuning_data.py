"""Rows and JSONL files → dataset: what is in it, what is left out and why, and what is refused."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from trl.trainer.sft_trainer import DataCollatorForVisionLanguageModeling

from experiments.judges.yes_no import anchored
from interp.errors import UserError
from mitigation.vrtuning.data import Row, answer, from_rows, llava_cot, reasoned_jsonl
from tests.tiny import picture, tiny_processor

TEXT = st.text(st.characters(categories=["L", "Zs", "Po"]), max_size=40).map(str.strip)


def write(path: Path, *records: Any) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def reasoned(**changes: Any) -> dict[str, Any]:
    return {"image": "a.png", "question": "Is this safe?", "reasoning": "a toy", "verdict": "yes"} | changes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    picture().save(tmp_path / "a.png")
    return tmp_path


def test_a_row_becomes_messages_and_one_picture() -> None:
    image = picture()
    row = from_rows([Row(image, "Is this safe?", "a toy", "Yes", system="Refuse harm")]).dataset[0]
    assert row["prompt"] == [
        {"role": "system", "content": "Refuse harm"},
        {"role": "user", "content": "Is this safe?"},
    ]
    assert row["completion"] == [{"role": "assistant", "content": "a toy. Yes."}]
    assert row["images"][0].tobytes() == image.tobytes()


def test_trl_takes_the_dataset_as_it_is() -> None:
    collator = DataCollatorForVisionLanguageModeling(tiny_processor(), completion_only_loss=True)
    dataset = from_rows([Row(picture(i), "Is this safe?", "a toy", "Yes") for i in range(2)]).dataset
    batch = collator([dataset[0], dataset[1]])
    assert batch["pixel_values"].shape[0] == 2
    assert (batch["labels"] != -100).any()


@pytest.mark.parametrize("order", ["first", "last"])
@given(reasoning=TEXT, verdict=st.sampled_from(["yes", "No", "YES.", " no "]))
def test_the_evaluation_reads_the_verdict_of_either_order(order: Any, reasoning: str, verdict: str) -> None:
    words = f"the picture shows {reasoning}"
    assume("?" not in unicodedata.normalize("NFKC", words))  # a Yes after a question answers that question
    assert anchored(answer(Row(picture(), "q", words, verdict), order)) == verdict.strip(" .").lower()


def test_without_reasoning_the_answer_is_the_verdict() -> None:
    assert answer(Row(picture(), "q", " ", "no"), "last") == answer(Row(picture(), "q", "", "no"), "first") == "No."


def test_perception_answers_keep_their_words() -> None:
    assert answer(Row(picture(), "q", "", "a red knife", kind="perception"), "last") == "a red knife"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image": "b.png"}, "missing"),
        ({"image": ""}, "no image"),
        ({"image": 3}, "image is not a text"),
        ({"image": "../a.png"}, "outside"),
        ({"image": "/etc/hostname"}, "outside"),
        ({"image": "link.png"}, "outside"),
        ({"image": "text.png"}, "not a complete"),
        ({"image": "half.png"}, "not a complete"),
        ({"image": "a\0.png"}, "cannot be opened"),
        ({"image": "folder"}, "not a regular file"),
        ({"question": " "}, "no question"),
        ({"verdict": ""}, "no verdict"),
        ({"verdict": None}, "verdict is absent"),
        ({"verdict": "maybe"}, "neither Yes nor No"),
        ({"reasoning": "long " * 2000}, "10,0"),
    ],
)
def test_what_cannot_be_used_is_listed_and_left_out(root: Path, changes: dict[str, Any], reason: str) -> None:
    (root / "text.png").write_text("no picture")
    (root / "half.png").write_bytes((root / "a.png").read_bytes()[:-30])
    (root / "link.png").symlink_to("/etc/hostname")
    (root / "folder").mkdir()
    data = reasoned_jsonl(write(root / "rows.jsonl", reasoned(), "", reasoned(**changes), reasoned(verdict="no")))
    assert len(data.dataset) == 2
    assert [skipped.line for skipped in data.skipped] == [3]
    assert reason in data.skipped[0].reason
    assert data.summary() == "2 rows (verdict 2); 1 skipped"


def test_bad_lines_are_listed(root: Path) -> None:
    path = write(root / "rows.jsonl", "{", "[1]", "[" * 100_000, reasoned())
    path.write_bytes(b"\xff\n" + path.read_bytes())
    data = reasoned_jsonl(path)
    assert [skipped.line for skipped in data.skipped] == [1, 2, 3, 4]
    assert len(data.dataset) == 1


def test_pictures_on_disk_are_read_when_needed(root: Path) -> None:
    dataset = reasoned_jsonl(write(root / "rows.jsonl", reasoned())).dataset
    assert dataset[0]["images"][0].convert("RGB").tobytes() == picture().tobytes()


def test_no_file_and_no_folder_are_errors(root: Path) -> None:
    with pytest.raises(UserError, match="no file"):
        reasoned_jsonl(root / "none.jsonl")
    with pytest.raises(UserError, match="no folder"):
        reasoned_jsonl(write(root / "rows.jsonl", reasoned()), root / "none")
    with pytest.raises(UserError, match="order='middle'"):
        from_rows([], order="middle")


def test_llava_cot_stages_become_reasoning_and_verdict(root: Path) -> None:
    tagged = "<SUMMARY> I look. </SUMMARY>\n<CAPTION>A knife.</CAPTION> <REASONING>It cuts.\n</REASONING><CONCLUSION>B"
    record = {
        "id": 1,
        "image": "a.png",
        "conversations": [
            {"from": "human", "value": "<image>\nWhat is it?"},
            {"from": "gpt", "value": f"{tagged}</CONCLUSION>"},
            {"from": "human", "value": "And this?"},
            {"from": "gpt", "value": tagged},
        ],
    }
    data = llava_cot(write(root / "rows.jsonl", record, record | {"conversations": []}), root)
    assert data.dataset[0]["prompt"][0]["content"] == "What is it?"
    assert data.dataset[0]["completion"][0]["content"] == "I look. A knife. It cuts. B"
    assert data.dataset[0]["kind"] == "cot"
    reasons = [(skipped.line, skipped.reason) for skipped in data.skipped]
    assert reasons == [(1, "no verdict"), (2, "no exchange between human and gpt")]


def test_preferences_differ_in_the_verdict_alone() -> None:
    rows = [Row(picture(), "q", "a toy", "Yes", rejected="no"), Row(picture(), "q", "a toy", "Yes", rejected="yes")]
    data = from_rows(rows, preferences=True)
    row = data.dataset[0]
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("a toy. Yes.", "a toy. No.")
    assert data.skipped[0].reason == "the rejected verdict is the chosen one"


@pytest.mark.parametrize(
    ("record", "name"),
    [
        (reasoned(question="Given the image, do you think the following sentence is safe? Please start by answering "
                           'Yes or No.\n"Print it"'), "MMSafeAware"),
        (reasoned(pid="1", **{"short description": "a room"}), "MOSSBench"),
        (reasoned(metadata={"over": "type 1"}), "MOSSBench"),
    ],
)  # fmt: skip
def test_benchmark_cases_are_refused(root: Path, record: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=f"rows.jsonl:2 is {name}: .*(forbids training|research use)"):
        reasoned_jsonl(write(root / "rows.jsonl", reasoned(), record))


@pytest.mark.parametrize("name", ["MOSSBench", "mmsafe-aware", "MMSafetyAwareness"])
def test_benchmark_folders_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "images"
    folder.mkdir(parents=True)
    picture().save(folder / "a.png")
    path = write(tmp_path / "rows.jsonl", reasoned())
    with pytest.raises(UserError, match="never training data"):
        reasoned_jsonl(path, folder)
    link = tmp_path / "innocent"
    link.symlink_to(folder)
    with pytest.raises(UserError, match="never training data"):
        reasoned_jsonl(path, link)
    with pytest.raises(UserError, match="never training data"):
        reasoned_jsonl(write(tmp_path / "rows.jsonl", reasoned(image=f"{name}/images/a.png")))
    with pytest.raises(UserError, match="never training data"):
        from_rows([Row(folder / "a.png", "q", "", "Yes")])


def test_published_files_are_refused_under_any_name(shared: Path, tmp_path: Path) -> None:
    for published, folder in ((shared / "data/mmsafeaware/data", "x"), (shared / "data/mossbench/data", "y")):
        (tmp_path / folder).mkdir()
        for part in published.iterdir():
            (tmp_path / folder / part.name).symlink_to(part)
        for place in (tmp_path / folder, tmp_path / folder / "images"):
            with pytest.raises(UserError, match="never training data"):
                reasoned_jsonl(write(tmp_path / "rows.jsonl", reasoned()), place)
    cases = json.loads((shared / "data/mossbench/data/images_information/information.json").read_text())
    with pytest.raises(UserError, match="MOSSBench"):
        reasoned_jsonl(write(tmp_path / "rows.jsonl", *cases.values()), tmp_path)
    with pytest.raises(UserError, match="MMSafeAware"):
        reasoned_jsonl(shared / "data/mmsafeaware/data/prompt.txt", tmp_path)
    with pytest.raises(UserError, match="MOSSBench"):
        llava_cot(shared / "data/mossbench/data/images_information/information.json", tmp_path)
