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
def test_paper_holds_what_the_screen_folds_away(tab: Any) -> None:
    folded = "[...document.querySelectorAll('#paired, #paired details:not(.how), #flips')].map((part) => part.open)"
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(tab.evaluate(folded)) == {True}
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert set(tab.evaluate(folded)) == {False}
