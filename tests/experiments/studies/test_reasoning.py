"""Thoughts broken off and exchanged: on networks whose verdict is known to come before, by or half by the thought."""

import random
from pathlib import Path

import numpy as np
import pytest

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.traces import PERCEPTION, Traces
from experiments.evaluation.attention_log import prompts_of
from experiments.metrics.estimates import Resamples
from experiments.runs.results_table import Results, Row, group_of, read_results
from experiments.runs.store import read_object
from experiments.studies.organisms import thinking
from experiments.studies.reasoning import decision_curve, mediation
from experiments.studies.reasoning.thoughts import Thought, calls, margins_behind, thoughts_of
from experiments.types import Sample
from interp.loading import load
from interp.vlm import VLM
from tests.experiments.compose import ran, run_of
from tests.planted import MARGIN, Coloured, Plan, planted

SENTENCES = tuple(
    f"{verb} the {noun}" for verb in ("eat", "cut", "see", "hold") for noun in ("cake", "dog", "toy", "bread")
)
WHOLE = "whole thought"


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
                   float("nan"))  # fmt: skip


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


def effects(vlm: VLM) -> Results:
    samples, thoughts = asked(vlm)
    pairs = [(at, at + 1) for at in range(0, len(samples), 2)]
    prompts, mediators = prompts_of(samples), {WHOLE: thoughts}
    return Results(
        mediation.mediation_rows(vlm, samples, prompts, mediators, pairs, differs="picture", draws=200, seed=0)
    )


def effect(results: Results, part: str) -> float:
    return mediation.effect_of(results, "picture", WHOLE, part).value


def share(results: Results, part: str) -> Row | None:
    return results.get("baseline", "mediation_share", group=group_of(differs="picture", thought=WHOLE, part=part))


@pytest.mark.parametrize(
    ("picture", "words", "answer"),
    [(1.0, False, "no"), (0.0, True, "yes"), (0.5, True, "partly")],
)
def test_what_goes_through_the_thought_is_what_was_planted(picture: float, words: bool, answer: str) -> None:
    found = effects(network(picture, words))
    redness = np.mean([one.image.redness for one in cases() if one.gold == "yes"])  # type: ignore[union-attr]
    direct = 2 * MARGIN * picture * redness
    through = ALARMED * MARGIN * words
    assert effect(found, mediation.DIRECT) == pytest.approx(direct, abs=0.1)
    assert effect(found, mediation.THROUGH) == pytest.approx(through, abs=0.1)
    assert effect(found, mediation.TOTAL) == pytest.approx(direct + through, abs=0.1)
    assert mediation.carried(found, "picture", WHOLE) == answer
    part, planned = share(found, mediation.THROUGH), through / (direct + through)
    assert part
    assert part.value == pytest.approx(planned, abs=0.02)
    if part.interval is not None:
        assert part.interval[0] - 0.01 <= planned <= part.interval[1] + 0.01


def test_a_thought_of_another_case_does_as_much_where_only_what_it_says_matters() -> None:
    found = effects(network(0.0, True))
    assert effect(found, mediation.SAME_LABEL) == pytest.approx(effect(found, mediation.TOTAL), rel=0.3)


def test_no_share_without_an_effect() -> None:
    found = effects(planted(Plan(carriers=((1, 0, 0.0),))))
    assert mediation.carried(found, "picture", WHOLE) == "inconclusive"
    assert not found.select(quantity="mediation_share")


def curve_of(vlm: VLM, *, seen: bool) -> Results:
    samples, thoughts = asked(vlm, seen=seen)
    prompts = prompts_of(samples)
    margins = np.stack([
        margins_behind(vlm, prompts, decision_curve.broken_off(thoughts, share)) for share in decision_curve.SHARES
    ])  # fmt: skip
    estimator = Resamples.from_cases([one.cluster for one in samples], [one.text for one in samples],
                                   [one.tags for one in samples], draws=200, seed=0)  # fmt: skip
    safe = np.array([one.gold == "yes" for one in samples])
    questions = np.array([one.prompt for one in samples])
    says_yes = margins[-1] > -MARGIN / 2
    return Results(decision_curve.curve(margins, says_yes, safe, questions, estimator, seed=0))


