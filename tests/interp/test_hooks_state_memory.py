"""States of one set of prompts are read once, are those that are read without a memory, and never another run's."""

from pathlib import Path
from typing import Any

import pytest
import torch

from interp.batching import BatchRule
from interp.hooks.residual import edit_residual, residuals
from interp.hooks.state_memory import StateMemory
from interp.loading import load
from interp.vlm import VLM, Prompt
from mitigation.learned.activation_steering import DirectionSteering
from mitigation.learned.probe_readout import TruthReadout
from mitigation.learned.ridge_probe import margin_gradient
from tests.experiments.compose import run_of
from tests.tiny import picture
from tests.weekly import first

ASKED = [
    Prompt(f"Is the {name} safe{' for a small child' * (number % 3)}?", picture(number), key=str(number))
    for number, name in enumerate(("knife", "gun", "cake", "dog", "toy", "car", "bee"))
]


@pytest.fixture
def forwards(vlm: VLM) -> list[int]:
    """The rows of each batch that the model is given."""
    rows: list[int] = []
    vlm.on_encode.append(lambda prompts, encoded: rows.append(len(prompts)))
    return rows


def test_the_model_is_read_once_for_every_part_and_place(vlm: VLM, forwards: list[int]) -> None:
    plain = [residuals(vlm, ASKED[start:], places=("verdict", "user")) for start in (0, 3)]
    only = residuals(vlm, ASKED[2:5], places=("image",), layers=(2, 1))
    gradient = margin_gradient(vlm, ASKED[1:4], layer=1)
    forwards.clear()
    memory = StateMemory(vlm, lambda: ASKED)
    with memory.open():
        found = [residuals(vlm, ASKED[start:], places=("verdict", "user")) for start in (3, 0)][::-1]
        assert forwards == [7]
        image = residuals(vlm, ASKED[2:5], places=("image",), layers=(2, 1))
        assert forwards == [7, 7]
        residuals(vlm, ASKED[4:], places=("image", "verdict"), layers=(1,))
        assert forwards == [7, 7]
        shared = margin_gradient(vlm, ASKED[1:4], layer=1)
        margin_gradient(vlm, ASKED[:4], layer=2)
        assert forwards == [7, 7, 7]
    for one, expected in zip([*found, image], [*plain, only], strict=True):
        assert (one.places, one.layers, one.keys) == (expected.places, expected.layers, expected.keys)
        torch.testing.assert_close(one.values, expected.values, atol=1e-5, rtol=1e-4)  # another batch
    torch.testing.assert_close(shared, gradient, atol=1e-5, rtol=1e-4)
    residuals(vlm, ASKED)
    assert forwards == [7, 7, 7, 7]  # closed


def test_a_state_does_not_depend_on_who_asked_first(vlm: VLM) -> None:
    found = []
    for order in ([1, 4, 0], [0, 4, 1]):
        with StateMemory(vlm, lambda: ASKED).open():
            rows = {start: residuals(vlm, ASKED[start : start + 2]).values for start in order}
        found.append(rows)
    assert all(torch.equal(found[0][start], found[1][start]) for start in found[0])


def test_other_prompts_models_and_edits_are_read_anew(vlm: VLM) -> None:
    memory, other = StateMemory(vlm, lambda: ASKED), load("organism:llava", device="cpu")
    with memory.open():
        before = residuals(vlm, ASKED[:2], layers=(1,)).values
        with edit_residual(vlm, lambda here: here.hidden + 1, layers=[1]):
            torch.testing.assert_close(residuals(vlm, ASKED[:2], layers=(1,)).values, before + 1)
        assert torch.equal(residuals(vlm, ASKED[:2], layers=(1,)).values, before)
        drawn = Prompt(ASKED[0].text, picture(3), key=ASKED[0].key)  # another picture under the same key
        assert not torch.allclose(residuals(vlm, [drawn], layers=(1,)).values, before[:, :, :1], atol=1e-4)
        assert residuals(other, ASKED[:1], layers=(1,)).values.shape != before[:, :, :1].shape


