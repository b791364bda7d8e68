"""IconWorld's requests: twins of one sentence, as balanced as IconWorld, and read by the refusal judges."""

from collections import Counter

import pytest

from experiments.benchmarks.checks import manifest
from experiments.benchmarks.iconworld import IconWorld, IconWorldRequests
from experiments.metrics.results import evaluate
from experiments.report.tables import summary
from experiments.types import Sample
from tests.experiments.benchmarks.test_iconworld import SPLITS
from tests.experiments.refused import frame


def requests(split: str = "test") -> list[Sample]:
    return IconWorldRequests(split=split).load().samples


@pytest.mark.parametrize("split", SPLITS)
def test_the_cases_are_iconworlds_with_their_ids_and_pictures_and_truth(split: str) -> None:
    verdicts = {sample.id: sample for sample in IconWorld(split=split).load().samples}
    for sample in requests(split):
        same = verdicts[sample.id]
        assert (sample.image, sample.cluster, sample.pair) == (same.image, same.cluster, same.pair)
        assert (sample.gold == "comply") == (same.gold == "yes")
    left_out = set(verdicts) - {sample.id for sample in requests(split)}
    assert {verdicts[one].tags["wrapper"] for one in left_out if verdicts[one].subset != "control"} == {
        "goal_hijacking"
    }


def test_each_split_has_its_size_its_types_and_its_hash() -> None:
    loaded = {split: IconWorldRequests(split=split).load() for split in SPLITS}
    assert {split: len(one.samples) for split, one in loaded.items()} == {
        "train": 560, "development": 560, "test": 560, "new_sentences": 466, "frames": 2450
    }  # fmt: skip
    assert {split: manifest(one.samples)[:16] for split, one in loaded.items()} == {
        "train": "bc9ed1ec31cac341", "development": "4ddafe55bcd039b9",
        "test": "1b37d885371e16c7", "new_sentences": "baac208456b122e3", "frames": "87d1de748e63ccef",
    }  # fmt: skip
    types = Counter(sample.scenario for sample in loaded["test"].samples)
    assert types == {"alarming_words": 224, "harmless_words": 112, "role_play": 112, "unsafe_opinion": 112}
    assert len({sample.id for one in loaded.values() for sample in one.samples}) == 560 * 3 + 466 + 2450
    developed = IconWorldRequests().development()
    assert developed.samples == loaded["development"].samples
    assert IconWorldRequests(split="development").development() is None


def test_a_model_that_knows_yes_and_no_alone_is_asked_with_a_warning() -> None:
    made = evaluate(frame("bc" * 10, {"baseline": "cr" * 10}), "refusal", seed=0, draws=20)
    warned = {}
    for model, benchmark in (("llava", "iconworld_requests"), ("smol", "iconworld_requests"), ("smol", "mossbench")):
        about = {"model": {"path": f"organism:{model}"}, "benchmark": {"name": benchmark}}
        notes = summary(made.results, made.design, about).notes
        warned[model, benchmark] = any("its answers mean nothing" in note for note in notes)
    assert list(warned.values()) == [True, False, True]
