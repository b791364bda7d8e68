"""The report in a real browser: filter, flip, deep link, attention, relabel, export; hostile data runs nothing."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.report.build import build
from experiments.runs.labels import answer_id, apply, read_labels
from tests.experiments.browser import opened
from tests.experiments.synthetic_attention import write_attention
from tests.experiments.synthetic_run import flips_of, predictions, write_records, write_run

pytestmark = pytest.mark.browser

HOSTILE = (
    "</script><script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "javascript:document.title='owned'",
    "\u202eevil\u202c \u2028 \ud800 \x00 {{ 7*7 }} <!--",
    "w" * 100_000,
    "=HYPERLINK(\"http://example.org\")",
)  # fmt: skip


CASE = "#case=icon%2F0001&arm=vcd"
FOCUS = "[document.activeElement.closest('[data-arm]')?.dataset.arm, document.activeElement.className].join(' ')"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("run"), predictions(120))
    write_attention(folder, ["icon/0000", "icon/0001"], ["baseline", "vcd"])
    build(folder)
    return folder


@pytest.fixture
def tab(browser: Any, run: Path) -> Iterator[Any]:
    with opened(browser, run / "report.html") as page:
        yield page


@pytest.fixture
def on_a_case(browser: Any, run: Path) -> Iterator[Any]:
    with opened(browser, run / "report.html", fragment=CASE) as page:
        yield page


def shown(tab: Any) -> int:
    return int(tab.locator("#count").inner_text().split(" of ")[0])


@pytest.mark.long
def test_all_cases_are_there_and_few_rows_are_drawn(tab: Any) -> None:
    assert tab.locator("#count").inner_text() == "120 of 120 cases"
    assert 0 < tab.locator(".row").count() < 40
    tab.select_option("#f-sort", "")
    tab.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight; }")
    tab.locator('.row[data-case="icon/0119"]').wait_for()


@pytest.mark.long
def test_filters_narrow_and_clear(tab: Any) -> None:
    tab.select_option("#f-subset", "attack")
    assert shown(tab) == 30
    tab.select_option("#f-scenario", "scenario 0")
    assert 0 < shown(tab) < 30
    tab.fill("#search", "no such words")
    assert shown(tab) == 0
    tab.click("#reset")
    assert shown(tab) == 120
    tab.fill("#search", "icon/0007")
    assert shown(tab) == 1


@pytest.mark.long
def test_flips_are_those_of_the_record(tab: Any, run: Path) -> None:
    found = flips_of(run)
    tab.select_option("#f-flip", "fixed")
    assert shown(tab) == sum(flip.fixed for flip in found)
    tab.select_option("#f-flip", "broken")
    assert shown(tab) == sum(not flip.fixed for flip in found)
    tab.select_option("#f-arm", "baseline")
    assert shown(tab) == 0  # no arm flips against itself


@pytest.mark.long
def test_outcomes_and_order_follow_the_arm(tab: Any, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    vcd = {line["case"]: line for line in lines if line["arm"] == "vcd"}
    tab.select_option("#f-outcome", "right:0")
    assert shown(tab) == sum(line["verdict"] != line["gold"] for line in vcd.values())
    tab.click("#reset")
    tab.select_option("#f-sort", "low")
    lowest = min(vcd, key=lambda case: vcd[case]["margin"])
    assert tab.locator(".row").first.get_attribute("data-case") == lowest


@pytest.mark.long
def test_a_case_shows_both_arms_and_the_prompt_and_has_an_address(browser: Any, run: Path) -> None:
    with opened(browser, run / "report.html", fragment="#case=icon%2F0005&arm=prompt") as tab:
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


@pytest.mark.long
def test_keys_move_search_and_help(tab: Any) -> None:
    tab.select_option("#f-sort", "")  # as in the benchmark
    tab.locator("#list").focus()
    tab.keyboard.press("Home")
    tab.keyboard.press("j")
    assert tab.locator("#detail h3").inner_text().startswith("icon/0001")
    tab.keyboard.press("k")
    assert tab.locator("#detail h3").inner_text().startswith("icon/0000")
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "search"
    tab.keyboard.type("jk?")  # letters, not commands, while typing
    assert tab.locator("#detail h3").inner_text().startswith("icon/0000")
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement.id") == "list"
    beside = tab.locator("#arms > details.how dl")  # what explains a thing stands beside it
    assert not beside.is_visible()
    tab.keyboard.press("?")
    assert beside.is_visible()
    assert "AUROC" in beside.inner_text()
    tab.keyboard.press("?")
    assert not beside.is_visible()


@pytest.mark.long
def test_unsafe_pictures_stay_blurred_until_asked_for(tab: Any, run: Path) -> None:
    found = [flip for flip in flips_of(run) if flip.records["vcd"]["subset"] == "typical"]
    unsafe = found[0].case if found else "icon/0000"
    tab.evaluate(f"location.hash = '#case={unsafe.replace('/', '%2F')}&arm=vcd'")
    veil = tab.locator("#detail .veil")
    if not found:  # no thumbnail without a flip in this run's files
        pytest.skip("no unsafe case flipped in the synthetic run")
    blurred = "node => getComputedStyle(node).filter"
    assert "blur" in veil.locator("img").evaluate(blurred)
    veil.click()
    assert veil.locator("img").evaluate(blurred) == "none"
    tab.keyboard.press("j")
    tab.keyboard.press("k")
    assert "blur" in tab.locator("#detail .veil img").evaluate(blurred)  # asked for again


@pytest.mark.long
def test_attention_by_token_and_layer(tab: Any) -> None:
    tab.select_option("#f-outcome", "attention")
    assert shown(tab) == 2
    tab.locator(".row").last.click()
    panel = tab.locator("section.attention")
    assert panel.locator(".side").count() == 2
    shares = panel.locator(".side").first.locator("table.bars td:nth-child(2)")
    mean = shares.all_inner_texts()
    panel.locator("input.layer").fill("3")
    assert panel.locator(".layer-name").inner_text() == "layer 2"
    assert shares.all_inner_texts() != mean
    before = shares.all_inner_texts()
    panel.locator(".side").first.locator("button.token").nth(1).click()
    assert shares.all_inner_texts() != before
    picture = panel.locator("canvas").first
    assert "strongest is in row" in (picture.get_attribute("aria-label") or "")
    assert "Made up." in panel.inner_text()


@pytest.mark.long
def test_labels_are_exported_as_the_importer_reads_them(tab: Any, run: Path, tmp_path: Path) -> None:
    tab.evaluate("location.hash = '#case=icon%2F0005&arm=vcd'")
    side = tab.locator('#detail .side[data-arm="vcd"]').first
    said = {(line["case"], line["arm"]): line for line in map(json.loads, (run / "predictions.jsonl").open())}
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


@pytest.mark.parametrize(("form", "begins"), [("Markdown", "| arm"), ("CSV", '"arm"'), ("LaTeX", r"\begin{tabular}")])
def test_tables_can_be_copied(browser: Any, run: Path, form: str, begins: str) -> None:
    with opened(browser, run / "report.html", permissions=["clipboard-read", "clipboard-write"]) as tab:
        tab.locator("#arms > .copy button", has_text=form).click()
        tab.locator("#said", has_text=f"copied as {form}").wait_for()
        words = tab.evaluate("navigator.clipboard.readText()")
        assert words.startswith(begins)
        assert "baseline" in words


@pytest.mark.long
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
    with opened(browser, folder / "report.html") as tab:
        title = tab.title()
        for _ in of_case:
            tab.keyboard.press("j")
        assert tab.title() == title != "owned"
        assert tab.locator("#detail h3").count() == 1
        assert tab.evaluate("document.documentElement.scrollWidth") <= 1280
        assert tab.locator("#detail img[src='x']").count() == 0


@pytest.mark.long
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


@pytest.mark.long
def test_a_verdict_leads_to_where_it_looked(on_a_case: Any) -> None:
    view = on_a_case.locator('.attention .side[data-arm="vcd"]')
    view.locator("button.token").nth(1).click()
    assert view.locator("button.token").nth(1).get_attribute("aria-pressed") == "true"
    on_a_case.locator('#detail > .sides .side[data-arm="vcd"] button.look').click()
    assert view.locator("button.token").nth(0).get_attribute("aria-pressed") == "true"


def test_the_keyboard_stays_on_what_it_pressed(on_a_case: Any) -> None:
    on_a_case.locator('.attention .side[data-arm="vcd"] button.token').nth(1).focus()
    on_a_case.keyboard.press("Enter")
    assert on_a_case.evaluate(FOCUS) == "vcd token"
    on_a_case.locator('#detail .side[data-arm="baseline"] button.mark-right').focus()
    on_a_case.keyboard.press("Enter")
    assert on_a_case.evaluate(FOCUS) == "baseline mark-right"


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
        assert row["id"] in {answer_id(line) for line in lines if line["arm"] == "vcd"}
        tab.goto((other / "report.html").as_uri())
        assert tab.locator("#labelled").inner_text() == "nothing labelled yet"


@pytest.mark.long
def test_paper_holds_what_the_screen_folds_away(tab: Any) -> None:
    folded = "[...document.querySelectorAll('#paired, #paired details:not(.how)')].map((part) => part.open)"
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert set(tab.evaluate(folded)) == {True}
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert set(tab.evaluate(folded)) == {False}
