"""Logits processors of contrastive decoding for plain ``model.generate(..., logits_processor=[...])``.

Each runs its own second branch on other inputs, and gets the tokens so far and the clean scores from ``generate``. The
branch has the same continuation after another prompt, with its own KV cache. It shares no state with the running
``generate``. Positions are computed once for the prompt and then incremented, so that no state of the model (Qwen's
``rope_deltas``) is read or written. The first forward creates the cache.

Contrast and plausibility cutoff are equations 3 to 5 of Leng et al. 2023 (arXiv 2311.16922); other methods' formulas
are their ``scores``. All are computed in float32: in bfloat16, logits between 16 and 32 are multiples of 0.125, which
causes ties.
"""

import math
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor, PreTrainedModel

from interp.errors import UserError
from interp.generation import cache_in, with_cache
from interp.hooks.forward import is_paused, only_listens, paused
from interp.module_map import ModuleMap, module_map_of
from mitigation.method import check_alpha, check_beta

Prefill = Callable[[Mapping[str, Any], Callable[[], Any]], Any]
"""(inputs, run) → the result of ``run``, or a copy of an earlier result for the same inputs."""


class SecondBranch:
    """The same text after another picture, run step by step by ``model`` (transformers, or a peft wrapper).

    ``inputs`` are the processor's outputs for the batch, with the pictures replaced. They are ``input_ids`` and
    ``attention_mask`` (left-padded), ``pixel_values``, and the other inputs of the family's first forward. ``blind``
    allows prompts without a picture. ``prefill`` runs the prompts, or copies an earlier result (``VLM.prefill``).

    Raises:
        UserError: right padding or missing images.
    """

    def __init__(
        self, model: Any, inputs: Mapping[str, Any], *, blind: bool = False, prefill: Prefill | None = None
    ) -> None:
        model, self._prefill = bare(model), prefill
        module_map = module_map_of(model)
        check_inputs(model, inputs, blind=blind)
        self._model, self._along, self.speaker = model, module_map.along, speaker_of(model)
        self._prompts = _prompts(model, module_map, inputs)
        self.reset()

    @property
    def prompt_ids(self) -> Int[Tensor, "row position"]:
        """Return token ids of this branch's prompts."""
        return self._prompts.inputs["input_ids"]

    def reset(self) -> None:
        """Discard the cache and all tokens after the prompt."""
        self._cache: Any = None
        self._seen: dict[str, Any] = {}
        self._mask = self._prompts.mask
        self._next = self._prompts.positions[..., -1:] + 1

    def start(self) -> Float[Tensor, "row vocab"]:
        """Run the prompt from scratch and return raw float32 logits for the first token after it."""
        self.reset()
        prompts = self._prompts

        def run() -> tuple[Tensor, Any, dict[str, Any]]:
            return self._forward(self._model, prompts.positions, **prompts.inputs), self._cache, self._seen

        inputs = {**prompts.inputs, "mask": prompts.mask, "positions": prompts.positions}
        logits, self._cache, self._seen = run() if self._prefill is None else self._prefill(inputs, run)
        return cast("Tensor", logits)

    def extend(self, tokens: Int[Tensor, "row new"]) -> Float[Tensor, "row vocab"]:
        """Append ``tokens`` (one or several per row) and return the raw float32 logits after them."""
        count = tokens.shape[1]
        positions = self._next if count == 1 else self._next + torch.arange(count, device=tokens.device)
        self._next = positions[..., -1:] + 1
        if self._prompts.padded:
            self._mask = torch.cat([self._mask, self._mask.new_ones(tokens.shape)], dim=1)
        return self._forward(self.speaker, positions, input_ids=tokens, **self._of_the_picture(count))

    def _of_the_picture(self, count: int) -> dict[str, Any]:
        """Return cross-attention masks for ``count`` new tokens, equal to the mask of the prompt's last token."""
        given = self._prompts.inputs
        masks = {name: given[name][:, -1:] for name in self._along if given.get(name) is not None}
        rows = {name: mask.expand(-1, count, *mask.shape[2:]) for name, mask in masks.items()}
        return rows | self._seen

    @torch.no_grad()
    def _forward(
        self, module: Any, positions: Int[Tensor, "*axis row new"], **inputs: Any
    ) -> Float[Tensor, "row vocab"]:
        def run(cache: Any) -> Any:
            return module(
                # Like generate(), drop a mask of ones, so that both branches use the same attention path.
                attention_mask=self._mask if self._prompts.padded else None,
                position_ids=positions,
                **with_cache(cache),
                use_cache=True,
                logits_to_keep=1,
                return_dict=True,
                **inputs,
            )

        with paused():  # attention is recorded and edited in the main branch only
            outputs = run(self._cache)
            # Created by the first forward, so not shared.
            self._cache = cache_in(getattr(outputs, "language_model_outputs", outputs))
            if self._cache is None:  # a model that fills a cache and makes none
                self._cache = DynamicCache(config=self._model.config.get_text_config())
                outputs = run(self._cache)
        if (
            "image_attention_mask" in self._along
        ):  # IDEFICS does not cache the picture's keys and needs its features again
            resampled = self._model.config.use_resampler
            name = "perceiver_embeddings" if resampled else "image_encoder_embeddings"
            self._seen = {name: _features_in(outputs)}
        # Where the decoder's forward is called alone, its logits stay on the device of its head.
        return outputs.logits[:, -1].to(self._prompts.mask.device, torch.float32)


