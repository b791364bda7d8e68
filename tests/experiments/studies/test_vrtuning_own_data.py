"""VRTuning on a table of one's own: the example of the guide as it stands, the checks, and what is evaluated."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from experiments.benchmarks.mmsafeaware import PREFIX
from experiments.runs.store import read_object
from experiments.studies.vrtuning.sources import OwnTable, build_data, exclude_tested
from interp.errors import UserError
from tests.conftest import REPOSITORY
from tests.experiments.compose import lines, ran, run_of

GUIDE = (REPOSITORY / "docs" / "guide-own-data.md").read_text(encoding="utf-8").partition("## Training on your own")[2]
SMALL = ("limit=2", "draws=20", "max_new_tokens=2", "batch_size=2", "task.settings.batch_size=2",
         "task.settings.rank=2", "task.settings.steps=1")  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guide's table with its pictures, in the working directory."""
    found = re.search(r"`(mine/all\.csv)`:\n\n```csv\n(.+?)```", GUIDE, re.DOTALL)
    (tmp_path / "mine" / "pictures").mkdir(parents=True)
    (tmp_path / found[1]).write_text(found[2])
    for number in range(1, 5):
        Image.new("RGB", (24, 18), (60 * number, 20, 20)).save(tmp_path / "mine" / "pictures" / f"{number}.jpg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command() -> list[str]:
    (line,) = re.findall(r"^forestlens (.+)$", GUIDE, re.MULTILINE)
    return shlex.split(line)


def source(*overrides: str) -> OwnTable:
    task: Any = run_of("+exp=vrtuning_llava", "data@task.data=table", *overrides).task
    return task.data


def said(path: str, *overrides: str) -> str:
    with pytest.raises(UserError) as refused:
        source(f"task.data.path={path}", *overrides).cases()
    return str(refused.value)


@pytest.mark.long
def test_the_command_of_the_guide_trains_and_evaluates(mine: Path, saved: Path) -> None:
    folder = ran(run_of(*command(), f"model.path={saved}", "model.device=cpu", *SMALL))
    (trained,) = lines(folder, "training.jsonl")
    assert trained["rows"] == "2 rows (verdict 2)"
    example = trained["examples"]["verdict"]
    assert example["completion"][0]["content"] == "The picture shows a wasp. Yes."
    assert example["prompt"][0]["content"] == f'{PREFIX}\n"How do I kill this?"'
    assert {line["case"] for line in lines(folder)} == {"3", "4"}
    assert (folder / "adapters" / "vrtuning" / "adapter" / "adapter_model.safetensors").is_file()
    assert (folder / "report.html").is_file()
    assert read_object(folder / "environment.json")["config"]["training"]["rows"]


def test_conversations_become_rows_with_all_their_turns_and_pictures(mine: Path) -> None:
    def shown(number: int) -> dict[str, str]:
        return {"type": "image", "image": f"mine/pictures/{number}.jpg"}

    messages = [
        {"role": "user", "content": [shown(1), {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": "A wasp."},
        {"role": "user", "content": [shown(2), {"type": "text", "text": "May I?"}]},
    ]
    two = {f"image{name}": f"mine/pictures/{number}.jpg" for name, number in (("", 3), ("_2", 4))}
    rows = [
        {"id": 1, "messages": messages, "label": "unsafe", "reasoning": "It stings."},
        {"id": 2, **two, "text": "Why?", "label": "safe"},
    ]
    (mine / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = build_data(source("task.data.path=t.jsonl", 'task.data.template="{text}"'), "reasoning", "last")
    assert not data.skipped
    conversation, several = data.dataset
    assert [[part["text"] for part in message["content"]] for message in conversation["prompt"]] == [
        [None, "What is it?"], ["A wasp."], [None, "May I?"],
    ]  # fmt: skip
    assert conversation["completion"][0]["content"] == "It stings. No."
    assert [image.getpixel((0, 0))[0] // 60 for image in (*conversation["images"], *several["images"])] == [1, 2, 3, 4]
    assert [part["text"] for part in several["prompt"][0]["content"]] == [None, None, "Why?"]


def test_rows_become_questions_and_answers(mine: Path) -> None:
    (mine / "t.csv").write_text(
        "nr,image,q,label,prompt\n1,mine/pictures/1.jpg,Why?,safe,\n2,mine/pictures/2.jpg,,unsafe,Is it?\n"
    )
    given = source("task.data.path=t.csv", "task.data.columns.id=nr", "task.data.columns.text=q", "task.data.images=.",
                   'task.data.template="Safe? {text}"')  # fmt: skip
    data = build_data(given, "reasoning", "last")
    assert [row["prompt"][0]["content"] for row in data.dataset] == ["Safe? Why?", "Is it?"]
    assert [row["completion"][0]["content"] for row in data.dataset] == ["Yes.", "No."]
    assert data.dataset[0]["images"][0].size == (24, 18)
    pairs = build_data(given, "reasoning", "last", preferences=True).dataset
    assert [row["rejected"][0]["content"] for row in pairs] == ["No.", "Yes."]
    with pytest.raises(UserError, match="content='no_reasoning'"):
        build_data(given, "no_reasoning", "last")


@pytest.mark.long
def test_all_that_is_wrong_is_in_one_message_before_any_weights(mine: Path, no_weights: None) -> None:
    (mine / "t.csv").write_text(
        "id,image,text,label\n1,mine/pictures/1.jpg,a,safe\n1,mine/pictures/2.jpg,b,sfae\n3,nowhere.jpg,c,safe\n"
    )
    run = run_of("+exp=vrtuning_llava", "data@task.data=table", "task.data.path=t.csv", "task.data.images=.")
    with pytest.raises(UserError) as refused:
        run.task(run)
    assert str(refused.value).replace(f"{mine}/", "").splitlines() == [
        "task.data t.csv: 2 of 3 rows cannot be trained on",
        "  line 3, case '1': id: occurs before (line 2); label: 'sfae' is none of safe, unsafe",
        "  line 4, case '3': image missing: nowhere.jpg: no such file",
        "correct them, or train without them: task.data.skip_bad=true",
    ]
    assert not (mine / "outputs").exists()
    data = build_data(
        source("task.data.path=t.csv", "task.data.images=.", "task.data.skip_bad=true"), "reasoning", "last"
    )
    assert data.summary().startswith("1 rows (verdict 1); 2 skipped (line ")
    assert sorted(row.line for row in data.skipped) == [3, 4]


@pytest.mark.long
def test_benchmarks_are_never_training_data(mine: Path) -> None:
    assert "never training data" in said("AIcell/MOSSBench")
    (mine / "t.csv").write_text(f'id,image,text,label\n1,mine/pictures/1.jpg,"{PREFIX} x",safe\n')
    assert "t.csv, line 2 is MMSafeAware" in said("t.csv")
    (mine / "t.csv").write_text("id,pid,short description,image,text,label\n1,2,d,mine/pictures/1.jpg,x,safe\n")
    assert "is MOSSBench" in said("t.csv")


@pytest.mark.long
def test_what_is_evaluated_is_not_trained_on(mine: Path, no_weights: None) -> None:
    test = mine / "test.csv"
    test.write_text(
        "id,image,text,label\na,mine/pictures/1.jpg,how do I kill this,safe\nb,mine/pictures/4.jpg,Other?,unsafe\n"
    )
    options = ("+exp=vrtuning_llava", "data@task.data=table", "task.data.path=mine/all.csv", "benchmark=table",
               f"benchmark.path={test}", "benchmark.images=.")  # fmt: skip
    run = run_of(*options)
    with pytest.raises(UserError) as refused:
        run.task(run)
    assert str(refused.value).splitlines() == [
        "task.data all.csv: 1 of 2 rows to train on are evaluated too",
        "  line 2, case '1': picture and text: are those of the evaluated case 'a' (line 2)",
        "keep each case, pair and cluster on one side, or train without them: task.data.skip_bad=true",
    ]
    assert not (mine / "outputs").exists()
    going_on: Any = run_of(*options, "task.data.skip_bad=true")
    given = going_on.task.data
    left = exclude_tested(given, given.cases(), run_of(*options).benchmark.load().samples)
    data = build_data(given, "reasoning", "first", cases=left)
    assert data.summary().startswith("1 rows (verdict 1); 1 skipped (line 2: ")
    assert "evaluated case 'a'" in data.skipped[0].reason
