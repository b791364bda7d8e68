"""The page in a real browser: ask, look, change, keep; every number as by Python; hostile words run nothing.

Four actions on the first organism by default; eight on both, with VCD and without, in the slow suite.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.images import open_image
from experiments.evaluation.batching import prompt_of
from experiments.runs.saved import read_run
from interp import knockout, knockout_by_window, load, logit_lens, occlude_image, patch
from interp.errors import UserError
from interp.prompt import Prompt
from mitigation import VCD, Baseline
from tests.experiments.exploring.explored import CASE, TEXT, Explored, exploring

pytestmark = pytest.mark.browser
AXE = os.environ.get("AXE_CORE")


@contextmanager
def tab_on(
    browser: Any, page: Explored, *, fragment: str = "", expecting: str = "nothing", **context: Any
) -> Iterator[Any]:
    """The page, answered; fails on any error in the console but an expected one, dialog, or request to elsewhere."""
    trouble: list[str] = []
    place = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, "accept_downloads": True, **context})
    tab = place.new_page()
    tab.on("console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: trouble.append(str(error)))
    tab.on("dialog", lambda dialog: (trouble.append(dialog.message), dialog.dismiss()))
    own = (f"http://127.0.0.1:{page.port}/", "data:", "blob:")
    tab.on("request", lambda sent: None if sent.url.startswith(own) else trouble.append(sent.url))
    try:
        tab.goto(f"{page.address}{fragment}")
        tab.wait_for_selector("canvas.map", timeout=120_000)
        yield tab
        assert not [one for one in trouble if expecting not in one], trouble
    finally:
        place.close()


@pytest.fixture
def tab(browser: Any, page: Explored) -> Iterator[Any]:
    with tab_on(browser, page) as found:
        yield found


def numbers(tab: Any, place: str) -> list[float]:
    return [
        float(value) for value in tab.locator(f"{place} .number").evaluate_all("all => all.map(n => n.dataset.value)")
    ]


def act(tab: Any, action: str, place: str, wait: str) -> list[float]:
    tab.evaluate(f"document.querySelector('{place}').replaceChildren()")
    tab.click(f'[data-action="{action}"]')
    tab.wait_for_selector(f"{place} {wait}", timeout=120_000)
    return numbers(tab, place)


def prompt(text: str = TEXT) -> Prompt:
    sample = next(one for one in IconWorld().load().samples if one.id == CASE.removeprefix("case:"))
    assert sample.image is not None
    return prompt_of(sample, open_image(sample.image))


def drawn(page: Explored) -> Prompt:
    return Prompt(prompt().text, page.server.pictures.open("drawn:man:1"), key=prompt().key, request=TEXT)


def test_it_opens_on_an_example_answers_it_and_shows_where_it_looked(tab: Any, page: Explored, organism: Any) -> None:
    expected = [method.generate(organism, [prompt()], max_new_tokens=16) for method in (Baseline(), VCD())]
    assert numbers(tab, "#sides") == [one.margins[0].item() for one in expected]
    assert [tab.locator(".side blockquote.said").nth(at).inner_text() for at in (0, 1)] == [
        one.texts[0] for one in expected
    ]
    assert tab.locator(".second img").count() == 1
    assert tab.locator("#said").inner_text().startswith("baseline: No., margin")
    assert "token" not in tab.evaluate("location.hash")
    requests: list[str] = []
    tab.on("request", lambda sent: requests.append(sent.url))
    before = tab.locator("canvas.map").evaluate("canvas => canvas.toDataURL()")
    tab.locator("input.layer").fill("2")
    assert tab.locator(".layer-name").inner_text() == "decoder layer 1"
    assert tab.locator("canvas.map").evaluate("canvas => canvas.toDataURL()") != before
    tab.locator("button.token", has_text="crush").click()
    assert not requests  # a slider and a word are drawn from what is there
    tab.locator("canvas.map").scroll_into_view_if_needed()
    box = tab.locator("canvas.map").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert tab.locator("button.token[style*='--share']").count() > 5


def test_changes_show_before_and_after_and_are_counted_and_undone(tab: Any, page: Explored, organism: Any) -> None:
    plain = numbers(tab, "#sides")
    tab.locator('[data-tool="cut"] input[type="checkbox"]').check()
    tab.click("#apply")
    tab.wait_for_selector("table.effects")
    with knockout(organism, [("image", "verdict")]):
        cut = [m.generate(organism, [prompt()], max_new_tokens=16).margins[0].item() for m in (Baseline(), VCD())]
    assert numbers(tab, "table.effects") == [plain[0], cut[0], plain[1], cut[1]]
    assert tab.locator("#tried").inner_text() == "1 change tried on this case"
    moved = act(tab, "windows", "#sweeps", ".curve")
    assert moved == knockout_by_window(organism, prompt(), [("image", "verdict")], width=1).moved[:, 0].tolist()
    assert "2 changes tried" in tab.locator("#sweeps").inner_text()
    tab.click("#undo")
    assert not tab.locator('[data-tool="cut"] input[type="checkbox"]').is_checked()
    tab.click("#go")
    tab.locator("#sides .dial").nth(1).wait_for()
    assert numbers(tab, "#sides") == plain
    assert act(tab, "lens", "#closer", ".curve") == logit_lens(organism, prompt()).margins[0, :, 0].tolist()


def test_the_address_holds_the_experiment_and_the_code_gives_its_number(browser: Any, page: Explored) -> None:
    with tab_on(browser, page) as tab:
        tab.locator("#arms details summary").last.click()
        tab.locator(".setting", has_text="alpha").locator("input").fill("2.5")
        tab.fill("#text", "Can I eat this?")
        tab.click("#go")
        tab.locator("#sides .dial").nth(1).wait_for()
        tab.click("#code")
        tab.wait_for_selector("pre.python")
        assert "Can I eat this?" in tab.locator("pre.python").inner_text()
        fragment, found = tab.evaluate("location.hash.slice(1)"), numbers(tab, "#sides")
    with tab_on(browser, page, fragment=f"&{fragment}") as again:
        assert numbers(again, "#sides") == found
        assert again.input_value("#text") == "Can I eat this?"


def test_hostile_words_and_pictures_run_nothing(browser: Any, page: Explored, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>\u202e"
    Image.new("RGB", (40, 30), (200, 30, 30)).save(tmp_path / "<b>own.png")
    (tmp_path / "text.png").write_text("no picture")
    with tab_on(browser, page) as tab:
        tab.set_input_files("#file", tmp_path / "<b>own.png")
        tab.wait_for_selector("#case:empty", state="attached")
        tab.fill("#text", hostile)
        tab.click("#go")
        tab.wait_for_selector("#sides .dial")
        assert "owned" in tab.locator(".side pre").first.text_content()
        assert tab.title() == "forestlens explore"
        assert tab.locator("main img[src='x']").count() == 0
    with tab_on(browser, page, expecting="400") as tab:
        tab.set_input_files("#file", tmp_path / "text.png")
        tab.wait_for_selector(".trouble")
        assert "picture" in tab.locator(".trouble").inner_text()


def test_everything_is_there_by_keyboard_and_fits_narrow_screens(browser: Any, page: Explored) -> None:
    with tab_on(browser, page, viewport={"width": 320, "height": 700}) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= 320
        tab.focus("canvas.painter")
        for key in ("ArrowDown", "ArrowDown", "ArrowRight", " "):
            tab.keyboard.press(key)
        assert tab.locator("#said").inner_text() == "row 3, column 2, grey"
        tab.focus("#apply")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("table.effects")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 320
        for action in ("lens", "heads"):
            tab.focus(f'[data-action="{action}"]')
            tab.keyboard.press("Enter")
            tab.wait_for_selector("#closer figure")
        assert tab.evaluate("document.documentElement.scrollWidth") <= 320


@pytest.mark.skipif(not AXE, reason="axe-core is not at hand: set $AXE_CORE to its axe.min.js (npm pack axe-core)")
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400, 320])
def test_axe_finds_nothing(browser: Any, page: Explored, width: int, scheme: str) -> None:
    assert AXE is not None
    viewport = {"width": width, "height": 900}
    with tab_on(browser, page, viewport=viewport, color_scheme=scheme, bypass_csp=True) as tab:
        tab.evaluate("for (const part of document.querySelectorAll('details')) part.open = true")
        tab.click("#apply")
        tab.wait_for_selector("table.effects")
        for action in ("lens", "heads", "occlude", "attribution"):
            act(tab, action, "#closer", "h3 ~ *:nth-child(3)")
            tab.evaluate(Path(AXE).read_text(encoding="utf-8"))
            found = tab.evaluate("axe.run(document)")["violations"]
            assert not found, [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found]


def test_a_run_opens_on_its_failure_and_its_cases_are_live_with_the_numbers_of_the_record(
    browser: Any, organism: Any, tmp_path: Path
) -> None:
    from tests.experiments.compose import run_of

    run = run_of(
        "+exp=vcd_llava", "limit=24", "draws=20", "attention=false", f"output_root={tmp_path}", "image_workers=0"
    )
    run.task(run)
    (folder,) = {path.parent for path in tmp_path.rglob("metrics.json")}
    records = {(one["case"], one["arm"]): one for one in read_run(folder).predictions}
    with exploring(organism, f"task.run={folder}") as page, tab_on(browser, page) as tab:
        case = re.split(r"\s", tab.locator("#case").inner_text())[0]
        assert records[case, "baseline"]["verdict"] != records[case, "baseline"]["gold"]
        arms = [tab.locator("#arms select").nth(at).input_value() for at in (0, 1)]
        for arm, value in zip(arms, numbers(tab, "#sides"), strict=True):
            assert value == pytest.approx(records[case, arm]["margin"], abs=1e-4)
        tab.click("#open-run")
        tab.wait_for_selector(".card")
        other = tab.locator(".card").nth(1).get_attribute("data-case")
        tab.locator(".card").nth(1).click()
        tab.locator("#case", has_text=other).wait_for()
        tab.locator("#sides .dial").nth(1).wait_for()
        assert numbers(tab, "#sides")[0] == pytest.approx(records[other, "baseline"]["margin"], abs=1e-4)
        tab.click("#open-run")
        tab.click("text=the whole report")
        tab.wait_for_selector("#detail a")
        opened = tab.locator("#detail h3 bdi").inner_text()
        tab.click("text=explore this case")
        tab.locator("#case", has_text=opened).wait_for()
        tab.wait_for_selector("canvas.map")


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["baseline", "vcd"])
@pytest.mark.parametrize("name", ["llava", "smol"])
def test_eight_actions_on_both_organisms(browser: Any, name: str, arm: str) -> None:
    try:
        vlm = load(f"organism:{name}", device="cpu")
    except UserError as error:
        pytest.skip(str(error))
    method = VCD() if arm == "vcd" else Baseline()
    with exploring(vlm, f"model={name}_organism") as page, tab_on(browser, page, fragment=f"&arm={arm}") as tab:
        other, own = drawn(page), prompt()
        plain = float(method.generate(vlm, [own], max_new_tokens=16).margins[0].item())
        assert numbers(tab, "#sides")[-1] == plain
        with tab.expect_response("**/api/work"):
            tab.locator('[data-tool="patch"] select').select_option("man")
            tab.wait_for_selector('[data-tool="patch"] img')
            found = act(tab, "patch", "#sweeps", "table.grid")
        assert found == patch(vlm, own, other, places=("image", "user", "verdict")).moved[:, :, 0].flatten().tolist()
        assert act(tab, "lens", "#closer", ".curve") == logit_lens(vlm, own).margins[0, :, 0].tolist()
        assert act(tab, "windows", "#sweeps", ".curve") == knockout_by_window(
            vlm, own, [("image", "verdict")], width=1
        ).moved[:, 0].tolist()  # fmt: skip
        act(tab, "heads", "#closer", "canvas")
        act(tab, "attribution", "#closer", "canvas")
        act(tab, "occlude", "#closer", "canvas")
        assert page.work("occlude")["map"] == occlude_image(vlm, own).tolist()
        tab.locator('[data-tool="cut"] input[type="checkbox"]').check()
        tab.click("#apply")
        tab.wait_for_selector("table.effects")
        with knockout(vlm, [("image", "verdict")]):
            cut = float(method.generate(vlm, [own], max_new_tokens=16).margins[0].item())
        assert numbers(tab, "table.effects")[-1] == cut
        assert float(method.generate(vlm, [own], max_new_tokens=16).margins[0].item()) == plain
