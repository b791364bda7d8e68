"""Other states in the place of "this": the right tokens, what changes nothing, what a hook by hand does, sentences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.benchmarks.iconworld import IconWorld
from experiments.report.findings.transplant import sentences
from experiments.studies.words_and_picture.transplant import (
    NOUN,
    OTHER,
    STATES,
    compare,
    conclude,
    examine,
    margins_with,
    named,
    others_of,
    pointed_at,
    probe_rows,
    put_in,
    read,
    that_point,
)
from experiments.studies.words_and_picture.transplant_shown import draw, tables
from experiments.types import Sample
from interp.batching import scores
from interp.errors import UserError
from interp.segments import segment
from interp.vlm import VLM, load
from tests.experiments.compose import run_of
from tests.experiments.studies.test_killed_analyses import counted, lives

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
    for sample, this, noun in zip(cases, pointed_at(cases), named(cases), strict=True):
        assert this.word == "this"
        assert this.prompt.image is not None
        assert noun.word == ("sign" if sample.tags["sign"] == "yes" else sample.tags["concept"])
        assert noun.prompt.image is None
        for one in (this, noun):
            row = segment(vlm, [one.prompt], vlm.encode([one.prompt])).rows[0]
            assert row.words[one.number].text == one.word
            last = row.words[one.number].columns[-1]
            assert one.word.endswith(vlm.processor.tokenizer.decode([row.input_ids[last]]).strip(' ?."\n'))


def test_a_word_that_is_not_in_its_place_is_refused(vlm: VLM) -> None:
    (this,) = pointed_at(pairs(1)[:1])
    with pytest.raises(UserError, match=r"'that' of case .* is not where it should be"):
        read(vlm, [type(this)(this.prompt, this.number, "that")], LAYERS)


def test_a_cases_own_state_changes_nothing_and_another_one_does(vlm: VLM) -> None:
    cases = pairs(4)
    placed = pointed_at(cases)
    own = read(vlm, placed, LAYERS)[0]
    margins = margins_with(vlm, placed, torch.stack([own, own.flip(1)]), LAYERS)
    plain = scores(vlm, [one.prompt for one in placed])
    assert torch.equal(margins[0], plain.expand(2, -1))
    assert (margins[1] != plain).any(1).all()


def test_the_other_thing_is_the_pairs_and_its_transplant_is_that_of_a_hook_by_hand(vlm: VLM) -> None:
    cases = pairs(3)[:5]
    others = others_of(cases)
    assert others == [1, 0, 3, 2, None]
    placed, words = pointed_at(cases), named(cases)
    states = put_in(read(vlm, words, LAYERS)[0], others)
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
    noun, other, mean = put_in(nouns, [1, 0, None])
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
    return found | {"layers": LAYERS, "cases": counted, "probes": [], "findings": findings}


def test_what_is_said_is_what_the_intervals_carry() -> None:
    said = sentences(claims({"noun": 1.0, "other": -1.0, "mean": 0.0}))
    assert said[0].startswith("672 of 672 scored cases entered")
    assert "raises it after layer 0 (after 0: to 0." in said[1]
    assert "is not shown to change it after layer 2" in said[1] or "by no more than .02 after layer 2" in said[1]
    assert "lowers it after layer 0" in said[2]
    assert "raises" not in said[3]
    assert "below .5 after layer 0 (after 0: 0." in said[4]
    assert said[5] == "The cases are too few for linear probes."
    unmoved = sentences(claims({"noun": 0.0, "other": 0.0, "mean": 0.0}))
    assert not any("raises" in one or "lowers" in one for one in unmoved)
    assert unmoved[4].startswith("That the verdict follows the other thing's state")
    few = sentences(claims({"noun": 1.0, "other": -1.0, "mean": 0.0}, cases=pairs(6)))
    assert "stands on too few cases to tell after layers 0 and 2 (too few cases to tell (6 independent" in few[1]
    assert len(few) == 5


def test_an_auroc_below_a_half_that_is_not_shown_to_be_lower_proves_nothing() -> None:
    row = {"state": "other", "layer": 0, "auroc": 0.3, "intervals": {"auroc": [0.2, 0.4]}}
    for said, answer in (("fell", "yes"), ("not shown", "not shown"), ("too few", "not shown")):
        moved, follows = conclude(row | {"change": {"statement": said}})
        assert (moved.answer, follows.answer) == (said, answer)


def test_probes_read_what_is_there_and_not_what_is_not() -> None:
    rng = np.random.default_rng(0)
    things = sorted({sample.tags["concept"] for sample in EVERY})
    codes = torch.tensor([things.index(sample.tags["concept"]) for sample in EVERY])
    shown = torch.nn.functional.one_hot(codes, 24).float() + torch.tensor(rng.normal(0, 0.05, (len(EVERY), 24))).float()
    noise = torch.tensor(rng.normal(0, 1, (len(EVERY), 24))).float()
    states = torch.stack([torch.stack([shown, noise]), torch.stack([noise, noise])])
    rows = {
        (row["quantity"], row["place"], row["layer"]): row
        for row in probe_rows(states, EVERY, LAYERS, seed=0, draws=100)
    }
    assert rows["thing", "this", 0]["value"] > 0.99
    assert rows["thing", "this", 0]["classes"] == 24
    assert rows["thing", "this", 0]["control"] < 0.15
    assert rows["thing", "this", 2]["value"] < 0.15
    assert rows["thing", "verdict", 0]["value"] < 0.15
    truth = rows["truth", "verdict", 0]
    assert truth["low"] < truth["value"] < truth["high"]
    assert 0.4 < truth["value"] < 0.6


def test_all_of_it_is_measured_once_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def go(name: str) -> None:
        run = run_of(
            "+exp=words_and_picture", "task.transplant=[0,2]", "limit=16", "draws=20", "batch_size=4",
            f"output_root={tmp_path / name}",
        )  # fmt: skip
        run.task(run)

    with counted(monkeypatch) as undisturbed:
        go("whole")
    batches, killed = lives(monkeypatch, len(undisturbed) // 2 - 1, lambda: go("killed"))
    assert killed >= 2
    assert batches == undisturbed
    found = []
    for name in ("whole", "killed"):
        (folder,) = (tmp_path / name / "words_and_picture").iterdir()
        result = json.loads((folder / "words_and_picture.json").read_text())["transplant"]
        del result["finished"]
        found.append(result)
    assert found[0] == found[1]
    result = found[0]
    assert result["cases"] == {"entered": 12, "of": 12, "with_other": 8}
    assert {(row["state"], row["layer"]) for row in result["transplants"]} == {(s, n) for s in STATES for n in LAYERS}
    assert next(row for row in result["transplants"] if row["state"] == NOUN)["n"] == {"unsafe": 8, "over_safety": 4}
    page = (folder / "report.html").read_text()
    assert 'id="section-transplant"' in page
    assert 'id="section-words_and_picture"' in page
    assert "12 of 12 scored cases entered" in capsys.readouterr().out
    assert not (folder / "kept").exists() or not list((folder / "kept").iterdir())


def test_tables_and_figure_have_every_state_and_layer(vlm: VLM) -> None:
    result = examine(vlm, pairs(8), LAYERS, seed=0, draws=20)
    states, probes = tables(result)
    assert len(states.rows) == 7
    assert [row.cells[0].value for row in probes.rows] == ["0", "2"]
    left, right = draw(result).axes
    assert [line.get_label() for line in left.get_lines()][:3] == [
        "the noun's state in words", "the pair's other thing", "the mean noun",
    ]  # fmt: skip
    assert left.get_lines()[0].get_xdata().tolist() == LAYERS
    assert right.get_ylabel() == "held-out accuracy or AUROC"


def test_layers_that_are_none_or_not_there_are_refused(tmp_path: Path) -> None:
    for wrong in ("[]", "[0,0]", "[-1]"):
        with pytest.raises(UserError, match="must be decoder layers from 0, each once"):
            run_of("+exp=words_and_picture", f"task.transplant={wrong}")
    run = run_of("+exp=words_and_picture", "task.transplant=[0,99]", "limit=4", f"output_root={tmp_path}")
    with pytest.raises(UserError, match=r"has no decoder layer 99; its .* are 0 to"):
        run.task(run)