def _features_in(outputs: Any) -> Any:
    """Return a picture's features in a forward's output, which transformers keeps elsewhere from 5.24 on."""
    encoded = getattr(outputs, "image_outputs", None)
    return outputs.image_hidden_states if encoded is None else encoded.pooler_output


@dataclass(frozen=True)
class _Prompts:
    """A batch of prompts: the processor's ``inputs`` without the mask, and the position of every token."""

    inputs: dict[str, Any]
    mask: Int[Tensor, "row position"]
    positions: Int[Tensor, "*axis row position"]  # Qwen: text position, then frame, row and column
    padded: bool


def _prompts(model: PreTrainedModel, module_map: ModuleMap, inputs: Mapping[str, Any]) -> _Prompts:
    """Return the prompts with positions as in generate(): from 0 at the first real token; 0 for padding."""
    rest = dict(inputs)
    mask: Tensor = rest.pop("attention_mask")
    positions = (mask.long().cumsum(dim=1) - 1).masked_fill(mask == 0, 0)
    if module_map.position_kind == "mrope":
        with _kept_deltas(model):
            prepared: Any = model._prepare_position_ids_for_generation
            positions = prepared(rest["input_ids"], {**rest, "attention_mask": mask})
    return _Prompts(rest, mask, positions, padded=bool((mask == 0).any()))


@contextmanager
def _kept_deltas(model: PreTrainedModel) -> Iterator[None]:
    """Restore what generate() keeps of positions in the model: the main branch is still decoding with it."""
    held = [(module, module.rope_deltas) for module in model.modules() if hasattr(module, "rope_deltas")]
    try:
        yield
    finally:
        for module, deltas in held:
            module.rope_deltas = deltas


