"""OPERA against loops written from the paper; without penalty and rollback it is transformers' beam search."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch

from interp.attention.record import record_attention
from interp.errors import UserError
from interp.segments import segment
from interp.vlm import VLM, Prompt
from mitigation.attention_steering import AttentionSteering
from mitigation.method import Baseline
from mitigation.peers.opera import OPERA
from mitigation.wrappers import Sampled, Shifted
from tests.families import FAMILIES, every_family
from tests.mitigation.family_laws import answers_as_one_by_one, case
from tests.mitigation.slow_rule import GROWING, decided
from tests.tiny import tiny_llava
from tests.weekly import weekly


def mode(values: list[int]) -> int:
    return max(sorted(set(values)), key=values.count)


class Looked(NamedTuple):
    """Logits after a text, φ of it, its summary token, and the last token's share on the picture."""

    logits: torch.Tensor
    product: float
    summary: int
    picture: float


class Slow:
    """The whole text anew for every token and candidate, in float64."""

    def __init__(self, prompt: Prompt, rule: OPERA) -> None:
        self.vlm = VLM(*tiny_llava(), name="slow")
        self.vlm.model.set_attn_implementation("eager")
        self.inputs = dict(self.vlm.encode([prompt]))
        self.labels = segment(self.vlm, [prompt], self.inputs).rows[0].labels
        self.vlm.model.double()
        self.inputs["pixel_values"] = self.inputs["pixel_values"].double()
        self.rule, self.rolled = rule, 0

    @torch.no_grad()
    def look(self, tokens: list[int]) -> Looked:
        grown = dict(self.inputs)
        for key in GROWING:
            if key in grown:
                tail = {"input_ids": tokens, "attention_mask": [1] * len(tokens)}.get(key, [0] * len(tokens))
                grown[key] = torch.cat([grown[key], grown[key].new_tensor([tail])], dim=1)
        output = self.vlm.model(**grown, use_cache=False, output_attentions=True)
        weights = output.attentions[-1][0].amax(0)
        weights = (weights / weights.sum(1, keepdim=True)).tolist()
        first = len(self.labels)
        products = []
        for column in range(len(tokens)):
            product = 1.0
            for row in range(column, len(tokens)):
                product *= self.rule.scale * weights[first + row][first + column]
            products.append(product)
        best = max(range(len(tokens)), key=products.__getitem__, default=0)
        share = sum(weights[-1][c] for c, label in enumerate(self.labels) if label == "image_0")
        return Looked(output.logits[0, -1], max(products, default=0.0), best, share)

    def penalised(self, tokens: list[int], logits: torch.Tensor, candidate: int) -> tuple[float, int]:
        """A candidate's score, and the summary token that it hangs on."""
        after = self.look([*tokens, candidate])
        over_trust = -after.picture if len(tokens) + 1 <= self.rule.early else self.rule.unit * after.product
        return float(logits[candidate]) - self.rule.weight * over_trust, after.summary

    def margin(self) -> float:
        logits = self.look([]).logits
        yes, no = (
            torch.tensor([self.penalised([], logits, token)[0] for token in ids]).logsumexp(0)
            for ids in self.vlm.answer_ids
        )
        return float(yes - no)

    def answer(self, most: int) -> list[int]:
        rule, ends = self.rule, self.vlm.end_ids
        beams: list[Any] = [([], 0.0, [])]  # tokens, score, summary tokens
        ended: list[Any] = []
        kept: list[Any] = []  # by step: beams, ended, summary tokens now, and the continuations chosen
        rejected: dict[int, list[list[int]]] = {}
        times: dict[int, int] = {}
        while True:
            step = len(beams[0][0])
            options, now = [], []
            for tokens, score, _ in beams:
                logits = self.look(tokens).logits
                candidates = logits.topk(rule.candidates).indices.tolist()
                found = [self.penalised(tokens, logits, candidate) for candidate in candidates]
                now.append(mode([summary for _, summary in found]))
                shares = torch.tensor([value for value, _ in found]).log_softmax(0).tolist()
                options += [(score + share, [*tokens, c]) for share, c in zip(shares, candidates, strict=True)]
            common = mode(now)
            counts = [[*past, own].count(common) for (_, _, past), own in zip(beams, now, strict=True)]
            if rule.threshold and common >= rule.early and min(counts) > rule.threshold:
                place = common + 1 if times.get(common + 1, 0) < rule.rollbacks else common
                if times.get(place, 0) < rule.rollbacks:
                    self.rolled += 1
                    times[place] = times.get(place, 0) + 1
                    rejected = {at: texts for at, texts in rejected.items() if at <= place}
                    rejected.setdefault(place, []).extend(kept[place][3])
                    beams, ended, now, _ = kept[place]
                    step, options = place, []
                    for tokens, score, _ in beams:
                        logits = self.look(tokens).logits
                        for text in rejected[place]:
                            if text[:-1] == tokens:
                                logits[text[-1]] = -torch.inf
                        shares = logits.log_softmax(0).tolist()
                        options += [(score + s, [*tokens, c]) for c, s in enumerate(shares) if s > -torch.inf]
            options.sort(key=lambda one: -one[0])
            going: list[Any] = []
            before = list(ended)
            for rank, (score, text) in enumerate(options):
                if text[-1] in ends or len(text) == most:
                    ended = [*ended, (score / len(text), text)] if rank < rule.beams else ended
                elif len(going) < rule.beams:
                    parent = next(b for b, (tokens, _, _) in enumerate(beams) if tokens == text[:-1])
                    going.append((text, score, [*beams[parent][2], now[parent]]))
            ended = sorted(ended, key=lambda one: -one[0])[: rule.beams]
            kept[step:] = [(beams, before, now, [text for text, _, _ in going])]
            if not going or (len(ended) == rule.beams and going[0][1] / (step + 1) <= ended[-1][0]):
                return list(ended[0][1])
            beams = going


