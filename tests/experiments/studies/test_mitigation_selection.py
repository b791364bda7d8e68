"""Settings are chosen by the stated rule and on the development split alone, and all arms stand in one table."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments.metrics.yes_no import results
from experiments.report.sentences.mitigation_selection import summary
from experiments.report.words import worded
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.report.figures import SHIFTS, trade_off
from experiments.studies.mitigation_selection.candidates import (
    Candidate,
    ChosenShift,
    DevelopmentMargins,
    best_setting,
    choose_shift,
    configured,
    setting_name,
)
from experiments.studies.mitigation_selection.study import Mitigations
from experiments.studies.mitigation_selection.tables import evaluate, table
from interp.errors import UserError
from mitigation.method import Baseline
from mitigation.threshold import ConstantShift
from mitigation.vcd import VCD
from mitigation.verbalise import Verbalise
from mitigation.wrappers import Shifted
from tests.experiments.answered import SHORT, from_margins, world
from tests.experiments.compose import run_of

RULE: dict[str, Any] = {"unsafe_margin": 0.02, "draws": 200, "seed": 0}


def development(subsets: str, baseline: Any) -> DevelopmentMargins:
    names = np.array([SHORT[short] for short in subsets])
    return DevelopmentMargins(names, np.arange(len(subsets)), np.asarray(baseline, dtype=float))


def test_the_constant_is_the_best_that_keeps_the_unsafe_unsafe() -> None:
    cases = development("ttaaoooo", [-1, -1, -1, -1, -1, -1, -1, -1])
    margin = np.array([-5.0, -4, -5, 0.5, -3, -2, 0, 1])
    chosen = choose_shift(cases, margin, **RULE)
    # Between −3 and −4 every safe case is called safe, but one unsafe case too: all unsafe ones must stay.
    assert chosen.unsafe == 1.0
    assert chosen.over_safety == 0.25
    assert 0.5 < -chosen.shift < 1.0
    assert chosen.overall == pytest.approx((1 + 1 + 0.25) / 3)
    free = choose_shift(cases, margin, **RULE | {"unsafe_margin": 1.0})
    assert (free.unsafe, free.over_safety) == (0.75, 1.0)
    assert -4 < -free.shift < -3


def test_without_a_threshold_the_method_stays_as_it_is() -> None:
    cases = development("to", [-1, -1])
    chosen = choose_shift(cases, np.array([1.0, -1.0]), threshold=False, **RULE)
    assert (chosen.shift, chosen.unsafe, chosen.over_safety, chosen.unsafe_bound) == (0.0, 0.0, 0.0, -1.0)


@settings(max_examples=20, deadline=None)
@given(st.floats(-20, 20), st.integers(0, 50))
def test_a_constant_on_the_margin_changes_nothing_but_the_shift(constant: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cases = development("ta" * 10 + "o" * 20, rng.normal(-1, 1, 40))
    margin = np.round(rng.normal(0, 1, 40), 3)
    one, two = (choose_shift(cases, m, **RULE) for m in (margin, margin + constant))
    assert (one.overall, one.unsafe_bound, one.auroc) == (two.overall, two.unsafe_bound, pytest.approx(two.auroc))


def test_failed_cases_are_left_out_and_one_class_is_no_choice() -> None:
    cases = development("tao", [-1, np.nan, -1])
    assert choose_shift(cases, np.array([-1.0, 3.0, 1.0]), **RULE).n == 2
    with pytest.raises(UserError, match="1 unsafe and 0 safe"):
        choose_shift(cases, np.array([-1.0, 1.0, np.nan]), **RULE)


def test_a_setting_that_loses_the_unsafe_is_taken_only_where_there_is_no_other() -> None:
    def chosen(overall: float, bound: float, auroc: float = 0.5) -> ChosenShift:
        return ChosenShift(0.0, overall, overall, 0.9, 0.5, bound, auroc, 10)

    known = {"good": chosen(0.7, -0.01), "bold": chosen(0.9, -0.2), "same": chosen(0.7, 0.0, auroc=0.6)}
    assert best_setting(known, unsafe_margin=0.02) == "same"
    assert best_setting({"bold": known["bold"], "worse": chosen(0.8, -0.1)}, unsafe_margin=0.02) == "bold"


def test_settings_are_all_combinations_and_reach_the_method() -> None:
    candidate = Candidate(VCD(), {"alpha": [1.0, 2.0], "noise_step": [500, 999]})
    combinations = list(candidate.settings())
    assert [setting_name(s) for s in combinations][:2] == ["alpha=1, noise_step=500", "alpha=1, noise_step=999"]
    assert configured(VCD(), combinations[-1]) == VCD(alpha=2.0, noise_step=999)
    assert configured(ConstantShift(1.0), {}, shift=2.5) == ConstantShift(3.5)  # chosen on margins that had the 1.0
    assert configured(ConstantShift(1.0), {"shift": -1.0}, shift=2.5) == ConstantShift(1.5)
    assert configured(VCD(), {}, shift=0.5) == Shifted(VCD(), 0.5)
    shifted = configured(Shifted(VCD(), 1.0), combinations[-1], shift=0.5)
    assert shifted == Shifted(VCD(alpha=2.0, noise_step=999), 1.5)
    assert configured(Shifted(VCD(), 1.0), {}, shift=-1.0) == VCD()
    for grid, rule in (({"alfa": [1]}, "no field 'alfa'"), ({"alpha": [-1.0]}, "alpha")):
        with pytest.raises(UserError, match=rule):
            configured(VCD(), next(Candidate(VCD(), grid).settings()))
    with pytest.raises(UserError, match=r"grid\.alpha"):
        Candidate(VCD(), {"alpha": []})
    with pytest.raises(UserError, match="is no method"):
        Candidate("vcd")


def choice_of(name: str) -> dict[str, Any]:
    return {name: {"chosen": {"setting": {"weight": 1.0}, "shift": -0.5, "overall": 0.8}}}


@pytest.mark.long
def test_the_table_compares_with_every_rival_on_the_same_cases() -> None:
    subsets, margins = world(400)
    arms = {name: margins[name] + 0.6 for name in ("baseline", "calibrated_shift", "shift", "sees")}
    frame = from_margins(subsets, arms)
    measured = worded(results.evaluate(frame, seed=0, draws=200, study="sees"))
    records = frame.to_dict("records")
    options: dict[str, Any] = {"seed": 0, "draws": 200}
    result = evaluate(records, measured, choice_of("sees"), rivals=["baseline", "shift"], **options)
    sees, shift = result["arms"]["sees"], result["arms"]["shift"]
    against, own = sees["versus"]["baseline"]["auroc"], measured["comparisons"]["sees"]["delta"]["auroc"]
    assert against["statement"] == own["statement"] == "rose"
    assert {key: against[key] for key in ("value", "low", "high")} == {
        key: own[key] for key in ("value", "low", "high")
    }
    assert sees["versus"]["shift"]["auroc"]["value"] == pytest.approx(sees["auroc"] - shift["auroc"])
    assert shift["versus"]["baseline"]["auroc"]["value"] == 0  # a constant discriminates as well as the baseline
    family = {one["decides"]["of"] for delta in sees["versus"].values() for one in delta.values()
              if one and "decides" in one}  # fmt: skip
    assert family == {8}, "sees against baseline and shift, in four quantities; equal by construction are left out"
    assert sees["wins"] is True
    assert result["best"] == "sees"
    result |= {"learned": ["sees"], "familiar": {"seen": 24, "of": 24}}
    told = summary(result)
    assert (
        "operating point than baseline and shift, by 95% intervals that hold for all 8 differences at once: sees; "
        in told[0]
    )
    assert told[0].endswith("to have a higher AUROC than baseline and shift: sees.")
    assert told[1].endswith("these win: sees.")
    assert "new sentences is another question" in told[2]
    assert len(summary(result | {"familiar": {"seen": 0, "of": 20}})) == 2
    assert SHIFTS in [line.get_label() for line in trade_off(result, curve=result["shift_curve"]).axes[0].lines]
    table(result)


def test_a_gain_over_the_baseline_alone_is_not_one_over_every_rival() -> None:
    subsets, margins = world(400)
    arms = {"baseline": margins["baseline"], "vcd": margins["sees"], "other": margins["sees"] + 0.01}
    frame = from_margins(subsets, {name: margin + 0.6 for name, margin in arms.items()})
    measured = worded(results.evaluate(frame, seed=0, draws=200, study="vcd"))
    options: dict[str, Any] = {"seed": 0, "draws": 200}
    result = evaluate(frame.to_dict("records"), measured, choice_of("other"), rivals=["baseline", "vcd"], **options)
    assert [one["answer"] for one in result["findings"]] == ["not shown", "not shown"]
    assert result["arms"]["other"]["versus"]["baseline"]["auroc"]["statement"] == "rose"
    for one in result["arms"].values():  # as where cases are few
        one["versus"] = {}
    told = summary({**result, "findings": [], "learned": [], "familiar": {"seen": 0, "of": 0}})
    assert (
        told[0] == "Too few cases for an interval of any difference from baseline and vcd: of no arm is a gain shown."
    )


@dataclass(frozen=True)
class Learner:
    """A candidate that learns which cases it was shown."""

    def learn(self, vlm: Any, prompts: Any, safe: Any, *, out: Path) -> "Seen":
        out.write_text(json.dumps(sorted(prompt.key for prompt in prompts)))
        return self.read(out)

    def read(self, out: Path) -> "Seen":
        return Seen(out.read_text())


@dataclass(frozen=True)
class Seen:
    """Answers as the baseline does, and never a case it has learned from."""

    known: str

    def generate(self, vlm: Any, prompts: Any, *, max_new_tokens: int) -> Any:
        asked = {prompt.key for prompt in prompts}
        learned = set(json.loads(self.known))
        assert not asked & learned, "asked on what it was learned from"
        return Baseline().generate(vlm, prompts, max_new_tokens=max_new_tokens)


OWN_GRID = {"seen": Candidate(Learner()), "moved": Candidate(VCD(), {"alpha": [0.5, 4.0]})}


def on_split(root: Path, split: str, *more: str) -> Any:
    return run_of(
        "name=m", "method=vcd", f"output_root={root}", "limit=12", "draws=20", f"benchmark.split={split}", *more
    )


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that made a choice, which nobody changes."""
    root = tmp_path_factory.mktemp("first")
    arms = ("+method@arms.calibrated_shift=calibrated_shift",)
    return Mitigations(OWN_GRID, rivals=["vcd"], development=8)(on_split(root, "test", *arms))


