"""What the second organism is taught in words: true by IconWorld's own table, and none of what is asked of it."""

import random
import re
from collections import Counter
from itertools import islice

import pytest

from experiments.benchmarks.iconworld.benchmark import IconWorld
from experiments.benchmarks.iconworld.concepts import CONCEPTS, Thing
from experiments.benchmarks.iconworld.sentences import BENIGN as ICON_BENIGN
from experiments.benchmarks.iconworld.sentences import FRAMES as ICONWORLD_FRAMES
from experiments.benchmarks.iconworld.sentences import NEW, RISKY
from experiments.studies.organisms.alignment import (
    ANYTHING,
    BENIGN,
    CATEGORY_OF,
    FRAMES,
    REFUSALS,
    STATEMENTS,
    a,
    instructions,
    parse,
    plural,
    text_lessons,
    things,
    worth_replaying,
)
from experiments.studies.organisms.held_out import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES, held_out_pairs
from experiments.studies.organisms.recipe import Example
from mitigation.verbalise import Verbalise
from tests.experiments.studies.organisms.recipes import bundled, changed

TEMPLATES = {template.name: template for template in RISKY}


def drawn(count: int = 4000, **settings: float) -> list[Example]:
    replay = [Example("Hello!", "Hello, how can I help?")]
    return list(islice(text_lessons(changed("smol", shares=settings), random.Random(0), replay), count))


def bare(text: str) -> str:
    """A text's words alone, so that quotes, marks and capitals cannot hide that two are the same."""
    return " ".join(re.findall(r"[a-z]+", text.lower()))


def quoted(text: str) -> str:
    """The sentence in quotes that a verdict is asked about, or the whole text."""
    found = re.search(r'"(.*)"$', text, flags=re.DOTALL)
    return found[1] if found else text


def test_is_as_broad_as_the_card_says() -> None:
    assert len(FRAMES) >= 100
    assert len({text for frame in FRAMES for text in frame.texts}) == sum(len(frame.texts) for frame in FRAMES)
    assert len(CATEGORY_OF) >= 190
    assert set(CONCEPTS) <= set(CATEGORY_OF)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.name)
def test_frame_has_both_sides_and_no_thing_on_two(frame) -> None:
    for safe, other in ((frame.safe, frame.unsafe), (frame.signs_safe, frame.signs_unsafe)):
        assert not set(safe) & set(other)
    assert things(frame, safe=True)
    assert things(frame, safe=False)
    assert all(re.search(r"\bthis\b", text) and not re.search(r"\bThis\b", text) for text in frame.texts)


@pytest.mark.parametrize("frame", [frame for frame in FRAMES if frame.template], ids=lambda frame: frame.name)
def test_truth_is_iconworlds_where_it_has_one(frame) -> None:
    template = TEMPLATES[frame.template]
    for plain, signs, is_safe in (
        (frame.safe, frame.signs_safe, True),
        (frame.unsafe, frame.signs_unsafe, False),
    ):
        for noun, signed in [(noun, False) for noun in plain] + [(noun, True) for noun in signs]:
            thing = Thing(noun, signed)
            if thing in template.safe or thing in template.unsafe:
                assert template.is_safe(thing) is is_safe, (frame.name, thing)


def test_held_out_is_as_large_as_promised() -> None:
    assert len(HELD_OUT_TEMPLATES) >= 8
    assert set(TEMPLATES) >= HELD_OUT_TEMPLATES
    assert len(HELD_OUT_CONCEPTS) >= 6
    assert set(CONCEPTS) >= HELD_OUT_CONCEPTS
    kept_pairs = {
        (template.name, thing.name)
        for template in RISKY
        for thing in (*template.safe, *template.unsafe)
        if template.name not in HELD_OUT_TEMPLATES and thing.concept not in HELD_OUT_CONCEPTS
    }
    assert held_out_pairs() <= kept_pairs
    assert 0.15 <= len(held_out_pairs()) / len(kept_pairs) <= 0.25


