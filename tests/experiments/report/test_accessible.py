"""The page for everybody: headings in order, names and contrast."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

from experiments.report import figures
from experiments.report.build import build
from tests.experiments.refused import records as refusals
from tests.experiments.report.test_report import Page
from tests.experiments.synthetic_attention import write_attention
from tests.experiments.synthetic_run import ARMS, predictions, write_run

KINDS = ("yes_no", "one_arm", "refusal")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    compared = write_run(folder / "yes_no", predictions(60))
    write_attention(compared, ["icon/0000", "icon/0001"], ["baseline", "vcd"])
    alone = write_run(folder / "one_arm", predictions(40, {"baseline": ARMS["baseline"]}), arm="baseline")
    records = refusals("bc" * 20, {"baseline": "rc" * 20, "vcd": "c" * 40})
    refused = write_run(folder / "refusal", records, kind="refusal", benchmark="mossbench")
    found = dict(zip(KINDS, (compared, alone, refused), strict=True))
    for run in found.values():
        build(run)
    return found


def elements(run: Path) -> list[tuple[str, dict[str, str | None]]]:
    return Page((run / "report.html").read_text(encoding="utf-8")).tags


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_headings_go_down_one_level_at_a_time_and_ids_are_there_once(runs: dict[str, Path], kind: str) -> None:
    found = elements(runs[kind])
    levels = [int(tag[1]) for tag, _ in found if re.fullmatch(r"h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    ids = [attrs["id"] for _, attrs in found if "id" in attrs]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("kind", KINDS)
def test_every_link_in_the_page_leads_somewhere(runs: dict[str, Path], kind: str) -> None:
    found = elements(runs[kind])
    ids = {attrs.get("id") for _, attrs in found}
    inner = [attrs["href"] or "" for tag, attrs in found if tag == "a"]
    assert inner
    for place in inner:
        assert place.startswith("#")
        assert place.startswith("#case=") or place[1:] in ids


@pytest.mark.parametrize("kind", KINDS)
def test_pictures_and_boxes_have_names(runs: dict[str, Path], kind: str) -> None:
    found = elements(runs[kind])
    assert all(attrs.get("alt") for tag, attrs in found if tag == "img")
    labelled = {attrs.get("for") for tag, attrs in found if tag == "label"}
    assert all(attrs["id"] in labelled for tag, attrs in found if attrs.get("type") == "checkbox")
    for tag, attrs in found:
        if tag == "svg":
            assert attrs.get("role") == "img" or attrs.get("aria-hidden") == "true"


PALETTES = {"light": figures.LIGHT, "dark": figures.DARK, "print": figures.PRINT}


@pytest.mark.parametrize("scheme", ["light", "dark", "print"])
def test_text_of_every_colour_stands_out_from_both_grounds(scheme: str) -> None:
    """WCAG AA: 4.5 to 1, also of the colours of the statements."""
    palette = PALETTES[scheme]
    for ground in ("paper", "shade"):
        for ink in ("ink", "soft", "accent", "good", "bad", "flat"):
            assert _contrast(palette[ground], palette[ink]) >= 4.5, (scheme, ground, ink)
    assert len({palette[tone] for tone in ("good", "bad", "flat")}) == 3


def _contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        values = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        parts = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