def bare(model: Any) -> Any:
    """Return the model inside a peft wrapper, whose layers contain the adapter's; another model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def speaker_of(model: Any) -> Any:
    """Return the module with the output head. Nested in InstructBLIP: the outer forward embeds, the inner decodes."""
    model = bare(model)
    return model.get_submodule(module_map_of(model).lm_head.rpartition(".")[0])


def check_inputs(model: PreTrainedModel, inputs: Mapping[str, Any], *, blind: bool = False) -> None:
    """Check the processor's outputs.

    Raises:
        UserError: missing inputs, right padding or (unless ``blind``) prompts without a picture.
    """
    module_map = module_map_of(model)
    needed = ("input_ids", "attention_mask") if blind else ("input_ids", "attention_mask", "pixel_values")
    absent = [key for key in needed if inputs.get(key) is None]
    if absent:
        raise UserError(
            f"no {' and no '.join(absent)} in the inputs; contrasting pictures needs them; pass all that the "
            f"processor returns for a text with an image"
        )
    # Check the last column only: InstructBLIP's processor puts the image tokens before the padding.
    if not bool(inputs["attention_mask"][:, -1].all()):
        raise UserError(
            "the prompts are padded on the right; generate() continues from the last column; set padding_side='left'"
        )
    if blind:
        return
    if module_map.cross_attended:
        without = ~torch.stack([inputs[name].flatten(1).any(dim=1) for name in module_map.along]).any(dim=0)
    else:
        without = (inputs["input_ids"] != module_map.image_token_id(model.config)).all(dim=1)
    if bool(without.any()):
        rows = without.nonzero().flatten().tolist()
        raise UserError(
            f"no image in the prompts of rows {rows}; contrasting pictures needs one a prompt; remove these rows"
        )


def contrast(
    clean: Float[Tensor, "row vocab"], noised: Float[Tensor, "row vocab"], *, alpha: float
) -> Float[Tensor, "row vocab"]:
    """Return (1 + α)·clean − α·noised in float32 (equation 3).

    Both are raw logits for the same text, ``clean`` with the picture and ``noised`` with a distorted one. A token that
    is −inf in ``clean`` (forbidden) stays −inf. α = 0 returns ``clean`` exactly.

    Raises:
        UserError: α is negative or not finite.
    """
    check_alpha(alpha)
    return (1 + alpha) * clean.float() - alpha * noised.float()


def plausible(clean: Float[Tensor, "row vocab"], *, beta: float | None) -> Bool[Tensor, "row vocab"]:
    """Return True where a token has at least β times the probability of the row's most likely one (equation 4).

    Computed from the clean logits, not the contrasted ones. The most likely token always passes. ``beta=None`` keeps
    all tokens.

    Raises:
        UserError: β is outside (0, 1].
    """
    check_beta(beta)
    if beta is None:
        return torch.ones_like(clean, dtype=torch.bool)
    clean = clean.float()
    return clean >= math.log(beta) + clean.max(dim=-1, keepdim=True).values


def cut(
    scores: Float[Tensor, "row vocab"], clean: Float[Tensor, "row vocab"], *, beta: float | None
) -> Float[Tensor, "row vocab"]:
    """Return ``scores`` where ``plausible(clean, beta)``, −inf elsewhere (equation 5).

    With a cutoff, a row with a NaN among its clean logits is all −inf.

    Raises:
        UserError: β is out of range.
    """
    return scores if beta is None else scores.masked_fill(~plausible(clean, beta=beta), -torch.inf)


def uncut_answers(
    scores: Float[Tensor, "row vocab"], uncut: Float[Tensor, "row vocab"], answers: Sequence[int]
) -> Float[Tensor, "row vocab"]:
    """Replace the answers' scores by their scores in ``uncut``, in rows whose most likely token is one of ``answers``.

    ``uncut`` are the same scores before the plausibility cutoff, which would otherwise fix a confident Yes or No
    regardless of its margin.
    """
    ids = torch.tensor([*answers], device=scores.device)
    verdict = torch.isin(scores.argmax(dim=1, keepdim=True), ids)
    return scores.index_copy(1, ids, torch.where(verdict, uncut[:, ids], scores[:, ids]))


Rule = Callable[[Tensor, Tensor, int], Tensor]
"""(clean [row vocab], others [branch row vocab], step from 0) → scores [row vocab]; raw logits in, no cutoff."""
UNEVEN = (
    "scores were changed before contrastive decoding, which would contrast changed scores with unchanged ones; set "
    "repetition_penalty=1.0, encoder_repetition_penalty=1.0, sequence_bias=None, guidance_scale=1.0 and "
    "exponential_decay_length_penalty=None; if it was a logits processor of yours, list that processor after this one"
)


class ContrastLogitsProcessor(LogitsProcessor):
    """A base of processors that follow one ``generate`` call after the other, and keep scores before the cutoff."""

    def __init__(self, model: Any, prompt_ids: Int[Tensor, "row position"]) -> None:
        self._steps = Steps(prompt_ids, model)
        self._first_scores: Tensor | None = None
        self._uncut_scores: Tensor | None = None

    @property
    def uncut_scores(self) -> Float[Tensor, "some vocab"] | None:
        """Return the latest step's scores before the cutoff (``interp.generation``); None without branches."""
        self._steps.check()
        return self._uncut_scores

    def _keep(self, step: int, scores: Float[Tensor, "some vocab"] | None) -> None:
        """Keep the scores of a ``step`` before the cutoff."""
        self._uncut_scores = scores
        if not step:
            self._first_scores = scores

    @property
    def first_scores(self) -> Float[Tensor, "some vocab"]:
        """Return the last call's scores of the first step, float32, before the cutoff; a row a pair for a paired batch.

        Raises:
            UserError: there was no call.
        """
        if self._first_scores is None:
            raise UserError("no scores yet; they are kept at the first step of generate(); generate first")
        self._steps.check()
        return self._first_scores


