"""The report: what it shows, what it never trusts, and what it says when a file is missing."""

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from experiments.metrics.yes_no.results import evaluate
from experiments.report.arm_tables import arms_table, comparisons_table, remarks
from hypothesis import example, given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.report import cases, figures
from experiments.report.build import build, thumbnail_name
from experiments.report.numbers import percent
from interp.errors import UserError
from tests.experiments.synthetic_run import ARMS, by_heading, flips_of, metrics_of, predictions, printed, write_run


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, built once; tests that change files copy it first."""
    folder = write_run(tmp_path_factory.mktemp("run"), predictions())
    build(folder)
    return folder


@pytest.fixture(scope="module")
def page(finished: Path) -> "_Page":
    return _Page((finished / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


class _Page(HTMLParser):
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

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for name, attrs in self.tags
            if name == tag
            and all(wanted_value in (attrs.get(key) or "").split() for key, wanted_value in wanted.items())
        ]


def page_of(run_dir: Path) -> _Page:
    return _Page(build(run_dir).read_text(encoding="utf-8"))


def rewrite(run_dir: Path, **changes: object) -> None:
    """Set keys of every record of predictions.jsonl."""
    file = run_dir / "predictions.jsonl"
    records = [json.loads(line) | changes for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.long
def test_page_answers_in_the_words_and_numbers_of_the_metrics(finished: Path, page: _Page) -> None:
    metrics = metrics_of(finished)
    for sentence in metrics["summary"]:
        assert sentence in page.text
    for row in by_heading(arms_table(metrics)):
        for heading in ("typical", "attack", "over-safety", "overall", "d′", "criterion", "AUROC", "flip rate"):
            assert f"{row[heading].value} [{row[heading].interval}]" in page.text
    for row in by_heading(comparisons_table(metrics)):
        assert str(row["fixed / broken"]) in page.text
        assert row["p (Holm)"].value in page.text
    for fact in ("llava_organism", "iconworld", "0123456789ab, with uncommitted changes", "+exp=vcd_llava"):
        assert fact in page.text


def test_remarks_follow_the_interval_that_decides() -> None:
    plain = {"value": 0.05, "low": 0.01, "high": 0.09, "statement": "rose"}
    entry = plain | {"decides": {"low": -0.01, "high": 0.11, "of": 4, "level": 0.99}, "statement": "not shown"}
    found = {"study": "vcd", "comparisons": {"vcd": {"delta": {"matched_over_safety": plain, "auroc": entry}}}}
    (told,) = (one["conclusion"] for one in remarks(found))
    assert told == "over-safety at the operating point: rose; AUROC: not shown"


def test_page_is_self_contained(finished: Path, page: _Page) -> None:
    scripts = page.all("script")
    assert [script.get("type") for script in scripts] == ["application/json", None]
    assert not any("src" in script for script in scripts)
    for tag, attrs in page.tags:
        assert tag not in ("link", "iframe", "object", "base")
        for name, value in attrs.items():
            if name in ("src", "srcset", "data"):
                assert (value or "").startswith("data:")
            if name == "href":
                assert (value or "").startswith("#")
            assert not name.startswith("on")
    css = (finished / "report.html").read_text().split("<style>")[1].split("</style>")[0]
    assert "url(" not in css
    assert "@import" not in css
    policy = page.all("meta")[2]["content"] or ""
    assert "default-src 'none'" in policy
    script = (finished / "report.html").read_text().split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy  # this script and no other


@pytest.mark.long
def test_same_files_give_the_same_bytes(finished: Path, run: Path) -> None:
    assert build(run).read_bytes() == (finished / "report.html").read_bytes()


def test_figures_are_kept_and_embedded(finished: Path, page: _Page) -> None:
    assert sorted(path.name for path in (finished / "figures").iterdir()) == ["auroc.svg", "trade_off.svg"]
    alts = [image["alt"] or "" for image in page.all("img", **{"class": "drawn"})]
    assert len(alts) == 2
    assert all(arm in alt for alt in alts for arm in ARMS)


@pytest.mark.long
@pytest.mark.parametrize(("benchmark", "shown"), [("iconworld", False), ("mmsafeaware", True)])
def test_published_rows_stand_only_beside_their_own_benchmark(run: Path, benchmark: str, shown: bool) -> None:
    file = run / "environment.json"
    environment = json.loads(file.read_text())
    file.write_text(json.dumps(environment | {"benchmark": environment["benchmark"] | {"name": benchmark}}))
    assert ("LLaVA-1.5-7B" in page_of(run).text) == shown


def test_ten_flipped_cases_with_every_arm_and_unsafe_images_blurred(finished: Path, page: _Page) -> None:
    metrics = metrics_of(finished)
    assert len(page.all("article")) == 10
    on_paper = _Page((finished / "report.html").read_text().split('id="flips"')[1].split("</details>")[0])
    fixed_by = len(on_paper.all("span", **{"class": "fixed"}))
    broken_by = len(on_paper.all("span", **{"class": "broken"}))
    table = metrics["comparisons"]["vcd"]["mcnemar"]
    assert fixed_by + broken_by == 10
    assert broken_by == min(table["broken"], 5)
    thumbnails = [image for image in on_paper.all("img") if (image["src"] or "").startswith("data:image/jpeg")]
    assert len(thumbnails) == 10
    chosen = cases.choose(flips_of(finished), arm="vcd")
    unsafe = [flip for flip in chosen if flip.records["vcd"]["subset"] != "over_safety"]
    assert unsafe
    assert len(on_paper.all("input", **{"class": "reveal"})) == len(unsafe)
    assert f"fixed {table['fixed']} scored cases (wrong to right) and broke {table['broken']}" in page.text


def test_blur_ends_only_at_the_readers_click(finished: Path, page: _Page) -> None:
    css = (finished / "report.html").read_text().split("<style>")[1].split("</style>")[0]
    assert re.search(r"\.reveal:not\(:checked\) ~ \.cover img \{ filter: blur", css)
    for box in page.all("input"):
        assert "checked" not in box


HOSTILE = '<script>alert("x")</script></td><img src=x onerror=alert(1)>\u202eevil {{ 7*7 }} \udc80 \x00'


@pytest.mark.long
@pytest.mark.parametrize("field", ["response", "text", "scenario", "verdict", "case"])
def test_text_of_models_and_data_is_never_markup(run: Path, field: str) -> None:
    shown = cases.choose(flips_of(run), arm="vcd")[0].case
    file = run / "predictions.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        # A verdict decides whether a case flipped, so the hostile one is that of an arm which plays no part in it.
        if record["case"] == shown and (field != "verdict" or record["arm"] == "prompt"):
            record[field] = HOSTILE
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = page_of(run)
    assert '<script>alert("x")</script></td><img src=x onerror=alert(1)>' in page.text
    assert "{{ 7*7 }}" in page.text
    assert len(page.all("script")) == 2
    assert all("onerror" not in attrs for _, attrs in page.tags)
    assert len(page.all("article")) == 10


@pytest.mark.long
def test_metrics_and_environment_are_not_trusted_either(run: Path) -> None:
    metrics = json.loads((run / "metrics.json").read_text().replace('"prompt"', json.dumps("<script>a</script>")))
    metrics["failed"] = HOSTILE
    metrics["learned_in_folds"] = [HOSTILE]
    (run / "metrics.json").write_text(json.dumps(metrics))
    environment = json.loads((run / "environment.json").read_text()) | {"command": HOSTILE, "config": {"a": HOSTILE}}
    (run / "environment.json").write_text(json.dumps(environment))
    page = page_of(run)
    assert len(page.all("script")) == 2
    assert all("onerror" not in attrs for _, attrs in page.tags)


@pytest.mark.long
def test_one_endless_word_is_cut_and_counted(run: Path) -> None:
    rewrite(run, response="w" * 100_000)
    assert "98000 more characters" in page_of(run).text
    assert build(run).stat().st_size < 1_000_000


@pytest.mark.long
def test_bytes_that_are_no_utf8_are_shown_and_not_fatal(run: Path) -> None:
    file = run / "predictions.jsonl"
    file.write_bytes(file.read_bytes().replace(b"Yes, it is safe.", b"Yes, it is \xff safe."))
    assert "Yes, it is � safe." in page_of(run).text


@pytest.mark.long
def test_single_arm_has_nothing_to_compare(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path, predictions(40, {"baseline": ARMS["baseline"]}), arm="baseline"))
    assert "Nothing to compare" in page.text
    assert "How well does llava_organism" in page.text
    assert not page.all("article")


@pytest.mark.long
def test_without_margins_auroc_is_not_available_and_never_zero(tmp_path: Path) -> None:
    records = [record | {"margin": None} for record in predictions(80)]
    run = write_run(tmp_path, records)
    page, text = page_of(run), printed(metrics_of(run))
    assert "not available" in page.text
    assert "cannot be told" in page.text
    row = by_heading(arms_table(metrics_of(run)))[0]
    assert row["AUROC"].value == "n/a"
    assert row["AUROC"].interval == ""
    assert "n/a" in text
    _, auroc = page.all("img", **{"class": "drawn"})
    assert auroc["alt"] == "AUROC of the margin. " + "; ".join(f"{arm}: n/a" for arm in ARMS) + "."


@pytest.mark.long
def test_failed_cases_leave_n_of_n_bounds_and_outcomes(tmp_path: Path) -> None:
    records = predictions(80)
    for record in records:
        if record["arm"] == "vcd" and record["case"] < "icon/0008":
            record.update(status="bad_image", verdict=None, response="", margin=None)
    run = write_run(tmp_path, records)
    metrics, page = metrics_of(run), page_of(run)
    low, high = metrics["arms"]["vcd"]["bounds"]["overall"]
    assert f"{{{percent(low)}–{percent(high)}}}" in page.text
    assert "72 of 80" in page.text
    assert "bad image" in page.text
    whole = build(write_run(tmp_path / "whole", predictions(80))).read_text(encoding="utf-8")
    assert "{" not in _Page(whole.split('<section id="arms">')[1].split("</section>")[0]).text


@pytest.mark.parametrize("missing", ["metrics.json", "predictions.jsonl", "environment.json"])
def test_missing_file_is_named(run: Path, missing: str) -> None:
    (run / missing).unlink()
    with pytest.raises(UserError, match=f"{missing} is missing"):
        build(run)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("metrics.json", "{", "metrics.json is not JSON"),
        ("metrics.json", "[]", "holds no object"),
        ("metrics.json", "{}", "holds no object"),
        ("metrics.json", '{"arms": {}}', "has no arms"),
        ("metrics.json", '{"arms": {"a": {"n": 1}}}', "arm 'a' has no 'accuracy'"),
        ("environment.json", "3", "holds no object"),
        ("predictions.jsonl", "", "is empty"),
        ("predictions.jsonl", '{"case": "1"', "predictions.jsonl, line 1: not JSON"),
        ("predictions.jsonl", '{"case": "1"}', "line 1: lacks arm, status"),
        ("predictions.jsonl", "3", "line 1: is no JSON object"),
    ],
)
def test_broken_file_is_one_sentence(run: Path, file: str, content: str, message: str) -> None:
    (run / file).write_text(content)
    with pytest.raises(UserError, match=re.escape(message)):
        build(run)


@pytest.mark.long
def test_no_directory_and_no_room_to_write(tmp_path: Path, run: Path) -> None:
    with pytest.raises(UserError, match="is not a directory"):
        build(tmp_path / "nothing")
    (run / "report.html").unlink()
    (run / "report.html").mkdir()
    with pytest.raises(UserError, match=r"report\.html cannot be written"):
        build(run)


@pytest.mark.long
def test_missing_thumbnail_is_said(run: Path) -> None:
    shutil.rmtree(run / "thumbnails")
    markup = build(run).read_text(encoding="utf-8").split('<script type="application/json"')[0]
    assert markup.split('id="flips"')[1].count("no thumbnail was kept") == 10
    assert markup.split('id="flips"')[0].count("no thumbnail was kept") == 5  # of the cases shown first


@example("a/b", "a_b")
@example("a/b", "a:b")
@given(st.text(min_size=1), st.text(min_size=1))
def test_thumbnail_names_are_safe_and_apart(one: str, other: str) -> None:
    name = thumbnail_name(one)
    assert re.fullmatch(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*\.jpg", name)
    assert len(name) < 100
    assert (name == thumbnail_name(other)) == (one == other)


def test_plain_ids_keep_their_name() -> None:
    assert thumbnail_name("1048") == "1048.jpg"
    assert thumbnail_name("../etc/passwd").count("/") == 0


@pytest.mark.parametrize("form", [figures.SCREEN, figures.PHONE])
@pytest.mark.parametrize("arms", [1, 4, 9])
def test_the_legend_keeps_away_from_the_axis_and_all_is_inside(arms: int, form: figures.Format) -> None:
    styled = {f"arm {number}": (0.8, float(number)) for number in range(arms)}
    metrics = evaluate(pd.DataFrame(predictions(40, styled)), seed=0, draws=20, study="arm 0", baseline="arm 0")
    figure = figures.trade_off(metrics, (), form)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    axes = figure.axes[0].get_tightbbox(canvas.get_renderer())
    legend = figure.legends[0].get_window_extent(canvas.get_renderer())
    assert axes is not None
    assert axes.y0 - legend.y1 >= 10  # of 100 pixels an inch
    assert legend.y0 >= 0
    assert axes.y1 <= figure.bbox.height
