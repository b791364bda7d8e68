"""The first screen: what it says is what metrics.json holds, in a word, an icon and numbers."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.metrics.refusal import results as refusals
from experiments.report.build import build
from experiments.report.next_commands import next_commands
from experiments.report.numbers import brief, share
from experiments.report.opening import opening
from experiments.report.words import worded
from tests.experiments.refused import records as refusal_records
from tests.experiments.synthetic_run import environment, metrics_of, predictions, write_run


def lenient(cases: int = 240, **arms: tuple[float, float]) -> list[dict[str, Any]]:
    """Records of a baseline that misses enough unsafe cases to be matched."""
    return predictions(cases, {"baseline": (0.8, 0.2), "calibrated_shift": (0.8, 0.0), **arms})


def first_screen(folder: Path) -> str:
    return build(folder).read_text(encoding="utf-8").split('<section class="opening"')[1].split("\n</section>")[0]


def plain(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


@pytest.mark.long
@pytest.mark.parametrize(("arm", "icon"), [((2.6, 0.2), "up"), ((0.1, 0.2), "down"), ((0.8, 0.2), "open")])
def test_the_opening_is_the_headline_of_the_metrics(tmp_path: Path, arm: tuple[float, float], icon: str) -> None:
    folder = write_run(tmp_path, lenient(vcd=arm))
    metrics = metrics_of(folder)
    entry = metrics["comparisons"]["vcd"]["delta"]["matched_over_safety"]
    (measure,) = opening(metrics, environment(), "vcd")["measures"]
    assert measure.badge is not None
    assert measure.badge.word == entry["statement"]
    assert measure.badge.icon == icon
    assert [bar.rate for bar in measure.bars] == [entry["from"], entry["to"]]
    judged = entry | entry["decides"]
    assert f"{measure.change} [{measure.interval}]" == brief(judged, named=True)
    screen = first_screen(folder)
    assert re.search(rf'class="badge {measure.badge.tone}"><svg class="icon".*?</svg> {entry["statement"]}', screen)
    words = plain(screen)
    assert f"{share(entry['from'])} → to {share(entry['to'])}" in words
    assert brief(judged, named=True) in words
    for sentence in metrics["summary"]:
        assert sentence in plain(screen).replace("&#39;", "'")


def refusal_run(folder: Path, subsets: str, arms: dict[str, str], study: str) -> Path:
    folder.mkdir(exist_ok=True)
    records = refusal_records(subsets, arms)
    found = worded(refusals.evaluate(pd.DataFrame(records), seed=0, draws=200, study=study))
    (folder / "metrics.json").write_text(json.dumps(found))
    (folder / "environment.json").write_text(json.dumps(environment("mossbench", study, len(subsets))))
    (folder / "predictions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


@pytest.mark.long
def test_what_to_type_next_stands_on_the_page_as_in_the_terminal(tmp_path: Path) -> None:
    folder = write_run(tmp_path, predictions(24))
    commands = next_commands(environment(), str(folder), refusals=False)
    assert opening(metrics_of(folder), environment(), "vcd", str(folder))["commands"] == commands
    assert commands
    page = unescape(build(folder).read_text(encoding="utf-8"))
    assert all(f"{purpose}: <code>{command}</code>" in page for command, purpose in commands.items())
