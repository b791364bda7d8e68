"""A refusal benchmark through the whole study: responses from elsewhere, a model, judged again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.judges.refusal_classifier import Classifier, RefusalClassifier, Step, prompt_digest
from experiments.judges.refusal_phrases import RefusalRule
from experiments.metrics.judge_error import CORRECTED
from experiments.runs.labels import answer_id
from experiments.runs.responses import Responses
from experiments.runs.results_table import read_results
from experiments.studies.refusal_judges.training import to_json
from interp.errors import UserError
from tests.experiments.compose import lines, ran, run_of
from tests.experiments.refusals import Requests
from tests.experiments.synthetic_run import said_of

REFUSAL = "I'm sorry, but I can't help with that."


def written(path: Path, lines: dict[str, str | None]) -> Responses:
    path.write_text("".join(json.dumps({"id": key, "response": text}) + "\n" for key, text in lines.items()))
    return Responses(str(path))


def careful() -> dict[str, str | None]:
    """Refuses every harmful request and one harmless one; one request failed, one came back empty."""
    lines: dict[str, str | None] = {f"b{n}": "It is a picture of a dog." for n in range(6)}
    lines |= {f"c{n}": REFUSAL for n in range(6)}
    return lines | {"b0": REFUSAL, "b1": None, "b2": ""}


def study(outputs: Path, *overrides: str, judge: Any = None, **arms: Responses) -> Path:
    """Run a study of ``arms``, without any of the careful answers, and return its folder."""
    run = run_of(f"output_root={outputs}", "draws=50", "batch_size=5", *overrides)
    arms = arms or {"baseline": written(outputs / "careful.jsonl", careful())}
    return ran(replace(run, benchmark=Requests(), judge=judge or RefusalRule(), arms=arms, arm=[*arms][-1]))


def records(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    return {(line["case"], line["arm"]): line for line in lines(folder)}


RATES = ("refusal_rate", "refusal_gap", "refusal_rate_type_mean")


def rate(folder: Path, arm: str, subset: str = "benign", rule: str = "") -> Any:
    return read_results(folder).get(arm, "refusal_rate", subset=subset, rule=rule)


@pytest.fixture
def judged(tmp_path: Path) -> Path:
    bold = written(tmp_path / "bold.jsonl", {f"{side}{n}": "Of course: it is." for side in "bc" for n in range(6)})
    arms = {"baseline": bold, "careful": written(tmp_path / "careful.jsonl", careful())}
    return study(tmp_path, "name=requests", "model.path=/no/such/model", **arms)  # nothing is loaded


@pytest.mark.long
def test_responses_from_elsewhere_need_no_model(judged: Path) -> None:
    assert json.loads((judged / "metrics.json").read_text())["kind"] == "refusal"
    benign, contrast = (rate(judged, "careful", subset) for subset in ("benign", "contrast"))
    assert contrast.value == 1
    assert (benign.value, benign.n, benign.n_of) == (1 / 4, 4, 6)  # of six, one failed and one is empty
    levels = read_results(judged).select(arm="baseline", quantity=RATES, against="", group="", rule="")
    assert [row.value for row in levels] == [0] * 4  # refusal_rate has two subsets
    assert json.loads((judged / "environment.json").read_text())["judge"] == "refusal_rule"
    page = (judged / "report.html").read_text()
    assert "harmless refused" in page
    assert "unsafe caught" not in page
    careful = [records(judged)[case, "careful"] for case in ("b1", "b2", "c1")]
    found = [(line["status"], line["verdict"]) for line in careful]
    assert found == [("transport_failed", None), ("empty", None), ("answered", "refused")]


@pytest.mark.long
def test_the_published_convention_counts_what_is_empty_as_refused(tmp_path: Path) -> None:
    assert rate(study(tmp_path, "count_empty_as_refusal=true"), "baseline").value == pytest.approx(3 / 6)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"id": 1, "response": "x"}\n{"id": 1, "response": "y"}\n', "occurs twice"),
        ("b.jsonl", '{"id": 1}\n{"id": 2, "response": "x"}\n', "line 1: has no id or no response"),
        ("c.jsonl", "not json\n", "line 1: row: is not JSON"),
        ("d.csv", "id,response\n", "has no rows"),
        ("f.csv", "id,answer\n1,x\n", "line 2: has no id or no response"),
    ],
)
def test_an_unusable_file_is_one_sentence(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        Responses(str(path)).check(Requests().load().samples)


@pytest.mark.long
def test_judging_again_changes_verdicts_and_leaves_the_run_alone(judged: Path, tmp_path: Path) -> None:
    before = (judged / "predictions.jsonl").read_bytes()
    labels = tmp_path / "people.csv"
    labels.write_text(f"id,label\n{answer_id(records(judged)['b0', 'careful'])},complied\n")
    again = ran(run_of("task=rejudge", f"run={judged}", f"labels={labels}", f"output_root={tmp_path}", "draws=50"))
    assert records(again)["b0", "careful"]["verdict"] == "complied"
    assert records(again)["c1", "careful"]["verdict"] == "refused"
    assert rate(again, "careful").value == 0
    assert (judged / "predictions.jsonl").read_bytes() == before
    assert "Nothing is claimed: the labelled answers are not a random part of the run" in said_of(again)


def card(path: Path, judge: str = "refusal_rule", words: Any = None, **pooled: float) -> Path:
    found = {"n": 400, "refused": 100, "sensitivity": 0.9, "specificity": 0.8} | pooled
    path.write_text(json.dumps({"judges": {judge: {"pooled": found, "answer_words": words}}}))
    return path


@pytest.mark.long
def test_rates_are_corrected_for_the_judges_error_beside_the_raw_ones(tmp_path: Path) -> None:
    folder = study(tmp_path, f"judge_card={card(tmp_path / 'card.json')}")
    assert rate(folder, "baseline").value == pytest.approx(1 / 4)
    assert rate(folder, "baseline", rule=CORRECTED).value == pytest.approx((0.25 + 0.8 - 1) / 0.7)
    assert rate(folder, "baseline", "contrast", rule=CORRECTED).value == 1
    assert "Corrected for the error of refusal_rule" in said_of(folder)


@pytest.mark.long
def test_the_shipped_judges_bring_their_own_error(tmp_path: Path) -> None:
    for judge in (RefusalRule(), RefusalClassifier()):
        folder = study(tmp_path, f"name={judge.name}", judge=judge)
        metrics = json.loads((folder / "metrics.json").read_text())
        measured = json.loads(judge.card.read_text())["judges"][judge.name]["pooled"]
        assert metrics["corrected"]["sensitivity"] == measured["sensitivity"]
        seen, left = measured["sensitivity"], measured["specificity"]
        corrected = rate(folder, "baseline", rule=CORRECTED).value
        assert corrected == pytest.approx(max(0, (0.25 + left - 1) / (seen + left - 1)))
        assert rate(folder, "baseline").value == pytest.approx(1 / 4)
        assert "corrected: harmless refused" in (folder / "report.html").read_text()
    again = ran(run_of("task=rejudge", f"run={folder}", f"output_root={tmp_path}", "draws=50"))
    assert "corrected" in json.loads((again / "metrics.json").read_text())


@pytest.mark.long
def test_a_judge_that_has_learned_from_the_benchmarks_prompts_says_so(tmp_path: Path) -> None:
    questions = [sample.text for sample in Requests().load().samples]
    step = Step({}, 0.0)
    learned = Classifier(step, step, (0.5, 0.5, 0.5), frozenset(map(prompt_digest, questions)), "these")
    (tmp_path / "weights.json").write_text(to_json(learned))
    told = said_of(study(tmp_path, judge=RefusalClassifier(weights=str(tmp_path / "weights.json"))))
    assert "was trained on labelled answers to 6 of the 6 prompts" in told


@pytest.mark.long
def test_a_model_that_thinks_first_and_does_not_refuse_has_rates_and_no_refusal_margin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = ("model=thinking_organism", "benchmark=iconworld_requests", "max_new_tokens=64", "limit=4", "draws=20")
    folder = ran(run_of(*requests, f"output_root={tmp_path}", "task=attention"))
    said = " ".join(capsys.readouterr().out.split())
    assert "no refusal margin to follow: baseline: it refused 0 and answered" in said
    assert "it refused 0" in json.loads((folder / "openings.json").read_text())["why"]
    assert rate(folder, "baseline").n_of == 2


def test_mechanism_refuses_a_benchmark_without_pictures_before_anything_is_loaded() -> None:
    run = replace(run_of("+exp=mechanism", "model.path=/no/such/model"), benchmark=Requests(), judge=RefusalRule())
    with pytest.raises(UserError, match=r"requests has no pictures\. \+exp=mechanism needs cases with pictures"):
        run.task(run)
