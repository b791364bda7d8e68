"""Rows → dataset: what is in it, what is left out and why, and what is refused."""

import json
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from experiments.judges.yes_no import anchored
from interp.errors import UserError
from interp.messages import Message
from interp.prompt import Prompt
from interp.tensor_file import TrainingRows, row_hash
from mitigation.vrtuning.collator import IGNORED, Collator
from mitigation.vrtuning.data import (
    Row,
    Skipped,
    answer,
    check_dataset,
    data_digest,
    from_rows,
    messages_of,
    refuse_path,
    refuse_record,
    rows_of,
)
from tests.interp.test_conversations import CONVERSATION, model, shown, text
from tests.tiny import picture

TEXT = st.text(st.characters(categories=["L", "Zs", "Po"]), max_size=40).map(str.strip)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    picture().save(tmp_path / "a.png")
    return tmp_path


def test_a_row_becomes_messages_and_one_picture() -> None:
    image = picture()
    row = from_rows([Row(image, "Is this safe?", "a toy", "Yes", system="Refuse harm")]).dataset[0]
    asked = {"system": "Refuse harm", "user": "Is this safe?"}
    assert row["prompt"] == [{"role": role, "content": content} for role, content in asked.items()]
    assert row["completion"] == [{"role": "assistant", "content": "a toy. Yes."}]
    assert row["images"][0].tobytes() == image.tobytes()


@pytest.mark.parametrize("order", ["first", "last"])
@given(reasoning=TEXT, verdict=st.sampled_from(["yes", "No", "YES.", " no "]))
def test_the_evaluation_reads_the_verdict_of_either_order(order: Any, reasoning: str, verdict: str) -> None:
    words = f"the picture shows {reasoning}"
    assume("?" not in unicodedata.normalize("NFKC", words))  # a Yes after a question answers that question
    assert anchored(answer(Row(picture(), "q", words, verdict), order)) == verdict.strip(" .").lower()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"question": " "}, "no question"),
        ({"verdict": ""}, "no verdict"),
        ({"verdict": "maybe"}, "neither Yes nor No"),
        ({"reasoning": "long " * 2000}, "10,0"),
    ],
)
def test_what_cannot_be_used_is_listed_and_left_out(changes: dict[str, str], reason: str) -> None:
    good = Row(picture(), "Is this safe?", "a toy", "yes")
    data = from_rows([good, Skipped(7, "missing"), replace(good, **changes), good, replace(good, line=9, **changes)])  # type: ignore[arg-type]
    assert len(data.dataset) == 2
    assert [skipped.line for skipped in data.skipped] == [7, 3, 9]
    assert reason in data.skipped[1].reason
    assert data.summary() == "2 rows (verdict 2); 3 skipped (line 7: missing)"


def test_a_picture_on_disk_that_cannot_be_read_is_said_before_training(root: Path) -> None:
    (root / "cut.png").write_bytes((root / "a.png").read_bytes()[:60])
    good = Row(root / "a.png", "Is this safe?", "a toy", "yes")
    data = from_rows([good, replace(good, image=root / "no.png", line=4), replace(good, image=root / "cut.png")])
    assert len(data.dataset) == 1
    assert [skipped.line for skipped in data.skipped] == [4, 3]
    assert "its picture cannot be read (FileNotFoundError: " in data.skipped[0].reason
    assert "no.png" in data.skipped[0].reason
    assert "its picture cannot be read (" in data.skipped[1].reason


def test_hashes_of_rows_are_made_with_the_dataset_and_open_no_picture_again(root: Path) -> None:
    row = Row(root / "a.png", "Is this safe? Eat it", "a toy", "yes", system="Look", about="Eat it")
    dataset = from_rows([row, row, replace(row, image=picture(3), about="")]).dataset
    expected = [row_hash(row.question, "Eat it", picture()), row_hash(row.question, "", picture(3))]
    opened = rows_of(dataset.remove_columns("row_hash"))  # of a dataset that was made elsewhere
    (root / "a.png").unlink()
    found = rows_of(dataset)
    assert found == TrainingRows(tuple(expected))
    assert [row[16:] for row in opened.rows] == [row[16:] for row in found.rows]


