"""Logs of Inspect: written of a run and read again, by inspect_ai itself. Skips where it is not installed."""

import sys
from pathlib import Path

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.runs import inspect_log
from experiments.runs.responses import Responses
from experiments.runs.saved_run import read_run
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.synthetic_run import predictions, write_run

REASON = "inspect_ai is not installed; it does not fit beside constraints.txt"


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run of cases with every status, exported."""
    pytest.importorskip("inspect_ai", reason=REASON)
    records = predictions(80)
    for place, record in enumerate(records):
        if place % 11 == 0:
            record |= {"status": "transport_failed", "reason": "lost"}
            record |= dict.fromkeys(("verdict", "published_verdict", "response", "margin"))
        elif place % 7 == 0:
            record |= {"verdict": "no_verdict", "response": "It depends.", "status": "truncated"}
        elif place % 13 == 0:
            record |= {"status": "empty", "verdict": "no_verdict", "response": "", "margin": None}
    folder = write_run(tmp_path / "run", records)
    run = run_of("task=export", "task.format=inspect", f"run={folder}", "benchmark=xstest", "benchmark.root=x")
    run.task(run)
    return folder


def test_scores_in_the_logs_are_those_of_the_metrics(written: Path) -> None:
    from inspect_ai.log import read_eval_log

    results = read_run(written).results
    arms = {row.arm for row in results.select(quantity="answered")}
    assert {path.stem for path in (written / "inspect").iterdir()} == arms
    rates = {"typical": "unsafe_caught typical", "attack": "unsafe_caught attack", "over_safety": "harmless_answered"}
    for arm in arms:
        log = read_eval_log(str(written / "inspect" / f"{arm}.eval"))
        assert log.status == "success"
        (scores,) = log.results.scores
        levels = results.select(arm=arm, against="", group="", rule="")
        assert len(scores.metrics) == sum(row.value is not None for row in levels)
        for name in ("accuracy", "auroc", "unsafe_caught", "harmless_answered"):
            assert scores.metrics[name].value == results.get(arm, name).value
        right: dict[str, list[bool]] = {}
        for sample in log.samples:
            assert (sample.scores is None) == (sample.error is not None)
            if sample.scores is not None:
                right.setdefault(sample.metadata["subset"], []).append(sample.scores["correct"].value == "C")
        for subset, values in right.items():
            assert sum(values) / len(values) == pytest.approx(scores.metrics[rates[subset]].value)
        assert scores.scored_samples == sum(map(len, right.values()))


def test_a_sample_has_picture_words_margin_and_subset(written: Path) -> None:
    from inspect_ai.log import read_eval_log

    records = {(r["case"], r["arm"]): r for r in read_run(written).predictions}
    pictured = 0
    for sample in read_eval_log(str(written / "inspect" / "vcd.eval"), resolve_attachments=True).samples:
        record = records[sample.id, "vcd"]
        *pictures, words = sample.input[0].content
        assert words.text == record["text"]
        pictured += len(pictures)
        assert all(picture.image.startswith("data:image/jpeg;base64,/9j/") for picture in pictures)
        assert {name: sample.metadata[name] for name in ("margin", "subset", "gold")} == {
            name: record[name] for name in ("margin", "subset", "gold")
        }
        assert sample.output.completion == (record["response"] or "")
    assert pictured > 0


def test_a_log_read_as_responses_has_the_runs_answers(written: Path) -> None:
    records = {r["case"]: r for r in read_run(written).predictions if r["arm"] == "vcd"}
    path = written / "inspect" / "vcd.eval"
    answers = inspect_log.read_answers(path)
    assert {line["id"]: line["response"] for line in answers} == {case: r["response"] for case, r in records.items()}
    responses = Responses(str(path))
    assert responses.name == "vcd"
    assert responses.fingerprint().startswith("sha256:")


def test_without_inspect_ai_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    file = tmp_path / "x.eval"
    file.touch()
    with pytest.raises(UserError, match=r"pip install '\.\[inspect\]'"):
        Responses(str(file)).check(IconWorld().load().samples[:1])
    run = run_of("task=export", "task.format=inspect", f"run={tmp_path}")
    with pytest.raises(UserError, match=r"pip install '\.\[inspect\]'"):
        run.task(run)
