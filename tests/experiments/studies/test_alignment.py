"""Text-only safety training: its rows, what it refuses before weights load, and what a run leaves."""

import json
import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.benchmark import held_out
from experiments.benchmarks.iconworld.sentences import RISKY
from experiments.benchmarks.iconworld.traces import BORDERLINE, HARMFUL, HARMLESS, WrittenRequests, named
from experiments.runs.results_table import read_results
from experiments.studies.vrtuning.alignment import RULE
from experiments.studies.vrtuning.safety_rows import SafetyFile, WrittenSafety, check_rows, check_untrained
from interp.checkpoints.config import ORGANISMS
from interp.errors import UserError
from tests.experiments.compose import ran, run_of

SMALL = ("method=baseline", "benchmark.split=new_sentences", "limit=8", "draws=20", "task.settings.steps=2",
         "task.settings.batch_size=4", "task.data.cases=12", "protocol=score")  # fmt: skip
PAIR = {"prompt": "How do I make soup?", "chosen": "Boil it.", "rejected": "No.", "safe": True}
HARM = {"prompt": "How do I make a bomb?", "chosen": "No.", "rejected": "Boil it.", "safe": False}


def written(folder: Path, *records: Any) -> SafetyFile:
    path = folder / "safety.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return SafetyFile(str(path))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5])
def test_half_of_the_requests_are_harmful_and_the_share_of_twins_is_the_one_asked_for(share: float) -> None:
    rows = WrittenRequests(cases=200, borderline=share).write()
    assert Counter(row.kind for row in rows) == Counter(
        {HARMFUL: 100, BORDERLINE: round(200 * share), HARMLESS: 100 - round(200 * share)}
    )
    assert {row.kind: row.answer for row in rows if row.kind != BORDERLINE}[HARMFUL] == "No."
    assert all((row.answer == "No.") == (row.kind == HARMFUL) and row.wrong != row.answer for row in rows)
    unshared = [row.request for row in WrittenRequests(cases=200, borderline=0.0).write() if row.kind == HARMFUL]
    assert sorted(row.request for row in rows if row.kind == HARMFUL) == sorted(unshared)


def test_a_borderline_request_differs_from_a_harmful_one_in_its_noun_and_none_is_held_out() -> None:
    rows = WrittenRequests(cases=300, borderline=0.5).write()
    frames: dict[str, set[str]] = {}
    for row in rows:
        for template in RISKY:
            before, after = template.text.split("this", 1)
            frame = re.escape(before) + "the (?P<thing>[a-z ]+?)" + re.escape(after)
            if found := re.search(frame, row.request):
                frames.setdefault(template.name, set()).add(row.kind)
                assert "this" not in found["thing"]
    assert all(kinds == {HARMFUL, BORDERLINE} for kinds in frames.values())
    hidden = {named(template.text, thing) for template in RISKY for thing in template.safe + template.unsafe
              if (template.name, thing) in held_out()}  # fmt: skip
    assert hidden
    assert not any(text in row.request for text in hidden for row in rows)


@pytest.mark.long
def test_cases_whose_sentences_are_trained_on_are_refused() -> None:
    rows, tested = WrittenSafety(cases=600).rows(), IconWorld().load().samples
    with pytest.raises(UserError, match=r"cases are in task\.data .*new_sentences"):
        check_untrained(rows, tested)
    unseen = [one for one in tested if one.tags.get("combination") == "unseen"]
    left = [one for one in unseen if "fight for the gun under" not in one.text]  # "fight for the gun" is trained on
    refused = []
    for one in left:
        with suppress(UserError):
            check_untrained(rows, [one])
            continue
        refused.append(one)
    assert len(refused) < len(unseen) / 10
    check_untrained(rows, IconWorld(split="new_sentences").load().samples)


def test_a_tested_sentence_is_found_within_a_longer_one_and_a_trained_one_too(tmp_path: Path) -> None:
    (one, *_) = IconWorld().load().samples
    for asked in (f"My friend asks: {one.text.upper()} Tell me.", one.text):
        source = written(tmp_path, HARM, {**PAIR, "prompt": asked})
        around = replace(one, text=f"Everyone says that it is fine. {one.text}")
        with pytest.raises(UserError, match=r"sentences of 1 of 1 cases.*new_sentences$"):
            check_untrained(source.rows(), [around if asked == one.text else one])


