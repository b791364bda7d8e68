"""Other states in the place of "this": the right tokens, what changes nothing, what a hook by hand does, sentences."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.benchmarks.iconworld import IconWorld
from experiments.evaluation.matching import twins
from experiments.report.sentences.transplant import sentences
from experiments.studies.words_and_picture.places import (
    Read,
    caption_columns,
    margins_with,
    named,
    other_words,
    pointed_at,
    pointed_at_in_words,
    question,
    read,
    routes,
    that_point,
    this,
)
from experiments.studies.words_and_picture.readings import Readings
from experiments.studies.words_and_picture.tables import transplant_figure, transplant_tables
from experiments.studies.words_and_picture.transplant import (
    AS_IT_IS,
    OTHER,
    STATES,
    compare,
    conclude,
    cut_findings,
    cut_rows,
    examine,
    exchanged_states,
)
from experiments.types import Sample
from interp.errors import UserError
from interp.loading import load
from interp.segments import IMAGE, segment
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


def row_of(rows: list[dict[str, Any]], run: str, quantity: str, place: str, layer: int) -> dict[str, Any]:
    wanted = (run, quantity, place, layer)
    return next(row for row in rows if (row["run"], row["quantity"], row["place"], row["layer"]) == wanted)


def test_cases_are_the_scored_ones_that_say_this_and_meant_is_this_and_the_last_token_of_the_noun(vlm: VLM) -> None:
    assert len(EVERY) == 672
    signed = [sample for sample in EVERY if sample.tags["sign"] == "yes"][:2]
    cases = [*pairs(4), *signed]
    in_words = pointed_at_in_words(cases)
    for sample, pointed, noun, words in zip(cases, pointed_at(cases), named(cases), in_words, strict=True):
        assert pointed.word == words.word == "this"
        assert pointed.prompt.image is not None
        assert words.prompt.image is None
        assert words.prompt.text.startswith("There is ")
        assert noun.word == ("sign" if sample.tags["sign"] == "yes" else sample.tags["concept"])
        assert noun.prompt.image is None
        for one in (pointed, noun, words):
            row = segment(vlm, [one.prompt], vlm.encode([one.prompt])).rows[0]
            assert row.words[one.number].text == one.word
            last = row.words[one.number].columns[-1]
            assert one.word.endswith(vlm.processor.tokenizer.decode([row.input_ids[last]]).strip(' ?."\n'))


def test_a_word_that_is_not_in_its_place_is_refused(vlm: VLM) -> None:
    (one,) = pointed_at(pairs(1)[:1])
    with pytest.raises(UserError, match=r"'that' of case .* is not where it should be"):
        read(vlm, [type(one)(one.prompt, one.number, "that")], LAYERS)


def test_a_cases_own_state_changes_nothing_and_another_one_does(vlm: VLM) -> None:
    cases = pairs(4)
    placed = pointed_at(cases)
    plain, states = read(vlm, placed, LAYERS)
    own = states[0]
    margins = margins_with(vlm, placed, torch.stack([own, own.flip(1)]), LAYERS)
    assert torch.equal(plain, vlm.batches.scores([one.prompt for one in placed]))
    torch.testing.assert_close(margins[0], plain.expand(2, -1), atol=2e-5, rtol=0)
    assert ((margins[1] - plain).abs() > 1e-3).any(1).all()


def test_the_other_thing_is_the_pairs_and_its_transplant_is_that_of_a_hook_by_hand(vlm: VLM) -> None:
    cases = pairs(3)[:5]
    others = twins(cases)
    assert others == [1, 0, 3, 2, None]
    placed, words = pointed_at(cases), named(cases)
    states = exchanged_states(read(vlm, words, LAYERS).states[0], others)
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
    cuts = a_cut(cases, {"this → verdict": 0.0}, draws=200)
    findings += [one.as_json() for one in cut_findings(cuts)]
    return found | {"layers": LAYERS, "cases": counted, "probes": [], "cuts": cuts, "findings": findings}


def a_cut(cases: list[Sample], strength: dict[str, float], *, draws: int) -> list[dict[str, Any]]:
    """Rows of cuts in both runs; verdicts follow the truth by one standard deviation, under a cut by ``strength``."""
    rng = np.random.default_rng(1)
    sides = np.array([1.0 if sample.gold == "yes" else -1.0 for sample in cases])
    noise = torch.tensor(rng.normal(0, 1, len(cases)))
    states = torch.tensor(rng.normal(0, 1, (2, 1, len(cases), 8))).float()
    under = {name: strength.get(name, 1.0) for name in (AS_IT_IS, *routes("image"))}
    reads = {name: Read((noise + far * torch.tensor(sides)).float(), states) for name, far in under.items()}
    readings = Readings(cases, LAYERS, seed=0, draws=draws)
    return [row for run in ("picture", "words") for row in cut_rows(cases, run, reads, readings, draws=draws)]


@pytest.mark.long
def test_what_is_said_is_what_the_intervals_carry() -> None:
    told = sentences(claims({"noun": 1.0, "other": -1.0, "mean": 0.0}))
    assert told[0].startswith("672 of 672 scored cases entered")
    assert "raises it after layer 0 (after 0: to 0." in told[1]
    assert "is not shown to change it after layer 2" in told[1] or "by no more than .02 after layer 2" in told[1]
    assert "lowers it after layer 0" in told[2]
    assert "raises" not in told[3]
    assert "below .5 after layer 0 (after 0: 0." in told[4]
    assert len(told) == 5
    result = claims({"noun": 1.0, "other": -1.0, "mean": 0.0})
    for run, source in (
        ("with the picture", "picture"),
        ("in words, pointing", "what is said of the thing"),
    ):
        cut = {row["cut"]: row for row in transplant_tables(result)[2].records() if row["run"] == run}
        assert cut["“this” → verdict"]["minus nothing cut: said"] == "fell"
        assert cut[f"{source} → verdict"]["minus nothing cut: said"] == "no change of more than .02"
    moved = {(row["at “this”"], row["after layer"]): row["minus the picture: said"] for row in
             transplant_tables(result)[0].records()}  # fmt: skip
    assert moved["the noun's state in words", "0"] == "rose"
    assert moved["the pair's other thing", "0"] == "fell"
    unmoved = sentences(claims({"noun": 0.0, "other": 0.0, "mean": 0.0}))
    assert not any("raises" in one or "lowers it" in one for one in unmoved)
    assert unmoved[4].startswith("That the verdict follows the other thing's state")
    few = sentences(claims({"noun": 1.0, "other": -1.0, "mean": 0.0}, cases=pairs(6)))
    assert "stands on too few cases to tell after layers 0 and 2 (too few cases to tell (6 independent" in few[1]
    assert len(few) == 4


def test_an_auroc_below_a_half_that_is_not_shown_to_be_lower_proves_nothing() -> None:
    row = {"state": "other", "layer": 0, "auroc": 0.3, "intervals": {"auroc": [0.2, 0.4]}}
    for spoken, answer in (("fell", "yes"), ("not shown", "not shown"), ("too few", "not shown")):
        moved, follows = conclude(row | {"change": {"statement": spoken}})
        assert (moved.answer, follows.answer) == (spoken, answer)


@pytest.mark.long
def test_probes_read_what_is_there_and_not_what_is_not() -> None:
    rng = np.random.default_rng(0)
    things = sorted({sample.tags["concept"] for sample in EVERY})
    codes = torch.tensor([things.index(sample.tags["concept"]) for sample in EVERY])
    shown = torch.nn.functional.one_hot(codes, 24).float() + torch.tensor(rng.normal(0, 0.05, (len(EVERY), 24))).float()
    noise = torch.tensor(rng.normal(0, 1, (len(EVERY), 24))).float()
    states = torch.stack([torch.stack([shown, noise]), torch.stack([noise, noise])])
    readings = Readings(EVERY, LAYERS, seed=0, draws=100)
    rows = readings.probes(states)
    thing = row_of(rows, "picture", "thing", "this", 0)
    assert thing["value"] > 0.99
    assert thing["classes"] == 24
    assert 0 < thing["control"] < 0.15
    assert row_of(rows, "picture", "thing", "this", 2)["value"] < 0.15
    assert row_of(rows, "picture", "thing", "verdict", 0)["value"] < 0.15
    (last,) = readings.thing(states[0][-1:], "this", "picture")
    assert (last["layer"], last["value"]) == (2, row_of(rows, "picture", "thing", "this", 2)["value"])
    truth = row_of(rows, "picture", "truth", "verdict", 0)
    assert truth["low"] < truth["value"] < truth["high"]
    assert 0.4 < truth["value"] < 0.6
    # Read in another form: the same directions carry over, shifted for all cases alike; others do not.
    same = readings.probes(states, "crossed", tested=states + 5)
    assert row_of(same, "crossed", "thing", "this", 0)["value"] > 0.99
    other = readings.probes(states, "crossed", tested=states.roll(7, dims=-1))
    assert row_of(other, "crossed", "thing", "this", 0)["value"] < 0.15


def test_a_thing_in_a_form_of_its_sentences_own_is_near_in_its_sentence_alone() -> None:
    cases = pairs(150)
    rng = np.random.default_rng(0)
    codes = np.unique([sample.tags["concept"] for sample in cases], return_inverse=True)[1]
    template = np.unique([sample.tags["template"] for sample in cases], return_inverse=True)[1]
    request = np.unique([sample.text for sample in cases], return_inverse=True)[1]
    everywhere = np.eye(24)[codes]
    own = np.eye(24)[(codes * 5 + template * 7) % 24]  # another direction for each sentence
    around = 9 * rng.normal(size=(request.max() + 1, 24))[request] + 0.01 * rng.normal(size=everywhere.shape)
    states = torch.tensor(np.stack([[everywhere + around, own + around], [around, around]]))
    rows = Readings(cases, LAYERS, seed=0, draws=100).neighbours(states, "words")

    def value(side: str, place: str, layer: int) -> float:
        return float(row_of(rows, "words", side, place, layer)["value"])

    assert value("near", "this", 0) > 0.9
    assert value("far", "this", 0) > 0.9
    assert value("near", "this", 2) > 0.9
    assert value("far", "this", 2) < 0.3
    for side in ("near", "far"):
        row = row_of(rows, "words", side, "verdict", 0)
        assert row["value"] == pytest.approx(row["control"], abs=0.1)
        assert row["low"] <= row["value"] <= row["high"]


def test_the_lens_names_a_thing_whose_noun_is_in_the_state(vlm: VLM) -> None:
    rows = vlm.layout.module(vlm.model, "lm_head").weight
    tokens = [vlm.tokenizer(f" {one.tags['concept']}", add_special_tokens=False).input_ids[0] for one in EVERY]
    likely = 3 * rows[tokens[0]]  # one noun is likely anywhere
    written = (rows[tokens] + likely).detach()[None].expand(2, -1, -1)  # along the noun's own row of the head
    nothing = torch.ones_like(written)
    found = Readings(EVERY, LAYERS, seed=0, draws=50).named(vlm, torch.stack([written, nothing]), "words")
    assert row_of(found, "words", "named", "this", 0)["value"] > 0.9
    assert row_of(found, "words", "named", "verdict", 0)["value"] == pytest.approx(1 / 24, abs=1e-6)


def test_ends_of_the_cut_edges_are_the_words_that_they_are_named_after(vlm: VLM) -> None:
    for one in (*pointed_at(pairs(1)), *pointed_at_in_words(pairs(1))):
        row = segment(vlm, [one.prompt], vlm.encode([one.prompt])).rows[0]

        def words(columns: list[int], row: Any = row) -> str:
            return str(vlm.tokenizer.decode([row.input_ids[column] for column in columns]))

        assert words(this(row)).strip() == "this"
        before = words(caption_columns(row)).strip()
        assert before == "" if one.prompt.image is not None else before.endswith(("is a balloon.", "bread."))
        assert words(question(row)).strip().startswith(("Do you think", "Given the image"))
        assert sorted([*this(row), *other_words(row), *caption_columns(row)]) == row.columns("user")


@pytest.mark.parametrize(("source", "placed"), [("image", pointed_at), (caption_columns, pointed_at_in_words)])
def test_every_edge_behind_the_source_is_on_one_way(source: Any, placed: Any, vlm: VLM) -> None:
    """Either to "this" or to the other words, the template's among them, the last of which is the verdict's."""
    (one,) = placed(pairs(1)[:1])
    row = segment(vlm, [one.prompt], vlm.encode([one.prompt])).rows[0]
    last, begins = len(row.labels) - 1, caption_columns(row) if source is caption_columns else row.columns(IMAGE)

    def columns(end: Any) -> list[int]:
        if not isinstance(end, str):
            return list(end(row))
        return [last] if end == "verdict" else row.columns(IMAGE if end == "image" else end)

    ways = {
        name: {(key, query) for source, to in edges for key in columns(source) for query in columns(to) if key < query}
        for name, edges in routes(source).items()
    }
    assert ways["source → this"] == {(key, query) for key in begins for query in this(row)}
    assert ways["source → verdict"] == {(key, last) for key in begins}
    assert ways["this → verdict"] == {(key, last) for key in this(row)}
    assert ways["source → all"] == {(key, query) for key in begins for query in range(begins[-1] + 1, last + 1)}
    assert ways["source → other words"] == ways["source → all"] - ways["source → this"]


@pytest.mark.long
def test_a_cut_way_carries_nothing(vlm: VLM) -> None:
    cases = pairs(2)
    placed = pointed_at(cases)
    swapped = [replace(one, prompt=replace(one.prompt, image=placed[at ^ 1].prompt.image))
               for at, one in enumerate(placed)]  # fmt: skip
    for name, edges in routes("image").items():
        own, other = (read(vlm, some, LAYERS, cut=edges) for some in (placed, swapped))
        assert torch.equal(own.margins, other.margins) == (name == "source → all")
        blind = name in ("source → all", "source → this")
        assert (
            torch.equal(own.states[0][0], other.states[0][0]) == blind
        )  # after layer 0, "this" sees it directly alone


@pytest.mark.long
def test_tables_and_figure_have_every_state_and_layer(vlm: VLM) -> None:
    result = examine(vlm, pairs(8), LAYERS, seed=0, draws=20)
    states, probes, cuts = transplant_tables(result)
    assert len(states.rows) == 7
    assert len(probes.rows) == 15  # too few cases of each thing for the lens
    assert [column.heading for column in probes.columns] == ["read", "layer 0", "layer 2", "by chance"]
    assert len(cuts.rows) == 12
    left, middle, right = transplant_figure(result).figure.axes
    assert [line.get_label() for line in left.get_lines()][:3] == [
        "the noun's state in words", "the pair's other thing", "the mean noun",
    ]  # fmt: skip
    assert left.get_lines()[0].get_xdata().tolist() == LAYERS
    assert (middle.get_ylabel(), right.get_ylabel()) == ("held-out accuracy", "held-out AUROC")


def test_layers_that_are_none_or_not_there_are_refused(tmp_path: Path) -> None:
    for wrong in ("[]", "[0,0]", "[-1]"):
        with pytest.raises(UserError, match="must be decoder layers from 0, each once"):
            run_of("+exp=words_and_picture", f"task.transplant={wrong}")
    run = run_of("+exp=words_and_picture", "task.transplant=[0,99]", "limit=4", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"has no decoder layer 99; its .* are 0 to"):
        run.task(run)
