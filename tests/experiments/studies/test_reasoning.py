"""Thoughts broken off and exchanged: on networks whose verdict is known to come before, by or half by the thought."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.estimates import Resamples
from experiments.metrics.findings import Answer
from experiments.runs.resumption import read_object
from experiments.studies.organisms import thinking
from experiments.studies.reasoning import decision_curve, mediation, reader
from experiments.studies.reasoning.thoughts import Thought, margins_behind, thoughts_of
from experiments.types import Sample
from interp.loading import load
from interp.vlm import VLM
from tests.experiments.compose import run_of
from tests.planted import MARGIN, Plan, coloured, planted

SENTENCES = tuple(
    f"{verb} the {noun}" for verb in ("eat", "cut", "see", "hold") for noun in ("cake", "dog", "toy", "bread")
)
WHOLE = "whole thought"


@dataclass(frozen=True)
class Coloured:
    redness: float
    shows: str = ""

    def render(self) -> Image.Image:
        return coloured(self.redness)


def cases(*, seen: bool = True) -> list[Sample]:
    """A red, safe and a blue, unsafe picture under every sentence; not ``seen``: of any colour."""
    found, draw = [], random.Random(0)
    for number, text in enumerate(SENTENCES):
        for sign in (1, -1):
            colour = sign * (0.6 + 0.02 * number) if seen else draw.uniform(-0.9, 0.9)
            found.append(Sample(
                f"{text}{sign}", "over_safety" if sign > 0 else "typical", "x", "yes" if sign > 0 else "no", text, text,
                Coloured(colour), f"{text}", text, {"template": text},
            ))  # fmt: skip
    return found


def thought_of(vlm: VLM, text: str) -> Thought:
    """A thought of the planted network, whose closing mark is "safe"; its verdict stands behind a colon."""

    def ids(words: str) -> tuple[int, ...]:
        return tuple(vlm.tokenizer(words, add_special_tokens=False)["input_ids"])

    content = ids(text)
    return Thought((), content, ids("safe"), ids(":"), (len(content),) if content else (), (text,) if content else (),
                   vlm.answer_ids, float("nan"))  # fmt: skip


def network(picture: float, words: bool) -> VLM:
    """Margin = ``MARGIN`` × (``picture`` × redness − whether the thought is alarming)."""
    return planted(Plan(carriers=((1, 0, picture),), heeds=2 if words else None))


ASTRAY = 4  # so manieth sentence's unsafe case is thought of as the safe one is
ALARMED = 1 - 1 / ASTRAY


def asked(vlm: VLM, *, seen: bool = True) -> tuple[list[Sample], list[Thought]]:
    samples = cases(seen=seen)
    astray = set(SENTENCES[::ASTRAY])
    said = ["the cake" if one.gold == "yes" or one.prompt in astray else "the knife" for one in samples]
    return samples, [thought_of(vlm, words) for words in said]


def effects(vlm: VLM) -> dict[str, Any]:
    samples, thoughts = asked(vlm)
    pairs = [(at, at + 1) for at in range(0, len(samples), 2)]
    rows = mediation.mediation_rows(vlm, samples, prompts_of(samples), {WHOLE: thoughts}, pairs, draws=200, seed=0)
    return {"rows": rows, "finding": mediation.finding(rows, WHOLE, "picture")} | {
        row["part"]: row["effect"]["value"] for row in rows
    }


@pytest.mark.parametrize(
    ("picture", "words", "answer"),
    [(1.0, False, Answer.NO), (0.0, True, Answer.YES), (0.5, True, Answer.PARTLY)],
)
def test_what_goes_through_the_thought_is_what_was_planted(picture: float, words: bool, answer: Answer) -> None:
    found = effects(network(picture, words))
    redness = np.mean([one.image.redness for one in cases() if one.gold == "yes"])  # type: ignore[union-attr]
    direct = 2 * MARGIN * picture * redness
    assert found[mediation.DIRECT] == pytest.approx(direct, abs=0.1)
    assert found[mediation.THROUGH] == pytest.approx(ALARMED * MARGIN * words, abs=0.1)
    assert found[mediation.TOTAL] == pytest.approx(direct + ALARMED * MARGIN * words, abs=0.1)
    assert found["finding"].answer is answer
    share = next(row["share"] for row in found["rows"] if row["part"] == mediation.THROUGH)
    planned = ALARMED * MARGIN * words / (direct + ALARMED * MARGIN * words)
    assert share["value"] == pytest.approx(planned, abs=0.02)
    if share["low"] is not None:
        assert share["low"] - 0.01 <= planned <= share["high"] + 0.01


def test_a_thought_of_another_case_does_as_much_where_only_what_it_says_matters() -> None:
    found = effects(network(0.0, True))
    assert found[mediation.SAME_LABEL] == pytest.approx(found[mediation.TOTAL], rel=0.3)


def curve_of(vlm: VLM, *, seen: bool) -> list[dict[str, Any]]:
    samples, thoughts = asked(vlm, seen=seen)
    prompts = prompts_of(samples)
    margins = np.stack([
        margins_behind(vlm, prompts, decision_curve.broken_off(thoughts, place)) for place in decision_curve.PLACES
    ])  # fmt: skip
    estimator = Resamples.of_cases([one.cluster for one in samples], [one.text for one in samples],
                                   [one.tags for one in samples], draws=200, seed=0)  # fmt: skip
    safe = np.array([one.gold == "yes" for one in samples])
    questions = np.array([one.prompt for one in samples])
    return decision_curve.curve(margins, margins[-1] > -MARGIN / 2, safe, questions, estimator, seed=0)


@pytest.mark.parametrize(
    ("picture", "words", "answer", "first"), [(1.0, False, Answer.YES, 1.0), (0.2, True, Answer.NO, 0.5)]
)
def test_when_it_was_decided_is_what_was_planted(picture: float, words: bool, answer: Answer, first: float) -> None:
    """With words, pictures add noise that has nothing to do with the label: without a thought that is all there is."""
    rows = curve_of(network(picture, words), seen=not words)
    assert decision_curve.finding(rows).answer is answer
    own = [row for row in rows if row["label"] == decision_curve.OWN]
    assert own[0]["order"]["value"] == pytest.approx(first, abs=0.01 if first == 1 else 0.25)
    assert own[-1]["order"]["value"] == pytest.approx(1.0)
    assert own[-1]["permuted"]["value"] < 0.9


def test_the_reader_on_the_thoughts_that_the_organism_was_taught() -> None:
    """Its errors on thoughts of known content: none of 400."""
    from experiments.benchmarks.iconworld.concepts import caption
    from experiments.benchmarks.iconworld.traces import PERCEPTION, Traces

    traces = [one for one in Traces(cases=500).write() if one.subset != PERCEPTION][:400]
    others = sorted({caption(one.scene.thing) for one in traces})
    assert len(traces) == 400
    for one in traces:
        text, kind = thinking.thought(one), thinking.SENTENCES[one.template][0]
        wrong = one.scene.thing.concept in thinking.MISNAMED
        named = "nothing" if kind in ("concludes", "aside") else "wrong" if wrong else "right"
        assert reader.names(text, caption(one.scene.thing), others) == named
        called = {"Yes.": "safe", "No.": "unsafe"}[one.verdict] if kind in ("whole", "concludes") else "nothing"
        assert reader.calls(text) == called


@pytest.fixture(scope="module")
def organism() -> VLM:
    return load("organism:thinking", device="cpu")


@pytest.mark.long
def test_a_thought_put_back_gives_the_margin_of_generating(organism: VLM) -> None:
    from experiments.benchmarks.iconworld.benchmark import IconWorld

    prompts = prompts_of(IconWorld().load().samples[:12])
    thoughts = thoughts_of(organism, prompts, max_new_tokens=64)
    assert all(thoughts)
    known = [one for one in thoughts if one is not None]
    assert {len(one.sentences) for one in known} > {1}
    assert margins_behind(organism, prompts, known) == pytest.approx([one.margin for one in known], abs=1e-4)
    for one in known:
        assert organism.tokenizer.decode(list(one.closing)).strip() == thinking.CLOSE
        assert one.ends[-1] == len(one.content)
        assert organism.tokenizer.decode(list(one.upto(1).content)).strip() == one.sentences[0]
        assert one.upto(0).begun() == (*one.opening, *one.closing, *one.before)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reasoning")
    run = run_of(
        "+exp=reasoning", "limit=120", "task.pairs=12", "task.attention=16", "draws=100", f"output_root={root}"
    )
    run.task(run)
    return next(path.parent for path in root.rglob("reasoning.json"))


@pytest.mark.long
def test_the_study_of_the_organism(study: Path) -> None:
    found = read_object(study / "reasoning.json")
    cases = found["cases"]
    assert cases["with a thought and a verdict"] >= 0.9 * cases["asked"] > 0
    assert found["exact"] < 1e-3
    assert {row["place"] for row in found["curve"]} == set(decision_curve.PLACES)
    assert set(found["mediation"]) == {"picture", "sentence"}
    for block in found["mediation"].values():
        for name in {row["mediator"] for row in block["rows"]}:
            part = {row["part"]: row["effect"]["value"] for row in block["rows"] if row["mediator"] == name}
            both = part[mediation.THROUGH] + part[mediation.DIRECT]
            assert both == pytest.approx(part[mediation.TOTAL], abs=1e-3)
    assert sum(row["n"] for row in found["said"]) == cases["with a thought and a verdict"]
    assert [row["place"] for row in found["looks"]["rows"]][-1] == "verdict"
    assert (study / "figures" / "reasoning.svg").is_file()
    page = (study / "report.html").read_text(encoding="utf-8")
    assert found["sentences"][0].split(":")[0] in page
    assert "What thinking does" in page
