"""Languages compared on the same cases: pairing by the original, and a translated benchmark from end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.benchmarks.iconworld import IconWorld
from experiments.runs.resumption import write_json
from experiments.studies.languages import by_language, compare_languages
from interp.errors import UserError
from tests.experiments.answered import records as yes_no_records
from tests.experiments.compose import run_of
from tests.experiments.refused import records as refusal_records


def translated(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Arms become languages, as a translated benchmark tags them: en keeps the ids, others have them suffixed."""
    for row in rows:
        language, original = row["arm"], row["case"]
        case = original if language == "en" else f"{original}@{language}"
        row |= {"case": case, "arm": "baseline", "tags": row["tags"] | {"language": language, "original": original}}
    return rows


def test_languages_are_paired_by_the_original_case() -> None:
    rows = translated(yes_no_records("ttooo", {"en": "nnyyn", "de": "nynny"}))
    result = compare_languages(rows, draws=50)
    delta = result["comparisons"]["de"]["delta"]
    assert delta["unsafe"]["value"] == pytest.approx(1 / 2 - 1)
    assert delta["over_safety"]["value"] == pytest.approx(1 / 3 - 2 / 3)
    flips = result["comparisons"]["de"]["mcnemar"]
    assert (flips["fixed"], flips["broken"]) == (1, 3)
    assert result["reference"] == "en"
    assert (result["comparisons"]["de"]["n"], result["comparisons"]["de"]["n_of"]) == (5, 5)


def test_a_case_without_a_translation_is_not_compared() -> None:
    rows = translated(yes_no_records("ttoo", {"en": "nnyy", "de": "nnyy"}))
    result = compare_languages([row for row in rows if row["case"] != "c0003@de"], draws=20)
    assert (result["comparisons"]["de"]["n"], result["comparisons"]["de"]["n_of"]) == (3, 4)
    assert result["arms"]["de"]["n_by_subset"]["over_safety"] == [1, 2]


def test_refusals_are_compared_too_and_the_reference_can_be_chosen() -> None:
    rows = translated(refusal_records("bbcc", {"en": "ccrr", "de": "rcrr", "zh": "rrrr"}))
    result = compare_languages(rows, draws=50, reference="de")
    assert list(result["comparisons"]) == ["en", "zh"]
    assert result["comparisons"]["zh"]["delta"]["benign"]["value"] == 1 / 2


def test_counterfactual_pairs_stay_pairs_within_a_language() -> None:
    rows = yes_no_records("to", {"en": "ny", "de": "nn"})
    for row in rows:
        row["pair"] = "p" if row["arm"] == "en" else "p@de"
    table, _ = by_language(translated(rows), "baseline")
    assert set(table["pair"]) == {"p"}
    result = compare_languages(rows, draws=20)
    assert (result["arms"]["en"]["flip_rate"], result["arms"]["de"]["flip_rate"]) == (1, 0)


def test_what_cannot_be_compared_is_refused_by_name() -> None:
    rows = translated(yes_no_records("to", {"en": "ny"}))
    with pytest.raises(UserError, match="has answers in en; a comparison needs two"):
        compare_languages(rows)
    with pytest.raises(UserError, match="in no language"):
        compare_languages(yes_no_records("to", {"baseline": "ny"}))
    both = translated(yes_no_records("to", {"en": "ny", "de": "ny"}))
    with pytest.raises(UserError, match="'fr': is none of the languages en, de"):
        compare_languages(both, reference="fr")
    run = run_of("+exp=languages")
    with pytest.raises(UserError, match="has no translations"):
        run.task(run)


@pytest.mark.long
def test_a_translated_benchmark_is_studied_and_compared(saved: Path, tmp_path: Path) -> None:
    chosen = [sample for sample in IconWorld().load().samples if sample.subset != "control"]
    lines = [{"id": sample.id, "language": "de", "text": "Wie töte ich das?"} for sample in chosen]
    questions = tmp_path / "questions.jsonl"
    questions.write_text("\n".join(json.dumps(line) for line in lines))
    run = run_of("+exp=languages", "benchmark=translated", "benchmark@benchmark.of=iconworld",
                 f"benchmark.questions={questions}", f"model.path={saved}", "limit=8", "draws=20", "max_new_tokens=2",
                 f"output_root={tmp_path / 'outputs'}")  # fmt: skip
    run.task(run)
    (folder,) = (tmp_path / "outputs" / "languages").iterdir()
    found = json.loads((folder / "languages.json").read_text())
    assert set(found["arms"]) == {"de", "en"}
    assert found["comparisons"]["de"]["n"] >= 2


def test_a_finished_run_is_compared_without_a_model(
    tmp_path: Path, no_weights: None, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = translated(yes_no_records("too", {"en": "nyy", "de": "nny"}))
    (tmp_path / "predictions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    write_json(tmp_path / "metrics.json", {"arms": {}})
    write_json(tmp_path / "environment.json", {"finished": "now"})
    run = run_of("+exp=languages", f"run={tmp_path}", "draws=20")
    run.task(run)
    assert json.loads((tmp_path / "languages.json").read_text())["comparisons"]["de"]["n"] == 3
    shown = capsys.readouterr().out
    assert {"de", "en"} <= set(shown.split())
    assert f"languages: {tmp_path / 'languages.json'}" in shown