class RuleLogitsProcessor(ContrastLogitsProcessor):
    """Applies ``rule`` to the scores of ``generate`` and of the branches ``others``, then the plausibility cutoff.

    ``prompt_ids`` are the prompts that generation starts from, ``others`` the inputs of each further branch (other
    pictures, other words, or no picture; row by row). ``answers`` are the tokens of Yes and No: if the most likely
    first token is one of them, the cutoff does not apply between them. Costs one forward per token for each branch.

    With ``skips``, a step after the first skips the branches if one token passes the cutoff in each unfinished row
    (without a token of ``ends``). The clean scores decide there. A later step feeds the branches the missed tokens
    in one chunk. This check synchronises with the device. ``late_verdicts`` are the tokens of Yes and No if a verdict
    may come after the first token. The rule of the first token then holds for each token. A step is not skipped if one
    of them passes the cutoff. ``prefill`` runs the prompts of these branches (``SecondBranch``).

    Raises:
        UserError: as ``VisualContrastiveLogitsProcessor``.
    """

    def __init__(
        self,
        model: Any,
        prompt_ids: Int[Tensor, "row position"],
        others: Sequence[Mapping[str, Any]],
        rule: Rule,
        *,
        beta: float | None,
        answers: Sequence[int] = (),
        skips: bool = False,
        ends: Collection[int] = (),
        late_verdicts: Sequence[int] = (),
        prefill: Prefill | None = None,
    ) -> None:
        check_beta(beta)
        self._branches = [SecondBranch(model, other, blind=True, prefill=prefill) for other in others]
        if wrong := [len(branch.prompt_ids) for branch in self._branches if len(branch.prompt_ids) != len(prompt_ids)]:
            raise UserError(
                f"{wrong[0]} noised prompts for {len(prompt_ids)} clean ones; each row is contrasted with its own; "
                "pass as many"
            )
        super().__init__(model, prompt_ids)
        self._rule, self._beta, self._answers, self._skips = rule, beta, answers, skips
        self._ends = torch.tensor([*ends], dtype=torch.long, device=prompt_ids.device)
        self._late_verdicts = list(late_verdicts)
        self._fed = 0  # generated tokens that the branches have seen

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return the rule's scores in float32, −inf for tokens that are implausible by the clean ``scores``."""
        generated = self._steps.follow(input_ids, scores)
        step = generated.shape[1]
        passing = plausible(scores, beta=self._beta)
        if step and self._skips and not self._unsure(generated, passing):
            self._keep(step, None)
            return scores.float().masked_fill(~passing, -torch.inf)
        missed = generated[:, self._fed :]
        others = [branch.extend(missed) if step else branch.start() for branch in self._branches]
        self._fed = step
        ruled = self._rule(scores.float(), torch.stack(others), step)
        self._keep(step, ruled)
        cut = ruled.masked_fill(~passing, -torch.inf)
        if not self._answers or (step and not self._late_verdicts):
            return cut
        return uncut_answers(cut, ruled, self._answers)

    def _unsure(self, generated: Int[Tensor, "row new"], passing: Bool[Tensor, "row vocab"]) -> bool:
        """Return whether several tokens pass the cutoff in a row that has not ended, or one that may be its verdict."""
        ended = torch.isin(generated, self._ends).any(dim=1)
        unsure = passing.sum(dim=1) > 1
        if self._late_verdicts:
            unsure = unsure | passing[:, self._late_verdicts].any(dim=1)
        return bool((unsure & ~ended).any())


class VisualContrastiveLogitsProcessor(RuleLogitsProcessor):
    """Visual contrastive decoding (Leng et al. 2023, arXiv 2311.16922) in plain ``generate``::

        noised = diffuse_images(inputs, ["my-photo"], step=500, seed=0)
        vcd = VisualContrastiveLogitsProcessor(model, noised, alpha=1.0, beta=0.1)
        model.generate(**inputs, logits_processor=[vcd])

    In 16 bits, ``with interp.float32_head(model):`` around that call keeps the logits' rounding out of the contrast.

    ``noised`` is ``inputs`` with a distorted picture. Works with greedy, sampled and streamed decoding. One processor
    serves one batch of prompts and any number of ``generate`` calls. Costs a second forward per token, and never
    synchronises with the device.

    Args:
        model: a transformers model, or a peft wrapper of one.
        noised: the second branch's inputs, from the model's processor.
        alpha: weight of the contrast, at least 0.
        beta: plausibility cutoff relative to the most likely token, in (0, 1]; None: no cutoff.
        prompt_ids: the prompts that generation starts from, if ``noised`` has others (``noised`` may then be text
            only).

    Raises:
        UserError: settings out of range, right padding, or prompts without image. While generating: other prompts or
            rows than in ``noised`` (as in beam search or with several sequences per prompt). Steps out of order
            (assisted decoding). A penalty, a bias or another processor changed the scores before this one, by
            comparison with the model's logits. On an accelerator the comparisons do not wait for the device, so these
            errors can come one step late.
    """

    def __init__(
        self,
        model: Any,
        noised: Mapping[str, Any],
        *,
        alpha: float = 1.0,
        beta: float | None = 0.1,
        prompt_ids: Int[Tensor, "row position"] | None = None,
    ) -> None:
        check_alpha(alpha)
        if prompt_ids is None:
            check_inputs(bare(model), noised)
        prompts = noised["input_ids"] if prompt_ids is None else prompt_ids

        def rule(clean: Tensor, others: Tensor, step: int) -> Tensor:  # no method: a cycle would keep the hook
            return contrast(clean, others[0], alpha=alpha)

        super().__init__(model, prompts, [noised], rule, beta=beta)
        self.branch = self._branches[0]


