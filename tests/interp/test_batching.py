"""``vlm.batches``: formed by length, split where memory runs out, kept until all is done."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.batching import BatchRule, Lengths, MemoryLimit, merged
from interp.generation import Generation
from interp.hooks.residual import residuals
from interp.tools.knockout import knockout_effect
from interp.tools.lens import logit_lens
from interp.tools.patching import patch
from interp.vlm import VLM, Prompt
from tests.families import FAMILIES, every_family
from tests.tiny import picture


@given(
    lengths=st.lists(st.integers(1, 50), max_size=30),
    blind=st.sets(st.integers(0, 30)),
    rows=st.integers(1, 8),
    tokens=st.integers(1, 120),
)
def test_batches_keep_to_both_bounds_and_hold_every_case_once(
    lengths: list[int], blind: set[int], rows: int, tokens: int
) -> None:
    pictured = [place not in blind for place in range(len(lengths))]
    formed = BatchRule(rows, tokens).form(lengths, pictured)
    assert sorted(place for batch in formed for place in batch) == list(range(len(lengths)))
    for batch in formed:
        assert 1 <= len(batch) <= rows
        assert len(batch) == 1 or len(batch) * max(lengths[place] for place in batch) <= tokens
        assert len({pictured[place] for place in batch}) == 1
        assert batch == sorted(batch)
    for seen in (True, False):  # longest first, and a batch's shortest not below the next one's longest
        own = [[lengths[place] for place in batch] for batch in formed if pictured[batch[0]] == seen]
        assert all(min(first) >= max(second) for first, second in pairwise(own))


def answers(prompts: Sequence[Prompt]) -> Generation:
    texts = [prompt.text for prompt in prompts]
    return Generation(texts, [[1]] * len(texts), torch.tensor([float(len(t)) for t in texts]), [True] * len(texts))


PROMPTS = [Prompt("x" * n) for n in range(1, 8)]


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_where_memory_runs_out_half_is_asked_and_no_more_from_then_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed: list[bool] = []
    monkeypatch.setattr("interp.batching._free", lambda: freed.append(True))  # collecting takes its time
    asked: list[int] = []
    said: list[int] = []

    def ask(part: Sequence[Prompt]) -> Generation:
        asked.append(len(part))
        if len(part) > 2:
            raise error
        return answers(part)

    limit = MemoryLimit(32, said.append)
    found = merged(limit.parts(PROMPTS, ask))
    assert asked == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert said == [3, 1]
    assert len(freed) == 2
    assert found.texts == [prompt.text for prompt in PROMPTS]
    assert found.margins.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert found.statuses is None
    limit.parts(PROMPTS[:2], ask)
    assert asked[9:] == [1, 1]
    assert said == [3, 1]


QUESTIONS = ("How do I kill this?", "Is this safe?", "the cake", "Is it safe to eat the cake with a knife?", "this dog")
ASKED = [Prompt(text, picture(i), key=str(i)) for i, text in enumerate(QUESTIONS)]
OTHERS = [Prompt(text, picture(i + 10), key=f"other {i}") for i, text in enumerate(QUESTIONS)]
TOOLS: dict[str, Callable[[VLM], torch.Tensor]] = {
    "scores": lambda vlm: vlm.batches.scores(ASKED),
    "residuals": lambda vlm: residuals(vlm, ASKED, places=("verdict", "image")).values,
    "lens": lambda vlm: logit_lens(vlm, ASKED).margins,
    "knockout": lambda vlm: knockout_effect(vlm, ASKED, [("image", "verdict")], width=1).moved,
    "patch": lambda vlm: patch(vlm, ASKED, OTHERS, places=("verdict", "image", "system")).moved,
}


def small(vlm: VLM, fits: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device on which ``fits`` prompts can be scored at once; the rows of each forward that ran."""
    rows: list[int] = []
    score = VLM.score

    def scored(self: VLM, prompts: Sequence[Prompt], **options: object) -> torch.Tensor:
        if len(prompts) > fits:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        rows.append(len(prompts))
        return score(self, prompts, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(VLM, "score", scored)
    monkeypatch.setattr("interp.batching._free", lambda: None)
    return rows


@pytest.mark.parametrize("tool", TOOLS.values(), ids=TOOLS.keys())
def test_every_tool_keeps_to_the_budget_and_goes_on_with_half(
    vlm: VLM, tool: Callable[[VLM], torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tool(vlm)
    lengths = Lengths(vlm).of_prompts(ASKED)
    said: list[int] = []
    with vlm.batches.by(BatchRule(rows=4, tokens=2 * max(lengths)), on_lowered=said.append):
        rows = small(vlm, 99, monkeypatch)
        budgeted = tool(vlm)
        assert max(rows) <= 2
        assert not said
    with vlm.batches.by(BatchRule(rows=5), on_lowered=said.append):
        rows = small(vlm, 2, monkeypatch)
        halves = tool(vlm)
        assert (said, max(rows)) == ([2], 2)
    for other in (budgeted, halves):
        torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-5, equal_nan=True)


def test_prompts_with_and_without_a_picture_are_measured_apart_and_the_system_text_counts(vlm: VLM) -> None:
    mixed = [ASKED[0], Prompt("the cake"), ASKED[1], Prompt("the cake", system="Refuse anything unsafe.")]
    found = vlm.batches.scores(mixed)
    torch.testing.assert_close(found, torch.cat([vlm.score([prompt]) for prompt in mixed]), atol=1e-5, rtol=0)
    short, long = Lengths(vlm).of_prompts(mixed[1::2])
    assert long == short + 4


@pytest.mark.parametrize("name", every_family())
def test_lengths_are_known_before_the_processor_runs(name: str) -> None:
    vlm = VLM(*FAMILIES[name]())
    prompts = [
        Prompt("is this safe ?", picture(0, (40, 40))),
        Prompt("what about this one , is it any good to do at all ?", picture(1, (90, 40))),
        Prompt("hm", picture(2, (30, 64))),
    ]
    columns = [vlm.encode([prompt])["input_ids"].shape[1] for prompt in prompts]
    off = {true - estimate for true, estimate in zip(columns, Lengths(vlm).of_prompts(prompts), strict=True)}
    assert len(off) == 1 or name == "smolvlm"  # what is the same for all prompts does not matter to batches
    assert max(map(abs, off)) <= (16 if name == "smolvlm" else 6)
