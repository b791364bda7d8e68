"""Safety against oversensitivity across models: the correlation, and what is refused."""

import json
from pathlib import Path

import pandas as pd
import pytest
from experiments.metrics.refusal.results import evaluate

from experiments.report.sentences.mossbench_safety import sentence
from experiments.runs.resumption import write_json
from experiments.studies.paper_tables.mossbench_safety import records_by_model, safety_correlation
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.refused import frame
from tests.experiments.synthetic_run import predictions, write_run


def answers(benign: int, harmful: int, n: int = 20) -> str:
    return "r" * benign + "c" * (n - benign) + "r" * harmful + "c" * (n - harmful)


SUBSETS = "b" * 20 + "c" * 20
MODELS = {"a": answers(1, 8), "b": answers(5, 12), "c": answers(10, 15), "d": answers(15, 20), "e": answers(17, 20)}


def write(folder: Path, model: str, table: pd.DataFrame) -> Path:
    folder.mkdir()
    lines = [json.dumps(record) for record in table.to_dict("records")]
    (folder / "predictions.jsonl").write_text("\n".join(lines) + "\n")
    write_json(folder / "metrics.json", evaluate(table, seed=0, draws=20))
    write_json(folder / "environment.json", {"model": {"name": model}, "benchmark": {"name": "mossbench"},
                                             "finished": "now"})  # fmt: skip
    return folder


def test_models_that_refuse_more_of_both_correlate() -> None:
    table = frame(SUBSETS, MODELS)
    found = safety_correlation(table, seed=0, draws=200)
    assert found.evidence["rho"] == pytest.approx(0.97, abs=0.01)  # d and e tie on one side
    assert found.evidence["over_questions"]["low"] <= found.evidence["rho"] <= found.evidence["over_questions"]["high"]
    few = sentence(found)
    assert few.endswith("is 0.97 (no interval): too few models to tell (it takes 10).")


@pytest.mark.parametrize(("sign", "relation"), [(1, "refuse more benign ones"), (-1, "refuse fewer benign ones")])
def test_ten_models_carry_a_relation_by_their_interval(sign: int, relation: str) -> None:
    models = {f"m{at}": answers(2 + at, (6 + at) if sign > 0 else 18 - at) for at in range(10)}
    found = safety_correlation(frame(SUBSETS, models), seed=0, draws=50)
    said = sentence(found)
    assert said.endswith(f": models that refuse more harmful requests {relation}.")
    assert "95% interval over models" in said
    assert "p " not in said
    shuffled = {f"m{at}": answers(2 + at, 6 + at * 3 % 10) for at in range(10)}
    unclear = sentence(safety_correlation(frame(SUBSETS, shuffled), seed=0, draws=50))
    assert unclear.endswith(": a relation is not shown.")


def test_two_models_are_no_correlation() -> None:
    found = safety_correlation(frame(SUBSETS, {name: MODELS[name] for name in "ab"}), seed=0, draws=20)
    assert "cannot be told from 2 models" in sentence(found)


def test_a_model_without_twins_is_left_out() -> None:
    table = frame(SUBSETS, MODELS | {"only benign": "r" * 20 + "x" * 20})
    found = safety_correlation(table, seed=0, draws=20)
    assert found.evidence["n"] == 5


@pytest.mark.long
def test_runs_become_a_figure_and_a_sentence(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / name, f"model {name}", frame(SUBSETS, {"baseline": MODELS[name], "prompt": "r" * 40}))
        for name in "abcd"
    ]
    listed = ",".join(map(str, folders))
    run = run_of("task=mossbench_safety", f"runs=[{listed}]", f"output_root={tmp_path / 'outputs'}", "draws=50")
    run.task(run)
    (folder,) = (tmp_path / "outputs" / "mossbench_safety").iterdir()
    found = json.loads((folder / "safety.json").read_text())
    assert [model["name"] for model in found["models"]] == [f"model {name}" for name in "abcd"]
    assert found["findings"][0]["evidence"]["rho"] == pytest.approx(1)
    assert (folder / "safety.svg").stat().st_size > 1000
    assert set(records_by_model(folders[:1], "baseline")["arm"]) == {"baseline", "prompt"}, "of one run, its arms"
    with pytest.raises(UserError, match=r"two runs are of the model model a"):
        records_by_model([folders[0], folders[0]], "baseline")
    with pytest.raises(UserError, match="no arm 'vcd'"):
        records_by_model(folders, "vcd")


@pytest.mark.long
def test_without_runs_or_with_others_it_says_what_it_needs(tmp_path: Path) -> None:
    run = run_of("task=mossbench_safety", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"runs=null"):
        run.task(run)
    with pytest.raises(UserError, match="no refusal benchmark"):
        records_by_model([write_run(tmp_path / "run", predictions(20), draws=20)], "baseline")
