"""Reasoning traces say what is true, in words the organism knows, about pictures that no evaluation shows."""

import hashlib
import random
import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.cases import held_out
from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.perception import KINDS, ask, perception_questions
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, RISKY
from experiments.benchmarks.iconworld.traces import CONTENTS, PERCEPTION, Trace, Traces
from experiments.judges.yes_no import anchored
from interp.checkpoints.hub import ORGANISMS
from interp.errors import UserError

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


def test_every_row_uses_only_words_that_the_tokenizer_has() -> None:
    known = AutoTokenizer.from_pretrained(ORGANISMS / "llava").get_vocab().keys()
    for content in CONTENTS:
        for row in Traces(cases=CASES).write(content):
            said = f"{row.question} {row.reasoning} {row.verdict}"
            unknown = set(re.findall(r"\w+|[^\w\s]+", said)) - known
            assert not unknown, (said, unknown)


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
    for split in ("development", "test"):
        for seed in (0, 1):
            samples = IconWorld(split=split, seed=seed, size=32).load().samples
            shown = [sample.image for sample in samples]
            shown += [asked.scene for asked in perception_questions(split, per_kind=20, seed=seed, size=32)]  # type: ignore[arg-type]
            for scene in shown:
                assert isinstance(scene, Scene)
                assert scene.seed not in seeds
                assert pixels(scene) not in drawn


@pytest.mark.long
@given(st.integers(0, 50))
def test_held_out_combinations_are_never_trained_on_and_are_in_the_test(seed: int) -> None:
    trained = {(row.template, row.scene.thing) for row in verdicts(Traces(cases=CASES, seed=seed, replay=0.0))}
    assert not trained & held_out()
    tested = {(s.tags["template"], s.image.thing) for s in IconWorld().load().samples}  # type: ignore[union-attr]
    assert len(tested & held_out()) > 40


def test_subsets_templates_and_concepts_are_balanced() -> None:
    rows = verdicts(Traces(cases=960, benign=0.0))
    assert Counter(row.subset for row in rows) == {"typical": 240, "attack": 240, "over_safety": 480}
    assert set(Counter(row.template for row in rows).values()) == {40}
    signs = Counter(row.subset == "over_safety" for row in rows if row.scene.thing.signed)
    assert abs(signs[True] - signs[False]) <= 0.15 * sum(signs.values())


@pytest.mark.parametrize("content", CONTENTS)
def test_the_arms_have_equal_pictures_questions_and_verdicts(content: str) -> None:
    first, other = Traces(cases=CASES).write(), Traces(cases=CASES).write(content)
    assert [replace(row, reasoning="") for row in first] == [replace(row, reasoning="") for row in other]


def test_reasoning_names_what_is_there_and_what_follows() -> None:
    for row in verdicts(Traces(cases=CASES)):
        assert f"a {row.scene.thing.concept}" in row.reasoning
        assert ("dangerous" in row.reasoning) == (not TEMPLATES[row.template].is_safe(row.scene.thing))
    assert {row.reasoning for row in verdicts(Traces(cases=CASES), "no_reasoning")} == {""}


def test_reasoning_is_as_long_whatever_the_verdict() -> None:
    for row in verdicts(Traces(cases=CASES, benign=0.0)):
        twins = (row.reasoning.replace("dangerous", "harmless"), row.reasoning.replace("harmless", "dangerous"))
        assert len({len(re.findall(r"\w+|[^\w\s]+", text)) for text in twins}) == 1


def test_replay_is_its_share_of_all_rows() -> None:
    rows = Traces(cases=CASES, replay=0.2).write()
    assert sum(row.subset == PERCEPTION for row in rows) == len(rows) // 5
    assert not [row for row in Traces(cases=CASES, replay=0.0).write() if row.subset == PERCEPTION]
    assert len(verdicts(Traces(cases=3))) == 3


@pytest.mark.parametrize(("field", "value"), [("replay", 1.0), ("benign", -0.1), ("cases", 1), ("kinds", ["poem"])])
def test_settings_out_of_range_are_one_sentence(field: str, value: object) -> None:
    with pytest.raises(UserError, match=re.escape(f"traces.{field}={value!r}")):
        Traces(**{field: value})  # type: ignore[arg-type]


def test_an_unknown_content_is_one_sentence() -> None:
    with pytest.raises(UserError, match="content='poem'"):
        Traces(cases=2).write("poem")
