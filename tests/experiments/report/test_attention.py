"""The report's section on attention: what was found, escaped, and nothing from outside the run."""

import json
from pathlib import Path

import pytest

from experiments.metrics.findings import RULES
from experiments.report.build import build
from experiments.report.sections import attention_section
from experiments.runs.saved_run import read_run, thumbnail_name
from tests.experiments.synthetic_run import predictions, write_run

FOUND = {
    "rules": RULES,
    "sentences": ["Failures look <script>alert(1)</script> at the words.", "Cutting it changes little."],
    "words": [{"word": "kill", "mass": 0.125}, {"word": "<b>", "mass": 0.1}],
    "figures": ["figures/attention_x_image.png", "../../etc/passwd"],
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = write_run(tmp_path, predictions(24))
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "attention.json").write_text(json.dumps(FOUND))
    return folder


def test_the_section_has_sentences_and_words(run_dir: Path) -> None:
    found = attention_section(read_run(run_dir))
    assert found is not None
    assert found["sentences"] == FOUND["sentences"]
    assert found["words"] == ["kill (12.5%)", "<b> (10.0%)"]
    assert found["curves"] == []  # of no subset
    assert found["heatmaps"] == []  # neither a case that is not there, nor a path that leaves the run


def _drawn(run_dir: Path, case: str, *kinds: str) -> None:
    stem = Path(thumbnail_name(case)).stem
    names = [f"figures/attention_{stem}_{kind}.png" for kind in kinds]
    for name in names:
        (run_dir / name).write_bytes(b"\x89PNG heat")
    found = json.loads((run_dir / "attention.json").read_text())
    (run_dir / "attention.json").write_text(json.dumps(found | {"figures": [*found["figures"], *names]}))


@pytest.mark.long
def test_the_heatmaps_are_in_the_page_and_unsafe_pictures_blurred(run_dir: Path) -> None:
    _drawn(run_dir, "icon/0000", "image", "words")  # typical
    _drawn(run_dir, "icon/0001", "image")  # over-safety
    found = attention_section(read_run(run_dir))
    assert found is not None
    shown = [(one["case"], [shown["hidden"] for shown in one["maps"]]) for one in found["heatmaps"]]
    assert shown == [("icon/0000", [True, False]), ("icon/0001", [False])]
    html = build(run_dir).read_text(encoding="utf-8")
    section = html.split('<section id="attention">')[1].split("</section>")[0]
    assert section.count("data:image/png;base64,") == 3
    assert section.count('class="reveal"') == 1


@pytest.mark.long
def test_the_page_shows_it_escaped(run_dir: Path) -> None:
    html = build(run_dir).read_text(encoding="utf-8")
    assert "Where failures look" in html
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "&lt;b&gt; (10.0%)" in html


@pytest.mark.long
@pytest.mark.parametrize("content", [None, "{broken", "[]", '{"sentences": 3}'])
def test_without_a_readable_analysis_there_is_no_section(run_dir: Path, content: str | None) -> None:
    path = run_dir / "attention.json"
    path.unlink() if content is None else path.write_text(content)
    assert attention_section(read_run(run_dir)) is None
    assert "Where failures look" not in build(run_dir).read_text(encoding="utf-8")
