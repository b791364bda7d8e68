"""The report's section on attention: what was found, escaped, and nothing from outside the run."""

import json
from pathlib import Path

import pytest

from experiments.metrics.findings import RULES
from experiments.report.build import build
from experiments.report.sections import attention_section
from tests.experiments.synthetic_run import predictions, write_run

FOUND = {
    "rules": RULES,
    "sentences": ["Failures look <script>alert(1)</script> at the words.", "Cutting it changes little."],
    "words": [{"word": "kill", "mass": 0.125}, {"word": "<b>", "mass": 0.1}],
    "figures": ["figures/attention_by_layer_typical.png", "figures/attention_x_image.png", "../../etc/passwd"],
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = write_run(tmp_path, predictions(24))
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "attention_by_layer_typical.png").write_bytes(b"\x89PNG curve")
    (folder / "attention.json").write_text(json.dumps(FOUND))
    return folder


def test_the_section_has_sentences_words_curves_and_counts_the_heatmaps(run_dir: Path) -> None:
    found = attention_section(run_dir)
    assert found is not None
    assert found.sentences == FOUND["sentences"]
    assert found.words == ["kill (12.5%)", "<b> (10.0%)"]
    assert [curve.alt for curve in found.curves] == [
        "Attention on the image by layer, failures and matched successes of typical cases."
    ]
    assert found.heatmaps == 2


def test_the_page_shows_it_escaped(run_dir: Path) -> None:
    html = build(run_dir).read_text(encoding="utf-8")
    assert "Where failures look" in html
    assert "<script>alert(1)" not in html
    assert "&lt;script&gt;alert(1)" in html
    assert "&lt;b&gt; (10.0%)" in html


@pytest.mark.parametrize("content", [None, "{broken", "[]", '{"sentences": 3}'])
def test_without_a_readable_analysis_there_is_no_section(run_dir: Path, content: str | None) -> None:
    path = run_dir / "attention.json"
    path.unlink() if content is None else path.write_text(content)
    assert attention_section(run_dir) is None
    assert "Where failures look" not in build(run_dir).read_text(encoding="utf-8")
