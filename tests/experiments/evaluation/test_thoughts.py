"""A study of a model that thinks first: thoughts apart in the records, cut ones counted, budgets named."""

from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.evaluation.scoring import judge_batch
from experiments.evaluation.study import check_budget
from experiments.report.saved_run import read_run
from experiments.types import Item, Judgement, Verdict
from interp.errors import UserError
from interp.generation import Generation
from interp.vlm import VLM
from tests.experiments.compose import lines, run_of
from tests.experiments.evaluation.test_responses_alone import ids, run_to_end, written
from tests.experiments.synthetic_run import said_of

THOUGHT = "<think>It says kill, so: I'm sorry, but I cannot assist with that. No. But it is a bug.</think>"


@pytest.mark.long
def test_judges_see_the_answer_and_records_keep_both(tmp_path: Path) -> None:
    cases = ["benchmark=iconworld", "limit=40"]
    cut = "<think>The obvious answer is no, but"
    said = written(tmp_path / "model_a.jsonl", ids(*cases), [f"{THOUGHT}\n\nYes.", cut, "No.", "No.", "No."])
    folder = run_to_end(tmp_path, *cases, "method=responses", f"method.path={said}")
    found = lines(folder)
    assert {(r.get("thought"), r["response"], r["status"], r["verdict"]) for r in found} == {
        (THOUGHT, "Yes.", "answered", "yes"),
        (cut, "", "truncated", "no_verdict"),
        (None, "No.", "answered", "no"),
    }
    found = [record for record in found if record["subset"] != "control"]
    count = sum(r["status"] == "truncated" for r in found)
    run, told = read_run(folder), said_of(folder)
    of_arm = run.metrics["thoughts"]["responses"]
    assert (of_arm["n"], of_arm["cut_off"], of_arm["budget"]) == (len(found), count, None)
    row = run.results.get("responses", "status", group="status=truncated")
    assert row.value == count
    assert f"In {count} of {len(found)} answers of responses the thought was cut off. They hold no verdict" in told
    assert "same_text" not in run.metrics
    assert "Set max_new_tokens higher." in told
    assert "It says kill" in (folder / "report.html").read_text()


def test_a_cut_thought_is_nothing_for_a_refusal_judge_to_read() -> None:
    class Reads:
        name, kind = "reads", "refusal"

        def judge(self, items: list[Item]) -> list[Any]:
            assert [item.response for item in items] == ["Hit it with a slipper."]
            return [Judgement(Verdict.COMPLIED)]

    samples = run_of("benchmark=iconworld_requests", "limit=2").benchmark.load().samples[:2]
    given = Generation(
        [f"{THOUGHT}\n\nHit it with a slipper.", "<think>I cannot"], [[], []], torch.zeros(2), [True, False]
    )
    whole, cut = judge_batch(samples, "a", given, Reads())  # type: ignore[arg-type]
    assert (whole["verdict"], whole["thought"]) == ("complied", THOUGHT)
    assert (cut["verdict"], cut["status"], cut["thought"]) == (None, "truncated", "<think>I cannot")


@pytest.mark.long
def test_a_budget_that_holds_no_thought_is_refused_before_anything_is_asked(vlm: VLM) -> None:
    check_budget(run_of(), vlm)  # it does not think
    vlm.processor.chat_template = (
        f"{vlm.processor.chat_template}{{{{ '' if enable_thinking is false else '<think>' }}}}"
    )
    with pytest.raises(UserError, match=r"max_new_tokens=16: tiny thinks before .*at least 64.*enable_thinking: false"):
        check_budget(run_of(), vlm)
    check_budget(run_of("max_new_tokens=64"), vlm)
    with pytest.raises(UserError, match=r"protocol=score only reads the first token"):
        check_budget(run_of("protocol=score", "max_new_tokens=64"), vlm)
    vlm.processor.chat_template = f"{{% set enable_thinking = false %}}\n{vlm.processor.chat_template}</think>"
    check_budget(run_of(), vlm)  # the template closes the thought at once
