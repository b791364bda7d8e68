"""Every file in the guide to one's own methods is run as it stands, and does what the guide says."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from interp.vlm import VLM, Prompt
from mitigation.method import abilities
from mitigation.own_file import OwnFile
from mitigation.prompting import ContextPrompt
from tests.conftest import REPOSITORY
from tests.experiments.compose import composed
from tests.tiny import picture

GUIDE = (REPOSITORY / "docs" / "guide-own-method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", GUIDE, re.DOTALL))
METHODS = [name for name in FILES if name.endswith(".py")]
PROMPTS = [Prompt(f"Is {word} safe?", picture(i), key=word) for i, word in enumerate(["this", "it"])]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the guide's files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_there_is_one_of_each_kind() -> None:
    assert METHODS == ["my_rule.py", "my_contrast.py", "my_edit.py", "my_prompt.py", "my_class.py"]
    assert all(len(FILES[name].splitlines()) < 20 for name in METHODS)
    assert len(FILES["my_rule.py"].splitlines()) <= 8


@pytest.mark.parametrize("name", METHODS)
def test_each_changes_the_margins(written: Path, vlm: VLM, name: str) -> None:
    found = OwnFile(str(written / name)).generate(vlm, PROMPTS, max_new_tokens=2)
    plain = vlm.generate(PROMPTS, max_new_tokens=2)
    assert found.margins.isfinite().all()
    assert not torch.allclose(found.margins, plain.margins, atol=1e-6)
    assert found.keys == [prompt.key for prompt in PROMPTS]


def test_each_is_what_it_says(written: Path, vlm: VLM) -> None:
    plain, mirrored = vlm.score(PROMPTS), vlm.score(
        [replace(p, image=p.image.transpose(0)) for p in PROMPTS]  # type: ignore[union-attr]
    )  # fmt: skip
    rule = OwnFile(str(written / "my_rule.py"), {"strength": 0.5}).generate(vlm, PROMPTS, max_new_tokens=1).margins
    if len(vlm.answer_ids.yes) == len(vlm.answer_ids.no) == 1:
        torch.testing.assert_close(rule, plain - 0.5 * plain.mean(), atol=1e-4, rtol=1e-4)
        contrast = OwnFile(str(written / "my_contrast.py"), {"alpha": 2.0}).generate(vlm, PROMPTS, max_new_tokens=1)
        torch.testing.assert_close(contrast.margins, 3 * plain - 2 * mirrored, atol=1e-4, rtol=1e-4)
    same = OwnFile(str(written / "my_edit.py"), {"keep": 1.0}).generate(vlm, PROMPTS, max_new_tokens=1)
    torch.testing.assert_close(same.margins, plain, atol=1e-5, rtol=1e-5)
    asked = OwnFile(str(written / "my_prompt.py"))
    assert abilities(asked).by_words
    same = replace(PROMPTS[0], text=f"First look at the picture. {PROMPTS[0].text}")
    torch.testing.assert_close(
        asked.generate(vlm, PROMPTS[:1], max_new_tokens=1).margins, vlm.score([same]), atol=1e-5, rtol=1e-5
    )
    assert not abilities(OwnFile(str(written / "my_rule.py"))).by_words
    assert abilities(ContextPrompt()).by_words


def test_the_commands_compose(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    commands = [line.partition("  #")[0] for line in re.findall(r"^forestlens (.*)$", GUIDE, re.MULTILINE)]
    assert len(commands) == 3
    for command in commands[:2]:
        assert composed(*shlex.split(command))
    folder, option, setting = re.fullmatch(r"--config-dir (\w+) method=(\w+) (\S+)", commands[2]).groups()  # type: ignore[union-attr]
    assert yaml.safe_load(FILES[f"{folder}/method/{option}.yaml"])["_target_"] == "my_class.SecondLook"
    assert setting.startswith("method.angle=")


@pytest.mark.parametrize(
    ("arguments", "arm"),
    [
        (["method=file", "method.path=my_rule.py"], "my_rule"),
        (["--config-dir", "mine", "method=second_look", "method.angle=45"], "second_look"),
    ],
)
def test_from_a_file_to_a_row_of_the_table(written: Path, arguments: list[str], arm: str) -> None:
    code = "from experiments.run import main; main()"
    environment = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", f"import sys; sys.path.pop(0); {code}", *arguments, "limit=2", "draws=10"]
    answer = subprocess.run(command, cwd=written, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert re.search(rf"^{arm} +[\d.]+ ", answer.stdout, re.MULTILINE), answer.stdout
