"""The report in a real browser: filter, flip, deep link, attention, relabel, export; hostile data runs nothing."""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.report.build import build
from experiments.runs.labels import answer_id, apply, read_labels
from tests.experiments.browser import opened
from tests.experiments.compose import lines
from tests.experiments.synthetic_attention import write_attention
from tests.experiments.synthetic_run import flips_of, predictions, write_records, write_run

pytestmark = [pytest.mark.browser, pytest.mark.long]

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "javascript:document.title='owned'",
    "\u202eevil\u202c \u2028 \ud800 \x00 {{ 7*7 }} <!--",
    "w" * 100_000,
    "=HYPERLINK(\"http://example.org\")",
)  # fmt: skip


CASE = "#case=icon%2F0001&arm=vcd"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), predictions(120))
    write_attention(folder, ["icon/0000", "icon/0001"], ["baseline", "vcd"])
    build(folder)
    return folder


def address(folder: Path, fragment: str = "") -> str:
    return f"{(folder / 'report.html').as_uri()}{fragment}"


@pytest.fixture
def tab(browser: Any, run: Path) -> Iterator[Any]:
    with opened(browser, address(run)) as page:
        yield page


def test_all_cases_are_there_and_few_rows_are_drawn(tab: Any) -> None:
    assert tab.locator("#count").inner_text() == "120 of 120 cases"
    assert 0 < tab.locator(".row").count() < 40
    tab.select_option("#f-sort", "")
    tab.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    tab.locator('.row[data-case="icon/0119"]').wait_for()


def test_a_case_shows_both_arms_and_the_prompt_and_has_an_address(browser: Any, run: Path) -> None:
    with opened(browser, address(run, "#case=icon%2F0005&arm=prompt")) as tab:
        assert tab.locator("#detail h3").inner_text().startswith("icon/0005")
        assert tab.locator("#f-arm").input_value() == "prompt"
        assert [side.get_attribute("data-arm") for side in tab.locator("#detail > .sides > .side").all()] == [
            "baseline", "prompt",
        ]  # fmt: skip
        tab.select_option("#f-sort", "")
        tab.locator('.row[data-case="icon/0006"]').click()
        assert "case=icon%2F0006" in tab.evaluate("location.hash")
        tab.evaluate("location.hash = '#case=icon%2F0009&arm=vcd'")
        tab.locator("#detail h3", has_text="icon/0009").wait_for()
        tab.evaluate("location.hash = '#case=nowhere'")
        tab.locator("#said", has_text="no case nowhere").wait_for()


def test_unsafe_pictures_stay_blurred_until_asked_for(tab: Any, run: Path) -> None:
    unsafe = next(flip.case for flip in flips_of(run) if flip.records["vcd"]["subset"] == "typical")
    tab.evaluate(f"location.hash = '#case={unsafe.replace('/', '%2F')}&arm=vcd'")
    veil = tab.locator("#detail .veil")
    blurred = "node => getComputedStyle(node).filter"
    assert "blur" in veil.locator("img").evaluate(blurred)
    veil.click()
    assert veil.locator("img").evaluate(blurred) == "none"
    tab.keyboard.press("j")
    tab.keyboard.press("k")
    assert "blur" in tab.locator("#detail .veil img").evaluate(blurred)  # asked for again


def test_labels_are_exported_as_the_importer_reads_them(tab: Any, run: Path, tmp_path: Path) -> None:
    tab.evaluate("location.hash = '#case=icon%2F0005&arm=vcd'")
    side = tab.locator('#detail .side[data-arm="vcd"]').first
    said = {(line["case"], line["arm"]): line for line in lines(run)}
    wrong = "no" if said["icon/0005", "vcd"]["verdict"] == "yes" else "yes"
    side.locator("select.mark-wrong").select_option(wrong)
    tab.locator('#detail .side[data-arm="baseline"] button.mark-right').click()
    tab.fill("#annotator", "=Anna")
    with tab.expect_download() as saved:
        tab.click("#export")
    file = tmp_path / "labels.csv"
    saved.value.save_as(file)
    rows = list(csv.DictReader(file.open(encoding="utf-8-sig", newline="")))
    assert {(row["id"], row["label"]) for row in rows} == {
        (answer_id(said["icon/0005", "vcd"]), wrong),
        (answer_id(said["icon/0005", "baseline"]), said["icon/0005", "baseline"]["verdict"]),
    }
    assert rows[0]["annotator"] == "'=Anna"
    applied = apply(list(said.values()), read_labels([file]))
    changed = {(r["case"], r["arm"]): r["verdict"] for r in applied.records}
    assert changed["icon/0005", "vcd"] == wrong
    tab.reload()
    assert "2 labelled" in tab.locator("#labelled").inner_text()
    tab.locator('.side[data-arm="vcd"] button.mark-right').first.click()  # the last word counts
    assert "2 labelled" in tab.locator("#labelled").inner_text()


def test_hostile_data_neither_runs_nor_breaks_the_page(browser: Any, tmp_path: Path) -> None:
    records = predictions(24)
    of_case = {case: HOSTILE[at % len(HOSTILE)] for at, case in enumerate(sorted({r["case"] for r in records}))}
    for record in records:
        words = of_case[record["case"]]
        record |= dict.fromkeys(("response", "text", "scenario", "explanation", "prompt"), words)
        record |= {"tags": {words[:50]: words}, "case": f"{record['case']}{words}"}
    folder = write_run(tmp_path, predictions(24), thumbnails=())
    write_records(folder, records)
    build(folder)
    with opened(browser, address(folder)) as tab:
        title = tab.title()
        for _ in of_case:
            tab.keyboard.press("j")
        assert tab.title() == title != "owned"
        assert tab.locator("#detail h3").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        assert tab.locator("#detail img[src='x']").count() == 0


def test_every_control_has_a_name_and_the_keyboard_reaches_it(tab: Any) -> None:
    tab.keyboard.press("j")
    unnamed = tab.evaluate(
        """() => [...document.querySelectorAll('button, select, input, canvas, img, [role=listbox]')]
        .filter((node) => !(node.textContent.trim() || node.getAttribute('aria-label') || node.alt ||
                            (node.labels && node.labels.length)))
        .map((node) => node.outerHTML)"""
    )
    assert unnamed == []
    reached = set()
    for _ in range(80):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id || document.activeElement.className"))
    assert {"search", "f-flip", "list", "mark-right", "mark-wrong", "annotator"} <= reached


def test_labels_do_not_reach_another_runs_answers(browser: Any, run: Path, tmp_path: Path) -> None:
    other = write_run(tmp_path, predictions(24, seed=1))
    build(other)
    with opened(browser, address(run, CASE)) as tab:
        tab.locator('#detail .side[data-arm="vcd"] button.mark-right').first.click()
        with tab.expect_download() as saved:
            tab.click("#export")
        saved.value.save_as(tmp_path / "labels.csv")
        (row,) = csv.DictReader((tmp_path / "labels.csv").open(encoding="utf-8-sig", newline=""))
        assert row["id"] in {answer_id(line) for line in lines(run) if line["arm"] == "vcd"}
        tab.goto(address(other))
        assert tab.locator("#labelled").inner_text() == "nothing labelled yet"
