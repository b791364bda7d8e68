"""OPERA's beam search (``mitigation.peers.opera`` has the rule), one prompt at a time.

``VLM.generate`` follows one sequence a prompt, and transformers' own beam search has no place for tokens that are fed
before they are chosen, so this is a loop of its own. Choosing, ending and stopping are those of transformers' beam
search (length penalty 1, no early stopping).

A beam keeps, for each token c of its answer, log Π over i ≥ c of σ·ω(i, c): the next row of attention adds to it, so no
attention map is kept. Chosen candidates were fed already; their logits and keys are those of the next step.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.device_copies import to_device
from interp.errors import UserError
from interp.generation import Generation
from interp.hooks.attention import AttentionCall, chosen_layers, intercept
from interp.hooks.forward import is_followed
from interp.margin import margin_of
from interp.output_head import float32_head
from interp.segments import IMAGE, segment
from mitigation.contrastive.second_branch import SecondBranch
from mitigation.peers.opera_rule import OverTrustRule

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt

MOST = 1e4
"""The largest penalty, in logits: any number that no difference of logits makes up for, and that is finite."""

LARGEST = torch.finfo(torch.float32).max


def search(vlm: "VLM", prompts: "Sequence[Prompt]", rule: OverTrustRule, *, max_new_tokens: int) -> Generation:
    """The best beam of each prompt. See ``OPERA.generate``.

    Raises:
        UserError: the family has no image tokens or no readable attention, or the model is being recorded or steered.
    """
    vlm.layout.require_image_tokens(vlm.name)
    if is_followed(vlm):
        raise UserError(
            "OPERA decodes in a loop of its own, whose rows are candidates of beams; they can be neither recorded nor "
            "steered; take another method"
        )
    answers, margins = [], []
    for prompt in prompts:
        one = _Search(vlm, prompt, rule, max_new_tokens)
        with float32_head(vlm.model), intercept(vlm, observe=one.observe) if rule.looks else nullcontext():
            answers.append(one.run())
        margins.append(one.margin)
    rendered = [vlm.render(prompt) for prompt in prompts]
    return Generation(
        **vlm.told_apart(answers, rendered),
        token_ids=answers,
        margins=torch.cat(margins).cpu(),
        finished=[bool(answer) and answer[-1] in vlm.end_ids for answer in answers],
        prompts=rendered,
        keys=[prompt.key for prompt in prompts],
    )


@dataclass(frozen=True)
class _Beams:
    """The beams after a number of tokens, best first, and the answers that have ended so far, best first.

    ``summaries`` are each beam's summary token at every step. There are fewer beams than there may be while there are
    fewer candidates.
    """

    tokens: list[list[int]]
    scores: Float[Tensor, " beam"]
    columns: Float[Tensor, "beam token"]
    summaries: list[list[int]]
    ended: list[tuple[float, list[int]]]


@dataclass(frozen=True)
class _Fed:
    """Tokens fed after each beam: their penalised scores, summary tokens, columns and the logits after them."""

    tokens: Int[Tensor, "beam candidate"]
    scores: Float[Tensor, "beam candidate"]
    summaries: list[list[int]]
    columns: Float[Tensor, "beam candidate token"]
    logits: Float[Tensor, "beam candidate vocab"]


class _Search:
    """The search for one answer."""

    def __init__(self, vlm: "VLM", prompt: "Prompt", rule: OverTrustRule, max_new_tokens: int) -> None:
        encoded: Mapping[str, Any] = vlm.encode([prompt])
        self._rule, self._most, self._ends = rule, max_new_tokens, vlm.end_ids
        self._yes, self._no = vlm.answer_ids
        self._branch = SecondBranch(vlm.model, encoded, blind=True)
        self._width = encoded["input_ids"].shape[1]
        self._device = encoded["input_ids"].device
        if rule.looks:
            self._layer = chosen_layers(vlm, None)[-1]
            (row,) = segment(vlm, [prompt], encoded).rows
            self._picture = to_device(torch.tensor(row.columns(IMAGE)), self._device)
        self._attention: Tensor | None = None  # of the tokens fed last, [row column]
        self._chosen: dict[int, list[tuple[int, int]]] = {}  # by step: which tokens of which beams went on
        self._rejected: dict[int, list[tuple[int, int]]] = {}
        self._times: Counter[int] = Counter()  # by step: how often the search went back to it
        self.margin: Float[Tensor, 1]

    def observe(self, call: AttentionCall) -> None:
        """Keeps ω of the newest token: the maximum over heads, rescaled to sum to 1; what a window left out is 0."""
        if call.layer != self._layer:
            return
        last = to_device(torch.tensor([call.query.shape[2] - 1]), call.key.device)
        self._attention = call.at(last).rows()[:, :, 0].amax(1)

    def run(self) -> list[int]:
        """The tokens of the best answer, its end token included."""
        logits = self._branch.start()
        empty = logits.new_zeros(1, 0)
        beams = _Beams([[]], logits.new_zeros(1), empty, [[]], [])
        history: list[tuple[_Beams, list[int]]] = []  # by step, with each beam's summary token
        while True:
            step = len(beams.tokens[0])
            fed = self._feed(beams, logits) if self._rule.looks else None
            if not step:
                self.margin = self._margin(logits, fed)
            now = [] if fed is None else [_most_frequent(beam) for beam in fed.summaries]
            history[step:] = [(beams, now)]
            if (back := self._place_to_go_back_to(beams, now)) is not None:
                step, fed = back, None
                beams, now = history[step]
                logits = self._again(beams)
                scores = self._without_rejected(logits, step)
            else:
                scores = self._candidates(logits, fed)
            going, ended = self._choose(beams, scores)
            self._chosen[step] = [(beam, token) for beam, token, _ in going]
            if self._done(going, ended, step + 1):
                return ended[0][1]
            beams, logits = self._go_on(beams, now, going, fed)
            beams = replace(beams, ended=ended)

    def _feed(self, beams: _Beams, logits: Float[Tensor, "beam vocab"]) -> _Fed:
        """Feeds every beam's candidates; with those of the first token, Yes and No, whose margin is read."""
        tokens = logits.topk(min(self._rule.candidates, logits.shape[1])).indices
        if not beams.tokens[0]:
            answers = [token for token in (*self._yes, *self._no) if token not in tokens[0].tolist()]
            tokens = torch.cat([tokens, tokens.new_tensor([answers])], dim=1)
        count, each = tokens.shape
        self._branch.select(torch.arange(count, device=tokens.device).repeat_interleave(each))
        after = self._branch.extend(tokens.reshape(-1, 1))
        attention = self._rows()
        columns = self._grown(beams.columns.repeat_interleave(each, 0), attention)
        trust, summary = columns.max(1)
        if columns.shape[1] <= self._rule.early:
            penalty = -attention[:, self._picture].sum(1)
        else:
            penalty = (self._rule.unit * trust.exp().clamp(max=LARGEST)).clamp(max=MOST)  # no 0 · inf
        return _Fed(
            tokens,
            logits.gather(1, tokens) - self._rule.weight * penalty.view(count, each),
            summary.view(count, each)[:, : self._rule.candidates].tolist(),
            columns.view(count, each, -1),
            after.view(count, each, -1),
        )

    def _rows(self) -> Float[Tensor, "row column"]:
        """ω of the tokens fed last, over all columns."""
        assert self._attention is not None
        found = self._attention.to(self._device)
        return found / found.sum(1, keepdim=True)

    def _grown(
        self, columns: Float[Tensor, "row token"], attention: Float[Tensor, "row column"]
    ) -> Float[Tensor, "row token_and_one"]:
        """The columns' products with one more token, whose attention this is."""
        length = columns.shape[1] + 1
        own = attention[:, -length:]
        own = torch.nn.functional.pad(own, (length - own.shape[1], 0))
        return torch.nn.functional.pad(columns, (0, 1)) + (self._rule.scale * own).log()

    def _margin(self, logits: Float[Tensor, "1 vocab"], fed: _Fed | None) -> Float[Tensor, "1"]:
        scores = logits if fed is None else logits.scatter(1, fed.tokens, fed.scores)
        return margin_of(scores[:, self._yes], scores[:, self._no])

    def _candidates(self, logits: Float[Tensor, "beam vocab"], fed: _Fed | None) -> Float[Tensor, "beam vocab"]:
        """The scores of the candidates; −inf for other tokens."""
        count = min(self._rule.candidates, logits.shape[1])
        tokens = logits.topk(count).indices if fed is None else fed.tokens[:, :count]
        scores = logits.gather(1, tokens) if fed is None else fed.scores[:, :count]
        return torch.full_like(logits, -torch.inf).scatter(1, tokens, scores)

    def _place_to_go_back_to(self, beams: _Beams, now: Sequence[int]) -> int | None:
        """The step to choose again at, if every beam hangs on the same summary token; counts it."""
        if self._rule.threshold is None:
            return None
        common = _most_frequent(now)
        hanging = [
            past.count(common) + (own == common) > self._rule.threshold
            for past, own in zip(beams.summaries, now, strict=True)
        ]
        if common < self._rule.early or not all(hanging):
            return None
        place = next((at for at in (common + 1, common) if self._times[at] < self._rule.rollbacks), None)
        if place is None:
            return None
        self._times[place] += 1
        kept = {at: pairs for at, pairs in self._rejected.items() if at <= place}
        self._rejected = kept | {place: [*kept.get(place, []), *self._chosen[place]]}
        return place

    def _again(self, beams: _Beams) -> Float[Tensor, "beam vocab"]:
        """Runs prompt and beams anew; the logits after them."""
        logits = self._branch.start()
        if not beams.tokens[0]:
            return logits
        self._branch.select(torch.zeros(len(beams.tokens), dtype=torch.long, device=self._device))
        return self._branch.extend(torch.tensor(beams.tokens, device=self._device))

    def _without_rejected(self, logits: Float[Tensor, "beam vocab"], step: int) -> Float[Tensor, "beam vocab"]:
        beam, token = zip(*self._rejected[step], strict=True)
        return logits.index_put((torch.tensor(beam), torch.tensor(token)), logits.new_tensor(-torch.inf))

    def _choose(
        self, beams: _Beams, scores: Float[Tensor, "beam vocab"]
    ) -> tuple[list[tuple[int, int, float]], list[tuple[float, list[int]]]]:
        """The beam, token and score of each beam that goes on, and the answers that have ended, both best first."""
        whole = scores.log_softmax(-1) + beams.scores[:, None]
        many = max(2, 1 + len(self._ends)) * self._rule.beams
        best, places = (found.tolist() for found in whole.flatten().topk(min(many, whole.numel())))
        going: list[tuple[int, int, float]] = []
        ended = list(beams.ended)
        for rank, (score, place) in enumerate(zip(best, places, strict=True)):
            beam, token = divmod(place, scores.shape[1])
            length = len(beams.tokens[beam]) + 1
            if score == -torch.inf:
                break
            if token in self._ends or length == self._most:
                if rank < self._rule.beams:
                    ended.append((score / length, [*beams.tokens[beam], token]))
            elif len(going) < self._rule.beams:
                going.append((beam, token, score))
        return going, sorted(ended, key=lambda one: -one[0])[: self._rule.beams]

    def _done(self, going: list[tuple[int, int, float]], ended: list[tuple[float, list[int]]], length: int) -> bool:
        """Whether no beam goes on, or none can become better than the worst of as many ended answers as beams."""
        full = len(ended) == self._rule.beams
        return not going or (full and going[0][2] / length <= ended[-1][0])

    def _go_on(
        self, beams: _Beams, now: Sequence[int], going: list[tuple[int, int, float]], fed: _Fed | None
    ) -> tuple[_Beams, Float[Tensor, "beam vocab"]]:
        """The next beams, with the logits after them."""
        source, tokens, scores = (list(part) for part in zip(*going, strict=True))
        rows, ids = (torch.tensor(values, device=self._device) for values in (source, tokens))
        if fed is None:
            self._branch.select(rows)
            logits = self._branch.extend(ids[:, None])
            columns = self._grown(beams.columns[rows], self._rows()) if self._rule.looks else beams.columns[rows]
        else:
            which = (fed.tokens[rows] == ids[:, None]).int().argmax(1)
            self._branch.select(rows * fed.tokens.shape[1] + which)
            logits, columns = fed.logits[rows, which], fed.columns[rows, which]
        grown = _Beams(
            [[*beams.tokens[beam], token] for beam, token in zip(source, tokens, strict=True)],
            torch.tensor(scores, device=self._device, dtype=torch.float32),
            columns,
            [[*beams.summaries[beam], now[beam]] if now else [] for beam in source],
            beams.ended,
        )
        return grown, logits


def _most_frequent(values: Sequence[int]) -> int:
    """The mode; the smallest of several."""
    counts = Counter(values)
    return min(counts, key=lambda value: (-counts[value], value))
