"""Runs that were concluded under earlier rules still open, and say nothing that their numbers do not carry."""

import html
import json
import re
from pathlib import Path
from typing import Any

from experiments.evaluation import finished_runs
from experiments.report.build import build
from experiments.report.earlier import AGAIN
from experiments.runs.directory import write_json
from tests.experiments.compose import run_of
from tests.experiments.refused import records
from tests.experiments.synthetic_run import predictions, write_run


def aged(value: Any) -> Any:
    """Metrics as earlier rules left them: without statements, and with answers that are no longer given."""
    if isinstance(value, dict):
        gone = ("statement", "needed", "clusters", "simultaneous", "by_template", "rules", "findings", "versus")
        return {key: aged(item) for key, item in value.items() if key not in gone}
    return [aged(item) for item in value] if isinstance(value, list) else value


def age(folder: Path) -> Path:
    path = folder / "metrics.json"
    metrics = aged(json.loads(path.read_text()))
    for comparison in metrics["comparisons"].values():
        comparison["conclusion"] = "only_criterion_moved"
        comparison["wins_reasons"] = ["beats calibrated_shift: no"]
    said = "Only the criterion moved, so it has added nothing but a threshold."
    question = {"question": "discrimination", "about": "vcd", "answer": "only the criterion", "evidence": {}}
    write_json(path, metrics | {"summary": [said], "findings": [question]})
    return folder


def words(page: Path) -> str:
    """The page's text."""
    text = re.sub(r"<(script|style).*?</\1>", " ", page.read_text(), flags=re.DOTALL)
    return html.unescape(" ".join(re.sub(r"<[^>]+>", " ", text).split()))


def test_a_yes_no_run_is_computed_again_from_its_answers(tmp_path: Path) -> None:
    new = write_run(tmp_path / "new", predictions(), draws=50)
    old = age(write_run(tmp_path / "old", predictions(), draws=50))
    before = (old / "metrics.json").read_bytes()
    text = words(build(old))
    assert AGAIN in text
    assert "added nothing but a threshold." not in text
    assert "Only the criterion" not in text
    summary = json.loads((new / "metrics.json").read_text())["summary"]
    assert summary[0].partition(": ")[2] in text
    assert (old / "metrics.json").read_bytes() == before
    assert AGAIN not in words(build(new))


def test_a_refusal_run_is_computed_again_from_its_answers(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", predictions(8), draws=20)
    lines = records("b" * 30 + "c" * 30, {"baseline": "r" * 60, "vcd": "c" * 30 + "r" * 30})
    (folder / "predictions.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    block = {"accuracy": {}, "intervals": {}, "n": 60, "n_of": 60}
    comparison = {"against": "baseline", "wins": None, "conclusion": "fell_same", "delta": {}}
    write_json(folder / "metrics.json", {"kind": "refusal", "arms": {"baseline": block, "vcd": block}, "study": "vcd",
                                         "comparisons": {"vcd": comparison}, "method": {"seed": 0, "draws": 50},
                                         "summary": ["Benign requests are refused less often (p 0.092)."]})  # fmt: skip
    text = words(build(folder))
    assert AGAIN in text
    assert "p 0.092" not in text
    assert "100.0% under baseline (−100.0 points" in text


def test_old_attention_and_sections_give_way_to_a_sentence(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", predictions(), draws=20)
    pulled = "in failures the image pulls away from the right answer"
    write_json(folder / "attention.json", {"sentences": [pulled], "words": [], "figures": []})
    (folder / "sections").mkdir()
    section = {"title": "Why", "sentences": ["Nothing that is certain"], "tables": [], "note": "", "figures": []}
    write_json(folder / "sections" / "mechanism.json", section)
    text = words(build(folder))
    assert pulled not in text
    assert "Nothing that is certain" not in text
    assert f"under earlier rules and is not repeated; task=attention run={folder} concludes again." in text
    assert "under earlier rules and is not repeated; repeat the run’s command for today’s." in text


def test_old_runs_can_be_joined(tmp_path: Path) -> None:
    folders = [age(write_run(tmp_path / name, predictions(seed=seed), draws=20)) for seed, name in enumerate("ab")]
    for at, folder in enumerate(folders):
        environment = json.loads((folder / "environment.json").read_text())
        environment["model"]["name"] = f"model {at}"
        write_json(folder / "environment.json", environment)
    run = run_of("task=report", f"runs=[{','.join(map(str, folders))}]", f"output_root={tmp_path / 'out'}", "draws=20")
    run.task(run)
    (joined,) = (tmp_path / "out" / "joined").iterdir()
    metrics = finished_runs.read(joined).metrics
    assert metrics["rules"] == 2
    assert "added nothing" not in " ".join(metrics["summary"])
