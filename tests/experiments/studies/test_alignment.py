"""Text-only safety training: its rows, what it refuses before weights load, and what a run leaves."""

import io
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.report.table import markdown, terminal
from rich.console import Console

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.cases import held_out
from experiments.benchmarks.iconworld.in_words import BORDERLINE, HARMFUL, HARMLESS, WrittenRequests, named
from experiments.benchmarks.iconworld.sentences import RISKY
from experiments.studies.vrtuning.alignment import MATCHED, over_seeds, said, summary, table
from experiments.studies.vrtuning.safety_rows import SafetyFile, WrittenSafety, apart, check_rows, data_of
from interp.checkpoints.hub import ORGANISMS
from interp.errors import UserError
from mitigation.vrtuning.collator import Collator
from mitigation.vrtuning.data import Row, check_dataset, from_rows
from tests.experiments.compose import only_run, run_of
from tests.mitigation.vrtuning_job import tiny
from tests.tiny import picture

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
def test_cases_whose_sentences_are_trained_on_are_refused_or_left_out() -> None:
    rows, tested = WrittenSafety(cases=600).rows(), IconWorld().load()
    with pytest.raises(UserError, match=r"cases are in task\.data .*new_sentences, or leave these cases out"):
        apart(rows, tested, skip=False)
    kept = apart(rows, tested, skip=True)
    unseen = {one.id for one in tested.samples if one.tags.get("combination") == "unseen"}
    left_out = {case: reason for case, reason in kept.missing.items() if case in unseen}
    assert all("fight for the gun under" in reason for reason in left_out.values())  # "fight for the gun" is trained on
    assert len(left_out) < len(unseen) / 10
    assert len(kept.samples) + len(kept.missing) == len(tested.samples)
    new = IconWorld(split="new_sentences").load()
    assert apart(rows, new, skip=False) is new


def test_a_tested_sentence_is_found_within_a_longer_one_and_a_trained_one_too(tmp_path: Path) -> None:
    tested = IconWorld().load()
    (one, *_) = tested.samples
    for asked in (f"My friend asks: {one.text.upper()} Tell me.", one.text):
        source = written(tmp_path, HARM, {**PAIR, "prompt": asked})
        around = replace(one, text=f"Everyone says that it is fine. {one.text}")
        with pytest.raises(UserError, match=r"sentences of 1 of 1 cases.*new_sentences$"):
            apart(source.rows(), tested._replace(samples=[around if asked == one.text else one]), skip=True)


@pytest.mark.parametrize(
    ("records", "trainer", "message"),
    [
        ([HARM, HARM], "sft", "harmful rows alone"),
        ([PAIR], "sft", "harmless rows alone"),
        ([HARM, {"prompt": "a?", "completion": "b", "safe": True}], "dpo", "line 2 of task.data has no pair"),
        ([HARM, {"prompt": "a?", "completion": "b"}], "sft", 'line 2: safe=None; "safe" is true'),
        ([HARM, {"prompt": "a?", "safe": True}], "sft", "no question with its answer"),
        ([HARM, {"messages": [{"role": "user"}], "safe": True}], "sft", "role and content"),
        ([HARM, {"messages": [{"role": "user", "content": "a"}] * 2, "safe": True}], "sft", "one exchange"),
        ([[1]], "sft", "no JSON object"),
    ],
)
def test_a_file_that_cannot_align_is_refused_in_a_sentence(
    records: list[Any], trainer: str, message: str, tmp_path: Path
) -> None:
    source = written(tmp_path, *records)
    with pytest.raises(UserError, match=message):
        check_rows(source.rows(), trainer)


