"""The first screen: what it says is what metrics.json holds, in a word, an icon and numbers, for every kind of run."""

import json
import random
import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from experiments.metrics.findings import Answer
from experiments.metrics.refusal import results as refusals
from experiments.report.opening import badge, opening
from experiments.report.table import Table
from experiments.report.words import worded

from experiments.report.build import build
from experiments.report.next_commands import next_commands
from experiments.report.numbers import brief, share
from experiments.report.sections import Section, write_section
from tests.experiments.refused import records as refusal_records
from tests.experiments.synthetic_run import ARMS, environment, metrics_of, predictions, write_run

ENTRY = {"value": 0.05, "low": 0.01, "high": 0.09, "from": 0.2, "to": 0.25, "n": 90, "clusters": 40, "needed": 300}


def lenient(cases: int = 240, **arms: tuple[float, float]) -> list[dict[str, Any]]:
    """Records of a baseline that misses enough unsafe cases to be matched."""
    return predictions(cases, {"baseline": (0.8, 0.2), "calibrated_shift": (0.8, 0.0), **arms})


def first_screen(folder: Path) -> str:
    return build(folder).read_text(encoding="utf-8").split('<section class="opening"')[1].split("\n</section>")[0]


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.long
@pytest.mark.parametrize(("arm", "icon"), [((2.6, 0.2), "up"), ((0.1, 0.2), "down"), ((0.8, 0.2), "open")])
def test_the_opening_is_the_headline_of_the_metrics(tmp_path: Path, arm: tuple[float, float], icon: str) -> None:
    folder = write_run(tmp_path, lenient(vcd=arm))
    metrics = metrics_of(folder)
    entry = metrics["comparisons"]["vcd"]["delta"]["matched_over_safety"]
    (measure,) = opening(metrics, environment(), "vcd")["measures"]
    assert measure.badge is not None
    assert measure.badge.word == entry["statement"]
    assert measure.badge.icon == icon
    assert [bar.rate for bar in measure.bars] == [entry["from"], entry["to"]]
    judged = entry | entry["decides"]
    assert f"{measure.change} [{measure.interval}]" == brief(judged, named=True)
    screen = first_screen(folder)
    assert re.search(rf'class="badge {measure.badge.tone}"><svg class="icon".*?</svg> {entry["statement"]}', screen)
    words = plain(screen)
    assert f"{share(entry['from'])} → to {share(entry['to'])}" in words
    assert brief(judged, named=True) in words
    for sentence in metrics["summary"]:
        assert sentence in plain(screen).replace("&#39;", "'")


@pytest.mark.parametrize(
    ("answer", "more", "icon", "tone"),
    [
        (Answer.ROSE, True, "up", "good"), (Answer.ROSE, False, "up", "bad"),
        (Answer.FELL, True, "down", "bad"), (Answer.FELL, False, "down", "good"),
        (Answer.NO_CHANGE, True, "level", "flat"), (Answer.NOT_SHOWN, True, "open", "flat"),
        (Answer.TOO_FEW, True, "few", "flat"), (Answer.CANNOT_TELL, True, "none", "flat"),
    ],
)  # fmt: skip
def test_each_statement_has_an_icon_of_its_own_and_a_word(answer: Answer, more: bool, icon: str, tone: str) -> None:
    found = badge(ENTRY, answer, more=more, noun="requests")
    assert (found.icon, found.tone) == (icon, tone)
    assert found.word.startswith({Answer.CANNOT_TELL: "cannot be told"}.get(answer, answer.value))


@pytest.mark.long
def test_the_drawing_has_a_title_and_says_its_numbers_in_words(tmp_path: Path) -> None:
    screen = first_screen(write_run(tmp_path, lenient(vcd=(2.6, 0.2))))
    entry = metrics_of(tmp_path)["comparisons"]["vcd"]["delta"]["matched_over_safety"]
    (drawn,) = re.findall(r'<svg class="chart".*?</svg>', screen, re.DOTALL)
    assert 'role="img" aria-labelledby="chart-1-title chart-1-words"' in drawn
    told = drawn.split("<desc")[1].split("</desc>")[0]
    for words in (share(entry["from"]), share(entry["to"]), f"of {entry['n_safe']}", "97.5% interval"):
        assert words in told
    before, after = (float(width) for width in re.findall(r'<rect class="(?:before|after)".*?width="([\d.]+)"', drawn))
    assert after / before == pytest.approx(entry["to"] / entry["from"], abs=0.01)


@pytest.mark.long
def test_without_margins_it_cannot_be_told_and_the_verdicts_stand_there(tmp_path: Path) -> None:
    folder = write_run(tmp_path, [record | {"margin": None} for record in predictions(120)])
    found = opening(metrics_of(folder), environment(), "vcd")
    delta = metrics_of(folder)["comparisons"]["vcd"]["delta"]
    assert [measure.value for measure in found["measures"]] == [delta["over_safety"]["value"], delta["unsafe"]["value"]]
    assert "cannot be told" in plain(first_screen(folder))


@pytest.mark.long
def test_one_arm_shows_its_rates_and_compares_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(80, {"baseline": ARMS["baseline"]}), arm="baseline")
    found = opening(metrics_of(folder), environment(arm="baseline"), "baseline")
    assert [measure.badge for measure in found["measures"]] == [None, None]
    screen = first_screen(folder)
    assert "nothing to compare" in screen
    assert 'class="badge' not in screen
    html = (folder / "report.html").read_text()
    assert "Three cases that went wrong" in html
    assert "Two cases that went right" in html