# The bundled models are small and look at their answers little, so that the published unit changes nothing here.
STRONG = OPERA(beams=3, candidates=4, weight=4.0, unit=0.5, early=2, threshold=None)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rule", "tokens", "rolls"),
    [
        (OPERA(weight=8.0), 4, False),
        weekly(STRONG, 6, False),
        weekly(OPERA(beams=2, candidates=3, unit=1e-3, early=1, threshold=2, rollbacks=1), 9, True),
        (OPERA(beams=2, candidates=3, weight=0.0, early=0, threshold=2, rollbacks=2), 8, True),
    ],
)
def test_against_loops(vlm: VLM, prompts: list[Prompt], rule: OPERA, tokens: int, rolls: bool) -> None:
    got, rolled = rule.generate(vlm, prompts, max_new_tokens=tokens), 0
    for row, prompt in enumerate(prompts):
        slow = Slow(prompt, rule)
        assert got.token_ids[row] == slow.answer(tokens)
        assert float(got.margins[row]) == pytest.approx(slow.margin(), abs=1e-3)
        rolled += slow.rolled
    assert bool(rolled) == rolls


def test_a_unit_of_0_is_no_penalty_however_large_the_products(vlm: VLM, prompts: list[Prompt]) -> None:
    kept: dict[str, Any] = {"beams": 2, "candidates": 3, "early": 0, "threshold": None}
    none = OPERA(weight=0.0, **kept).generate(vlm, prompts[:1], max_new_tokens=12)
    found = OPERA(unit=0.0, scale=1e9, **kept).generate(vlm, prompts[:1], max_new_tokens=12)
    assert len(found.token_ids[0]) > 8  # by then a product is larger than any float32
    assert found.token_ids == none.token_ids


def plain(beams: int, vlm: VLM) -> OPERA:
    return OPERA(beams=beams, weight=0.0, threshold=None, candidates=vlm.model.config.get_text_config().vocab_size)


@pytest.mark.parametrize("beams", [1, 3, 5])
def test_without_penalty_it_is_transformers_beam_search(vlm: VLM, prompts: list[Prompt], beams: int) -> None:
    got = plain(beams, vlm).generate(vlm, prompts, max_new_tokens=7)
    for row, prompt in enumerate(prompts):
        inputs = vlm.encode([prompt])
        out = vlm.model.generate(**inputs, num_beams=beams, do_sample=False, max_new_tokens=7, pad_token_id=0)
        assert got.token_ids[row] == out[0, inputs["input_ids"].shape[1] :].tolist()
    torch.testing.assert_close(got.margins, vlm.score(prompts), atol=1e-4, rtol=0)


