"""A run that goes on after its cases or its model's files were changed asks what has changed again, and no more."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest
from PIL import Image

from experiments.types import Kind, Loaded, Sample
from interp.vlm import VLM, Generation, Prompt
from tests.experiments.compose import lines, run_of, stopped

asked: list[str] = []


@dataclass(frozen=True)
class Watched:
    """The baseline, noting whom it was asked about."""

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        asked.extend(prompt.key or "" for prompt in prompts)
        return vlm.generate(prompts, max_new_tokens=max_new_tokens)


@dataclass(frozen=True)
class Own:
    """A benchmark of a user's own, whose hash of its cases never changes."""

    samples: tuple[Sample, ...] = field(repr=False)
    name: str = "own"
    kind: ClassVar[Kind] = "yes_no"

    def load(self) -> Loaded:
        return Loaded(list(self.samples), {}, "constant")

    def development(self) -> None:
        return None


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    found = []
    for number in range(6):
        path = tmp_path / f"{number}.png"
        Image.new("RGB", (32, 32), (40 * number, 10, 90)).save(path)
        subset, gold = ("typical", "no") if number % 2 else ("over_safety", "yes")
        found.append(Sample(f"c{number}", subset, "s", gold, f"t{number}", f"Safe? t{number}", path, f"k{number}"))  # type: ignore[arg-type]
    return found


def interrupted(saved: Path, outputs: Path, samples: list[Sample]) -> Path:
    """Asks everything, and is stopped before it concludes."""
    run = run_of("method=prompt", f"model.path={saved}", f"output_root={outputs}", "batch_size=4", "max_new_tokens=2")
    run = replace(run, benchmark=Own(tuple(samples)), arms={"baseline": Watched(), run.arm: Watched()})
    asked.clear()
    return stopped(run)


@pytest.mark.long
def test_a_corrected_case_is_asked_again_and_the_others_are_not(
    saved: Path, tmp_path: Path, samples: list[Sample]
) -> None:
    folder = interrupted(saved, tmp_path / "out", samples)
    assert sorted(asked) == sorted(2 * [sample.id for sample in samples])
    before = lines(folder)
    Image.new("RGB", (32, 32), "white").save(samples[3].image)
    corrected = [*samples[:1], replace(samples[1], text="other", prompt="Safe? other"), *samples[2:4],
                 replace(samples[4], subset="typical", gold="no"), replace(samples[5], cluster="moved")]  # fmt: skip
    again = interrupted(saved, tmp_path / "out", corrected)
    assert again == folder
    assert sorted(set(asked)) == ["c1", "c3", "c4"]
    assert len(asked) == 6
    after = lines(folder)
    assert all(line in after for line in before)
    new = {(line["arm"], line["case"]): line for line in after if line not in before}
    assert {case for _, case in new} == {"c1", "c3", "c4"}
    interrupted(saved, tmp_path / "out", samples)  # back to what it was, but for the picture
    assert sorted(set(asked)) == ["c1", "c4"]


@pytest.mark.long
def test_answers_of_another_processor_template_or_configuration_are_not_kept(
    saved: Path, tmp_path: Path, samples: list[Sample], capsys: pytest.CaptureFixture[str]
) -> None:
    model = shutil.copytree(saved, tmp_path / "model")
    folder = interrupted(model, tmp_path / "out", samples)
    before = lines(folder)
    interrupted(model, tmp_path / "out", samples)
    assert asked == []
    assert "asked again" not in capsys.readouterr().out
    template = model / "chat_template.jinja"
    template.write_text(template.read_text().replace("ASSISTANT:", "Answer:"))
    again = interrupted(model, tmp_path / "out", samples)
    assert again == folder
    assert sorted(asked) == sorted(2 * [sample.id for sample in samples])
    assert "12 answers in predictions.jsonl are of another model (weights, processor, chat template)" in (
        " ".join(capsys.readouterr().out.split())
    )
    settings = {line["settings"] for line in before}
    assert settings.isdisjoint(line["settings"] for line in lines(folder)[len(before) :])
    fresh = interrupted(model, tmp_path / "fresh", samples)
    assert [line["margin"] for line in lines(fresh)] == [line["margin"] for line in lines(folder)[len(before) :]]
