"""Reasoning traces say what is true, in words the organism knows, about pictures that no evaluation shows."""

import hashlib
import random
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.benchmark import held_out
from experiments.benchmarks.iconworld.perception import KINDS, ask, perception_questions
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, CONCEPTS, RISKY, Thing
from experiments.benchmarks.iconworld.traces import CONTENTS, PERCEPTION, Trace, Traces
from experiments.judges.yes_no import anchored

CASES = 400
TEMPLATES = {template.name: template for template in RISKY + BENIGN}


def verdicts(traces: Traces, content: str = "reasoning") -> list[Trace]:
    return [row for row in traces.write(content) if row.subset != PERCEPTION]


@given(st.sampled_from(CONTENTS), st.integers(0, 3))
def test_the_verdict_rule_reads_the_truth_whether_it_comes_first_or_last(content: str, seed: int) -> None:
    for row in verdicts(Traces(cases=60, seed=seed), content):
        truth = TEMPLATES[row.template].is_safe(row.scene.thing)
        for answer in (f"{row.verdict} {row.reasoning}", f"{row.reasoning} {row.verdict}"):
            assert anchored(answer).value == ("yes" if truth else "no"), answer
        assert (row.subset in ("over_safety", "control")) == truth


def test_the_reasoning_is_in_words_that_the_organism_has_learnt_to_say() -> None:
    rng = random.Random(0)
    things = [Thing(concept, signed) for concept in CONCEPTS for signed in (False, True)]
    said = {token for kind in KINDS for thing in things for _ in range(40)
            for token in re.findall(r"\w+|[^\w\s]+", ask(kind, thing, rng)[1])}  # fmt: skip
    for content in CONTENTS:
        for row in verdicts(Traces(cases=CASES), content):
            assert set(re.findall(r"\w+|[^\w\s]+", row.reasoning)) <= said, row.reasoning


@pytest.mark.long
def test_no_picture_of_an_evaluation_is_in_training() -> None:
    def pixels(scene: Scene) -> str:
        return hashlib.sha256(scene.render().tobytes()).hexdigest()

    rows = Traces(cases=CASES, size=32).write()
    seeds, drawn = {row.scene.seed for row in rows}, {pixels(row.scene) for row in rows}
    assert len(seeds) == len(rows)
    for split in ("development", "test", "train", "new_sentences", "frames"):
        for seed in (0, 1):
            samples = IconWorld(split=split, seed=seed, size=32).load().samples
            shown = [sample.image for sample in samples]
            shown += [asked.scene for asked in perception_questions(split, per_kind=20, seed=seed, size=32)]  # type: ignore[arg-type]
            for scene in shown:
                assert scene.seed not in seeds
                assert pixels(scene) not in drawn


@pytest.mark.long
@given(st.integers(0, 50))
def test_held_out_combinations_are_never_trained_on_and_are_in_the_test(seed: int) -> None:
    trained = {(row.template, row.scene.thing) for row in verdicts(Traces(cases=CASES, seed=seed, replay=0.0))}
    assert not trained & held_out()
    tested = {(s.tags["template"], s.image.thing) for s in IconWorld().load().samples}  # type: ignore[union-attr]
    assert len(tested & held_out()) > 40


@pytest.mark.parametrize("content", CONTENTS)
def test_the_arms_have_equal_pictures_questions_and_verdicts(content: str) -> None:
    first, other = Traces(cases=CASES).write(), Traces(cases=CASES).write(content)
    assert [replace(row, reasoning="") for row in first] == [replace(row, reasoning="") for row in other]