class Steps:
    """Follows the tokens of consecutive ``generate`` calls: the prompts, then one more token per row and step.

    Shapes are checked at once. Contents are compared on the device, and the result is copied to the host without
    waiting. So on an accelerator an error can come one step late.
    """

    def __init__(self, prompt_ids: Int[Tensor, "row position"], model: Any) -> None:
        self.prompt_ids = prompt_ids
        self._clean = CleanLogits(speaker_of(model))
        self._seen: Tensor | None = None
        # Whether unexpected tokens came, and whether scores were changed.
        self._wrong = torch.zeros(2, dtype=torch.bool, device=prompt_ids.device)
        self._read = torch.zeros(2, dtype=torch.bool, pin_memory=prompt_ids.is_cuda)

    @property
    def rows(self) -> int:
        return len(self.prompt_ids)

    def follow(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Int[Tensor, "row new"]:
        """Return the tokens generated so far, none at the first step.

        Raises:
            UserError: this is not the next step, or ``scores`` are not the model's own.
        """
        (rows, length), width = input_ids.shape, self.prompt_ids.shape[1]
        if rows != self.rows:
            raise UserError(
                f"{rows} rows for {self.rows} prompts; contrastive decoding follows one sequence a prompt, no beam "
                f"search and no num_return_sequences; set num_beams=1 and num_return_sequences=1"
            )
        if length == width:
            self._wrong, self._seen = torch.zeros_like(self._wrong), None
        elif self._seen is None or length != self._seen.shape[1] + 1:
            raise self._error()
        expected = self.prompt_ids if self._seen is None else self._seen
        if input_ids is expected:
            other = self._wrong.new_zeros(())
        else:
            other = (input_ids[:, : expected.shape[1]] != expected).any()
        # Sticky: the next copy may arrive before this one is read.
        self._wrong = self._wrong | torch.stack([other, self._clean.changed(scores).to(other.device)])
        self._read.copy_(self._wrong, non_blocking=True)
        self.check()
        self._seen = input_ids
        return input_ids[:, width:]

    def check(self) -> None:
        """Raise the errors found so far.

        Raises:
            UserError: unexpected tokens or changed scores.
        """
        other, changed = self._read.tolist()
        if other or changed:
            self._read.zero_()
            self._wrong = torch.zeros_like(self._wrong)
            raise self._error() if other else UserError(UNEVEN)

    def _error(self) -> UserError:
        return UserError(
            "generation starts from other prompts than the noised inputs', or a step neither starts from them nor "
            "continues the last one; build one processor for each batch, without assisted decoding and inputs_embeds"
        )


class CleanLogits:
    """The logits of forwards of ``speaker``, the module with the output head, without second branches.

    A forward hook collects them during this object's lifetime. It keeps only weak references: ``generate`` holds its
    logits until its processors have run.
    """

    def __init__(self, speaker: torch.nn.Module) -> None:
        self._heard: list[weakref.ref[Tensor]] = []
        reference = weakref.ref(self)

        @only_listens
        def hear(module: Any, arguments: Any, output: Any) -> None:
            listener, logits = reference(), getattr(output, "logits", None)
            if listener is not None and logits is not None and not is_paused():
                listener._heard = [*(ref for ref in listener._heard if ref() is not None), weakref.ref(logits)]

        weakref.finalize(self, speaker.register_forward_hook(hear).remove)

    def changed(self, scores: Float[Tensor, "row vocab"]) -> Bool[Tensor, ""]:
        """Return whether finite scores differ from the model's own; False if no forward was seen.

        Forbidden tokens (−inf) are not a difference: they stay forbidden in the contrast. Logits that are alive for
        other reasons do no harm: one equal set is enough.
        """
        heard = [logits for ref in self._heard if (logits := ref()) is not None and logits.shape[::2] == scores.shape]
        if not heard:
            return torch.zeros((), dtype=torch.bool, device=scores.device)
        clean = [logits.detach()[:, -1].to(scores.device, torch.float32) for logits in heard]
        if scores.device.type == "cpu" and any(torch.equal(each, scores) for each in clean):  # nearly always
            return torch.zeros((), dtype=torch.bool)
        return ((torch.stack(clean) != scores) & scores.isfinite()).any(dim=2).any(dim=1).all()
