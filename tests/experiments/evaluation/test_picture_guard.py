"""``guard=true``: picture questions under every arm; a method that blinds the model is warned of."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.picture_questions import PictureQuestions
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.cases import guarding, load_cases
from experiments.evaluation.picture_guard import further, measured, sentences
from experiments.types import Sample, Verdict
from interp.errors import UserError
from tests.experiments.compose import only_run, run_of

BLIND = """
from dataclasses import dataclass, replace

from PIL import Image


@dataclass(frozen=True)
class Blind:
    def generate(self, vlm, prompts, *, max_new_tokens):
        grey = [replace(one, image=Image.new("RGB", one.image.size, "grey")) for one in prompts]
        return vlm.generate(grey, max_new_tokens=max_new_tokens)
"""


def cases(count: int = 120, things: int = 12) -> list[Sample]:
    return [
        Sample(f"q{i}", "typical", "presence", "yes" if i % 2 else "no", f"Is it {i}?", f"Is it {i}?", None,
               cluster=f"thing {i % things}")
        for i in range(count)
    ]  # fmt: skip


def answers(arm: str, questions: list[Sample], wrong: Any = (), missing: Any = ()) -> list[dict[str, Any]]:
    other = {"yes": Verdict.NO, "no": Verdict.YES}
    return [
        {"arm": arm, "case": one.id,
         "verdict": None if i in missing else other[one.gold] if i in wrong else Verdict(one.gold)}
        for i, one in enumerate(questions)
    ]  # fmt: skip


def test_an_arm_that_answers_alike_has_changed_nothing() -> None:
    questions = cases(2000)
    found = measured([*answers("baseline", questions, {1, 2}), *answers("prompt", questions, {1, 2})], questions)
    assert found["arms"]["prompt"]["accuracy_change"]["statement"] == "no change"
    assert found["arms"]["prompt"]["accuracy_change"]["low"] < 0  # nothing that differs is no proof of 0
    assert sentences(found) == [
        "Asked what is in a picture (2000 questions, 50.0% to be answered Yes), the baseline is right in 99.9% and "
        "says Yes in 50.0%; no change of accuracy of more than 2 points: prompt."
    ]


def test_a_blind_arm_is_warned_of_and_its_yes_are_told() -> None:
    questions = cases()
    lost = {i for i in range(120) if i % 2 == 0 and i // 2 % 5 < 3}  # says Yes where No is right
    found = measured([*answers("baseline", questions), *answers("vcd", questions, lost)], questions)
    change = found["arms"]["vcd"]["accuracy_change"]
    assert change["value"] == pytest.approx(-len(lost) / 120)
    assert change["low"] < change["value"] < change["high"] < 0
    assert sentences(found)[1].startswith("Warning: vcd answers questions about pictures worse than the baseline (−30")
    assert further(found)[0].startswith("The share of Yes to these questions rose under vcd (+30")


def pope(folder: Path, *lines: dict[str, Any]) -> str:
    (folder / "images").mkdir(exist_ok=True)
    Scene(PictureQuestions(1).load().samples[0].image.thing, "one").render().save(folder / "images" / "a.png")  # type: ignore[union-attr]
    path = folder / "pope.jsonl"
    path.write_text("".join(json.dumps({"image": "a.png", "label": "no", **line}) + "\n" for line in lines))
    return str(path)


def test_a_file_in_the_layout_of_pope(tmp_path: Path) -> None:
    path = pope(tmp_path, {"question_id": 1, "text": "Is there a dog in the image?", "label": "yes"},
                {"question_id": 2, "text": "Is there a cat in the image?"})  # fmt: skip
    loaded = load_cases(guarding(run_of(f"guard={path}", f"output_root={tmp_path}")), None)  # type: ignore[arg-type]
    assert [(one.id, one.gold, one.prompt) for one in loaded.samples] == [
        ("1", "yes", "Is there a dog in the image?"),
        ("2", "no", "Is there a cat in the image?"),
    ]
    assert len({one.cluster for one in loaded.samples}) == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"question_id": 1, "text": "Is it?", "label": "maybe"}, "label"),
        ({"question_id": 1, "text": "Is it?", "image": "../../secret.png"}, "image"),
        ({"question_id": 1, "text": ""}, "text"),
    ],
)
def test_faults_of_the_file_are_told_before_weights_load(tmp_path: Path, line: dict[str, Any], said: str) -> None:
    run = guarding(run_of(f"guard={pope(tmp_path, line)}", f"output_root={tmp_path}"))
    with pytest.raises(UserError, match=said):
        load_cases(run, None)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_method_that_blinds_the_model_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "blind.py").write_text(BLIND)
    run: Run = run_of(
        "method=file", f"method.path={tmp_path}/blind.py", f"output_root={tmp_path}/out", "limit=8", "draws=50",
        "guard=true", "max_new_tokens=4",
    )  # fmt: skip
    study.run(run)
    folder = only_run(run)
    result = json.loads((folder / "guard.json").read_text())
    (arm,) = set(result["arms"]) - {"baseline"}
    assert result["n"] == 400
    assert result["arms"]["baseline"]["accuracy"]["value"] > 0.65
    assert result["arms"][arm]["accuracy_change"]["statement"] == "fell"
    assert f"Warning: {arm} answers questions about pictures worse" in capsys.readouterr().out
    assert f"Warning: {arm} answers questions" in (folder / "report.html").read_text()
    assert not any("pictures" in line["arm"] for line in map(json.loads, (folder / "predictions.jsonl").open()))
