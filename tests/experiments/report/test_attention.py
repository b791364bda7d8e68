"""The report's section on attention: what was found, escaped, and nothing from outside the run."""

import json
from pathlib import Path

import pytest
from experiments.metrics.findings import RULES
from matplotlib.figure import Figure

from experiments.report.attention_figure import share_by_layer, subsets_by_layer
from experiments.report.build import build
from experiments.report.figures import in_dark
from experiments.report.sections import Section, SectionFigure, attention_section, read_sections, write_section
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
def test_heatmaps_beyond_the_limit_are_counted(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.report.sections.LARGEST", 10)
    _drawn(run_dir, "icon/0001", "image", "words", "heads")
    found = attention_section(read_run(run_dir))
    assert found is not None
    assert found["left_out"] == 2
    assert "2 more are in <code>figures/</code>" in build(run_dir).read_text(encoding="utf-8")


def _by_layer(*values: float) -> dict[str, object]:
    one = [{"value": value, "low": value - 0.02, "high": value + 0.02} for value in values]
    layers = {str(layer): {"failures": entry, "successes": entry} for layer, entry in enumerate(one)}
    return {"pairs": 12, "image_share": {"all_layers": {"failures": one[0], "successes": one[-1]}, "by_layer": layers}}


@pytest.mark.long
def test_the_subsets_are_panels_of_one_figure_with_one_scale_and_one_legend(run_dir: Path) -> None:
    subsets = {"typical": _by_layer(0.1, 0.2), "attack": _by_layer(0.3, 0.6), "over_safety": _by_layer(0.2, 0.3)}
    (run_dir / "attention.json").write_text(json.dumps(FOUND | {"subsets": subsets}))
    found = attention_section(read_run(run_dir))
    assert found is not None
    (curve,) = found["curves"]
    assert "typical cases: failures 10.0%, successes 20.0%; attack cases" in curve["alt"]
    assert curve["dark_uri"]
    assert curve["phone_uri"]
    figure = share_by_layer(subsets_by_layer({"subsets": subsets}))
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert len(figure.axes) == 3
    assert len(figure.legends) == 1
    assert not any(axes.get_legend() for axes in figure.axes)


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


def test_a_drawing_for_dark_pages_keeps_the_arms_colours_and_leaves_pictures_alone(run_dir: Path) -> None:
    light = b'<svg width="9"><path style="fill: #ffffff; stroke: #000000"/><path style="fill: #0072b2"/></svg>'
    dark = in_dark(light)
    assert b"#0072b2" in dark
    assert b"#ffffff" not in dark
    assert b"#000000" not in dark
    names = ("plain", "pixels")
    write_section(run_dir, "x", Section("x", []), {name: SectionFigure(Figure(), name) for name in names})
    for name, content in zip(names, (light, light.replace(b"</svg>", b"<image/></svg>")), strict=True):
        (run_dir / "figures" / f"{name}.svg").write_bytes(content)
    (found,) = read_sections(run_dir)
    assert [bool(figure["dark_uri"]) for figure in found["figures"]] == [True, False]
