"""VCD's answers for many weights α from few passes: given the text so far, both branches' logits do not depend on α.

The logits of every step are kept, and another weight replays them token by token; the model is asked again only where
that weight would continue with a text that has not been generated yet. The answers are those of ``VCD.generate``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from interp.errors import UserError
from interp.vlm import VLM, Generation, Prompt
from mitigation.contrastive.corruption import corrupt_inputs
from mitigation.contrastive.formulas import contrast, plausible
from mitigation.contrastive.second_branch import SecondBranch
from mitigation.vcd import VCD

Prefix = tuple[int, ...]  # the tokens of an answer so far


class BranchLogits(NamedTuple):
    """Both branches after one text, of the tokens that may be chosen or are read for the margin."""

    tokens: Int[Tensor, " token"]
    clean: Float[Tensor, "1 token"]
    noised: Float[Tensor, "1 token"]
    allowed: int  # the first so many may be chosen; the rest are Yes and No


class ReplayedAnswer(NamedTuple):
    """A complete answer."""

    text: str
    token_ids: list[int]
    finished: bool


@dataclass
class CaseTrace:
    """One case under one noise: the logits after every generated prefix, and the answers reached."""

    steps: dict[Prefix, BranchLogits] = field(default_factory=dict)
    endings: dict[Prefix, ReplayedAnswer] = field(default_factory=dict)

    def follow(self, alpha: float) -> ReplayedAnswer | None:
        """The greedy answer under ``alpha``; None where it leaves what is known."""
        path: Prefix = ()
        while path not in self.endings:
            if path not in self.steps:
                return None
            step = self.steps[path]
            best = contrast(step.clean, step.noised, alpha=alpha)[0, : step.allowed].argmax()
            path = (*path, int(step.tokens[best]))
        return self.endings[path]


class SharedBranches:
    """The traces of all cases under the noise and cutoff of ``vcd``; its weight is not used."""

    def __init__(self, vcd: VCD) -> None:
        self._vcd = vcd
        self._traces: dict[tuple[str, str], CaseTrace] = {}

    def method(self, alpha: float) -> "ReplayedVCD":
        """VCD with this weight, answering from the traces where it can."""
        return ReplayedVCD(replace(self._vcd, alpha=alpha), self._traces)


class ReplayedVCD:
    """``vcd``, answering from the traces of cases, by key. Its ``repr`` is that of ``vcd``, as are its answers."""

    def __init__(self, vcd: VCD, traces: dict[tuple[str, str], CaseTrace]) -> None:
        self._vcd, self._traces = vcd, traces

    def __repr__(self) -> str:
        return repr(self._vcd)

    def generate(self, vlm: VLM, prompts: Sequence[Prompt], *, max_new_tokens: int) -> Generation:
        """As ``VCD.generate``.

        Raises:
            UserError: as there, and for a prompt without a key.
        """
        if not all(prompt.key for prompt in prompts):
            raise UserError("a prompt without key; what is known of a case is kept under its key; give each its own")
        traces = [self._traces.setdefault((prompt.key, prompt.text), CaseTrace()) for prompt in prompts]
        unknown = [index for index, trace in enumerate(traces) if trace.follow(self._vcd.alpha) is None]
        if unknown:
            self._ask(vlm, [prompts[i] for i in unknown], [traces[i] for i in unknown], max_new_tokens)
        endings = [trace.follow(self._vcd.alpha) for trace in traces]
        assert all(ending is not None for ending in endings)
        known = [ending for ending in endings if ending is not None]
        return Generation(
            texts=[ending.text for ending in known],
            token_ids=[ending.token_ids for ending in known],
            margins=torch.cat([self._margin(vlm, trace) for trace in traces]),
            finished=[ending.finished for ending in known],
            prompts=[vlm.render(prompt) for prompt in prompts],
        )

    def _margin(self, vlm: VLM, trace: CaseTrace) -> Float[Tensor, "1"]:
        first = trace.steps[()]
        return vlm.margin(contrast(first.clean, first.noised, alpha=self._vcd.alpha), of=first.tokens)

    def _ask(self, vlm: VLM, prompts: Sequence[Prompt], traces: Sequence[CaseTrace], max_new_tokens: int) -> None:
        """Generates, and keeps the logits of every step."""
        vcd, encoded = self._vcd, vlm.encode(prompts)
        noised = corrupt_inputs(vlm, prompts, kind=vcd.noise, step=vcd.noise_step, seed=vcd.seed)
        recorder = _BranchRecorder(SecondBranch(vlm.model, noised), alpha=vcd.alpha, beta=vcd.beta)
        found = vlm.generate(prompts, max_new_tokens=max_new_tokens, logits_processor=[recorder], encoded=encoded)
        answers = [token for ids in vlm.answer_ids for token in ids]
        for row, trace in enumerate(traces):
            ids = found.token_ids[row]
            for depth, logits in enumerate(recorder.of(row, len(ids), answers)):
                trace.steps[tuple(ids[:depth])] = logits
            trace.endings[tuple(ids)] = ReplayedAnswer(found.texts[row], ids, found.finished[row])


class _BranchRecorder(LogitsProcessor):
    """The eager contrast, keeping both branches' logits of every step."""

    contrasts: ClassVar[bool] = True

    def __init__(self, branch: SecondBranch, *, alpha: float, beta: float | None) -> None:
        self._branch, self._alpha, self._beta = branch, alpha, beta
        self._steps: list[tuple[Tensor, Tensor]] = []

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        clean = scores.float().clone()
        noised = self._branch.extend(input_ids[:, -1:]) if self._steps else self._branch.start()
        self._steps.append((clean, noised))
        contrasted = contrast(clean, noised, alpha=self._alpha)
        return contrasted.masked_fill(~plausible(clean, beta=self._beta), -torch.inf)

    def of(self, row: int, tokens: int, answers: Sequence[int]) -> Iterator[BranchLogits]:
        """The logits before each of the row's first ``tokens`` tokens, for the tokens another weight may need."""
        for clean, noised in self._steps[: max(tokens, 1)]:
            allowed = plausible(clean[row : row + 1], beta=self._beta)[0].nonzero().flatten()
            kept = torch.cat([allowed, torch.tensor(answers, device=allowed.device)])
            first, second = (branch[row : row + 1, kept].cpu() for branch in (clean, noised))
            yield BranchLogits(kept.cpu(), first, second, allowed=len(allowed))