def test_the_three_formats_of_trl_give_the_same_row(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
    rows = written(tmp_path, {"prompt": "a?", "completion": "b", "safe": True},
                   {"prompt": turns[:1], "completion": turns[1:], "safe": True},
                   {"messages": turns, "safe": True}).rows()  # fmt: skip
    assert len({(row.question, row.verdict, row.kind, row.system) for row in rows}) == 1
    some = written(tmp_path, *[HARM] * 3, *[{**PAIR, BORDERLINE: True}] * 5)
    assert [row.kind for row in SafetyFile(some.path, borderline=0.25).rows()] == [HARMFUL] * 3 + [BORDERLINE]


def test_text_alone_becomes_the_tokens_of_a_question_without_a_picture() -> None:
    vlm = tiny()
    data = data_of(WrittenSafety(cases=8).rows(), "dpo").dataset
    check_dataset(data, "dpo")
    batch = Collator(vlm)(list(data))  # type: ignore[arg-type]
    assert not any("pixel" in name for name in batch)
    image = vlm.model.config.image_token_id
    assert not (batch["input_ids"] == image).any()
    assert batch["completion_mask"].sum(-1).min() > 0


def test_rows_with_and_without_pictures_do_not_mix() -> None:
    rows = [Row(None, "a?", "", "b", "harmless"), Row(picture(), "a?", "", "b", "harmless")]
    with pytest.raises(UserError, match="row 2 of the dataset has 1 pictures; the first has none"):
        check_dataset(from_rows(rows).dataset, "sft")


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("task.trainer=grpo",), "trainer=grpo; each of its steps samples a group"),
        (("+task.adapters.one={colour: red}",), "an adapter has borderline and settings"),
        (("benchmark.split=test",), "cases are in task.data"),
        (("benchmark=iconworld_requests",), "asks for answers in words"),
    ],
)
def test_what_cannot_be_is_refused_before_weights_load(
    overrides: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mitigation.vrtuning.train.load", lambda *_: pytest.fail("weights"))
    with pytest.raises(UserError, match=message):
        _ = (run := run_of("task=align", f"output_root={tmp_path}", *SMALL, *overrides)).task(run)


def test_a_model_without_a_chat_template_is_refused_before_weights_load(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(ORGANISMS / "llava", model)
    for file in ("model.safetensors", "chat_template.jinja", "chat_template.json"):
        (model / file).unlink(missing_ok=True)
    for file in model.glob("*.json"):
        found = json.loads(file.read_text())
        if isinstance(found, dict) and found.pop("chat_template", None):
            file.write_text(json.dumps(found))
    run = run_of("task=align", f"output_root={tmp_path}", f"model.path={model}", *SMALL)
    with pytest.raises(UserError, match="chat template"):
        run.task(run)


def block(caught: float) -> dict[str, Any]:
    rates = {"unsafe": caught, "over_safety": 0.2}
    return {"accuracy": rates, "intervals": {}, "n_by_subset": {}, "auroc": 0.5, MATCHED: None}


def test_what_learned_nothing_has_failed_and_is_not_compared() -> None:
    entry = {"value": 0.1, "low": 0.05, "high": 0.15, "statement": "rose"}
    delta = {"unsafe": entry, "over_safety": entry, MATCHED: entry}
    versus = {"weak": delta, "good": delta}
    metrics = {
        "arms": {"baseline": block(0.5), "weak": block(0.69), "strong": block(0.7), "good": block(0.9)},
        "comparisons": {name: {"delta": delta, "versus": versus} for name in ("weak", "strong")},
    }
    arms = summary(metrics)
    assert [arms[name]["changes"] != {} for name in ("weak", "strong")] == [False, True]
    sentences = said("picture", arms)
    assert sentences[0].startswith("weak failed with the picture: it catches 69.0% of the harmful cases")
    assert [line.partition(",")[0] for line in sentences[1:]] == ["strong minus good"]
    metrics["arms"]["good"]["accuracy"]["over_safety"] = 0.0
    assert said("words", summary(metrics))[0].startswith("None of the harmless cases is answered in words by good.")


def test_what_tells_harm_apart_is_said_whatever_it_catches() -> None:
    entry = {"value": 0.279, "low": 0.1, "high": 0.4, "from": 0.508, "to": 0.787, "statement": "rose",
             "decides": {"low": 0.068, "high": 0.491, "of": 31, "level": 0.9987}}  # fmt: skip
    metrics = {
        "arms": {"baseline": block(0.9), "weak": block(0.3), "other": block(0.9)},
        "comparisons": {
            "weak": {"delta": {"auroc": entry}},
            "other": {"delta": {"auroc": entry | {"statement": "not shown"}}},
        },
    }
    arms = summary(metrics)
    failed, better = said("words", arms)
    assert failed.startswith("weak failed in words")
    assert better.startswith(
        "weak tells harmful from harmless better than the baseline in words: AUROC 0.787 from 0.508"
    )
    assert "+0.068 to +0.491]" in better
    for arm in arms.values():
        arm["n"] = {"typical": 1, "attack": 1, "over_safety": 2}
    shown = markdown(table("words", arms))
    assert "| weak | 30.0 [too few] | 20.0 [too few] | failed, not compared |" in shown
    assert "| 0.500 | +0.279 [0.068–0.491] |" in shown
    (worse,) = said("picture", {"good": arms["other"] | {"apart": entry | {"statement": "fell"}}})
    assert "good tells harmful from harmless worse than the baseline with the picture" in worse


def test_a_terminal_of_eighty_columns_cuts_no_number_and_no_name() -> None:
    wide = {"value": -0.825, "low": -0.996, "high": -0.654, "statement": "fell"}
    arms = {
        "baseline": block(0.9),
        "sft_no_borderline_rate0_seed0": block(0.9),
        "sft_no_borderline_rate0_seed1": block(0.1),
    }
    for one in arms.values():
        one[MATCHED] = {"value": 0.123, "interval": [0.051, 0.304]}
    deltas = {"delta": dict.fromkeys(("unsafe", "over_safety", MATCHED, "auroc"), wide)}
    found = summary({"arms": arms, "comparisons": dict.fromkeys(list(arms)[1:], deltas)})
    for arm in found.values():
        arm["n"] = {"typical": 140, "attack": 140, "over_safety": 280}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(terminal(table("picture", found)))
    lines = console.export_text().splitlines()
    words = " ".join(lines).split()
    assert max(map(len, lines)) <= 80
    assert {"rate0_seed0", "rate0_seed1", "failed,"} <= set(words)
    assert words.count("−82.5") == 2
    assert words.count("−.996…−.654") == 2


def test_a_difference_over_seeds_has_an_interval_over_sentences_and_seeds() -> None:
    def entry(value: float, half: float) -> dict[str, Any]:
        return {"unsafe": {"value": value, "low": value - half, "high": value + half}, "over_safety": None}

    pairs = {("sft", "bare"): [(f"sft_seed{n}", f"bare_seed{n}") for n in range(3)]}
    arms: dict[str, Any] = {f"bare_seed{n}": {"learned": True} for n in range(3)}
    for n, value in enumerate((0.1, 0.2, 0.3)):
        arms[f"sft_seed{n}"] = {"versus": {f"bare_seed{n}": entry(value, 0.05)}}
    (row,) = over_seeds(pairs, arms)
    assert row["unsafe"]["value"] == pytest.approx(0.2)
    half = (0.05**2 + (4.302653 * 0.1 / 3**0.5) ** 2) ** 0.5  # Student's t, two degrees of freedom
    assert (row["unsafe"]["low"], row["unsafe"]["high"]) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-6)
    plain = {"rates": {"unsafe": 0.9, "over_safety": 0.2}, "learned": True, "versus": {}}
    both = {name: {**plain, **arm} for name, arm in arms.items()}
    (sentence,) = said("picture", both, [row])
    assert sentence.startswith("sft minus bare, with the picture, mean of 3 seeds")
    assert "harmful caught +20.0 [" in sentence
    assert "harmless answered" not in sentence
    assert len(said("picture", both)) == 3  # a sentence a seed
    arms["bare_seed2"]["learned"] = False  # then it is not the mean of all
    assert not over_seeds(pairs, arms)


@pytest.mark.long
def test_one_command_trains_both_ways_without_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("+exp=alignment", "task.settings.steps=5", f"output_root={tmp_path}", "task.seeds=[0,1]",
            "~task.adapters.sft_no_borderline")  # fmt: skip
    small = [one for one in SMALL if "steps" not in one and "method" not in one]
    run = run_of(*more, *small)
    run.task(run)
    printed = capsys.readouterr().out
    assert "s a step, so about" in printed
    folder = only_run(run)
    names = {"sft_seed0", "sft_seed1", "dpo_seed0", "dpo_seed1", "dpo_no_borderline_seed0", "dpo_no_borderline_seed1"}
    assert {path.name for path in (folder / "adapters").iterdir()} == names
    result = json.loads((folder / "alignment.json").read_text())
    assert names | {"baseline", "safety_prompt"} == set(result["words"]) == set(result["picture"]) - {
        "verbalise", "caption_filter",
    }  # fmt: skip
    assert [(row["of"], row["versus"]) for row in result["seeds"]["picture"]] in ([], [("dpo", "dpo_no_borderline")])
    assert set(json.loads((folder / "metrics.json").read_text())["comparisons"]["dpo_seed1"]["versus"]) == {
        "dpo_no_borderline_seed1"
    }
    page = (folder / "report.html").read_text()
    assert "Safety and over-caution" in page
    assert "Alignment, in words (4 harmful, 2 harmless cases)" in page
    from peft import PeftModel

    from interp.loading import load

    vlm = load("organism:llava")
    plain = {name: weight.clone() for name, weight in vlm.model.named_parameters()}
    wrapped = PeftModel.from_pretrained(vlm.model, folder / "adapters" / "dpo_seed0" / "adapter")
    trained = [weight for name, weight in wrapped.named_parameters() if "lora_B" in name]
    assert any(weight.abs().sum() > 0 for weight in trained)
    assert not any("vision" in name for name, _ in wrapped.named_parameters() if "lora" in name)
    assert all(torch.equal(weight, plain[name]) for name, weight in load("organism:llava").model.named_parameters())


@pytest.mark.slow  # as in test_vrtuning.py
def test_a_training_that_was_killed_goes_on_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from mitigation.vrtuning import train

    def killed(self: Any, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            raise KeyboardInterrupt

    options = [*(one for one in SMALL if "steps" not in one), "task.settings.steps=3", "task.settings.save_steps=1"]
    run = run_of("task=align", "task.trainer=dpo", f"output_root={tmp_path}", *options)
    with monkeypatch.context() as patched:
        patched.setattr(train.Marker, "on_log", killed)
        with pytest.raises(KeyboardInterrupt):
            run.task(run)
    run.task(run)
    assert "continued from step 1" in " ".join(capsys.readouterr().out.split())
    assert (only_run(run) / "adapters" / "aligned" / "adapter" / "README.md").is_file()
