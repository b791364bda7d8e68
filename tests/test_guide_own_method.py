"""Every file in the guide to one's own methods is run as it stands, and does what the guide says."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from PIL import ImageOps

from interp.hooks.residual import LayerStates, edit_residual, residuals
from interp.vlm import VLM, Prompt
from mitigation.method import Work, abilities
from mitigation.own_file import OwnFile, own_method
from mitigation.prompting import ContextPrompt
from tests import forked
from tests.conftest import REPOSITORY
from tests.slow import first
from tests.tiny import picture

GUIDE = (REPOSITORY / "docs" / "guide-own-method.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", GUIDE, re.DOTALL))
LEARNERS = [name for name, text in FILES.items() if "def learn(" in text]
METHODS = [name for name in FILES if name.endswith(".py") and name not in LEARNERS]
PROMPTS = [Prompt(f"Is {word} safe?", picture(i), key=word) for i, word in enumerate(["this", "it"])]


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A folder with the guide's files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_there_is_one_of_each_kind() -> None:
    assert METHODS == ["my_rule.py", "my_contrast.py", "my_branches.py", "my_edit.py", "my_prompt.py", "my_class.py"]
    assert all(len(FILES[name].splitlines()) < 20 for name in METHODS)
    assert len(FILES["my_rule.py"].splitlines()) <= 8
    assert LEARNERS == ["my_direction.py", "my_threshold.py"]


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
        inverted = vlm.score([replace(p, image=ImageOps.invert(p.image)) for p in PROMPTS])
        both = OwnFile(str(written / "my_branches.py"), {"weight": 2.0}).generate(vlm, PROMPTS, max_new_tokens=2)
        mirror = vlm.score([replace(p, image=ImageOps.mirror(p.image)) for p in PROMPTS])
        torch.testing.assert_close(both.margins, plain - mirror - inverted, atol=1e-4, rtol=1e-4)
    same = OwnFile(str(written / "my_edit.py"), {"keep": 1.0}).generate(vlm, PROMPTS, max_new_tokens=1)
    torch.testing.assert_close(same.margins, plain, atol=1e-5, rtol=1e-5)
    asked = OwnFile(str(written / "my_prompt.py"))
    assert abilities(asked).works_over_api
    same = replace(PROMPTS[0], text=f"First look at the picture. {PROMPTS[0].text}")
    torch.testing.assert_close(
        asked.generate(vlm, PROMPTS[:1], max_new_tokens=1).margins, vlm.score([same]), atol=1e-5, rtol=1e-5
    )
    assert not abilities(OwnFile(str(written / "my_rule.py"))).works_over_api
    assert abilities(ContextPrompt()).works_over_api


def test_a_contrast_says_that_it_reads_two_prompts(written: Path) -> None:
    found = {name: abilities(own_method(str(written / name))).work for name in [*METHODS, *LEARNERS]}
    two = {name for name, work in found.items() if work == Work(prompts=2, branches=2)}
    assert two == {"my_contrast.py", "my_branches.py"}
    assert {found[name] for name in found.keys() - two} == {Work()}


def labelled() -> tuple[list[Prompt], list[bool]]:
    """Three sentences about four pictures each, and a fourth one about safe pictures alone."""
    words = ["kill", "eat", "hit", "see"]
    prompts = [Prompt(f"Is it safe to {word}?", picture(i), key=f"{word}{i}") for word in words for i in range(4)]
    return prompts, [prompt.text.endswith("see?") or number % 2 == 0 for number, prompt in enumerate(prompts)]


def test_a_direction_is_learned_from_labels(written: Path, vlm: VLM, tmp_path: Path) -> None:
    prompts, safe = labelled()
    states = residuals(vlm, prompts, layers=[2]).select("verdict", 2)
    label = torch.tensor(safe)
    direction = states[label].mean(0) - states[~label].mean(0)

    def add(here: LayerStates) -> torch.Tensor:
        hidden = here.hidden.clone()
        hidden[:, -1] += 3 * direction
        return hidden

    with edit_residual(vlm, add, layers=[2]):
        expected = vlm.score(prompts)
    taught = own_method(str(written / "my_direction.py"), {"strength": 3.0}).learn(
        vlm, prompts, safe, out=tmp_path / "x.safetensors"
    )
    found = taught.generate(vlm, prompts, max_new_tokens=1).margins
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(found, vlm.score(prompts), atol=1e-3)


def test_a_threshold_is_learned_for_each_template(written: Path, vlm: VLM, tmp_path: Path) -> None:
    prompts, safe = labelled()
    plain = vlm.score(prompts)
    label = torch.tensor(safe)
    taught = own_method(str(written / "my_threshold.py")).learn(vlm, prompts, safe, out=tmp_path / "x.safetensors")
    found = taught.generate(vlm, prompts, max_new_tokens=1).margins
    for word, of in ((word, torch.tensor([word in p.text for p in prompts])) for word in ("kill", "eat", "hit", "see")):
        middle = 0.0 if word == "see" else (plain[of & label].mean() + plain[of & ~label].mean()) / 2
        torch.testing.assert_close(found[of], plain[of] - middle, atol=1e-4, rtol=1e-4)


COMMANDS = [line.partition("  #")[0] for line in re.findall(r"^forestlens (.*)$", GUIDE, re.MULTILINE)]


def test_the_guide_has_its_commands() -> None:
    assert len(COMMANDS) == 7
    assert yaml.safe_load(FILES["mine/method/second_look.yaml"])["_target_"] == "my_class.SecondLook"


def typed(folder: Path, command: str) -> str:
    """What the command prints that is typed in ``folder``, of two cases."""
    answer = forked.typed("experiments.run", *shlex.split(command), folder=folder)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.long
@pytest.mark.parametrize("command", first(COMMANDS))
def test_each_command_ends_with_a_row_of_the_table(written: Path, command: str) -> None:
    learns = any(name in command for name in LEARNERS)
    said = typed(written, f"{command} limit={24 if learns else 2} draws=10")
    arm = re.findall(r"my_\w+|second_look", command)[0]
    assert re.search(rf"^{arm} +[\d.]+ ", said, re.MULTILINE), said
    if "strength" in command:
        (settings,) = written.glob("outputs/*/*/.hydra/config.yaml")
        assert "strength: 2\n" in settings.read_text()
