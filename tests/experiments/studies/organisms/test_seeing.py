"""Tests of what the projector is taught to say: true of the picture, in several wordings, and never of safety."""

import random
from collections import Counter
from itertools import islice

from experiments.benchmarks.iconworld.concepts import CATEGORY_OF, CONCEPTS, indefinite
from experiments.studies.organisms.alignment import CAPTIONS, QUESTIONS, caption_lessons

DRAWN = [(one.thing, one.user, one.answer) for one in islice(caption_lessons(random.Random(0)), 12_000)]


def test_an_answer_names_no_other_thing_than_the_picture_shows() -> None:
    for thing, question, answer in DRAWN:
        right = {thing.concept, CATEGORY_OF[thing.concept]}
        said = set(answer.rstrip(".").split()) & set(CONCEPTS)
        assert said <= right, (thing, question, answer)


def test_a_caption_names_the_thing_and_the_sign_where_there_is_one() -> None:
    wordings = {question for question, _ in CAPTIONS}
    captions = [(thing, answer) for thing, question, answer in DRAWN if question in wordings]
    assert len(captions) > 1000
    assert all(indefinite(thing) in answer for thing, answer in captions)
    assert all(("prohibition sign" in answer) == thing.signed for thing, answer in captions)


def test_signs_are_affirmed_where_there_are_some() -> None:
    asked = [(thing, answer) for thing, question, answer in DRAWN if question.startswith("Do you see a prohibition")]
    assert asked
    assert all((answer == "I see a prohibition sign.") == thing.signed for thing, answer in asked)


def test_few_answers_are_a_bare_yes_or_no() -> None:
    bare = sum(answer in ("Yes.", "No.") for _, _, answer in DRAWN)
    assert 0 < bare < len(DRAWN) / 8


def test_all_things_are_seen_about_equally_often() -> None:
    seen = Counter(thing.concept for thing, _, _ in DRAWN)
    assert set(seen) == set(CONCEPTS)
    assert max(seen.values()) < 2 * min(seen.values())


def test_no_question_is_one_of_safety() -> None:
    asked = {question for _, question, _ in DRAWN}
    assert not any(line in question for question in asked for line in QUESTIONS)
    assert not any("safe" in f"{question} {answer}".lower() for _, question, answer in DRAWN)
