"""Methods that ask questions before they answer: a study killed in any step keeps every record."""

import io
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.answer import Answering
from experiments.evaluation.cases import limited
from experiments.report.cases import payload
from experiments.report.saved_run import read_run
from experiments.runs.store import PREDICTIONS, open_run
from interp.loading import load
from interp.vlm import VLM
from mitigation.method import Baseline
from mitigation.verbalise import Verbalise
from tests.experiments.compose import run_of

ARMS: dict[str, Any] = {"baseline": Baseline(), "verbalise": Verbalise(), "before": Verbalise(resolve="before")}
CASES, ROWS = 3, 2


@pytest.fixture(scope="module")
def organism() -> VLM:
    return load("organism:llava", device="cpu")


class Killed(BaseException):
    """The process ends."""


def life(folder: Path, vlm: VLM, monkeypatch: pytest.MonkeyPatch, *, dies_at: int | None = None) -> list[Any]:
    """Answers under all arms; what was asked of the model, until it dies at the start of that call."""
    asked: list[Any] = []
    generate, calls = VLM.generate, iter(range(10_000))

    def counted(self: VLM, prompts: Any, **options: Any) -> Any:
        if next(calls) == dies_at:
            raise Killed
        given = generate(self, prompts, **options)
        asked.extend((prompt.key, prompt.text, prompt.image is not None) for prompt in prompts)
        return given

    run = run_of(f"output_root={folder}", f"limit={CASES}", f"batch_size={ROWS}", "max_new_tokens=4")
    samples = limited(IconWorld().load().samples, CASES)
    with monkeypatch.context() as patched, open_run(str(folder), run.name, {}, "hash", fresh=False) as store:
        patched.setattr(VLM, "generate", counted)
        answering = Answering(run, vlm, store, Console(file=io.StringIO()))
        with suppress(Killed):
            answering.answer(ARMS, samples)
    return asked


def records(folder: Path) -> str:
    (path,) = folder.glob(f"*/*/{PREDICTIONS}")
    return path.read_text(encoding="utf-8")


@pytest.mark.long
def test_killed_in_any_step_it_repeats_only_the_description_of_the_batch_under_way(
    tmp_path: Path, organism: VLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = life(tmp_path / "whole", organism, monkeypatch)
    descriptions = [key for key, text, _ in whole if text == "What is in the image?"]
    assert len(descriptions) == CASES  # once a case, for both arms
    batches = -(-CASES // ROWS)
    calls = batches * (1 + 2 + 1)  # the baseline; describe, judge; judge by what was described
    for dies_at in range(1, calls):
        folder = tmp_path / str(dies_at)
        first = life(folder, organism, monkeypatch, dies_at=dies_at)
        rest = life(folder, organism, monkeypatch)
        assert 0 < len(first) < len(whole)
        twice = Counter(first + rest) - Counter(whole)
        assert Counter(whole) <= Counter(first + rest), dies_at
        assert sum(twice.values()) <= ROWS, dies_at
        assert {text for _, text, _ in twice} <= {"What is in the image?"}, dies_at
        assert records(folder) == records(tmp_path / "whole"), dies_at
    assert life(tmp_path / "whole", organism, monkeypatch) == []


@pytest.mark.long
def test_steps_stand_in_record_report_and_cost(tmp_path: Path) -> None:
    sizes = (f"output_root={tmp_path}", "limit=6", "batch_size=4", "draws=20", "max_new_tokens=4")
    run = run_of("+exp=verbalise_llava", *sizes)
    folder = run.task(run)
    saved = read_run(folder)
    by_arm = {line["arm"]: line for line in saved.predictions}
    assert "steps" not in by_arm["baseline"]
    steps = by_arm["verbalise"]["steps"]
    assert list(steps) == ["description", "request", "resolved by", "question"]
    assert by_arm["oracle"]["steps"]["description"].startswith("It is a ")
    assert list(by_arm["ecso"]["steps"])[:2] == ["first answer", "is it harmful?"]
    data = payload(saved, studied="verbalise", reference="baseline", attention=None)
    row = next(row for row in reversed(data["answers"]["verbalise"]) if row)
    assert [[data["texts"][place] for place in pair] for pair in row[9]] == [list(pair) for pair in steps.items()]
    assert {len(row) for row in data["answers"]["baseline"]} == {9}