@pytest.mark.long
def test_a_run_chooses_on_development_and_is_judged_on_test(first: Path) -> None:
    folder = first
    choice = json.loads((folder / "choice.json").read_text())
    assert [row["setting"] for row in choice["moved"]["settings"]] == [{"alpha": 0.5}, {"alpha": 4.0}]
    result = json.loads((folder / "mitigations.json").read_text())
    assert set(result["arms"]) == {"baseline", "vcd", "calibrated_shift", "threshold", "seen", "moved"}
    assert result["arms"]["threshold"]["chosen"]["shift"] == choice["threshold"]["chosen"]["shift"]
    compared = json.loads((folder / "metrics.json").read_text())["comparisons"]
    for name, one in compared.items():  # the report's two tables say the same, simultaneous intervals included
        assert {"baseline": one["delta"], **one["versus"]} == result["arms"][name]["versus"]
    assert "vcd" in compared["seen"]["versus"]
    asked = {json.loads(line)["case"] for line in (folder / "choosing.jsonl").read_text().splitlines()}
    judged = {json.loads(line)["case"] for line in (folder / "predictions.jsonl").read_text().splitlines()}
    assert not asked & judged
    assert "Mitigations beside each other" in (folder / "report.html").read_text()
    assert (folder / "figures" / "mitigations.svg").exists()


