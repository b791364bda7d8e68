"""Laws of the procedural benchmark: balance, disjoint draws, one truth, no shortcut."""

import hashlib
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import interp.organisms
from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.cases import held_out
from experiments.benchmarks.iconworld.concepts import CATEGORIES, CONCEPTS, Thing, parse_things
from experiments.benchmarks.iconworld.icons import DRAWINGS
from experiments.benchmarks.iconworld.perception import KINDS, perception_questions
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.iconworld.sentences import BENIGN, NEW, PREFIX, RISKY
from experiments.types import SCORED_SUBSETS, Sample
from interp.errors import UserError

SPLITS = ("train", "development", "test", "new_sentences")


def scored(split: str = "test") -> list[Sample]:
    return [sample for sample in IconWorld(split=split).load().samples if sample.subset in SCORED_SUBSETS]


def best_guess(samples: list[Sample], key: Callable[[Sample], str]) -> float:
    """How often the truth is met by whoever sees ``key`` alone and guesses its likeliest answer on these very cases."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for sample in samples:
        counts[key(sample)][sample.gold] += 1
    return sum(max(count.values()) for count in counts.values()) / len(samples)


def test_there_are_two_dozen_concepts_in_ten_categories_each_with_a_drawing() -> None:
    assert len(CONCEPTS) == 24
    assert len(CATEGORIES) == 10
    assert set(DRAWINGS) == set(CONCEPTS)


def test_no_thing_is_both_safe_and_unsafe_with_a_template() -> None:
    for template in RISKY + NEW + BENIGN:
        assert not set(template.safe) & set(template.unsafe), template.name
    assert len({template.name for template in RISKY + NEW + BENIGN}) == len(RISKY) + len(NEW) + len(BENIGN)


def test_new_sentences_are_new_frames_of_words_that_the_organism_knows() -> None:
    assert len(NEW) == 20
    assert sum(template.wording == "alarming" for template in NEW) == 14
    assert all(template.safe and template.unsafe for template in NEW)
    assert not {template.text for template in NEW} & {template.text for template in RISKY + BENIGN}
    tokenizer = json.loads((Path(interp.organisms.__file__).parent / "llava" / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert len(vocabulary) == 178
    for sample in IconWorld(split="new_sentences").load().samples:
        unknown = set(re.findall(r"\w+", sample.prompt)) - set(vocabulary)
        assert not unknown, (sample.id, unknown)


def test_the_other_splits_are_as_they_were_when_the_organism_was_trained() -> None:
    manifests = {split: IconWorld(split=split).load().manifest for split in ("train", "development", "test")}
    assert manifests == {"train": "64449f5942af1fde", "development": "0538f41a0a93a031", "test": "005959b1c8bf5060"}


@pytest.mark.parametrize("split", SPLITS)
def test_neither_sentence_nor_concept_alone_tells_the_truth(split: str) -> None:
    samples = scored(split)
    assert best_guess(samples, lambda s: s.text) == 0.5
    assert best_guess(samples, lambda s: s.tags["template"]) == 0.5
    assert best_guess(samples, lambda s: s.tags["wrapper"]) == 0.5
    assert best_guess(samples, lambda s: s.tags["sign"]) <= 0.53
    assert best_guess(samples, lambda s: s.tags["category"]) <= 0.60
    assert best_guess(samples, lambda s: s.tags["concept"]) <= 0.60
    together = best_guess(samples, lambda s: f"{s.tags['template']} {s.image.thing}")  # type: ignore[union-attr]
    assert together == 1.0


@pytest.mark.parametrize("split", SPLITS)
def test_pairs_are_one_sentence_with_two_pictures_and_opposite_truth(split: str) -> None:
    pairs: dict[str, list[Sample]] = defaultdict(list)
    for sample in scored(split):
        assert sample.pair is not None
        pairs[sample.pair].append(sample)
    for members in pairs.values():
        first, second = members
        assert first.prompt == second.prompt
        assert {first.gold, second.gold} == {"yes", "no"}
        assert first.image != second.image


def test_over_safety_cases_are_safe_and_look_alarming_and_half_of_them_by_their_words() -> None:
    samples = [sample for sample in scored() if sample.subset == "over_safety"]
    for sample in samples:
        assert sample.gold == "yes"
        assert sample.tags["words"] == "alarming" or sample.tags["picture"] == "alarming"
    assert sum(sample.tags["words"] == "alarming" for sample in samples) * 2 >= len(samples)


def test_the_test_split_has_at_least_four_hundred_scored_cases_of_every_kind() -> None:
    counts = Counter(sample.subset for sample in IconWorld().load().samples)
    assert counts == {"typical": 168, "attack": 168, "over_safety": 336, "control": 60}
    wrappers = Counter(s.tags["wrapper"] for s in scored() if s.subset == "attack")
    assert wrappers == {"role_play": 56, "goal_hijacking": 56, "unsafe_opinion": 56}


def test_prompts_have_the_published_form() -> None:
    sample = scored()[0]
    assert sample.prompt == f'{PREFIX}\n"{sample.text}"'


@pytest.mark.long
def test_splits_share_no_picture_and_no_id() -> None:
    seen: dict[str, str] = {}
    ids: set[str] = set()
    for split in SPLITS:
        for sample in IconWorld(split=split, size=32).load().samples:
            assert isinstance(sample.image, Scene)
            pixels = hashlib.sha256(sample.image.render().tobytes()).hexdigest()
            assert seen.setdefault(pixels, split) == split
            assert sample.id not in ids
            ids.add(sample.id)


def test_a_share_of_combinations_is_never_in_training_and_occurs_in_the_test() -> None:
    combinations = sum(len(template.safe) + len(template.unsafe) for template in RISKY)
    assert 0.15 <= len(held_out()) / combinations <= 0.3
    train = {(s.tags["template"], s.image.thing) for s in scored("train")}  # type: ignore[union-attr]
    assert not train & held_out()
    for split in ("development", "test"):
        unseen = sum(sample.tags["combination"] == "unseen" for sample in scored(split))
        assert unseen >= 0.15 * len(scored(split))


def test_the_same_seed_gives_the_same_cases_and_pixels_and_another_seed_others() -> None:
    first, again, other = IconWorld(), IconWorld(), IconWorld(seed=1)
    assert first.load().manifest == again.load().manifest != other.load().manifest
    scene = Scene(Thing("dog", True), "x")
    assert scene.render().tobytes() == Scene(Thing("dog", True), "x").render().tobytes()
    assert scene.render().tobytes() != Scene(Thing("dog", True), "y").render().tobytes()


def test_a_scene_has_the_size_asked_for() -> None:
    for size in (16, 48, 336):
        image = Scene(Thing("kite"), "x", size).render()
        assert image.size == (size, size)
        assert isinstance(image, Image.Image)
        assert image.mode == "RGB"


def test_perception_questions_are_balanced_where_they_are_yes_or_no() -> None:
    questions = list(perception_questions("test", per_kind=100))
    assert Counter(question.kind for question in questions) == dict.fromkeys(KINDS, 100)
    for kind in ("presence", "sign"):
        yes = sum(question.answer == "Yes." for question in questions if question.kind == kind)
        assert 35 <= yes <= 65


def test_categories_and_signs_are_understood_in_the_truth_table() -> None:
    assert parse_things("no-pet poison") == (Thing("dog", True), Thing("cat", True), Thing("poison"))


@pytest.mark.parametrize(("field", "value"), [("split", "validation"), ("size", 4)])
def test_bad_settings_are_one_sentence(field: str, value: object) -> None:
    with pytest.raises(UserError, match=f"{field}={value!r}"):
        IconWorld(**{field: value})  # type: ignore[arg-type]


def test_configuration_needs_no_torch() -> None:
    import subprocess

    code = "import sys, experiments.benchmarks.iconworld; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("split", ["test", "new_sentences"])
def test_fewer_pairs_are_the_first_of_all_and_whole(split: str) -> None:
    every, fewer = (IconWorld(split=split, pairs=pairs).load().samples for pairs in (7, 3))
    scored = [sample for sample in fewer if sample.subset != "control"]
    assert {sample.id: sample for sample in every}.items() >= {sample.id: sample for sample in fewer}.items()
    assert len(scored) == 3 / 7 * sum(sample.subset != "control" for sample in every)
    assert set(Counter(sample.pair for sample in scored).values()) == {2}
    for count in (0, 8):
        with pytest.raises(UserError, match=rf"benchmark\.pairs={count}: of a sentence there are 1 to 7"):
            IconWorld(pairs=count)