def test_what_does_not_fit_is_read_as_without_it(vlm: VLM, forwards: list[int]) -> None:
    plain = residuals(vlm, ASKED[:2]).values
    with StateMemory(vlm, lambda: ASKED, mib=0).open():
        assert torch.equal(residuals(vlm, ASKED[:2]).values, plain)
        assert torch.equal(margin_gradient(vlm, ASKED[:2], layer=1), margin_gradient(vlm, ASKED[:2], layer=1))
    assert forwards == [2, 2, 2, 2]


def test_what_was_kept_of_one_loop_is_not_taken_for_another(vlm: VLM, tmp_path: Path) -> None:
    def measure(value: float) -> Any:
        return lambda some: torch.full((len(some),), value)

    def interrupted() -> None:
        with vlm.batches.resumable(tmp_path / "kept", of="a"):
            vlm.batches.measured(ASKED, measure(1.0), of="states")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with vlm.batches.resumable(tmp_path / "kept", of="a"):  # the states are remembered, and gradients come first now
        assert vlm.batches.measured(ASKED, measure(2.0), of="gradients").tolist() == [2.0] * 7


def cases(count: int) -> tuple[list[Prompt], list[bool]]:
    from experiments.benchmarks.iconworld import IconWorld
    from experiments.evaluation.cases import limited
    from experiments.evaluation.training import examples

    return examples(limited(IconWorld().development().samples, count))


LEARNERS: dict[str, Any] = {
    "read-out": TruthReadout(conjunction=False),
    "read-out with a conjunction": TruthReadout(conjunction=True),
    "steering": DirectionSteering(),
}


@pytest.mark.long
@pytest.mark.parametrize("learner", first(LEARNERS))
def test_what_is_learned_of_a_part_is_what_is_learned_without_a_memory(learner: str, tmp_path: Path) -> None:
    vlm, method = load("organism:llava", device="cpu"), LEARNERS[learner]
    prompts, safe = cases(60)
    part = [place for place in range(len(prompts)) if place % 5]
    some, labels = [prompts[place] for place in part], [safe[place] for place in part]
    with vlm.batches.by(BatchRule(rows=16), on_lowered=print):
        plain = method.learn(vlm, some, labels, out=tmp_path / "plain.safetensors")
        with StateMemory(vlm, lambda: prompts).open():
            shared = method.learn(vlm, some, labels, out=tmp_path / "shared.safetensors")
    if isinstance(method, DirectionSteering):
        one, two = plain.direction(vlm), shared.direction(vlm)
        assert one.layer == two.layer
        torch.testing.assert_close(one.vector * one.gap, two.vector * two.gap, atol=1e-6, rtol=1e-5)
    else:
        assert {name: shared.about[name] for name in ("layer", "penalty", "n")} == {
            name: plain.about[name] for name in ("layer", "penalty", "n")
        }
        torch.testing.assert_close(shared.logits(vlm, some), plain.logits(vlm, some), atol=1e-5, rtol=1e-4)
        margins = [one.generate(vlm, some, max_new_tokens=1).margins for one in (shared, plain)]
        torch.testing.assert_close(*margins, atol=1e-5, rtol=1e-4)


@pytest.mark.slow  # what is read twice costs time and changes no number
def test_a_choice_reads_its_cases_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.studies.mitigation_selection.candidates import Candidate
    from experiments.studies.mitigation_selection.study import Mitigations
    from interp.hooks import residual

    read: list[int] = []
    reading = residual.read_states

    def counted(vlm: Any, prompts: Any, *arguments: Any, **options: Any) -> Any:
        read.append(len(prompts))
        return reading(vlm, prompts, *arguments, **options)

    monkeypatch.setattr(residual, "read_states", counted)
    grid = {
        "readout": Candidate(TruthReadout(layer=2), {"strength": [1.0, 4.0]}),
        "steering": Candidate(DirectionSteering(layer=2), {"strength": [1.0, 2.0]}),
    }
    run = run_of("name=m", "method=vcd", f"output_root={tmp_path}", "limit=12", "draws=20")
    Mitigations(grid, rivals=["vcd"], development=60)(run)
    assert read == [60]  # twelve learnings
