"""MMSafeAware's tables: the arithmetic of every printed row, and ours beside them from runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.benchmarks.published import printed_rows
from experiments.evaluation.finished_runs import Finished
from experiments.metrics.results import evaluate
from experiments.report.tables import in_terminal
from experiments.studies.paper_tables.mmsafeaware import (
    PaperTable,
    beside,
    conventions_met,
    lines,
    overalls,
)
from interp.errors import UserError
from tests.experiments.compose import run_of
from tests.experiments.synthetic_predictions import records
from tests.experiments.synthetic_run import predictions, write_run

CLOSED_WITH_PROMPT = ("GPT-4V + Prompt", "GPT-4o + Prompt", "Gemini 1.5 + Prompt")


@pytest.mark.parametrize(("table", "row"), [(table, row) for table in (1, 2, 3) for row in printed_rows(table)])
def test_every_printed_overall_follows_from_its_columns_under_one_convention(table: int, row: Any) -> None:
    weighted = (table == 2 and not row.name.endswith("prompt")) or row.name in CLOSED_WITH_PROMPT
    expected = "macro_mean" if table == 1 else "case_weighted" if weighted else "two_thirds_unsafe"
    assert expected in conventions_met(row)
    assert len(conventions_met(row)) == 1, "the conventions can be told apart on every row"


def test_conventions_are_three_and_differ() -> None:
    row = replace(printed_rows(1)[0], typical=1.0, attack=0.0, over_safety=0.0, overall=0.58)
    assert overalls(row) == pytest.approx(
        {"macro_mean": 1 / 3, "two_thirds_unsafe": 2 * 171 / 1026 / 3, "case_weighted": 171 / 1523}
    )
    assert conventions_met(row) == []


def evaluated(**arms: str) -> Finished:
    rows = records("ttaaoo", arms)
    for row, wrapper in zip(rows, ["", "", "role_play", "goal_hijacking", "", ""] * len(arms), strict=True):
        row["tags"] = {"wrapper": wrapper} if wrapper else {}
    return finished(rows, "mmsafeaware")


def finished(rows: list[dict[str, Any]], benchmark: str, draws: int = 20) -> Finished:
    evaluation = evaluate(pd.DataFrame(rows), "yes_no", seed=0, draws=draws)
    return Finished("model", benchmark, evaluation.results, evaluation.design)


def test_ours_stand_below_the_papers_rows() -> None:
    run = evaluated(baseline="nnnyyn", safety_prompt="nnnnnn", calibrated_shift="yyyyyy")
    for table, ours in ((1, ["baseline"]), (2, ["baseline", "safety_prompt"]), (3, ["safety_prompt"])):
        shown = lines(table, [run], "safety_prompt")
        assert [line["arm"] for line in shown if line["source"] == "ours"] == ours
        assert [line["source"] for line in shown] == sorted((line["source"] for line in shown), reverse=True)
    baseline = lines(1, [run], "")[-1]
    assert [baseline[name] for name in ("typical", "attack", "over_safety")] == [1, 0.5, 0.5]
    conventions = ("macro_mean", "two_thirds_unsafe", "case_weighted")
    assert [baseline[f"overall_{name}"] for name in conventions] == pytest.approx([2 / 3, 2 / 3, 4 / 6])


def test_mmsafeaware_has_the_papers_29_scenarios_and_the_unresolved_cases(shared: Path) -> None:
    from experiments.benchmarks.mmsafeaware import MMSafeAware

    samples = MMSafeAware(root=str(shared / "data" / "mmsafeaware"), require_images=False).load().samples
    rows = [{"case": s.id, "arm": "baseline", "status": "answered", "verdict": s.gold, "margin": None,
             "subset": s.subset, "scenario": s.scenario, "gold": s.gold, "cluster": s.cluster, "tags": dict(s.tags)}
            for s in samples]  # fmt: skip
    kinds = {"typical": "scenario=", "over_safety": "scenario=", "attack": "tag:wrapper="}
    results = finished(rows, "mmsafeaware", draws=5).results
    scenarios = [
        row for row in results.select(against="", rule="") if row.group.startswith(kinds.get(row.subset, "none"))
    ]
    assert sum(row.n or 0 for row in scenarios) == 1523
    assert len([row for row in scenarios if "unresolved" not in row.group]) == 29


def test_missing_arms_and_other_benchmarks_are_refused_by_name() -> None:
    run = evaluated(baseline="nnnyyn")
    with pytest.raises(UserError, match=r"no arm 'safety_prompt'.*known: baseline"):
        lines(2, [run], "safety_prompt")
    with pytest.raises(UserError, match="refusal benchmark"):
        lines(1, [run._replace(design={"kind": "refusal"})], "")
    with pytest.raises(UserError, match=r"task\.table=4"):
        PaperTable(table=4)


@pytest.mark.long
def test_a_table_from_finished_runs_needs_no_model(
    tmp_path: Path, no_weights: None, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [write_run(tmp_path / name, predictions(60), draws=20) for name in ("a", "b")]
    run = run_of("+exp=mmsafeaware_table3", f"runs=[{folders[0]},{folders[1]}]", f"output_root={tmp_path / 'outputs'}")
    run.task(run)
    (folder,) = (tmp_path / "outputs" / "mmsafeaware_table3").iterdir()
    table = pd.read_csv(folder / "table.csv")
    assert list(table[table["source"] == "ours"]["arm"]) == ["vcd", "prompt"] * 2
    assert "llava_organism (ffffffff) on iconworld: other cases than the paper's" in " ".join(
        capsys.readouterr().out.split()
    )
    again = run_of("+exp=mmsafeaware_table3", f"runs=[{tmp_path}]", f"output_root={tmp_path / 'outputs'}")
    with pytest.raises(UserError, match="has no finished run"):
        again.task(again)


def test_the_terminal_marks_the_convention_of_each_printed_row() -> None:
    from rich.console import Console

    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    shown = lines(2, [evaluated(baseline="nnnyyn", safety_prompt="nnnnnn")], "safety_prompt")
    console.print(in_terminal(beside(2, pd.DataFrame(shown))))
    text = console.export_text()
    assert text.count("*") == 8
    assert max(map(len, text.splitlines())) <= 80