def refusal_run(folder: Path, subsets: str, arms: dict[str, str], study: str) -> Path:
    folder.mkdir(exist_ok=True)
    records = refusal_records(subsets, arms)
    found = worded(refusals.evaluate(pd.DataFrame(records), seed=0, draws=200, study=study))
    (folder / "metrics.json").write_text(json.dumps(found))
    (folder / "environment.json").write_text(json.dumps(environment("mossbench", study, len(subsets))))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def test_refusals_open_with_both_kinds_of_request(tmp_path: Path) -> None:
    rng = random.Random(1)
    subsets = "bc" * 80
    before = "".join("r" if kind == "c" or rng.random() < 0.6 else "c" for kind in subsets)
    fewer = ("c" if rng.random() < 0.6 else old for old in before)
    after = "".join(new if kind == "b" else "r" for kind, new in zip(subsets, fewer, strict=True))
    folder = refusal_run(tmp_path, subsets, {"baseline": before, "vcd": after}, "vcd")
    benign, contrast = opening(metrics_of(folder), environment(), "vcd")["measures"]
    assert benign.badge is not None
    assert (benign.badge.word, benign.badge.tone) == ("fell", "good")  # fewer harmless requests refused
    assert contrast.badge is not None
    entry = metrics_of(folder)["comparisons"]["vcd"]["delta"]["contrast"]
    assert contrast.badge.word == entry["statement"]
    assert contrast.change == "0.0 points"
    assert plain(first_screen(folder)).count("95% interval") >= 2


@pytest.mark.parametrize(("subsets", "arms"), [("b" * 40, 2), ("bc" * 20, 1), ("b" * 40, 1)])
def test_refusals_without_twins_or_without_a_second_arm(tmp_path: Path, subsets: str, arms: int) -> None:
    answers = {"baseline": "rc" * (len(subsets) // 2), "vcd": "c" * len(subsets)}
    folder = refusal_run(tmp_path, subsets, dict(list(answers.items())[:arms]), list(answers)[arms - 1])
    words = plain(first_screen(folder))
    assert ("twins were not run" in words) == ("c" not in subsets)
    assert ("nothing to compare" in words) == (arms == 1)


@pytest.mark.long
def test_what_a_study_adds_stands_right_below_with_one_table_and_the_others_folded(tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(24))
    tables = [Table.of(f"Table {name}", [{"arm": "vcd", "value": name}]) for name in "ABC"]
    write_section(folder, "mechanism", Section("Where the verdict is made", ["At layer 2."], tables), {})
    html = build(folder).read_text(encoding="utf-8")
    before, folded = html.split('<section id="section-mechanism">')[1].split("</section>")[0].split("<details")
    assert "Table A" in before
    assert all(f"Table {name}" in folded for name in "BC")
    assert "More numbers: 2 tables" in folded
    assert html.index("Where the verdict is made</h2>") < html.index('<section id="examples">')
    assert 'href="#section-mechanism"' in html


@pytest.mark.long
def test_the_toy_is_called_one_and_a_real_model_is_not(tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(24))
    assert "a toy built to over-refuse" in build(folder).read_text(encoding="utf-8")
    real = environment() | {"model": {"name": "llava_1_5_7b", "path": "llava-hf/llava-1.5-7b-hf", "revision": "f" * 40}}
    (folder / "environment.json").write_text(json.dumps(real))
    assert "toy" not in plain(first_screen(folder))


@pytest.mark.long
def test_the_bundled_one_with_real_language_is_called_small_and_no_toy(tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(24))
    smol = environment() | {"model": {"name": "smol_organism", "path": "organism:smol", "revision": "f" * 40}}
    (folder / "environment.json").write_text(json.dumps(smol))
    assert "whose failure nobody put in" in build(folder).read_text(encoding="utf-8")
    words = plain(first_screen(folder))
    assert "Nothing follows for larger models" in words
    assert "toy" not in words


@pytest.mark.long
def test_what_to_type_next_stands_on_the_page_as_in_the_terminal(tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(24))
    commands = next_commands(environment(), str(folder), refusals=False)
    assert opening(metrics_of(folder), environment(), "vcd", str(folder))["commands"] == commands
    assert commands
    page = unescape(build(folder).read_text(encoding="utf-8"))
    assert all(f"{purpose}: <code>{command}</code>" in page for command, purpose in commands.items())


@pytest.mark.long
def test_the_five_questions_are_on_the_first_screen(tmp_path: Path) -> None:
    words = plain(first_screen(write_run(tmp_path, lenient(vcd=(2.6, 0.2)))))
    for question in (
        "What is wrong with this model?",
        "May I trust that?",
        "Where did it look?",
        "What do I type next?",
    ):
        assert question in words
    accuracy = metrics_of(tmp_path)["arms"]["baseline"]["accuracy"]
    assert f"baseline does not answer {share(1 - accuracy['over_safety'])} of the harmless requests" in words


@pytest.mark.parametrize(
    ("accuracy", "said"),
    [
        ({"over_safety": 0.0, "unsafe": 1.0}, "baseline answers no harmless request and catches every unsafe one."),
        (
            {"over_safety": 1.0, "unsafe": 0.5},
            "baseline answers every harmless request and does not catch 50.0% of the unsafe ones.",
        ),
    ],
)
def test_none_and_all_are_said_in_words(tmp_path: Path, accuracy: dict[str, float], said: str) -> None:
    metrics = metrics_of(write_run(tmp_path, predictions(24)))
    metrics["arms"]["baseline"]["accuracy"] |= accuracy
    assert opening(metrics, environment(), "vcd")["wrong"] == said
