"""What the second organism learns: true by IconWorld's own table, and none of what a benchmark asks of it."""

import random
import re
from collections import Counter
from itertools import islice

import pytest

from experiments.benchmarks.iconworld import sentences
from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.sentences import CATEGORY_OF, CONCEPTS, indefinite
from experiments.studies.organisms import smol
from experiments.studies.organisms.lab import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES, Example, held_out_pairs
from experiments.studies.organisms.smol import BENIGN, FRAMES, caption_lessons, instructions, text_lessons

TEMPLATES = {template.name: template for template in sentences.RISKY}
SEEN = list(islice(caption_lessons(random.Random(0)), 12_000))


def drawn(count: int = 4000) -> list[Example]:
    replay = [Example("Hello!", "Hello, how can I help?")]
    return list(islice(text_lessons(random.Random(0), replay, 0.6), count))


def bare(text: str) -> str:
    """A text's words alone, so that quotes, marks and capitals cannot hide that two are the same."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def quoted(text: str) -> str:
    """The sentence in quotes that a verdict is asked about, or the whole text."""
    found = re.search(r'"(.*)"$', text, flags=re.DOTALL)
    return found[1] if found else text


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.name)
def test_frame_has_both_sides_no_thing_on_two_and_the_truth_of_iconworld(frame) -> None:
    assert frame.things[True]
    assert frame.things[False]
    assert not set(frame.things[True]) & set(frame.things[False])
    assert all(re.search(r"\bthis\b", text) and not re.search(r"\bThis\b", text) for text in frame.texts)
    assert frame.template not in HELD_OUT_TEMPLATES
    for is_safe, things in frame.things.items():
        for thing in things:
            assert thing.concept not in HELD_OUT_CONCEPTS
            assert thing.concept in smol.CATEGORY_OF
            assert (frame.template, thing.name) not in held_out_pairs()
            template = TEMPLATES.get(frame.template)
            if template and (thing in template.safe or thing in template.unsafe):
                assert template.is_safe(thing) is is_safe, (frame.name, thing)


def test_no_example_names_a_held_out_thing() -> None:
    words = {word for example in drawn() for word in bare(f"{example.user} {example.answer}").split()}
    words |= {word for text in instructions() for word in bare(text).split()}
    assert not words & {form for concept in HELD_OUT_CONCEPTS for form in (concept, f"{concept}s")}


@pytest.mark.long
@pytest.mark.parametrize("split", ["development", "test", "new_sentences", "frames"])
def test_no_request_and_no_rewrite_of_one_is_a_training_string(split: str) -> None:
    taught = {bare(text) for frame in (*FRAMES, *BENIGN) for text in frame.texts}
    taught |= {bare(text) for example in drawn(8000) for text in (quoted(example.user), example.user)}
    asked = set()
    for sample in IconWorld(split=split).load().samples:
        asked |= {bare(sample.text), bare(sample.prompt)}
        for article in ("the", "a", "an", "this"):
            asked.add(bare(sample.text.replace("this", f"{article} {sample.tags['concept']}")))
    for template in (*sentences.RISKY, *sentences.NEW, *sentences.FRAMES, *sentences.BENIGN):
        asked.add(bare(template.text))
    assert not asked & taught


def test_an_answer_is_true_of_its_picture_and_never_of_safety() -> None:
    for question, answer, thing, *_ in SEEN:
        right = {thing.concept, CATEGORY_OF[thing.concept]}
        assert set(answer.rstrip(".").split()) & set(CONCEPTS) <= right, (thing, question, answer)
        if question in dict(smol.CAPTIONS):
            assert indefinite(thing) in answer
            assert ("prohibition sign" in answer) == thing.signed
        assert "safe" not in f"{question} {answer}".lower()
    assert 0 < sum(one.answer in ("Yes.", "No.") for one in SEEN) < len(SEEN) / 8
    seen = Counter(one.thing.concept for one in SEEN if one.thing)
    assert set(seen) == set(CONCEPTS)
    assert max(seen.values()) < 2 * min(seen.values())
