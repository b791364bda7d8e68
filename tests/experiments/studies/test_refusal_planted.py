"""The studies that look inside, on a planted model that refuses in words: they tell what was planted."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.evaluation import study
from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.estimates import HIGHER
from experiments.runs.record_fields import read_records
from experiments.runs.results_table import read_results
from experiments.runs.store import read_object
from experiments.studies.mitigation_selection.candidates import Candidate
from interp.vlm import VLM, Prompt
from mitigation.controls import YesBias
from mitigation.ecso import ECSO
from mitigation.learned.direction_ablation import AblateDirection
from mitigation.learned.probe_readout import TruthReadout
from mitigation.method import Baseline
from mitigation.threshold import CalibratedShift
from mitigation.vcd import VCD
from tests.experiments.compose import ran
from tests.experiments.refusing import Spoken, refusing_run
from tests.mitigation.test_forced import by_plain_forwards
from tests.planted import Plan, planted


def test_the_mechanism_of_a_refusal_is_the_planted_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ran(refusing_run(monkeypatch, tmp_path, "+exp=mechanism", "task.failures=6"))
    results = read_results(folder)
    group = "other=sentence; position=verdict; layer={}"
    arrives = [results.get("baseline", "patching_effect", group=group.format(layer)) for layer in range(5)]
    assert [row and row.value for row in arrives] == pytest.approx([0, 0, 1, 1, 1], abs=1e-3)
    cut = results.get("user → verdict cut", "knockout_margin", against="baseline", subset="failures", group="layers=1")
    assert cut.value > 3
    said = " ".join(capsys.readouterr().out.split())
    assert "The answers are in words: Yes is an answer, No is a refusal." in said
    assert "and covers 100% of 54 refusals" in said


@pytest.mark.long
def test_the_part_that_reads_the_sentence_is_localised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = refusing_run(monkeypatch, tmp_path, "+exp=localise", "task.questions=[picture,sentence]")
    results = read_results(ran(run))
    carrying = {
        question: {row.arm for row in results.select(quantity="part_slope", subset=question) if row.claim == HIGHER}
        for question in ("picture", "sentence")
    }
    assert carrying == {"picture": {"L1H0", "L2 MLP"}, "sentence": {"L1H1", "L2 MLP"}}


@pytest.mark.long
@pytest.mark.parametrize("thinks", [False, True])
def test_attention_is_read_where_the_decisive_token_comes_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, thinks: bool
) -> None:
    """That is after the thought, if the model thinks first."""
    folder = ran(refusing_run(monkeypatch, tmp_path, "task=attention", thinks=thinks))
    assert "One token is followed, " in " ".join(read_object(folder / "attention.json")["sentences"])
    rows = read_results(folder)
    assert sum(row.value for row in rows.select(quantity="attention_answered_differently_now")) == 0
    assert thinks or rows.get("failures", "edge_cut")


ALWAYS = Plan(in_words=True, reads=2, writes=1)  # the verdict is written before anything is read


@pytest.mark.long
@pytest.mark.parametrize(
    ("plan", "judge", "said", "rate"),
    [
        (None, Spoken(refusals=()), "baseline: it refused 0 and answered 72 requests", 0),
        (ALWAYS, Spoken(), "baseline: it refused 72 and answered 0 requests", 1),
        (None, Spoken(by_chance=True), "tools need 0.70 and 50%", None),
    ],
)
def test_a_model_without_a_usable_margin_has_one_sentence_and_its_rates(
    plan: Plan | None, judge: Spoken, said: str, rate: float | None,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folder = ran(refusing_run(monkeypatch, tmp_path, "+exp=mechanism", plan=plan, judge=judge))
    printed = " ".join(capsys.readouterr().out.split())
    assert "the mechanism was not examined: no refusal margin to follow: " in printed
    assert said in printed
    assert "traceback" not in printed
    assert said.replace(" ", "") in "".join((folder / "report.html").read_text().split())
    row = read_results(folder).get("baseline", "refusal_rate", subset="benign")
    assert rate is None or row.value == rate


@pytest.mark.long
def test_constants_and_learners_act_on_the_refusal_margin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    learners = {"readout": TruthReadout(layer=2), "ablation": AblateDirection(layer=2)}
    arms = {"baseline": Baseline(), "calibrated_shift": CalibratedShift(), "yes_bias": YesBias(), **learners}
    folder = ran(refusing_run(monkeypatch, tmp_path, arms=arms, arm="readout", attention_analysis=None))
    results = read_results(folder)
    assert set(results.arms) == set(arms)
    lines = {(line["case"], line["arm"]): line for line in read_records(folder)}
    cases = {case for case, _ in lines}
    for arm in ("calibrated_shift", "yes_bias"):
        records = [lines[case, arm] for case in sorted(cases)]
        plain = [lines[case, "baseline"]["safety_margin"] for case in sorted(cases)]
        assert len({round(line["safety_margin"] - own, 4) for line, own in zip(records, plain, strict=True)}) == 1
        assert all(line["verdict"] == ("complied" if line["safety_margin"] > 0 else "refused") for line in records)
        assert all(line["response"] is None and line["computed"] for line in records)
    answered = {arm: sum(lines[case, arm]["verdict"] == "complied" for case in cases) for arm in arms}
    assert abs(answered["yes_bias"] - answered["readout"]) <= 6
    values = {arm: results.get(arm, "auroc").value for arm in arms}
    assert values["baseline"] == values["calibrated_shift"] < 0.7
    assert values["readout"] == 1  # the picture tells what is harmless, and so does a probe of it


@pytest.mark.long
def test_without_a_margin_constants_and_learners_leave_the_study_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = {"baseline": Baseline(), "calibrated_shift": CalibratedShift(), "readout": TruthReadout(layer=2)}
    changes = {"arms": arms, "arm": "baseline", "judge": Spoken(refusals=()), "attention_analysis": None}
    folder = ran(refusing_run(monkeypatch, tmp_path, **changes))
    printed = " ".join(capsys.readouterr().out.split())
    assert "calibrated_shift does not enter: it adds a constant to the refusal margin, and there is none" in printed
    assert "readout does not enter: it learns from the refusal margin: no refusal margin to follow" in printed
    assert read_results(folder).arms == ["baseline"]


@pytest.mark.long
def test_settings_are_chosen_by_the_refusal_margin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = refusing_run(monkeypatch, tmp_path, "+exp=mitigation_selection", "task.rivals=[]")
    candidates = {
        "readout": Candidate(TruthReadout(layer=2), {"strength": [0.5, 4.0]}),
        "too_deep": Candidate(TruthReadout(layer=99)),
        "ecso": Candidate(ECSO()),
    }
    folder = ran(replace(run, task=replace(run.task, candidates=candidates), attention_analysis=None))
    reasons = read_object(folder / "metrics.json")["not_applicable"]
    assert "layer" in reasons["too_deep"]
    assert "it has no refusal margin: " in reasons["ecso"]
    choice = json.loads((folder / "choice.json").read_text())
    by_strength = {row["setting"]["strength"]: row for row in choice["readout"]["settings"]}
    assert choice["readout"]["chosen"] == by_strength[4.0]
    assert by_strength[4.0]["auroc"] > by_strength[0.5]["auroc"]
    assert choice["readout"]["chosen"]["shift"] == 0  # only the baseline gets a constant
    results = read_results(folder)
    assert set(results.arms) >= {"baseline", "threshold", "readout"}
    assert not {*reasons} & set(results.arms)
    assert results.get("readout", "auroc").value == 1


@pytest.mark.long
def test_a_heatmap_of_a_refused_request_is_drawn_at_the_decisive_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ran(refusing_run(monkeypatch, tmp_path, "+exp=heatmap_llava", "method=vcd"))
    drawn = {path.name.rpartition("_")[2] for path in (folder / "figures").glob("attention_*.png")}
    assert drawn >= {"image.png", "words.png", "heads.png"}
    printed = " ".join(capsys.readouterr().out.split())
    assert "answer of vcd: " in printed
    assert "One token is followed, " in printed
    assert ", failure)" in printed
    assert {line["arm"] for line in read_records(folder)} == {"baseline"}


@pytest.mark.long
def test_a_finished_refusal_run_is_analysed_by_its_own_openings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = ran(refusing_run(monkeypatch, tmp_path, "method=prompt", "attention=false"))
    before = {name: (folder / name).read_bytes() for name in ("predictions.jsonl", "openings.json")}
    monkeypatch.setattr("interp.loading.load", lambda config: planted(Plan(heeds=1, in_words=True)))
    ran(refusing_run(monkeypatch, tmp_path, "task=attention", f"run={folder}"))
    assert "One token is followed, " in " ".join(read_object(folder / "attention.json")["sentences"])
    assert before == {name: (folder / name).read_bytes() for name in before}


def margin_of(vlm: VLM, prompt: Prompt, openings: list[list[int]]) -> float:
    """Minus the log-odds that the answer begins with an opening, by plain forwards."""
    refusing = min(float(by_plain_forwards(vlm, [prompt], openings)[0].logsumexp(0)), -(2.0**-23))
    return math.log(-math.expm1(refusing)) - refusing


@pytest.mark.long
def test_the_margin_of_a_model_that_thinks_first_is_exact_after_its_thought(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Answers whose thoughts were cut off have none, and are counted; arms that learn before a thought leave."""
    arms = {"baseline": Baseline(), "calibrated_shift": CalibratedShift(), "vcd": VCD(beta=None)}
    arms["ablation"] = AblateDirection(layer=2)
    run = refusing_run(monkeypatch, tmp_path, thinks=True, arms=arms, arm="vcd", attention_analysis=None)
    folder, vlm = ran(run), study.connected(run)
    openings = [entry["tokens"] for entry in read_object(folder / "openings.json")["openings"]]
    assert {vlm.tokenizer.decode(opening) for opening in openings} == {"please Refuse", "unsafe text"}
    lines = [line for line in read_records(folder) if line["arm"] == "baseline"]
    samples = {sample.id: sample for sample in run.benchmark.load().samples}
    cut = [line for line in lines if len(vlm.thought(Prompt("", key=line["case"]))) > run.max_new_tokens]
    for line in lines:
        if line in cut:
            assert line["status"] == "truncated"
            assert "safety_margin" not in line
            continue
        (prompt,) = prompts_of([samples[line["case"]]])
        thought = tuple(vlm.thought(prompt))
        assert tuple(line["answer_prefix"]) == thought
        exact = margin_of(vlm, replace(prompt, answer_prefix=thought), openings)
        rounding = 2.0**-21 * math.exp(max(0.0, -exact))  # of log P near 0, in float32
        assert line["safety_margin"] == pytest.approx(exact, abs=1e-5 + rounding)
        assert (exact > 0) == (line["verdict"] == "complied")
    assert 0 < len(cut) < len(lines) / 3
    assert len({len(line["answer_prefix"]) for line in lines if line not in cut}) == 3
    design = read_object(folder / "metrics.json")
    assert f"; {len(cut)} answers have none, because their thoughts" in design["refusal_margin"]["baseline"]["sentence"]
    assert "AUROC 1.000" in design["refusal_margin"]["vcd"]["sentence"]
    assert "thinker thinks before it answers" in design["not_applicable"]["ablation"]
    assert read_results(folder).get("calibrated_shift", "auroc").n == len(lines) - len(cut)


@pytest.mark.long
def test_thoughts_before_answers_in_words_are_looked_into(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The planted thoughts carry nothing: broken off or exchanged, they change no margin."""
    overrides = ("+exp=reasoning", "task.cases=16", "task.pairs=4")
    arms = {"arms": {"baseline": Baseline()}, "arm": "baseline"}
    folder = ran(refusing_run(monkeypatch, tmp_path, *overrides, thinks=True, **arms))
    results, details = read_results(folder), read_object(folder / "reasoning.json")
    assert details["unanswered"] == {}
    assert {each["answers"] for each in details["thoughts"]} == {"yes", "no"}
    effects = results.select(arm="baseline", quantity="mediation_effect")
    through = [row.value for row in effects if row.part("part") == "through the thought"]
    total = [row.value for row in effects if row.part("part") == "total" and row.part("differs") == "picture"]
    assert through == pytest.approx([0] * len(through), abs=1e-3)
    assert min(total) > 1
    section = json.loads((folder / "sections" / "reasoning.json").read_text())
    assert "The answers are in words: Yes is an answer, No is a refusal." in section["note"]
