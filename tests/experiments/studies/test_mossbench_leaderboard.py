"""MOSSBench's leaderboard, rescored from published responses: invented ones, and the real ones where they are."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.benchmarks.mossbench import published_questions, published_responses
from experiments.benchmarks.published import MOSSBENCH, mossbench_row
from experiments.metrics.outcomes import PUBLISHED
from experiments.metrics.results import evaluate
from experiments.runs.results_table import Results, row
from experiments.studies.mossbench_leaderboard import (
    COLUMNS,
    CONVENTIONS,
    NO_TO_A_QUESTION,
    judge_published,
    leaderboard,
    refusal_judge,
    summary,
    with_nos_counted,
)
from interp.errors import UserError
from tests.experiments.compose import ran, run_of

REFUSED, ANSWERED = "I'm sorry, but I can't help with that.", "Here is how: take the toy and begin."


def entry(type_: int, **changes: Any) -> dict[str, Any]:
    metadata = {"over": f"type {type_}", "human": 0, "child": 1, "syn": 1, "ocr": 0, "harm": [7]}
    return {"image": "images/1.png", "question": f"What of {type_}?", "metadata": metadata, "description": ""} | changes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Six questions, two of a type, and three models' responses: refusals, a null and an empty one."""
    information = {str(pid): entry(1 + pid % 3, question=f"Question {pid}?") for pid in range(1, 7)}
    write(tmp_path, information)
    publish(tmp_path, "GPT-4o", dict.fromkeys(information, ANSWERED))
    publish(tmp_path, "Gemini-Pro 1.5", dict(zip(information, [REFUSED, None, "", ANSWERED, ANSWERED, REFUSED])))  # noqa: B905
    return tmp_path


def write(root: Path, information: dict[str, Any]) -> None:
    folder = root / "data" / "images_information"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "information.json").write_text(json.dumps(information))


def publish(root: Path, model: str, texts: dict[str, str | None]) -> None:
    folder = root / "data" / "results" / model
    folder.mkdir(parents=True, exist_ok=True)
    body = json.dumps({pid: {"response": text} for pid, text in texts.items()}, indent=4)
    (folder / "data.js").write_text(f"cache['{model}'] = {body}")


def run_task(root: Path, outputs: Path) -> Path:
    return ran(run_of("task=mossbench_leaderboard", f"task.root={root}", f"output_root={outputs}", "draws=20"))


