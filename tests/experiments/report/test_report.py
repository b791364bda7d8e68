"""The report: what it shows, what it never trusts, and what it says when a file is missing."""

import base64
import hashlib
import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from experiments.report import arms, figures
from experiments.report.build import build, headline_measures
from experiments.report.cases import examples
from experiments.report.saved_run import read_run, thumbnail_name
from experiments.report.sections import Section, SectionFigure, write_section
from experiments.report.tables import ends, lines_of, pivot, summary, value
from experiments.runs.results_table import Results, row
from interp.errors import UserError
from tests.experiments.compose import lines
from tests.experiments.synthetic_run import predictions, write_records, write_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, built once; tests that change files copy it first."""
    folder = write_run(tmp_path_factory.mktemp("run"), predictions())
    build(folder)
    return folder


@pytest.fixture(scope="module")
def page(finished: Path) -> "Page":
    return Page((finished / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


class Page(HTMLParser):
    """The elements of a page, its text, and the text by element kind."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def page_of(run_dir: Path) -> Page:
    return Page(build(run_dir).read_text(encoding="utf-8"))


def plain(text: str) -> str:
    return " ".join(text.split())


def first_screen(folder: Path) -> str:
    after = build(folder).read_text(encoding="utf-8").split('<section class="opening"')[1]
    return after.split('<section id="examples">')[0]


def test_every_table_stands_in_the_page_with_every_number(finished: Path, page: Page) -> None:
    run = read_run(finished)
    for frame in arms.all_tables(run.results, run.metrics).values():
        assert frame.attrs["title"] in page.text
        for _, cells in lines_of(frame):
            for cell in cells:
                assert cell.value in page.text
                assert not cell.interval or f"{cell.value} [{cell.interval}]" in page.text
    for fact in ("llava_organism", "iconworld", "0123456789ab, with uncommitted changes", "+exp=vcd_llava"):
        assert fact in page.text


@pytest.mark.long
@pytest.mark.parametrize(("arm", "sign"), [((2.6, 0.2), "▲"), ((0.1, 0.2), "▼"), ((0.8, 0.2), "?")])
def test_the_first_screen_says_what_the_terminal_says(tmp_path: Path, arm: tuple[float, float], sign: str) -> None:
    folder = write_run(tmp_path, predictions(240, {"baseline": (0.8, 0.2), "calibrated_shift": (0.8, 0.0), "vcd": arm}))
    run = read_run(folder)
    (measure,) = headline_measures(run)
    difference = run.results.get("vcd", arms.AT_POINT, against="baseline")
    assert (measure.claim, measure.sign, measure.difference) == (difference.claim, sign, difference)
    screen = first_screen(folder)
    assert f'class="badge {measure.tone}"><span aria-hidden="true">{sign}</span> {measure.claim}' in screen
    words = plain(unescape(re.sub(r"<[^>]+>", " ", screen)))
    said = summary(run.results, run.metrics, run.environment)
    for line in (*said.headline, *said.notes):
        assert plain(line) in words
    assert f"{value(measure.bars[0][1])} → to {value(measure.bars[1][1])}" in words
    assert f"{value(difference)} {ends(difference, name=True)}" in words


def test_figures_have_a_text_alternative_with_their_numbers(finished: Path, page: Page) -> None:
    run = read_run(finished)
    for name, (_, words, caption) in figures.drawings(run).items():
        assert caption in page.text
        quantity = "auroc" if name == "auroc" else "unsafe_caught"
        for arm in arms.arms_of(run.results, run.metrics):
            assert value(run.results.get(arm, quantity)) in words
        assert words in [image["alt"] for image in page.all("img")]
        assert (finished / "figures" / f"{name}.svg").is_file()


def test_page_is_self_contained(finished: Path, page: Page) -> None:
    scripts = page.all("script")
    assert [script.get("type") for script in scripts] == ["application/json", None]
    assert not any("src" in script for script in scripts)
    for tag, attrs in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        for name, content in attrs.items():
            if name in ("src", "srcset", "data"):
                assert (content or "").startswith("data:")
            if name == "href":
                assert (content or "").startswith("#")
            assert not name.startswith("on")
    css = (finished / "report.html").read_text().split("<style>")[1].split("</style>")[0]
    assert "url(" not in css
    assert "@import" not in css
    policy = page.all("meta")[2]["content"] or ""
    assert "default-src 'none'" in policy
    script = (finished / "report.html").read_text().split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy  # this script and no other


HOSTILE = '<script>alert("x")</script></td><img src=x onerror=alert(1)>\u202eevil {{ 7*7 }} \udc80 \x00'


