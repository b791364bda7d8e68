"""MSTS as a benchmark: its requests as they are published, and what a run over them may not say."""

import csv
import json
from pathlib import Path

import pytest
from experiments.metrics.refusal.results import evaluate
from experiments.report.opening import opening
from experiments.report.words import worded

from experiments.benchmarks.msts import ASKED, LANGUAGES, MSTS
from interp.errors import UserError
from tests.experiments.benchmarks.test_images import noise
from tests.experiments.compose import run_of
from tests.experiments.refused import frame
from tests.experiments.synthetic_run import environment

SAID = "nothing is said at equal strictness"


def clone(root: Path, rows: list[dict[str, str]] | None = None, *, language: str = "english") -> Path:
    """Two cases asked twice, one picture a jpg, one a png."""
    asked = [("assistance", "Should I {}?"), ("intention", "I am going to {}.")]
    rows = rows or [
        {"hazard_category": "Violent Crimes", "hazard_subcategory": "Terror", "case_id": f"case_000{case}",
         "unsafe_image_id": f"unsafe_image_000{case}", "prompt_text": text.format(f"do {case}"), "prompt_type": kind}
        for case in (1, 2) for kind, text in asked
    ]  # fmt: skip
    (root / "data" / "prompts").mkdir(parents=True)
    (root / "data" / "unsafe_images").mkdir()
    with (root / "data" / "prompts" / f"{language}_multimodal.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, [*ASKED, "hazard_subcategory"])
        table.writeheader()
        table.writerows(rows)
    for case, ending in ((1, "jpg"), (2, "png")):
        noise(case).save(root / "data" / "unsafe_images" / f"unsafe_image_000{case}.{ending}")
    return root


def test_a_case_a_request_all_unsafe_with_the_picture_that_they_share(tmp_path: Path) -> None:
    loaded = run_of("benchmark=msts", f"benchmark.root={clone(tmp_path)}").benchmark.load()
    assert [one.id for one in loaded.samples] == [
        f"case_000{case}-{kind}" for case in (1, 2) for kind in ("assistance", "intention")
    ]
    assert {(one.subset, one.gold, one.scenario) for one in loaded.samples} == {
        ("contrast", "refuse", "Violent Crimes")
    }
    first = loaded.samples[0]
    assert first.prompt == "Should I do 1?"
    assert first.tags == {"asks": "assistance", "language": "en", "hazard": "Terror"}
    clusters = [one.cluster for one in loaded.samples]
    assert clusters[0] == clusters[1] != clusters[2]
    assert not loaded.missing


def test_a_language_without_ids_of_prompts(tmp_path: Path) -> None:
    loaded = MSTS(str(clone(tmp_path, language="french")), language="french").load()
    assert {one.tags["language"] for one in loaded.samples} == {LANGUAGES["french"]}


@pytest.mark.parametrize("change", [
    {"unsafe_image_id": "../../secret"}, {"case_id": "case_1\x1b"}, {"prompt_text": ""}, {"prompt_type": ""},
    {"unsafe_image_id": "unsafe_image_0009"},
])  # fmt: skip
def test_a_row_of_which_no_case_can_be_made_costs_itself_alone(tmp_path: Path, change: dict[str, str]) -> None:
    good = {"hazard_category": "h", "case_id": "case_0001", "unsafe_image_id": "unsafe_image_0001",
            "prompt_text": "Should I?", "prompt_type": "assistance"}  # fmt: skip
    bad = {**good, "case_id": "case_0002", "unsafe_image_id": "unsafe_image_0002"} | change
    root = clone(tmp_path, [bad, good])
    loaded = MSTS(str(root)).load()
    assert [one.id for one in loaded.samples] == ["case_0001-assistance"]
    assert len(loaded.missing) == 1
    with pytest.raises(UserError, match="1 of 2 cases cannot run as published"):
        MSTS(str(root), strict=True).load()


@pytest.mark.parametrize(("root", "why"), [
    (None, "benchmark.root is not set; git clone https://github.com/paul-rottger/msts-multimodal-safety"),
    ("nowhere", "is not a folder; git clone"), (".", "is missing; git clone"),
])  # fmt: skip
def test_without_a_clone_a_sentence_says_how_to_get_it(tmp_path: Path, root: str | None, why: str) -> None:
    with pytest.raises(UserError, match=why):
        MSTS(root and str(tmp_path / root)).load()
    with pytest.raises(UserError, match="language='klingon' is not known"):
        MSTS(str(tmp_path), language="klingon")


@pytest.mark.parametrize("arms", [{"baseline": "rncr" * 10}, {"baseline": "rncr" * 10, "vcd": "crcc" * 10}])
def test_of_harmful_requests_alone_nothing_is_said_at_equal_strictness(arms: dict[str, str]) -> None:
    study = list(arms)[-1]
    metrics = worded(evaluate(frame("c" * 40, arms), seed=0, draws=50, study=study), where="m on msts")
    assert [SAID in one for one in metrics["summary"]] == [False, True]
    assert "benign" not in metrics["summary"][0]
    assert SAID in json.dumps(opening(metrics, environment("msts", study, 40), study), default=str)
    for one in metrics["comparisons"].values():
        assert one["wins"] is None
        assert one["wins_reasons"] == ["not judged: all requests here are harmful"]
    both = worded(evaluate(frame("bc" * 20, arms), seed=0, draws=50, study=study), where="m on mssbench")
    assert SAID not in " ".join(both["summary"])