def test_a_contrast_of_an_arm_that_is_not_there_is_refused(tmp_path: Path, no_weights: None) -> None:
    run = replace(on_split(tmp_path, "test"), contrasts=[["unseen", "moved"]])
    with pytest.raises(UserError, match="there is no arm 'unseen'"):
        Mitigations(OWN_GRID, rivals=["vcd"])(run)


@pytest.mark.long
def test_a_choice_is_taken_over_on_another_split_without_asking_again(
    first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (first / "choosing.jsonl").read_bytes()
    assert len({json.loads(line)["case"] for line in lines.splitlines()}) == 8
    with monkeypatch.context() as patched:
        patched.setattr(Learner, "learn", lambda *_, **__: pytest.fail("learned anew"))
        task = Mitigations(OWN_GRID, rivals=["vcd"], development=8, chosen_in=str(first))
        second = task(on_split(tmp_path, "new_sentences"))
    assert second != first
    assert (second / "choosing.jsonl").read_bytes() == lines
    assert (second / "choice.json").read_bytes() == (first / "choice.json").read_bytes()
    asked = [json.loads(line)["case"] for line in (second / "predictions.jsonl").read_text().splitlines()]
    assert all(case.startswith("new_sentences") for case in asked)


@pytest.mark.slow  # a further study
def test_fewer_candidates_take_their_choice_over(first: Path, tmp_path: Path) -> None:
    one = {"moved": OWN_GRID["moved"]}
    second = Mitigations(one, rivals=["vcd"], development=8, chosen_in=str(first))(on_split(tmp_path, "new_sentences"))
    choices = [json.loads((folder / "choice.json").read_text()) for folder in (first, second)]
    assert choices[1] == {name: choices[0][name] for name in ("threshold", "moved")}
    assert "seen" not in json.loads((second / "mitigations.json").read_text())["arms"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("grid", "development", "overrides", "rule"),
    [
        ({"moved": Candidate(VCD(), {"alpha": [0.5]})}, 8, (), "mitigations"),
        (OWN_GRID, 8, ("seed=1",), "seed"),
        (OWN_GRID, 8, ("benchmark.seed=1",), "benchmark"),
        (OWN_GRID, None, (), "mitigations"),
    ],
)
def test_another_choice_is_not_taken_over(
    first: Path, tmp_path: Path, grid: dict[str, Any], development: int | None, overrides: tuple[str, ...], rule: str
) -> None:
    other = Mitigations(grid, rivals=["vcd"], development=development, chosen_in=str(first))
    with pytest.raises(UserError, match=rf"chosen_in=.*another one \({rule}\)"):
        other(on_split(tmp_path, "new_sentences", *overrides))


@pytest.mark.long
def test_a_folder_without_a_choice_and_other_cases_are_refused(first: Path, tmp_path: Path) -> None:
    copy = tmp_path / "m" / "copy"
    shutil.copytree(first, copy)
    cases = [json.loads(line) for line in (copy / "choosing.jsonl").read_text().splitlines()]
    fewer = [line for line in cases if line["case"] != cases[0]["case"]]
    (copy / "choosing.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in fewer))
    other = Mitigations(OWN_GRID, rivals=["vcd"], development=8, chosen_in=str(copy))
    with pytest.raises(UserError, match="7 development cases, which are not the 8 of this run"):
        other(on_split(tmp_path, "new_sentences"))
    for lacking in ("choosing.jsonl", "choice.json"):
        (copy / lacking).unlink()
        with pytest.raises(UserError, match=rf"made no choice, or another one \(.*{lacking}"):
            other(on_split(tmp_path, "new_sentences"))


@pytest.mark.slow  # a further study
def test_what_asks_in_words_does_not_enter_where_the_model_needs_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"verbalise": Candidate(Verbalise(), {"resolve": ["rule", "before"]})}
    entered = Mitigations(grid, rivals=["vcd"])(on_split(tmp_path, "test"))
    assert "verbalise" in json.loads((entered / "mitigations.json").read_text())["arms"]

    def refused(vlm: Any, way_out: str) -> None:
        raise UserError(f"the family cannot answer without an image; {way_out}")

    monkeypatch.setattr("experiments.studies.mitigation_selection.study.check_words", refused)
    left_out = Mitigations(grid, rivals=["vcd"])(on_split(tmp_path, "test", "fresh=true"))
    assert "verbalise" not in json.loads((left_out / "mitigations.json").read_text())["arms"]
    assert "verbalise: the family cannot answer without an image; it does not enter" in capsys.readouterr().out


@pytest.mark.slow  # of a study's steps: tests/experiments/evaluation/test_conclude.py
def test_a_table_that_fails_leaves_the_study_and_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of("name=m", "method=vcd", f"output_root={tmp_path}", "limit=12", "draws=20")
    task = Mitigations({"moved": Candidate(VCD(), {"alpha": [0.5]})}, rivals=["vcd"])

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("nothing to compare")

    with monkeypatch.context() as patched:
        patched.setattr("experiments.studies.mitigation_selection.tables.evaluate", broken)
        folder = task(run)
    sentence = "the mitigations were not compared: RuntimeError: nothing to compare (traceback: tracebacks/mitigations"
    assert sentence in (folder / "report.html").read_text()
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert not (folder / "mitigations.json").exists()
    answers = (folder / "predictions.jsonl").read_bytes()
    assert task(run) == folder
    assert (folder / "predictions.jsonl").read_bytes() == answers
    assert (folder / "mitigations.json").exists()
    assert sentence not in (folder / "report.html").read_text()


def test_a_setting_of_a_users_file_is_chosen_as_a_field_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def rule(scores, step, *, strength=1.0, power=1):\n    return scores * strength\n")
    method = run_of("method=file", f"method.path={file}", "method.settings={power: 2}").arms["mine"]
    assert configured(method, {"strength": 0.5}).settings == {"power": 2, "strength": 0.5}
    shifted = configured(method, {"strength": 3}, shift=0.25)
    assert (shifted.shift, shifted.method.settings) == (0.25, {"power": 2, "strength": 3})
    with pytest.raises(UserError, match=r"mine.py: rule.*unexpected keyword argument 'strenght'"):
        configured(method, {"strenght": 1})


@pytest.mark.slow  # a further study
def test_a_setting_of_ones_own_method_is_chosen_by_one_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def rule(scores, step, *, strength=1.0):\n    return scores * strength\n")
    run = run_of(
        "task=setting_selection", "method=file", f"method.path={file}", "limit=40", "draws=50",
        "task.candidates.chosen.grid={strength: [0.5, 2]}", "task.development=60", f"output_root={tmp_path}",
    )  # fmt: skip
    folder = run.task(run)
    choice = json.loads((folder / "choice.json").read_text())
    assert [one["setting"] for one in choice["chosen"]["settings"]] == [{"strength": 0.5}, {"strength": 2}]
    assert choice["chosen"]["chosen"]["n"] == 60
    result = json.loads((folder / "mitigations.json").read_text())
    assert list(result["arms"]) == ["baseline", "mine", "threshold", "chosen"]
    assert f"strength': {choice['chosen']['chosen']['setting']['strength']}" in result["methods"]["chosen"]


def test_a_grid_is_checked_before_weights_load(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def rule(scores, step, *, strength=1.0):\n    return scores\n")
    run = run_of("task=setting_selection", "method=file", f"method.path={tmp_path}/mine.py", "model.path=/nowhere",
                 "task.candidates.chosen.grid={other: [1]}", f"output_root={tmp_path}/o")  # fmt: skip
    with pytest.raises(UserError, match="unexpected keyword argument 'other'"):
        run.task(run)
    assert not (tmp_path / "o").exists()
