"""Other states in the place of "this": the right tokens, what changes nothing, what a hook by hand does, sentences."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.benchmarks.iconworld import IconWorld
from experiments.metrics.pairs import twins
from experiments.report.sentences.transplant import sentences
from experiments.studies.words_and_picture.study import spread
from experiments.studies.words_and_picture.tables import transplant_figure, transplant_table
from experiments.studies.words_and_picture.transplant import (
    OTHER,
    STATES,
    compare,
    conclude,
    examine,
    exchanged_states,
    margins_with,
    named,
    pointed_at,
    states_at,
    that_point,
)
from experiments.types import Sample
from interp.errors import UserError
from interp.loading import load
from interp.segments import segment
from interp.vlm import VLM
from tests.experiments.compose import run_of

LAYERS = [0, 2]
EVERY = that_point(IconWorld().load().samples)


@pytest.fixture(scope="module")
def vlm() -> VLM:
    return load("organism:llava", device="cpu")


def pairs(count: int) -> list[Sample]:
    names = list(dict.fromkeys(sample.pair for sample in EVERY))[:: len(EVERY) // 2 // count][:count]
    return [sample for sample in EVERY if sample.pair in names]


def test_cases_are_the_scored_ones_that_say_this_and_meant_is_this_and_the_last_token_of_the_noun(vlm: VLM) -> None:
    assert len(EVERY) == 672
    signed = [sample for sample in EVERY if sample.tags["sign"] == "yes"][:2]
    cases = [*pairs(4), *signed]
    for sample, pointed, noun in zip(cases, pointed_at(cases), named(cases), strict=True):
        assert pointed.word == "this"
        assert pointed.prompt.image is not None
        assert noun.word == ("sign" if sample.tags["sign"] == "yes" else sample.tags["concept"])
        assert noun.prompt.image is None
        for one in (pointed, noun):
            row = segment(vlm, [one.prompt], vlm.encode([one.prompt])).rows[0]
            assert row.words[one.number].text == one.word
            last = row.words[one.number].columns[-1]
            assert one.word.endswith(vlm.processor.tokenizer.decode([row.input_ids[last]]).strip(' ?."\n'))


def test_a_word_that_is_not_in_its_place_is_refused(vlm: VLM) -> None:
    (one,) = pointed_at(pairs(1)[:1])
    with pytest.raises(UserError, match=r"'that' of case .* is not where it should be"):
        states_at(vlm, [type(one)(one.prompt, one.number, "that")], LAYERS)


def test_a_cases_own_state_changes_nothing_and_another_one_does(vlm: VLM) -> None:
    cases = pairs(4)
    placed = pointed_at(cases)
    own = states_at(vlm, placed, LAYERS)
    plain = vlm.batches.scores([one.prompt for one in placed])
    margins = margins_with(vlm, placed, torch.stack([own, own.flip(1)]), LAYERS)
    torch.testing.assert_close(margins[0], plain.expand(2, -1), atol=2e-5, rtol=0)
    assert ((margins[1] - plain).abs() > 1e-3).any(1).all()


def test_the_other_thing_is_the_pairs_and_its_transplant_is_that_of_a_hook_by_hand(vlm: VLM) -> None:
    cases = pairs(3)[:5]
    others = twins(cases, seed=0)
    assert others == [1, 0, 3, 2, None]
    placed, words = pointed_at(cases), named(cases)
    states = exchanged_states(states_at(vlm, words, LAYERS), others)
    found = margins_with(vlm, placed, states, LAYERS)[STATES.index(OTHER)]
    assert found[:, 4].isnan().all()
    assert not found[:, :4].isnan().any()
    case, other = placed[0], words[1]
    for index, layer in enumerate(LAYERS):
        module = vlm.layout.module(vlm.model, "layers")[layer]
        kept: list[torch.Tensor] = []

        def column(one: Any) -> int:
            row = segment(vlm, [one.prompt], vlm.encode([one.prompt])).rows[0]
            return row.words[one.number].columns[-1]

        def keep(module: Any, args: Any, output: Any, kept: list[torch.Tensor] = kept) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        def put(module: Any, args: Any, output: Any, kept: list[torch.Tensor] = kept) -> Any:
            hidden = (output[0] if isinstance(output, tuple) else output).clone()
            hidden[0, column(case)] = kept[0][0, column(other)]
            return (hidden, *output[1:]) if isinstance(output, tuple) else hidden

        for hook, prompt in ((keep, other.prompt), (put, case.prompt)):
            handle = module.register_forward_hook(hook)
            margin = vlm.score([prompt])
            handle.remove()
        assert float(found[index, 0]) == pytest.approx(float(margin[0]), abs=2e-5)
        assert float(found[index, 0]) != pytest.approx(float(vlm.score([case.prompt])[0]), abs=1e-4)


def test_the_mean_is_the_same_for_every_case() -> None:
    nouns = torch.arange(12.0).reshape(1, 3, 4)
    noun, other, mean = exchanged_states(nouns, [1, 0, None])
    assert torch.equal(noun, nouns)
    assert torch.equal(other[0, :2], nouns[0, [1, 0]])
    assert other[0, 2].isnan().all()
    assert torch.equal(mean, nouns.mean(1, keepdim=True).expand(1, 3, 4))


def claims(strength: dict[str, float], *, cases: list[Sample] | None = None) -> dict[str, Any]:
    """A result whose margins follow the truth by ``strength`` standard deviations, after the first layer alone."""
    cases, rng = cases or EVERY[::2] + EVERY[1::2], np.random.default_rng(0)
    sides = np.array([1.0 if sample.gold == "yes" else -1.0 for sample in cases])
    base = rng.normal(0, 1, len(cases)) + 0.1 * sides
    after = [[base + strength[state] * sides, base + rng.normal(0, 0.5, len(cases))] for state in STATES]
    found = compare(cases, torch.tensor(base), torch.tensor(np.array(after)), LAYERS, seed=0, draws=200)
    findings = [one.as_json() for row in found["transplants"] for one in conclude(row)]
    counted = {"entered": len(cases), "of": len(cases), "with_other": len(cases)}
    return found | {"layers": LAYERS, "cases": counted, "findings": findings}


@pytest.mark.long
def test_what_is_said_is_what_the_intervals_carry() -> None:
    told = sentences(claims({"noun": 1.0, "other": -1.0, "mean": 0.0}))
    assert told[0].startswith("672 of 672 scored cases entered")
    assert "below .5 after layer 0 (after 0: 0." in told[1]
    assert len(told) == 2
    result = claims({"noun": 1.0, "other": -1.0, "mean": 0.0})
    moved = {(row["at “this”"], row["after layer"]): row["minus the picture: said"] for row in
             transplant_table(result).records()}  # fmt: skip
    assert moved["the noun's state in words", "0"] == "rose"
    assert moved["the pair's other thing", "0"] == "fell"
    unmoved = sentences(claims({"noun": 0.0, "other": 0.0, "mean": 0.0}))
    assert unmoved[1].startswith("That the verdict follows the other thing's state")
    few = claims({"noun": 1.0, "other": -1.0, "mean": 0.0}, cases=pairs(6))
    assert len(sentences(few)) == 1
    assert {row["minus the picture: said"] for row in transplant_table(few).records()} == {"", "too few"}


def test_an_auroc_below_a_half_that_is_not_shown_to_be_lower_proves_nothing() -> None:
    row = {"state": "other", "layer": 0, "auroc": 0.3, "intervals": {"auroc": [0.2, 0.4]}}
    for spoken, answer in (("fell", "yes"), ("not shown", "not shown"), ("too few", "not shown")):
        moved, follows = conclude(row | {"change": {"statement": spoken}})
        assert (moved.answer, follows.answer) == (spoken, answer)


@pytest.mark.long
def test_table_and_figure_have_every_state_and_layer(vlm: VLM) -> None:
    result = examine(vlm, pairs(8), LAYERS, seed=0, draws=20)
    assert len(transplant_table(result).rows) == 7
    (axes,) = transplant_figure(result).figure.axes
    assert [line.get_label() for line in axes.get_lines()][:3] == [
        "the noun's state in words", "the pair's other thing", "the mean noun",
    ]  # fmt: skip
    assert axes.get_lines()[0].get_xdata().tolist() == LAYERS


@pytest.mark.long
def test_layers_that_are_none_or_not_there_are_refused(tmp_path: Path) -> None:
    for wrong in ("[]", "[0,0]", "[-1]"):
        with pytest.raises(UserError, match="must be decoder layers from 0, each once"):
            run_of("+exp=words_and_picture", f"task.transplant={wrong}")
    run = run_of("+exp=words_and_picture", "task.transplant=[0,99]", "limit=4", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"has no decoder layer 99; its .* are 0 to"):
        run.task(run)


def test_cases_looked_at_are_whole_pairs_over_the_whole_benchmark() -> None:
    samples = IconWorld().load().samples
    some = spread(samples, 100)
    assert 96 <= len(some) <= 100
    assert all(at is not None for at in twins(some, seed=0))
    assert len({sample.tags["template"] for sample in some}) >= 23
    assert {sample.tags["wrapper"] for sample in some} == {sample.tags["wrapper"] for sample in EVERY}
    assert spread(samples, None) == spread(samples, 9999) == EVERY
    assert {one.id for one in spread(samples, 2)} == {one.id for one in EVERY if one.pair == EVERY[0].pair}
    with pytest.raises(UserError, match=r"task\.cases=1: must be at least 2"):
        run_of("+exp=words_and_picture", "task.cases=1")
