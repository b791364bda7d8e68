"""The page in a real browser: ask, look, change, keep; numbers as by Python; hostile words run nothing."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from interp import knockout, knockout_effect, logit_lens
from mitigation import VCD, Baseline
from tests.experiments.browser import opened
from tests.experiments.serving.exploring.explored import Explored, prompt

pytestmark = [pytest.mark.browser, pytest.mark.long]


@contextmanager
def tab_on(browser: Any, page: Explored, fragment: str = "", **how: Any) -> Iterator[Any]:
    """The page, answered, in a tab."""
    with opened(browser, f"{page.address}{fragment}", own=f"http://127.0.0.1:{page.port}/", **how) as tab:
        tab.wait_for_selector("canvas.map", timeout=120_000)
        yield tab


@pytest.fixture
def tab(browser: Any, page: Explored) -> Iterator[Any]:
    with tab_on(browser, page) as found:
        yield found


def numbers(tab: Any, place: str) -> list[float]:
    return tab.locator(f"{place} .number").evaluate_all("all => all.map(n => Number(n.dataset.value))")


def act(tab: Any, action: str, place: str, wait: str) -> list[float]:
    tab.evaluate(f"document.querySelector('{place}').replaceChildren()")
    tab.click(f'[data-action="{action}"]')
    tab.wait_for_selector(f"{place} {wait}", timeout=120_000)
    return numbers(tab, place)


def test_it_opens_on_an_example_answers_it_and_shows_where_it_looked(tab: Any, organism: Any) -> None:
    expected = [method.generate(organism, [prompt()], max_new_tokens=16) for method in (Baseline(), VCD())]
    assert numbers(tab, "#sides") == [one.margins[0].item() for one in expected]
    assert tab.locator(".side blockquote.said").all_inner_texts() == [one.texts[0] for one in expected]
    assert tab.locator(".second img").count() == 1
    assert tab.locator("#said").inner_text().startswith("baseline: No., margin")
    assert "token" not in tab.evaluate("location.hash")
    requests: list[str] = []
    # The page asks for the model's state until it hears that the model is ready.
    tab.on("request", lambda sent: None if sent.url.endswith("/api/state") else requests.append(sent.url))
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


def test_changes_show_before_and_after_and_are_counted_and_undone(tab: Any, organism: Any) -> None:
    plain = numbers(tab, "#sides")
    tab.locator('[data-tool="cut"] input[type="checkbox"]').check()
    tab.click("#apply")
    tab.wait_for_selector("table.effects")
    with knockout(organism, [("image", "verdict")]):
        cut = [m.generate(organism, [prompt()], max_new_tokens=16).margins[0].item() for m in (Baseline(), VCD())]
    assert numbers(tab, "table.effects") == [plain[0], cut[0], plain[1], cut[1]]
    assert tab.locator("#tried").inner_text() == "1 change tried on this case"
    moved = act(tab, "windows", "#sweeps", ".curve")
    assert moved == knockout_effect(organism, prompt(), [("image", "verdict")], width=1).moved[:, 0].tolist()
    assert "2 changes tried" in tab.locator("#sweeps").inner_text()
    tab.click("#undo")
    assert not tab.locator('[data-tool="cut"] input[type="checkbox"]').is_checked()
    tab.click("#go")
    tab.locator("#sides .dial").nth(1).wait_for()
    assert numbers(tab, "#sides") == plain
    assert act(tab, "lens", "#closer", ".curve") == logit_lens(organism, prompt()).margins[0, :, 0].tolist()


def test_the_address_holds_the_experiment_and_gives_its_number(browser: Any, page: Explored) -> None:
    with tab_on(browser, page) as tab:
        tab.locator("#arms details summary").last.click()
        tab.locator(".setting", has_text="alpha").locator("input").fill("2.5")
        tab.fill("#text", "Can I eat this?")
        tab.click("#go")
        tab.locator("#sides .dial").nth(1).wait_for()
        fragment, found = tab.evaluate("location.hash.slice(1)"), numbers(tab, "#sides")
    with tab_on(browser, page, f"&{fragment}") as again:
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


def test_a_long_call_says_how_far_it_is_and_is_stopped_in_its_middle(
    tab: Any, page: Explored, organism: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, margin = organism.module_map.module(organism.model, "final_norm"), organism.score([prompt()])
    whole, forwards = norm.forward, 0

    def slow(states: torch.Tensor) -> Any:
        nonlocal forwards
        forwards += 1
        time.sleep(0.2)
        return whole(states)

    act(tab, "windows", "#sweeps", ".curve")
    with monkeypatch.context() as patched:
        patched.setattr(norm, "forward", slow)
        tab.click('[data-action="windows"]')
        tab.locator("#waiting", has_text=re.compile(r"working … \d of \d forwards")).wait_for()
        bar = tab.locator("#progress")
        assert 0 < bar.evaluate("bar => bar.value") < bar.evaluate("bar => bar.max")
        tab.keyboard.press("Escape")
        tab.locator("#sweeps .trouble", has_text="stopped").wait_for()
        while page.server.worker._running:
            time.sleep(0.01)
    assert 0 < forwards < 6
    assert not bar.is_visible()
    assert torch.equal(organism.score([prompt()]), margin)
