"""``guard=true``: picture questions under every arm; a method that blinds the model is warned of."""

import json
from pathlib import Path
from typing import Any

import pytest
from experiments.benchmarks.picture_questions import PictureQuestions

from experiments.benchmarks.iconworld.scene import Scene
from experiments.config import Run
from experiments.evaluation import study
from experiments.evaluation.cases import guarding, load_cases
from experiments.evaluation.picture_guard import measured
from experiments.metrics.claims import LOWER, NO_DIFFERENCE
from experiments.report.text import lines
from experiments.runs.results_table import Results, read_results
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


def told(found: Results) -> str:
    return " ".join(
        line for part in ("perception", "perception_note") for line in lines(part, results=found, baseline="baseline")
    )


def compared(questions: list[Sample], other: str, before: Any = (), **after: Any) -> Results:
    return Results(measured([*answers("baseline", questions, before), *answers(other, questions, **after)], questions))


def test_an_arm_that_answers_alike_has_changed_nothing() -> None:
    questions = cases(2000)
    found = Results(
        measured([*answers("baseline", questions, {1, 2}), *answers("prompt", questions, {1, 2})], questions)
    )
    change = found.get("prompt", "perception_accuracy", against="baseline")
    assert change is not None
    assert change.claim == NO_DIFFERENCE
    assert change.low < 0  # type: ignore[operator]  # nothing that differs is no proof of 0
    assert told(found).startswith(
        "Picture questions (2,000, gold answer Yes in 50.0%): baseline answers 99.9% right and says Yes to 50.0%. "
        "No relevant difference of accuracy: prompt. "
    )


def test_a_blind_arm_is_warned_of_and_its_yes_are_told() -> None:
    lost = {i for i in range(120) if i % 2 == 0 and i // 2 % 5 < 3}  # says Yes where No is right
    found = compared(cases(), "vcd", wrong=lost)
    change = found.get("vcd", "perception_accuracy", against="baseline")
    assert change is not None
    assert change.value == pytest.approx(-len(lost) / 120)
    assert change.low < change.value < change.high < 0  # type: ignore[operator]
    assert change.level == pytest.approx(0.975)  # two differences hold together
    assert "Warning: vcd answers picture questions worse (−30.0 points [" in told(found)
    assert "vcd says Yes more often (+30.0 points [" in told(found)


def test_a_question_that_failed_under_an_arm_is_left_out_and_without_any_nothing_is_told() -> None:
    found = compared(cases(20), "vcd", missing={3})
    level = found.get("vcd", "perception_accuracy")
    assert level is not None
    assert (level.n, level.n_of) == (19, 20)
    assert "19 of 20" in told(found)
    none = compared(cases(20), "vcd", missing=range(20))
    assert "cannot be told: no question was answered by all of them" in told(none)


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
    results = read_results(folder)
    (change,) = results.select(quantity="perception_accuracy", against="baseline")
    level = results.get("baseline", "perception_accuracy")
    assert level is not None
    assert level.n == 400
    assert level.value > 0.65  # type: ignore[operator]
    assert change.claim == LOWER
    warning = f"Warning: {change.arm} answers picture questions worse"
    assert warning in " ".join(capsys.readouterr().out.split())
    assert warning in (folder / "report.html").read_text()
    assert not any("pictures" in line["arm"] for line in map(json.loads, (folder / "predictions.jsonl").open()))