def test_a_conversation_keeps_its_turns_and_pictures(root: Path) -> None:
    first, second = picture(1), picture(2)
    turns = [
        Message("user", (first, "what is this ?")),
        Message("assistant", ("a knife",)),
        Message("user", (root / "a.png", second, "safe ?")),
    ]
    plain = Row(picture(3), "is this safe ?", "", "No")
    rows = [plain, Row(None, "safe ?", "a toy", "Yes", system="Look", turns=turns)]
    dataset = from_rows(rows).dataset
    single, row = dataset
    assert [[part["type"] for part in message["content"]] for message in row["prompt"]] == [
        ["text"], ["image", "text"], ["text"], ["image", "image", "text"],
    ]  # fmt: skip
    assert [part["type"] for part in single["prompt"][0]["content"]] == ["image", "text"]
    assert [image.tobytes() for image in row["images"]] == [each.tobytes() for each in (first, picture(), second)]
    expected = Prompt(messages=[
        {"role": "system", "content": "Look"},
        {"role": "user", "content": [shown(first), text("what is this ?")]},
        {"role": "assistant", "content": "a knife"},
        {"role": "user", "content": [shown(picture()), shown(second), text("safe ?")]},
    ])  # fmt: skip
    assert Prompt(messages=messages_of(row, row["images"])).content == expected.content
    hashes = TrainingRows.from_prompts([Prompt("is this safe ?", picture(3)), expected])
    assert rows_of(dataset).as_json() == rows_of(dataset.remove_columns("row_hash")).as_json() == hashes.as_json()
    check_dataset(dataset, "sft")
    other = [rows[0], replace(rows[1], turns=[turns[0], Message("assistant", ("a toy",)), turns[2]])]
    assert data_digest(from_rows(other).dataset) != data_digest(dataset)


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
def test_a_conversation_is_trained_on_as_it_is_evaluated(name: str) -> None:
    vlm = model(name)
    turns = CONVERSATION.turns
    (example,) = from_rows([Row(None, CONVERSATION.text, "a toy", "Yes", turns=turns)]).dataset
    batch, encoded = Collator(vlm)([example]), vlm.encode([CONVERSATION])
    before = encoded["input_ids"].shape[1]
    assert torch.equal(batch["input_ids"][:, :before], encoded["input_ids"])
    assert torch.equal(batch["pixel_values"], encoded["pixel_values"])
    assert (batch["labels"][:, :before] == IGNORED).all()
    assert vlm.tokenizer.decode(batch["labels"][0, before:-1]).replace(" ", "") == "atoy.Yes."


def test_preferences_differ_in_the_verdict_alone() -> None:
    rows = [Row(picture(), "q", "a toy", "Yes", rejected="no"), Row(picture(), "q", "a toy", "Yes", rejected="yes")]
    data = from_rows(rows, preferences=True)
    row = data.dataset[0]
    assert (row["chosen"][0]["content"], row["rejected"][0]["content"]) == ("a toy. Yes.", "a toy. No.")
    assert data.skipped[0].reason == "the rejected verdict is the chosen one"


@pytest.mark.parametrize("name", ["MOSSBench", "mmsafe-aware", "MMSafetyAwareness"])
def test_benchmark_folders_are_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name / "images"
    folder.mkdir(parents=True)
    picture().save(folder / "a.png")
    link = tmp_path / "innocent"
    link.symlink_to(folder)
    for place in (folder, link, folder / "a.png"):
        with pytest.raises(UserError, match="never training data"):
            refuse_path(place)
    with pytest.raises(UserError, match="never training data"):
        from_rows([Row(folder / "a.png", "q", "", "Yes")])


def test_published_files_are_refused_under_any_name(shared: Path, tmp_path: Path) -> None:
    for published, folder in ((shared / "data/mmsafeaware/data", "x"), (shared / "data/mossbench/data", "y")):
        (tmp_path / folder).mkdir()
        for part in published.iterdir():
            (tmp_path / folder / part.name).symlink_to(part)
        for place in (tmp_path / folder, tmp_path / folder / "images"):
            with pytest.raises(UserError, match="never training data"):
                refuse_path(place)
    information = shared / "data/mossbench/data/images_information/information.json"
    for case in json.loads(information.read_text()).values():
        with pytest.raises(UserError, match="MOSSBench"):
            refuse_record(case, "here")
    with pytest.raises(UserError, match="MMSafeAware"):
        refuse_path(shared / "data/mmsafeaware/data/prompt.txt")
    with pytest.raises(UserError, match="MOSSBench"):
        refuse_path(information)