@pytest.mark.parametrize("by", [2.0, 3.0])
def test_beams_that_end_are_kept_and_end_the_search(vlm: VLM, prompts: list[Prompt], by: float) -> None:
    """With a likelier end token, so that beams end at several lengths."""
    end = next(iter(vlm.end_ids))
    lift = torch.zeros(vlm.model.config.get_text_config().vocab_size)
    lift[end] = by
    head = vlm.model.get_submodule(vlm.layout.lm_head)
    handle = head.register_forward_hook(lambda module, args, output: output + lift)
    try:
        got = plain(4, vlm).generate(vlm, prompts, max_new_tokens=9)
        for row, prompt in enumerate(prompts):
            inputs = vlm.encode([prompt])
            out = vlm.model.generate(**inputs, num_beams=4, do_sample=False, max_new_tokens=9, pad_token_id=0)
            assert got.token_ids[row] == out[0, inputs["input_ids"].shape[1] :].tolist()
    finally:
        handle.remove()
    assert got.finished == [ids[-1] == end for ids in got.token_ids]
    assert any(1 < len(ids) < 9 and ids[-1] == end for ids in got.token_ids)


def test_one_token_is_the_verdict_of_the_penalised_margin(vlm: VLM, prompts: list[Prompt]) -> None:
    vlm = decided(vlm)
    for rule in (OPERA(), OPERA(weight=8.0)):
        got = rule.generate(vlm, prompts, max_new_tokens=1)
        assert got.texts == ["Yes" if margin > 0 else "No" for margin in got.margins]
        assert (got.margins - vlm.score(prompts)).abs().max() > 1e-3


def test_the_penalty_changes_answers_and_leaves_nothing_behind(vlm: VLM, prompts: list[Prompt]) -> None:
    before = Baseline().generate(vlm, prompts, max_new_tokens=5)
    some, none = (rule.generate(vlm, prompts, max_new_tokens=6) for rule in (STRONG, OPERA(3, 4, threshold=None)))
    assert some.token_ids != none.token_ids
    again = Baseline().generate(vlm, prompts, max_new_tokens=5)
    assert again.token_ids == before.token_ids
    assert torch.equal(again.margins, before.margins)


WITH_IMAGE_TOKENS = every_family(but={"idefics", "mllama"})


@pytest.mark.parametrize("name", WITH_IMAGE_TOKENS)
def test_beams_keep_the_positions_and_windows_of_their_family(name: str) -> None:
    given = case(name)
    got = plain(2, given.vlm).generate(given.vlm, given.prompts[:2], max_new_tokens=5)
    for row, prompt in enumerate(given.prompts[:2]):
        inputs = given.vlm.encode([prompt])
        ends = {"eos_token_id": [*given.vlm.end_ids], "pad_token_id": 0}
        out = given.vlm.model.generate(**inputs, num_beams=2, do_sample=False, max_new_tokens=5, **ends)
        said = out[0].tolist()
        assert got.token_ids[row] == said[-len(got.token_ids[row]) :]


@pytest.mark.parametrize("name", WITH_IMAGE_TOKENS)
def test_batches_answer_as_one_by_one(name: str) -> None:
    answers_as_one_by_one(name, OPERA(beams=2, candidates=3, unit=1e-2, early=1))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OPERA(beams=0), "beams=0; .*1 or more"),
        (lambda: OPERA(candidates=0), "candidates=0; "),
        (lambda: OPERA(threshold=1), "threshold=1; .*2 or more"),
        (lambda: OPERA(rollbacks=True), "rollbacks=True; "),
        (lambda: OPERA(early=-1), "early=-1; "),
        (lambda: OPERA(scale=0.0), r"scale=0\.0; "),
        (lambda: OPERA(unit=float("nan")), "unit=nan; "),
        (lambda: OPERA(weight=-1.0), r"weight=-1\.0; .*0 or more"),
    ],
)
def test_settings_are_checked_when_made(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build()


def test_what_cannot_be_asked_is_refused(vlm: VLM, prompts: list[Prompt]) -> None:
    with pytest.raises(UserError, match="no image in prompt 'blind'"):
        OPERA().generate(vlm, [Prompt("what is red", key="blind")], max_new_tokens=1)
    for name in ("idefics", "mllama"):
        with pytest.raises(UserError, match="no image tokens"):
            OPERA().generate(VLM(*FAMILIES[name](), name=name), prompts, max_new_tokens=1)
    with record_attention(vlm), pytest.raises(UserError, match="neither recorded nor steered"):
        OPERA().generate(vlm, prompts, max_new_tokens=1)
    with pytest.raises(UserError, match="neither recorded nor steered"):
        AttentionSteering(method=OPERA()).generate(vlm, prompts, max_new_tokens=1)
    for wrapped in (Shifted(OPERA(), 1.0), Sampled(OPERA())):
        with pytest.raises(UserError, match="loop of its own"):
            wrapped.generate(vlm, prompts, max_new_tokens=1)
