"""The report under a reader's hands, in a real browser: the keyboard keeps its place, labels keep to their answers."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.report.build import build
from tests.experiments.browser import opened
from tests.experiments.synthetic_attention import write_attention
from tests.experiments.synthetic_run import predictions, write_run

pytestmark = pytest.mark.browser

CASE = "#case=icon%2F0001&arm=vcd"
FOCUS = "[document.activeElement.closest('[data-arm]')?.dataset.arm, document.activeElement.className].join(' ')"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), predictions(24))
    write_attention(folder, ["icon/0000", "icon/0001"], ["baseline", "vcd"])
    build(folder)
    return folder


@pytest.fixture
def tab(browser: Any, run: Path) -> Iterator[Any]:
    with opened(browser, run / "report.html", fragment=CASE) as page:
        yield page


@pytest.mark.long
def test_a_verdict_leads_to_where_it_looked(tab: Any) -> None:
    view = tab.locator('.attention .side[data-arm="vcd"]')
    view.locator("button.token").nth(1).click()
    assert view.locator("button.token").nth(1).get_attribute("aria-pressed") == "true"
    tab.locator('#detail > .sides .side[data-arm="vcd"] button.look').click()
    assert view.locator("button.token").nth(0).get_attribute("aria-pressed") == "true"


def test_the_keyboard_stays_on_what_it_pressed(tab: Any) -> None:
    tab.locator('.attention .side[data-arm="vcd"] button.token').nth(1).focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate(FOCUS) == "vcd token"
    tab.locator('#detail .side[data-arm="baseline"] button.mark-right').focus()
    tab.keyboard.press("Enter")
    assert tab.evaluate(FOCUS) == "baseline mark-right"


def test_the_length_normalised_share_leaves_out_what_was_not_there_yet(tab: Any) -> None:
    rows = tab.locator('.attention .side[data-arm="vcd"] table.bars tr')
    generated = rows.locator("xpath=self::*[@data-segment='generated']").locator("td").nth(1)
    assert generated.inner_text() == "–"  # the first token of an answer sees none of it
    share = float(rows.first.locator("td").nth(0).inner_text().rstrip("%")) / 100
    ratio = float(rows.first.locator("td").nth(1).inner_text().rstrip("×"))
    assert ratio == pytest.approx(share * (1 + 10 + 36), rel=0.02)  # the sink is one of 47 tokens
    tab.locator('.attention .side[data-arm="vcd"] button.token').nth(1).click()
    assert generated.inner_text().endswith("×")


@pytest.mark.long
def test_labels_do_not_reach_another_runs_answers(browser: Any, run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path, predictions(24, seed=1))
    build(other)
    with opened(browser, run / "report.html", fragment=CASE) as tab:
        tab.locator('#detail .side[data-arm="vcd"] button.mark-right').first.click()
        with tab.expect_download() as saved:
            tab.click("#export")
        saved.value.save_as(tmp_path / "labels.csv")
        (row,) = csv.DictReader((tmp_path / "labels.csv").open(encoding="utf-8-sig", newline=""))
        lines = map(json.loads, (run / "predictions.jsonl").read_text().splitlines())
        assert row["settings"] == next(x["settings"] for x in lines if (x["case"], x["arm"]) == (row["case"], "vcd"))
        tab.goto((other / "report.html").as_uri())
        assert tab.locator("#labelled").inner_text() == "nothing labelled yet"


@pytest.mark.long
def test_a_case_outside_the_filter_is_said_to_be(tab: Any) -> None:
    tab.fill("#search", "icon/0007")
    tab.evaluate("location.hash = '#case=icon%2F0002&arm=vcd'")
    tab.locator("#said", has_text="not among those that the filters leave").wait_for()


@pytest.mark.long
def test_an_unusual_status_can_be_filtered(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(12))
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    blocked = next(line for line in lines if line["arm"] == "vcd")
    blocked |= {"status": "provider_blocked", "verdict": None, "response": ""}
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    build(folder)
    with opened(browser, folder / "report.html") as tab:
        tab.select_option("#f-outcome", "status:provider_blocked")
        assert tab.locator(".row").count() == 1


@pytest.mark.long
def test_models_of_different_depth_stand_side_by_side(browser: Any, tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(12))
    write_attention(folder, ["icon/0001"], ["baseline"], layers=2, groups=1)
    found = json.loads((folder / "attention" / "cases.json").read_text())
    write_attention(folder, ["icon/0001"], ["vcd"], layers=4, groups=3)
    deeper = json.loads((folder / "attention" / "cases.json").read_text())
    deeper["cases"]["icon/0001"] |= found["cases"]["icon/0001"]
    (folder / "attention" / "cases.json").write_text(json.dumps(deeper))
    build(folder)
    with opened(browser, folder / "report.html", fragment=CASE) as tab:
        tab.locator("input.layer").fill("4")
        tab.locator("select.heads").select_option("2")
        assert "layer 1, this model's last" in tab.locator('.attention .side[data-arm="baseline"]').inner_text()
        assert "mean of all heads" in tab.locator('.attention .side[data-arm="baseline"]').inner_text()
        assert "last" not in tab.locator('.attention .side[data-arm="vcd"]').inner_text()
        assert "NaN" not in tab.locator(".attention").inner_text()


@pytest.mark.long
def test_paper_holds_what_the_screen_folds_away(tab: Any) -> None:
    folded = "[...document.querySelectorAll('#paired, #paired details:not(.how), #flips')].map((part) => part.open)"
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(tab.evaluate(folded)) == {True}
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert set(tab.evaluate(folded)) == {False}


@pytest.mark.long
def test_latex_has_its_signs_in_pairs(browser: Any, run: Path) -> None:
    with opened(browser, run / "report.html", permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.evaluate("for (const part of document.querySelectorAll('#arms details')) part.open = true")
        tab.locator("#arms > details.fold .copy button", has_text="LaTeX").first.click()
        tab.locator("#said", has_text="copied as LaTeX").wait_for()
        head, *lines = tab.evaluate("navigator.clipboard.readText()").splitlines()[2:-2]
    assert " d$'$ & " in head
    assert any("$-$" in line for line in lines)
    for line in (head, *lines):
        assert line.count("$") % 2 == 0
        assert "…" not in line
        if line != r"\midrule":
            assert line.count(" & ") == head.count(" & ")