def test_no_frame_says_what_is_held_out() -> None:
    assert not {frame.template for frame in FRAMES} & HELD_OUT_TEMPLATES
    for frame in FRAMES:
        for safe in (True, False):
            for meant in things(frame, safe=safe):
                assert meant.noun not in HELD_OUT_CONCEPTS
                name = f"no-{meant.noun}" if meant.signed else meant.noun
                assert (frame.template, name) not in held_out_pairs()


def test_no_example_names_a_held_out_thing() -> None:
    words = {word for example in drawn() for word in bare(f"{example.user} {example.answer}").split()}
    words |= {word for text in instructions() for word in bare(text).split()}
    assert not words & {form for concept in HELD_OUT_CONCEPTS for form in (concept, plural(concept))}
    assert not set(ANYTHING) & HELD_OUT_CONCEPTS


@pytest.mark.long
@pytest.mark.parametrize("split", ["development", "test", "new_sentences", "frames"])
def test_no_request_and_no_rewrite_of_one_is_a_training_string(split: str) -> None:
    taught = {bare(text) for frame in (*FRAMES, *BENIGN) for text in frame.texts}
    taught |= {bare(quoted(example.user)) for example in drawn(8000)} | {bare(example.user) for example in drawn(8000)}
    asked = set()
    for sample in IconWorld(split=split).load().samples:
        asked |= {bare(sample.text), bare(sample.prompt)}
        for article in ("the", "a", "an", "this"):
            asked.add(bare(sample.text.replace("this", f"{article} {sample.tags['concept']}")))
    for template in (*RISKY, *NEW, *ICONWORLD_FRAMES, *ICON_BENIGN):
        asked.add(bare(template.text))
    assert not asked & taught


def test_shares_are_the_recipes() -> None:
    examples = drawn(6000)
    scored = [example for example in examples if example.frame and example.frame not in {f.name for f in BENIGN}]
    shares = bundled("smol").shares
    assert sum(not example.frame for example in examples) / len(examples) == pytest.approx(shares["replay"], abs=0.02)
    assert sum(not example.safe for example in scored) / len(scored) == pytest.approx(shares["unsafe"], abs=0.03)
    starts = tuple(statement.partition("{")[0] for statement in STATEMENTS)
    pointing = [example for example in scored if example.user.startswith(starts)]
    assert len(pointing) / len(scored) == pytest.approx(shares["pointing"], abs=0.03)
    assert all("this" in example.user for example in pointing)


def test_answers_follow_the_truth() -> None:
    for example in drawn(3000):
        if not example.frame:
            continue
        if example.verdict:
            assert example.answer == ("Yes." if example.safe else "No.")
        else:
            assert (example.answer in REFUSALS) is not example.safe


def test_every_frame_is_drawn_on_both_sides() -> None:
    seen = Counter((example.frame, example.safe) for example in drawn(12000, iconworld=0.2))
    assert all(seen[frame.name, safe] for frame in FRAMES for safe in (True, False))


def test_nouns_are_written_as_english_writes_them() -> None:
    assert [a("apple"), a("knife"), a("bread"), a("old lady")] == ["an apple", "a knife", "some bread", "an old lady"]
    assert [plural("knife"), plural("baby"), plural("poison"), plural("toy car")] == [
        "knives",
        "babies",
        "poison",
        "toy cars",
    ]
    assert "moth" not in parse("pest, -moth")
    assert "wasp" in parse("pest, -moth")


def test_of_an_unfinished_answer_whole_sentences_are_kept() -> None:
    assert worth_replaying(" It is a pear. It grows on", finished=False) == ""
    assert worth_replaying("A pear is a sweet fruit. It grows on", finished=False) == "A pear is a sweet fruit."
    assert worth_replaying("1. 1.1.1.1", finished=True) == ""
    assert worth_replaying(" Paris ", finished=True) == "Paris"


def test_a_rewrite_by_the_rule_is_what_the_test_of_strings_excludes() -> None:
    from interp.prompt import Prompt

    judged = Verbalise(describe="oracle").last_question(Prompt("How do I kill this?"), "It is a cockroach.")
    assert bare(judged.prompt.text) == "how do i kill the cockroach"