def order(results: Results, left: float, arm: str = "baseline") -> float:
    return results.get(arm, "decision_order", group=group_of(by=decision_curve.OWN, left=left)).value


@pytest.mark.parametrize(
    ("picture", "words", "answer", "first"), [(1.0, False, "before", 1.0), (0.2, True, "by thinking", 0.5)]
)
def test_when_it_was_decided_is_what_was_planted(picture: float, words: bool, answer: str, first: float) -> None:
    """With words, pictures add noise that has nothing to do with the label: without a thought that is all there is."""
    results = curve_of(network(picture, words), seen=not words)
    assert decision_curve.decided(results) == answer
    assert order(results, 0.0) == pytest.approx(first, abs=0.01 if first == 1 else 0.25)
    assert order(results, 1.0) == pytest.approx(1.0)
    assert order(results, 1.0, decision_curve.EXCHANGED) < 0.9


@pytest.mark.parametrize(
    ("text", "called"),
    [("It is harmless.", "safe"), ("It is dangerous.", "unsafe"), ("That is not safe at all.", "unsafe"),
     ("It isn't harmful.", "safe"), ("There is a dog.", "nothing"), ("It looks dangerous but it is fine.", "safe"),
     ("", "nothing")],
)  # fmt: skip
def test_what_a_thought_calls_a_request(text: str, called: str) -> None:
    assert calls(text) == called


def test_the_reader_on_the_thoughts_that_the_organism_was_taught() -> None:
    """Its errors on thoughts of known content: none of 400."""
    traces = [one for one in Traces(cases=500).write() if one.subset != PERCEPTION][:400]
    assert len(traces) == 400
    for one in traces:
        text, kind = thinking.thought(one), thinking.SENTENCES[one.template][0]
        called = {"Yes.": "safe", "No.": "unsafe"}[one.verdict] if kind in ("whole", "concludes") else "nothing"
        assert calls(text) == called


@pytest.fixture(scope="module")
def organism() -> VLM:
    return load("organism:thinking", device="cpu")


@pytest.mark.long
def test_a_thought_put_back_gives_the_margin_of_generating(organism: VLM) -> None:
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
        assert one.upto(0).answer_prefix() == (*one.opening, *one.closing, *one.before)


def test_what_is_cut_off_is_no_thought(organism: VLM) -> None:
    prompts = prompts_of(IconWorld().load().samples[:4])
    assert thoughts_of(organism, prompts, max_new_tokens=2) == [None] * 4


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("reasoning")
    return ran(run_of("+exp=reasoning", "limit=120", "task.pairs=12", "draws=100", f"output_root={root}"))


@pytest.mark.long
def test_the_study_of_the_organism(study: Path) -> None:
    found, results = read_object(study / "reasoning.json"), read_results(study)
    cases = found["cases"]
    assert cases["with_thought"] >= 0.9 * cases["asked"] > 0
    assert len(found["thoughts"]) == cases["with_thought"]
    assert found["exact"] < 1e-3
    left = {one.part("left") for one in results.select(quantity="decision_order")}
    assert left == {str(share) for share in decision_curve.SHARES}
    assert set(found["pairs"]) == set(found["carried"]) == {"picture", "sentence"}
    for differs in found["pairs"]:
        for name in ("whole thought", "without its conclusion"):
            through, direct, total = (
                mediation.effect_of(results, differs, name, part).value
                for part in (mediation.THROUGH, mediation.DIRECT, mediation.TOTAL)
            )
            assert through + direct == pytest.approx(total, abs=1e-3)
    for name in ("decision", "mediation"):
        assert (study / "figures" / f"reasoning_{name}.svg").is_file()
    page = (study / "report.html").read_text(encoding="utf-8")
    assert "With an empty thought, the margin ranks the case first" in page
    assert "What thinking does" in page
    assert "Mean tokens of a thought: baseline" in page
