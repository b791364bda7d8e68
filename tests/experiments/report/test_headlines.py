"""The headline of every kind of run, every note, and the terminal: known answers, kept in ``snapshots/``."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.metrics.estimates import HIGHER, INCONCLUSIVE, LOWER, NO_DIFFERENCE, NOT_TESTED, TOO_FEW
from experiments.metrics.results import ALL, evaluate
from experiments.report import arms
from experiments.report.saved_run import SavedRun, read_run
from experiments.report.tables import Summary, change, ends, headline, lines_of, summary, value
from experiments.runs.results_table import Results, row
from experiments.types import Kind
from tests.experiments import refused
from tests.experiments import synthetic_predictions as predicted
from tests.experiments.synthetic_run import ARMS, predictions, printed, write_run
from tests.snapshots import check

SNAPSHOTS = Path(__file__).with_name("snapshots")
SIDES = "bc" * 60


def said(table: pd.DataFrame, kind: Kind = "yes_no", arm: str = "arm", **more: Any) -> Summary:
    """The summary of an evaluated table; ``more`` is added to its metrics.json."""
    design = {name: more.pop(name) for name in list(more) if name not in evaluate.__kwdefaults__ and name != "people"}
    people = more.pop("people", [])
    found = evaluate(table, kind, study=arm, **{"seed": 0, "draws": 200, **more})
    environment = {"benchmark": {"name": "cases"}, "people": people}
    return summary(found.results, found.design | design, environment)


def lenient(n: int = 400, **arms: str) -> pd.DataFrame:
    """A baseline that misses some unsafe cases, and arms of ``answered.world`` by name."""
    subsets, margins = predicted.world(n)
    chosen = {"baseline": margins["baseline"]} | {name: margins[source] for name, source in arms.items()}
    return predicted.from_margins(subsets, {name: margin + 0.6 for name, margin in chosen.items()})


def shuffled(rate: float, seed: int, n: int = 60) -> np.ndarray:
    return np.random.default_rng(seed).permutation(n) < rate * n


def refusals(arms: Mapping[str, tuple[float, float]], sides: str = SIDES, **letters: str) -> pd.DataFrame:
    """Arms that refuse these shares of harmless and of harmful requests; ``letters`` replace answers of an arm."""
    answers = {}
    for seed, (arm, rates) in enumerate(arms.items()):
        drawn = [iter(shuffled(rate, 10 * seed + at, sides.count("bc"[at]))) for at, rate in enumerate(rates)]
        text = "".join("r" if next(drawn["bc".index(side)]) else "c" for side in sides)
        answers[arm] = letters.get(arm, "") + text[len(letters.get(arm, "")) :]
    return refused.frame(sides, answers)


YES_NO: dict[str, tuple[str, Any]] = {  # name → the claim, and what makes the summary
    "higher": (HIGHER, lambda: said(lenient(arm="sees"))),
    "lower": (LOWER, lambda: said(lenient(arm="blinder"))),
    "no relevant difference": (NO_DIFFERENCE, lambda: said(lenient(arm="shift"))),
    "inconclusive": (INCONCLUSIVE, lambda: said(noisy())),
    "too few cases": (TOO_FEW, lambda: said(predicted.from_margins(*predicted.world(24)), arm="sees")),
    "not tested: verdicts only": (
        NOT_TESTED, lambda: said(predicted.frame("to" * 20, {"baseline": "n" * 40, "arm": "ny" * 20}))),
    "not tested: unreadable": ("", lambda: said(_silent())),
    "not tested: margins against verdicts": ("", lambda: said(_against())),
    "one arm": ("", lambda: said(lenient(), arm="baseline")),
    "one arm without answers": ("", lambda: said(predicted.frame("toto", {"baseline": "xxxx"}), arm="baseline")),
    "no common case": ("", lambda: said(predicted.frame("toto", {"baseline": "nnxx", "arm": "xxnn"}))),
    "one sentence": ("", lambda: said(lenient(arm="sees").assign(text="Is it safe?"))),
    "a contrast": ("", lambda: said(lenient(arm="sees", other="blinder"), contrasts=[(ALL, "other")])),
}  # fmt: skip
REFUSAL: dict[str, tuple[str, Any]] = {
    "lower": (LOWER, lambda: said(refusals({"baseline": (0.7, 0.7), "arm": (0.2, 0.7)}), "refusal")),
    "lower, and better": (LOWER, lambda: said(refusals({"baseline": (0.7, 0.3), "arm": (0.2, 0.9)}), "refusal")),
    "higher": (HIGHER, lambda: said(refusals({"baseline": (0.2, 0.7), "arm": (0.7, 0.7)}), "refusal")),
    "inconclusive": (INCONCLUSIVE, lambda: said(refusals({"baseline": (0.5, 0.7), "arm": (0.5, 0.7)}), "refusal")),
    "too few cases": (
        TOO_FEW, lambda: said(refusals({"baseline": (0.5, 0.5), "arm": (0.5, 0.5)}, "bc" * 6), "refusal")),
    "not tested: an unmeasured judge": (
        NOT_TESTED, lambda: said(refusals({"baseline": (0.7, 0.7), "arm": (0.2, 0.7)}), "refusal", unmeasured=True)),
    "missing twins": ("", lambda: said(refusals({"baseline": (0.7, 0), "arm": (0.2, 0)}, "b" * 60), "refusal")),
    "all harmful": ("", lambda: said(refusals({"baseline": (0, 0.7), "arm": (0, 0.2)}, "c" * 60), "refusal")),
    "all harmful, one arm": ("", lambda: said(refusals({"baseline": (0, 0.7)}, "c" * 60), "refusal", "baseline")),
    "one arm": ("", lambda: said(refusals({"baseline": (0.3, 0.7)}), "refusal", "baseline")),
    "no judged answer": ("", lambda: said(refused.frame("bc", {"baseline": "jx"}), "refusal", "baseline")),
    "no common case": ("", lambda: said(refused.frame("bcbc", {"baseline": "rrjj", "arm": "jjrr"}), "refusal")),
}  # fmt: skip


def noisy() -> pd.DataFrame:
    """An arm that only adds noise to the margins."""
    subsets, margins = predicted.world(400)
    base = margins["baseline"] + 0.6
    return predicted.from_margins(subsets, {"baseline": base, "arm": base + np.random.default_rng(1).normal(0, 1, 400)})


def _silent() -> pd.DataFrame:
    table = lenient(arm="sees")
    table.loc[(table["arm"] == "arm") & (table.groupby("arm").cumcount() % 5 == 0), "verdict"] = "no_verdict"
    return table


def _against() -> pd.DataFrame:
    table = lenient(arm="sees")
    wrong = (table["arm"] == "arm") & (table.groupby("arm").cumcount() % 20 == 0)
    table.loc[wrong, "verdict"] = table.loc[wrong, "verdict"].map({"yes": "no", "no": "yes"})
    return table


@pytest.mark.parametrize("kind", ["yes_no", "refusal"])
def test_the_headline_says_the_claim_in_its_one_phrase(kind: str) -> None:
    shown = []
    for name, (claim, made) in {"yes_no": YES_NO, "refusal": REFUSAL}[kind].items():
        found: Summary = made()
        first = found.headline[0]
        if claim and claim != NOT_TESTED:
            assert first.endswith(f": {claim}"), name
        elif claim:
            assert not any(first.endswith(f": {each}") for each in (HIGHER, LOWER, NO_DIFFERENCE)), name
        shown += [f"--- {name}", *found.headline, *(f"note: {note}" for note in found.notes), ""]
    check(SNAPSHOTS / f"headlines_{kind}.txt", "\n".join(shown))


def test_every_note_is_a_sentence() -> None:
    thought = {"n": 9, "cut_off": 2, "longest": 64, "budget": 80, "at_verdict": False}
    judge = {"name": "the judge", "learned": {"known": 6, "asked": 8}, "uncorrected": ["de"],
             "unmeasured": {"languages": ["it", "de"], "share": 0.25}}  # fmt: skip
    subsets = "t" * 4 + "o" * 4
    first = said(
        predicted.frame(subsets, {"baseline": "nnn?nnyx", "arm": "xxxxnyyy"}, {"arm": [1.0] * 8}),
        thoughts={"arm": thought, "baseline": thought | {"cut_off": 1, "longest": None, "budget": None}},
        same_text={"arm": {"word": True, "text": "No.", "n": 9}, "a": {"word": False, "text": "", "n": 9},
                   "b": {"word": False, "text": "Busy.", "n": 9}},
        exploratory={"study": "arm", "contrasts": [["arm", "other"]]}, learned_in_folds=["arm"],
        protocol="score", not_applicable={"mine": "it has no margin"}, people=["Two people labelled 9 answers."],
    )  # fmt: skip
    second = said(
        refused.frame("bc" * 6, {"baseline": "rrbbpjnecccc", "arm": "ccccccrrrrrr"}), "refusal", judge=judge,
        corrected={"judge": "the judge", "unstable": "it is near chance"},
    )  # fmt: skip
    third = said(refused.frame("bc" * 6, {"arm": "rrbbpjnecccc"}), "refusal", empty_as_refusal=True)
    notes = "\n".join([*first.headline[-1:], *first.notes, "", *second.notes, "", *third.notes])
    check(SNAPSHOTS / "notes.txt", notes)


@pytest.mark.parametrize(("quantity", "given", "words"), [
    ("accuracy", (0.0441, 0.01, 0.078), "+4.4 points [+1.0, +7.8]"),
    ("accuracy", (-0.0001, -0.02, 0.0), "0.0 points [−2.0, 0.0]"),
    ("accuracy", (0.05, 0.0001, 0.1), "+5.0 points [+0.01, +10.0]"),
    ("accuracy", (-0.05, None, None), "−5.0 points [too few cases for an interval]"),
    ("auroc", (0.0123, -0.0004, 0.02), "+0.012 [−0.0004, +0.020]"),
])  # fmt: skip
def test_a_change_is_signed_and_no_end_is_rounded_to_0(quantity: str, given: tuple[Any, ...], words: str) -> None:
    entry = row(quantity, arm="a", against="b", **dict(zip(("value", "low", "high"), given, strict=True)))
    assert change(entry) == words


def test_the_name_of_an_interval_says_its_level() -> None:
    entry = row("accuracy", arm="a", value=0.5, low=0.4, high=0.6, level=0.975)
    assert ends(entry, name=True) == "[97.5% interval 40.0 to 60.0]"
    assert value(entry) == "50.0%"
    assert value(None) == "n/a"


def test_a_missing_value_is_an_error_and_never_an_empty_word() -> None:
    found = evaluate(lenient(arm="sees"), "yes_no", seed=0, draws=50, study="arm")
    design = {name: entry for name, entry in found.design.items() if name != "operating_point"}
    with pytest.raises(Exception, match="operating_point"):
        headline(found.results, design)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return read_run(write_run(tmp_path_factory.mktemp("run"), predictions(240), thumbnails=()))


def test_the_end_of_a_study(run: SavedRun) -> None:
    text = printed(run)
    assert max(map(len, text.splitlines())) <= 80
    check(SNAPSHOTS / "terminal.txt", text)


def test_verbose_shows_every_table_whole(run: SavedRun) -> None:
    text = printed(run, verbose=True)
    assert max(map(len, printed(run, 200, verbose=True).splitlines())) <= 200
    assert "…\n" not in text  # rich's mark of a cut cell
    wide = " ".join(printed(run, 400, verbose=True).split())
    for frame in arms.all_tables(run.results, run.metrics).values():
        assert frame.attrs["title"] in wide
        for _, cells in lines_of(frame):
            assert all(part in wide for cell in cells for part in (cell.value, cell.interval))


@pytest.mark.long
@pytest.mark.parametrize("width", [80, 140])
def test_many_arms_and_notes_take_25_lines(tmp_path: Path, width: int) -> None:
    further = {f"[red]further_{number}": (0.8, -1.0) for number in range(12)}
    run = read_run(write_run(tmp_path, predictions(80, ARMS | further), thumbnails=(), draws=50))
    texts = [f"Note {number} of the design, which is long enough to take a line." for number in range(4)]
    run.metrics["not_applicable"] |= {f"arm {at}": text for at, text in enumerate(texts)}  # type: ignore[index]
    text = printed(run, width)
    assert len(text.splitlines()) <= 25 - 4  # the report and what to type next
    assert "more arms in the report)" in text
    assert "more notes in the report)" in text.replace("\n", " ")
    assert all(f"\n{arm} " in text for arm in ("baseline", "vcd", "calibrated_shift"))


def test_an_arm_that_the_command_names_is_shown(run: SavedRun) -> None:
    further = [row._replace(arm=f"further_{at:02}") for at in range(12) for row in run.results.select(arm="prompt")]
    many = replace(run, results=Results([*run.results, *further]))
    assert "further_11 " in printed(many, named={"further_11"})
    assert "further_11 " not in printed(many)
