"""A method that fails or forgets something stops the command with a sentence, and the same command goes on."""

import json
import re
from pathlib import Path

import pytest

from experiments.config import Run
from experiments.runs.results_table import read_results
from experiments.runs.store import IDENTITY
from interp.errors import UserError
from interp.vlm import VLM, Prompt
from mitigation.method import MethodFault, check_answers
from mitigation.own_file import OwnFile
from tests.experiments.compose import lines, only_run, run_of

CLASS = """
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Mine:
    def generate(self, vlm, prompts, *, max_new_tokens):
        found = vlm.generate(prompts, max_new_tokens=max_new_tokens)
"""
OWES = "a method owes, for each call of generate, one Generation"
FORGETFUL = {
    "no margin": ("replace(found, margins=found.margins * float('nan'))", f"it returned no margins; {OWES}"),
    "too few": ("found.take([0])", f"it returned 1 texts for 2 prompts; {OWES}"),
    "a list": ("found.texts", f"it returned list; {OWES}"),
    "another order": ("vlm.generate(prompts[::-1], max_new_tokens=max_new_tokens)",
                      "it returned the answers in another order (keys"),
}  # fmt: skip


def own(saved: Path, tmp_path: Path, code: str, *overrides: str) -> Run:
    (tmp_path / "mine.py").write_text(code)
    return run_of(
        "method=file", f"method.path={tmp_path}/mine.py", f"model.path={saved}", f"output_root={tmp_path}/outputs",
        "limit=4", "draws=20", "batch_size=2", "batch_tokens=null", "max_new_tokens=1", *overrides,
    )  # fmt: skip


@pytest.mark.parametrize("what", FORGETFUL)
def test_what_it_forgets_is_said(vlm: VLM, tmp_path: Path, what: str) -> None:
    returned, sentence = FORGETFUL[what]
    (tmp_path / "mine.py").write_text(f"{CLASS}        return {returned}\n")
    method, prompts = OwnFile(f"{tmp_path}/mine.py"), [Prompt("Is it?", key=key) for key in "ab"]
    with pytest.raises(MethodFault, match=re.escape(sentence)):
        check_answers(method, method.generate(vlm, prompts, max_new_tokens=1), prompts, margins=True)


@pytest.mark.long
def test_a_crash_in_the_middle_is_mended_and_only_the_rest_is_asked(saved: Path, tmp_path: Path) -> None:
    counted = "calls = []\n\n\ndef ask(prompt):\n    calls.append(prompt)\n    return {}\n"
    crash = "prompt if len(calls) < 7 else prompt.words"
    more = ("+method@arms.yes_bias=yes_bias", "+method@arms.prompt=prompt")
    run = own(saved, tmp_path, counted.format(crash), *more)
    sentence = "raised AttributeError: 'Prompt' object has no attribute 'words' (mine.py, line 6); a method owes"
    with pytest.raises(MethodFault, match=r"arm mine .* " + re.escape(sentence)):
        run.task(run)
    folder = only_run(run)
    answered = [line for line in lines(folder) if line["arm"] != "mine"]
    assert {line["arm"] for line in answered} >= {"baseline"}
    mended = own(saved, tmp_path, counted.format("prompt"), *more)
    mended.task(mended)
    assert only_run(mended) == folder
    after = [line for line in lines(folder) if line["arm"] != "mine"]
    assert all(line in after for line in answered)
    assert set(read_results(folder).arms) == {"baseline", "mine", "yes_bias", "prompt"}
    assert json.loads((folder / IDENTITY).read_text())["finished"]


@pytest.mark.parametrize(
    ("code", "settings", "sentence"),
    [
        ("x = 1\n", {}, "a file has one method and there is none"),
        ("def ask(p): return p\n\ndef edit(h): return None\n", {}, "one method and there are edit, ask"),
        ("def contrast(a, b, step): return a\n", {}, r"contrast needs a function second\(prompt\)"),
        ("def rule(scores): return scores\n", {}, r"rule\(scores\) is called as rule\(scores, step\)"),
        ("x = 1\nimport nosuchmodule\n", {}, r"No module named 'nosuchmodule' \(mine.py, line 2\); correct it"),
        ("class L:\n    def learn(s): 0\n    def generate(s): 0\n", {}, "L learns first; name it by _target_"),
    ],
)
def test_a_file_is_read_before_weights_are(tmp_path: Path, code: str, settings: dict, sentence: str) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UserError, match=sentence):
        OwnFile(str(tmp_path / "mine.py"), settings)