def test_both_conventions_stand_beside_the_published_row(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_task(root, tmp_path / "outputs")
    table = pd.read_csv(folder / "leaderboard.csv").set_index(["model", "convention"])
    # Types by turns from pid 1: 2, 3, 1, 2, 3, 1. Gemini refused pids 1 and 6; 2 is null and 3 is empty.
    published = table.loc[("Gemini-Pro 1.5", CONVENTIONS[0])]
    assert list(published[["exaggerated_risk", "negated_harm", "counterintuitive_interpretation"]]) == [100, 50, 50]
    answered = table.loc[("Gemini-Pro 1.5", CONVENTIONS[1])]
    assert list(answered[["exaggerated_risk", "negated_harm", "counterintuitive_interpretation"]]) == [100, 50, 0]
    assert list(answered[["n_exaggerated_risk", "n_negated_harm", "n_counterintuitive_interpretation"]]) == [1, 2, 1]
    assert published["published_average"] == 29.33
    assert published["error_exaggerated_risk"] == 75
    assert published["average"] == pytest.approx(200 / 3)
    assert "mean absolute error" in capsys.readouterr().out


def test_every_case_becomes_a_record_with_its_status(root: Path) -> None:
    answered = published_responses(root).by_model["Gemini-Pro 1.5"]
    records = list(judge_published(published_questions(root), answered, "m", run_judge()))
    assert [record["status"] for record in records] == ["answered", "transport_failed", "empty", *["answered"] * 3]
    assert records[1]["verdict"] is None
    assert records[0]["tags"] == {"human": "0", "child": "1", "syn": "1", "ocr": "0", "harm": "7"}


def run_judge() -> Any:
    return refusal_judge(run_of("task=mossbench_leaderboard").task.judge)  # type: ignore[attr-defined]


def test_the_printed_averages_are_the_means_of_their_rows() -> None:
    for name, (*cells, average) in MOSSBENCH.items():
        assert average == pytest.approx(sum(cells) / 3, abs=0.01), name


def test_folders_are_matched_with_rows_by_their_words() -> None:
    assert mossbench_row("Gemini-Pro 1.5") == MOSSBENCH["Gemini Pro 1.5"]
    assert mossbench_row("Claude 3 Opus") == MOSSBENCH["Claude 3 Opus"]
    assert mossbench_row("GPT-4") is None
    assert mossbench_row("llava_1_5_7b") == MOSSBENCH["LLaVA-1.5-7b"]


# data/results of turningpoint-ai/MOSSBench at 2a06e5c; every folder has a row.


def test_a_no_to_may_i_counts_as_a_refusal_in_a_row_of_its_own() -> None:
    asked = product(("Can I bury this?", "How do I bury this?"), COLUMNS, ("complied", "rebutted"))
    records = [
        {"case": f"case {at}", "arm": "a model", "status": "answered", "verdict": verdict, "subset": "benign",
         "scenario": type_, "gold": "comply", "cluster": f"case {at}", "pair": None, "tags": {}, "text": text}
        for at, (text, type_, verdict) in enumerate(asked)
    ]  # fmt: skip
    run = run_of("task=mossbench_leaderboard", "task.root=x", "draws=20")
    plain = evaluate(pd.DataFrame(records), "refusal", seed=0, draws=20, baseline="").results
    frame = leaderboard(plain, ["a model"], with_nos_counted(records, run)).set_index("convention")
    assert frame["average"].to_dict() == {CONVENTIONS[0]: 0, CONVENTIONS[1]: 0, NO_TO_A_QUESTION: 25}
    assert with_nos_counted([one | {"verdict": "complied"} for one in records], run) is None
    share = plain.get("a model", "rebuttal_rate", subset="benign")
    assert (share.value, share.n) == (0.5, 12)


def test_errors_are_averaged_over_cells_and_models() -> None:
    cells = {"GPT-4o": [0.1, 0.2, None], "no such model": [0.1, 0.2, 0.3], "Claude 3 Opus": [0, 0, 0]}
    rows = [
        row("refusal_rate", arm=model, subset="benign", group=f"type={name}", rule=rule, value=value, n=1)
        for model, values in cells.items() for name, value in zip(COLUMNS, values, strict=True)
        for rule in ("", PUBLISHED)
    ]  # fmt: skip
    frame = leaderboard(Results(rows), list(cells))
    first, second = summary(frame)
    printed = [*MOSSBENCH["GPT-4o"][:2], *MOSSBENCH["Claude 3 Opus"][:3]]
    errors = [abs(ours - theirs) for ours, theirs in zip((10, 20, 0, 0, 0), printed, strict=True)]
    assert first["error"] == second["error"] == pytest.approx(sum(errors) / 5)
    assert frame["average"].isna().sum() == 2
    assert list(first["types"].values()) == pytest.approx([20 / 3, 40 / 3, 15])


def test_files_of_another_shape_are_refused_by_name(root: Path) -> None:
    publish(root, "GPT-4o", {"999": ANSWERED})
    answers = published_responses(root).by_model["GPT-4o"]
    with pytest.raises(UserError, match="GPT-4o: pid 999 is no question"):
        list(judge_published(published_questions(root), answers, "GPT-4o", run_judge()))
    (root / "data" / "results" / "GPT-4o" / "data.js").write_text("alert('x')")
    with pytest.raises(UserError, match="does not begin with cache"):
        published_responses(root)
    for broken, match in (
        (entry(1, image="../../etc/passwd"), "leaves"),
        (entry(4), "'over' is 'type 4'"),
        ({"question": "?"}, "pid 1: no field 'metadata'"),
        ("text", "pid 1: not an object"),
    ):
        write(root, {"1": broken})
        with pytest.raises(UserError, match=match):
            published_questions(root)
    with pytest.raises(UserError, match="nowhere"):
        published_questions(root / "nowhere")
    with pytest.raises(UserError, match="no <model>/data"):
        published_responses(root / "nowhere")


def test_a_model_whose_published_file_is_empty_is_named_and_left_out(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for model in ("Gemini-Pro Vision", "Reka"):  # as in the repository: files of no bytes
        publish(root, model, {})
        (root / "data" / "results" / model / "data.js").write_text("")
    folder = run_task(root, tmp_path / "outputs")
    assert "Skipped, because their published file is empty: Gemini-Pro Vision, Reka.\n" in capsys.readouterr().out
    assert set(pd.read_csv(folder / "leaderboard.csv")["model"]) == {"GPT-4o", "Gemini-Pro 1.5"}
    for model in ("GPT-4o", "Gemini-Pro 1.5"):
        (root / "data" / "results" / model / "data.js").write_text("\n")
    with pytest.raises(UserError, match=r"no <model>/data\.js with published responses"):
        published_responses(root)


def test_the_real_responses_are_read_whole(shared: Path) -> None:
    root = shared / "data" / "mossbench"
    asked, (answered, empty) = published_questions(root), published_responses(root)
    assert empty == []
    assert len(asked) == 300
    assert {model: len(found) for model, found in answered.items()} == {
        "Claude 3 Haiku": 300, "GPT-4o": 300, "Gemini-Pro 1.5": 300,
    }  # fmt: skip
    without = {model: sum(not text for text in found.values()) for model, found in answered.items()}
    assert without == {"Claude 3 Haiku": 14, "GPT-4o": 0, "Gemini-Pro 1.5": 8}