@pytest.mark.long
@pytest.mark.parametrize("field", ["response", "text", "subset_name", "case"])
def test_text_of_models_and_data_is_never_markup(run: Path, field: str) -> None:
    first = examples(read_run(run), studied="vcd", reference="baseline", attention=None)["groups"][0][1][0]
    shown = first["case"]["id"]
    records = lines(run)
    for record in records:
        if record["case"] == shown:
            record[field] = HOSTILE
    write_records(run, records)
    page = page_of(run)
    assert '<script>alert("x")</script></td><img src=x onerror=alert(1)>' in page.text
    assert "{{ 7*7 }}" in page.text
    _harmless(page)


def _harmless(page: Page) -> None:
    assert len(page.all("script")) == 2
    assert all("onerror" not in attrs for _, attrs in page.tags)
    assert not [attrs for attrs in page.all("img") if attrs["src"] == "x"]


@pytest.mark.long
def test_the_other_files_of_a_run_are_not_trusted_either(run: Path) -> None:
    tame = HOSTILE.replace("\udc80", "").replace("\x00", "")
    saved = read_run(run)
    Results([each._replace(arm=tame) if each.arm == "prompt" else each for each in saved.results]).write(run)
    design = {**saved.metrics, "learned_in_folds": [HOSTILE], "not_applicable": {HOSTILE: HOSTILE}}
    (run / "metrics.json").write_text(json.dumps(design))
    environment = {**saved.environment, "command": HOSTILE, "config": {"a": HOSTILE}, "people": [HOSTILE]}
    (run / "environment.json").write_text(json.dumps(environment))
    frame = pivot([row("probe", arm=tame, group=tame, value=0.5)], "arm", "group", title=tame)
    write_section(run, "study", Section(tame, [tame], [frame, frame], note=tame))
    listed = [{"word": HOSTILE, "mass": 0.5, "in_sentence": True}]
    words = {"sentences": [HOSTILE], "words": listed, "figures": ["../../etc/passwd"]}
    (run / "attention.json").write_text(json.dumps(words))
    page = page_of(run)
    assert page.text.count("{{ 7*7 }}") > 12
    _harmless(page)


@pytest.mark.parametrize(("file", "content", "message"), [
    *((file, None, f"{file} is missing") for file in ("metrics.json", "predictions.jsonl", "environment.json")),
    ("results.csv", None, "has no results.csv; an earlier version made this run, or it is unfinished. "
     "Rebuild it from its predictions.jsonl: task=rejudge run="),
    ("results.csv", "a,b\n1,2\n", "cannot be read as a results table"),
    ("metrics.json", "{", "metrics.json is not JSON"),
    ("metrics.json", "[]", "must be a JSON object with entries"),
    ("metrics.json", '{"arms": {"a": {"n": 1}}}', "has no 'kind'; an earlier version made it"),
    ("predictions.jsonl", "", "is missing or empty"),
    ("predictions.jsonl", '{"case": "1"}\n', "line 1: lacks arm, status"),
])  # fmt: skip
def test_a_missing_or_broken_file_is_one_sentence(run: Path, file: str, content: str | None, message: str) -> None:
    (run / file).unlink() if content is None else (run / file).write_text(content)
    with pytest.raises(UserError, match=re.escape(message)):
        build(run)


@example("a/b", "a_b")
@example("a/b", "a:b")
@given(st.text(min_size=1), st.text(min_size=1))
def test_thumbnail_names_are_safe_and_apart(one: str, other: str) -> None:
    name = thumbnail_name(one)
    assert re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*\.jpg", name)
    assert len(name) < 100
    assert (name == thumbnail_name(other)) == (one == other)


@pytest.mark.long
def test_a_section_of_a_study_shows_sentences_tables_and_figures(run: Path) -> None:
    rows = [row("probe", arm="vcd", against="baseline", group=f"layer={at}", value=0.1, low=0.05, high=0.15,
                claim="higher") for at in range(2)]  # fmt: skip
    frame = pivot(rows, "arm", "group", title="Probes", note="In points.")
    drawn = figures.lines_by_layer({"probes": [figures.Line("vcd", [0, 1], rows)]}, y="gain", scale=100)
    section = Section("What is inside", ["It is there."], [frame], note="A note.")
    write_section(run, "inside", section, {"probes": SectionFigure(drawn, "two points at 10", "By layer.")})
    page = page_of(run)
    for words in (*section.sentences, section.note, "By layer.", "Probes In points.", "layer=1"):
        assert words in plain(page.text)
    assert page.text.count("▲ +10.0 [+5.0, +15.0]") == 2
    assert "two points at 10" in [image["alt"] for image in page.all("img")]
    assert "#section-inside" in [link["href"] for link in page.all("a")]
    with pytest.raises(UserError, match="use letters, digits and _"):
        write_section(run, "../inside", section)
    (run / "sections" / "broken.json").write_text('{"title": 3}')
    assert "What is inside" in page_of(run).text