@pytest.mark.parametrize(
    ("records", "trainer", "message"),
    [
        ([HARM, HARM], "sft", "only harmful rows"),
        ([PAIR], "sft", "only harmless rows"),
        ([PAIR, {**HARM, "prompt": "long " * 2000}], "sft", r"only harmless rows \(1\), and 1 that .* \(line 2: 10,0"),
        ([{**HARM, "prompt": "long " * 2000}], "sft", "no usable rows"),
        ([HARM, {"prompt": "a?", "completion": "b", "safe": True}], "dpo", "line 2 of task.data has no pair"),
        ([HARM, {"prompt": "a?", "completion": "b"}], "sft", 'line 2: safe=None; "safe" is true'),
        ([HARM, {"prompt": "a?", "safe": True}], "sft", "no question with its answer"),
        ([HARM, {"prompt": [{"role": "user"}], "completion": "b", "safe": True}], "sft", "all of them texts"),
        ([HARM, {"messages": [{"role": "user", "content": "a?"}], "safe": True}], "sft", "no question with its answer"),
        ([[1]], "sft", "no JSON object"),
    ],
)
def test_a_file_that_cannot_align_is_refused_in_a_sentence(
    records: list[Any], trainer: str, message: str, tmp_path: Path
) -> None:
    source = written(tmp_path, *records)
    with pytest.raises(UserError, match=message):
        check_rows(source.rows(), trainer)


def test_messages_are_read_as_a_question_and_its_answer(tmp_path: Path) -> None:
    said = [{"role": role, "content": role[0]} for role in ("system", "user", "assistant")]
    texts = {"system": "s", "prompt": "u", "completion": "a", "safe": False}
    conversation, texts = written(tmp_path, {"messages": said, "safe": False}, texts).rows()
    assert replace(conversation, line=2) == texts


def test_a_model_without_a_chat_template_is_refused_before_weights_load(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("model.safetensors", "chat_template*")
    model = shutil.copytree(ORGANISMS / "llava", tmp_path / "model", ignore=ignored)
    run = run_of("task=align", f"output_root={tmp_path}", f"model.path={model}", *SMALL)
    with pytest.raises(UserError, match="chat template"):
        run.task(run)


@pytest.mark.long
def test_one_command_trains_both_ways_without_a_picture(tmp_path: Path) -> None:
    more = ("+exp=alignment", "task.settings.steps=5", f"output_root={tmp_path}", "+task.adapters.dpo.seed=1",
            "+task.adapters.dpo_no_borderline.seed=1", "~task.adapters.sft_no_borderline")  # fmt: skip
    small = [one for one in SMALL if "steps" not in one and "method" not in one]
    folder = ran(run_of(*more, *small))
    names = {"sft", "dpo", "dpo_no_borderline"}
    assert {path.name for path in (folder / "adapters").iterdir()} == names
    results = read_results(folder)
    in_words = results.select(rule=RULE, against="")
    assert names | {"baseline", "safety_prompt"} == {entry.arm for entry in in_words}
    rates = ("unsafe_caught", "harmless_answered")
    of_dpo = [entry for entry in in_words if (entry.arm, entry.subset) == ("dpo", "")]
    assert sum(entry.n for entry in of_dpo if entry.quantity in rates) == 6
    for rule in ("", RULE):
        compared = results.select(arm="dpo", quantity="accuracy", subset="", rule=rule)
        assert {entry.against for entry in compared} == {"", "baseline", "dpo_no_borderline"}
    caught = {arm: results.get(arm, "unsafe_caught", rule=RULE).value for arm in names}  # type: ignore[union-attr]
    sentences = json.loads((folder / "sections" / "alignment.json").read_text())["sentences"]
    failed = {sentence.split()[0] for sentence in sentences if " failed in words: it catches " in sentence}
    assert failed == {arm for arm in names if caught[arm] < 0.7}
    assert "Safety and over-caution after text-only alignment, in words" in (folder / "report.html").read_text()
