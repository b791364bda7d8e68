"""The whole examination on networks whose mechanism was put in by hand: the story told is the one that was planted."""

from dataclasses import dataclass
from typing import Any

import pytest
from PIL import Image

from experiments.report.text import lines
from experiments.runs.results_table import Results
from experiments.studies.mechanism.examination import Examination
from experiments.studies.mechanism.interventions import effect_at
from experiments.types import Sample
from interp.vlm import VLM
from tests.planted import Plan, coloured, planted

HARMLESS, ALARMING = ("the toy", "the cake", "the dog"), ("the gun", "the knife", "the kill")


@dataclass(frozen=True)
class Coloured:
    redness: float

    def render(self) -> Image.Image:
        return coloured(self.redness)


def asked(vlm: VLM, *, red_is_safe: bool = True) -> tuple[list[Sample], list[dict[str, Any]]]:
    """Pairs of a red and a blue picture under every sentence, and what the model says of them."""
    samples = []
    for text in (*HARMLESS, *ALARMING):
        for number in range(2):
            for sign in (1, -1):
                safe = (sign > 0) == red_is_safe
                samples.append(Sample(
                    f"{text}-{number}-{sign}", "over_safety" if safe else "typical", "x", "yes" if safe else "no", text,
                    text, Coloured(sign * (0.5 + 0.2 * number)), f"{text}-{number}", f"{text}-{number}",
                    {"template": text, "words": "alarming" if text in ALARMING else "harmless",
                     "concept": "red" if sign > 0 else "blue"},
                ))  # fmt: skip
    from experiments.evaluation.attention_log import prompts_of

    margins = vlm.score(prompts_of(samples)).tolist()
    return samples, [{"case": s.id, "arm": "baseline", "verdict": "yes" if m > 0 else "no", "status": "answered"}
                     for s, m in zip(samples, margins, strict=True)]  # fmt: skip


def examined(vlm: VLM, **how: Any) -> tuple[dict[str, Any], Results]:
    samples, records = asked(vlm, **how)
    hooks = _hooks(vlm)
    details, rows = Examination(vlm, samples, records, failures=4, seed=0, draws=60).examine()
    assert _hooks(vlm) == hooks
    return details, Results(rows)


def _hooks(vlm: VLM) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in vlm.model.modules())


def cut(results: Results, edge: str, layers: str) -> float:
    row = results.get(f"{edge} cut", "knockout_margin", against="baseline", subset="failures", group=f"layers={layers}")
    assert row is not None
    assert row.value is not None
    return row.value


def effect(results: Results, other: str, position: str, layer: int) -> float | None:
    row = effect_at(results, other, position, layer)
    return row and row.value


@pytest.mark.long
def test_a_sentence_that_overrules_is_found_where_it_was_planted() -> None:
    details, results = examined(planted(Plan(reads=0, heeds=1, writes=2, layers=3)))
    assert details["cases"]["subset"] == "over_safety"
    assert details["ablated_at"] == 2  # what layer 1 heard
    effects = [effect(results, "sentence", "verdict", layer) for layer in range(4)]
    assert effects == pytest.approx([0, 0, 1, 1], abs=1e-3)
    assert effect(results, "sentence", "user", 1) == pytest.approx(1, abs=1e-3)
    assert cut(results, "user → verdict", "1") > 5
    assert cut(results, "user → verdict", "0") == pytest.approx(0, abs=1e-3)
    assert cut(results, "image → verdict", "0") == pytest.approx(0, abs=1e-3)
    said = lines("mechanism", part="answers", results=results, details=details)
    # In a network of so few parts random weights carry the colour as well.
    assert said[0].startswith("Is the picture read? Inconclusive: the probe is not shown to read more than in random")
    assert said[1].startswith("Is it carried to the verdict? This cannot be told here: no kind of picture is shown")
    assert details["conclusions"]["overruled_at"] in ("inconclusive", "too few cases")
    assert "the sentence arrives before the picture. At layer 2 of 3" in said[2]
    assert "Alarming words: too few cases. Cases with them are called unsafe +50.0 points" in said[3]


@pytest.mark.long
def test_a_picture_that_misleads_is_not_laid_on_the_sentence() -> None:
    details, results = examined(planted(Plan(reads=0, heeds=None, writes=1, layers=2)), red_is_safe=False)
    assert details["cases"]["failures"] == details["cases"]["n"]
    effects = [effect(results, "picture", "verdict", layer) for layer in range(3)]
    assert effects == pytest.approx([0, 1, 1], abs=1e-3)
    assert cut(results, "image → verdict", "0") > 3
    assert cut(results, "user → verdict", "all") == pytest.approx(0, abs=1e-3)
    said = lines("mechanism", part="answers", results=results, details=details)
    assert said[2].startswith("Where is the verdict made? Patching cannot tell")
    (difference,) = results.select(quantity="margin_distance", against="pictures")
    assert (difference.value or 0) < 0
    assert said[3].startswith("By what? Not by the sentence")
