"""A vision-language model with its processor: prompts in, answers and Yes/No margins out.

``load`` reads a checkpoint; ``VLM(model, processor)`` wraps a model in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteriaList

from interp.batching import BatchContext
from interp.encoder import Encoder, ids_of
from interp.errors import UserError
from interp.generation import (
    GREEDY,
    NO,
    YES,
    AnswerIds,
    Generation,
    Metric,
    VerdictScores,
    appended,
    check_call,
    margin_of,
    new_tokens,
    seeded,
    special_tokens_alone,
    unread,
    verdict_position,
)
from interp.output_head import float32_head
from interp.prompt import Prompt
from interp.sequence_metric import SequenceMetric
from interp.thoughts import Thoughts, marks_in

__all__ = ["VLM", "Generation", "Prompt"]

Run = Callable[[Mapping[str, Any], dict[str, Any]], Any]
"""(inputs, options) → output of ``model.generate``."""
Decode = Callable[[Run, Mapping[str, Any], dict[str, Any]], Any]
"""(run, inputs, options) → sequences of the inputs' rows."""


class VLM(Encoder):
    """Model, processor and layout. ``revision`` is the weights' hub commit or hash, None for a model built in memory.

    The tokenizer is set to pad on the left, with its end token if it has no padding token. A peft wrapper is removed:
    the inner model contains the adapter's layers and has the module paths of ``module_map``. Callables in ``on_encode``
    are called with the prompts and the model inputs after every ``encode``. ``batches`` forms the batches of loops over
    prompts (``interp.batching``). ``refused`` are tools that a proof refuses, with the reason. ``thinking`` are the
    marks of a thought, if they are not known (``interp.thoughts``). ``verdict`` says where an answer without a thought
    has its verdict: its first token, or the last Yes or No (``"last"``). ``prefill_cache`` is set by a study whose
    methods ask the same prompts (``interp.prefill_cache``); None: ``generate`` reads all prompts. ``metric`` is
    what tools measure if they are given nothing else; None: the Yes/No margin.

    Raises:
        UserError: the family is not supported, or the tokenizer has no token to pad with.
    """

    leaves_out_steps = True  # whether a method may leave out scores that decide nothing

    def __init__(self, model: Any, processor: Any, *, name: str = "", revision: str | None = None) -> None:
        super().__init__(model, processor, name=name, revision=revision)
        self.verdict = "first"
        self.metric: SequenceMetric | None = None
        self.batches = BatchContext(self)

    @property
    def answer_ids(self) -> AnswerIds:
        """The tokens of "Yes" and "No" as the next token after a prompt (``interp.generation.answer_ids``).

        In families that were tuned to say "yes" and "no" (PaliGemma, InstructBLIP) those of the lower case count too.
        If a model thinks first, all spellings count: of any case, and with blanks around them.
        """
        return self._spellings if self.thinks else self._first_ids

    @cached_property
    def _first_ids(self) -> AnswerIds:
        yes, no = self.first_tokens(YES, NO)
        if self.module_map.lower_case:
            lower = self.first_tokens(YES.lower(), NO.lower())
            yes, no = (list(dict.fromkeys([*one, *other])) for one, other in zip((yes, no), lower, strict=True))
        return AnswerIds(yes, no)

    @cached_property
    def _spellings(self) -> AnswerIds:
        texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
        words = [str(text).strip().casefold() for text in texts]
        yes, no = (
            sorted({*first, *(token for token, text in enumerate(words) if text == word.casefold())})
            for word, first in zip((YES, NO), self._first_ids, strict=True)
        )
        return AnswerIds(yes, no)

    @property
    def answer_spellings(self) -> dict[str, list[str]]:
        """The tokens that count as Yes and as No, as the vocabulary spells them."""
        return {
            name: [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]
            for name, ids in zip((YES, NO), self.answer_ids, strict=True)
        }

    def float32_logits(self, metric: Metric | None = None) -> AbstractContextManager[None]:
        """While open, the logits that ``metric`` (default: the margin) needs are float32 (``interp.output_head``)."""
        return nullcontext() if metric is unread else float32_head(self.model)

    @property
    def _speakers(self) -> list[Any]:
        """The modules whose generation settings act in ``generate``: the model itself, and a speaker nested in it."""
        modules = [self.model] if self.speaker is self.model else [self.model, self.speaker]
        return [module for module in modules if getattr(module, "generation_config", None) is not None]

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 16,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        encoded: Mapping[str, Any] | None = None,
        seed: int | None = None,
        decode: Decode | None = None,
        **generate_kwargs: Any,
    ) -> Generation:
        """Answer the prompts: greedily, unless ``generate_kwargs`` say otherwise, ignoring the checkpoint's settings.

        ``encoded`` are inputs made by ``encode``, possibly modified. ``seed`` is required for ``do_sample=True`` and
        leaves the global generator alone; a sampled answer depends on its batch. Margins are read from the scores that
        the verdict was chosen from: after every processor, before sampling (``interp.generation``). It is the first
        token; after a thought it is the answer's Yes or No, or else its first token. ``decode`` runs the model in
        another batch and returns the sequences of the prompts' rows (``mitigation.contrastive.paired.PairedBatch``).

        Raises:
            UserError: right-padded inputs, several sequences per prompt, sampling without a seed, or scores of the
                model that are no numbers.
        """
        self.batches.go_on()
        batch = self.encode(prompts) if encoded is None else encoded
        special = {"eos_token_id": sorted(self.end_ids) or None, "pad_token_id": self.tokenizer.pad_token_id}
        options = GREEDY | special | generate_kwargs
        check_call(options, batch["attention_mask"], seed)
        rendered = [self.render(prompt) for prompt in prompts]
        scores = VerdictScores(logits_processor or (), self.answer_ids, options, every=self.late_verdicts)
        options |= {"max_new_tokens": max_new_tokens, "logits_processor": scores.processors}
        if self.batches.stop is not None:
            options["stopping_criteria"] = StoppingCriteriaList([*options.get("stopping_criteria", ()), self._go_on])
        speaking = special_tokens_alone(*self._speakers)
        with speaking, seeded(seed, self.device), float32_head(self.model), self._fitting():
            output = self._run(batch, options) if decode is None else decode(self._run, batch, options)
        if logits_processor and not scores.ran:
            raise UserError(
                f"{self.name} has a generate of its own that runs no logits processor; a method that changes logits "
                "would change nothing; take one that does not (baseline, prompt, verbalise), or another model"
            )
        scores.check_finite(self.name, self.dtype)
        ends = ids_of(options["eos_token_id"])
        sequences = getattr(output, "sequences", output)
        rows = new_tokens(sequences, batch["input_ids"], ends=ends, pad=options["pad_token_id"])
        spoken = self.split_thoughts(rows, rendered, [self.prefix_tokens(prompt) for prompt in prompts])
        steps = self._verdict_steps(rows, spoken["thought_tokens"])
        return Generation(
            **spoken,
            token_ids=rows,
            margins=scores.margins(len(rows), steps),
            finished=[bool(row) and row[-1] in ends for row in rows],
            prompts=rendered,
            unshifted=scores.unshifted(len(rows), steps),
            sampled=scores.sampled,
            keys=[prompt.key for prompt in prompts],
            verdict_steps=steps,
        )

    def _run(self, batch: Mapping[str, Any], options: dict[str, Any]) -> Any:
        """Return the output of the model's ``generate``; take the prefill from the cache if there is one."""
        shared = {} if self.prefill_cache is None else self.prefill_cache.decoding(self, batch, options)
        return self.model.generate(**batch, **options, **shared)

    def prefill(self, inputs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """Return the result of ``run``, a prefill of ``inputs`` outside ``generate``, or a copy from the cache."""
        return run() if self.prefill_cache is None else self.prefill_cache.second_branch(self, inputs, run)

    @property
    def late_verdicts(self) -> bool:
        """Whether verdicts may come after the first token: after a thought, or at the end of answers (``verdict``)."""
        return self.verdict == "last" or self.thinks

    def _verdict_steps(self, rows: Sequence[Sequence[int]], thought_tokens: Sequence[int]) -> list[int | None] | None:
        """Return how many tokens of generated ``rows`` come before their verdicts; None: each is the first token."""
        if self.verdict == "last":
            return [verdict_position(self.tokenizer, ids, self.answer_ids) for ids in rows]
        thinks = self.thinks
        if not thinks and not any(thought_tokens):
            return None
        lengths = zip(rows, thought_tokens, strict=True)
        return [self._verdict_after(ids, length) if thinks or length else 0 for ids, length in lengths]

    def _verdict_after(self, ids: Sequence[int], thought: int) -> int | None:
        """Return where the answer after a thought says Yes or No, or else where its first word is."""
        rest = list(ids[thought:])
        step = verdict_position(self.tokenizer, rest, self.answer_ids, opening=True)
        if step is None:
            texts = (self.tokenizer.decode([token], skip_special_tokens=True).strip() for token in rest)
            step = next((index for index, text in enumerate(texts) if text), None)
        return None if step is None else thought + step

    @property
    def thoughts(self) -> Thoughts:
        """The marks of a thought, by which thought and answer are told apart."""
        template = str(self.processor.chat_template)
        return Thoughts(self.tokenizer, ends=self.end_ids, named=self.thinking, template=template)

    @property
    def thinks(self) -> bool:
        """Whether a thought is to be expected behind a prompt, by chat template and marks (``interp.thoughts``)."""
        if not marks_in(str(self.processor.chat_template), self.thinking):
            return False
        return self.thoughts.expected(self.render(Prompt("?", Image.new("RGB", (1, 1)))))

    def split_thoughts(
        self, rows: Sequence[Sequence[int]], rendered: Sequence[str], prefixes: Sequence[Sequence[int]] = ()
    ) -> dict[str, Any]:
        """Return thoughts and answers of generated ids, as ``Thoughts.split_rows``; the template opens all prompts
        alike.

        A thought includes its beginning in ``prefixes``. A thought that ended there is left out.
        """
        thoughts = self.thoughts
        opened = bool(rendered) and thoughts.starts_thought(rendered[0])
        result = thoughts.split_rows(rows, starts_thought=opened)
        for row, before in enumerate(prefixes):
            if not before:
                continue
            full = thoughts.split_rows([[*before, *rows[row]]], starts_thought=opened)
            tokens = full["thought_tokens"][0] - len(before)
            if tokens > 0:
                text, thought = full["texts"][0], full["thoughts"][0]
            else:
                text, thought, tokens = self.tokenizer.decode(rows[row], skip_special_tokens=True).strip(), "", 0
            result["texts"][row], result["thoughts"][row], result["thought_tokens"][row] = text, thought, tokens
        return result

    @contextmanager
    def _fitting(self) -> Iterator[None]:
        """Run forwards; refuse in a sentence a processor that counts a picture's tokens otherwise than the model.

        Raises:
            UserError: it does.
        """
        try:
            yield
        except (ValueError, RuntimeError) as error:
            if not all(words in str(error).lower() for words in ("image features", "image tokens")):
                raise
            raise UserError(
                f"processor and weights of {self.name} do not fit: {' '.join(str(error).split())}; they count the "
                "tokens of a picture alike; take the processor files that came with these weights"
            ) from error

    def _go_on(self, input_ids: Int[Tensor, "row column"], scores: Any, **_: Any) -> Bool[Tensor, " row"]:
        """Return a stopping criterion that ends no answer: it leaves ``generate`` where the work is wanted no more."""
        self.batches.go_on()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def positions(self, attention_mask: Int[Tensor, "row column"]) -> dict[str, Int[Tensor, "row column"]]:
        """``position_ids`` for a padded batch in one forward, as in generate(); empty where the model has its own."""
        if self.module_map.position_kind != "1d":
            return {}
        return {"position_ids": (attention_mask.long().cumsum(-1) - 1).clamp(min=0)}

    def score(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        encoded: Mapping[str, Any] | None = None,
        metric: Metric | None = None,
    ) -> Float[Tensor, " row"]:
        """Return the margin of each prompt, float32 on the CPU; one prompt is a list of one.

        Inputs may be padded on either side. Costs a forward, or one for each stem of a ``SequenceMetric``.

        ``metric`` replaces the margin by another function of the logits of the first answer token, or of several.
        """
        self.require("score")
        prompts = [prompts] if isinstance(prompts, Prompt) else prompts
        self.batches.go_on()
        with torch.no_grad():
            return self.measure(self.encode(prompts) if encoded is None else encoded, metric).float().cpu()

    def measure(self, encoded: Mapping[str, Any], metric: Metric | None = None) -> Float[Tensor, " row"]:
        """Return the margin of encoded prompts, on their device; gradients are followed if torch follows them."""
        metric = metric or self.metric or self.margin
        if not isinstance(metric, SequenceMetric):
            return metric(self._last_logits(encoded, 1, metric)[:, 0])

        def after(stem: tuple[int, ...]) -> Float[Tensor, "row step vocab"]:
            rows, pad = [stem] * len(encoded["input_ids"]), self.tokenizer.pad_token_id
            grown = appended(encoded, rows, pad=pad, side="left", kind=self.answer_kind) if stem else encoded
            return self._last_logits(grown, len(stem) + 1, metric)

        return metric.read(after)

    def _last_logits(self, encoded: Mapping[str, Any], count: int, metric: Metric) -> Float[Tensor, "row step vocab"]:
        """Return the logits of the last ``count`` columns of each row."""
        mask = encoded["attention_mask"]
        last = (mask.shape[-1] - 1 - mask.flip(-1).argmax(-1)).tolist()
        batch = {**encoded, **self.positions(mask)}  # if padding counted, a margin would depend on its batch
        # A list: the hidden states it selects from may be on another device than the inputs.
        columns = sorted({column - back for column in last for back in range(count)})
        # Without a cache: nothing is decoded, and keys and values take gigabytes at 7B.
        with self.float32_logits(metric), self._fitting():
            logits = self.model(**batch, logits_to_keep=columns, use_cache=False).logits
        if logits.shape[1] != len(columns):  # some families give the logits of every column all the same
            columns = list(range(logits.shape[1]))
        steps = [[columns.index(column - back) for back in reversed(range(count))] for column in last]
        return logits[[[row] for row in range(len(last))], steps]

    def margin(self, logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
        """Return logit(Yes) − logit(No) in float32, each the log-sum-exp over its first tokens (``answer_ids``).

        If ``metric`` is set, return that.
        """
        if self.metric is not None:
            return self.metric(logits)
        yes, no = self.answer_ids
        return margin_of(logits[:, yes], logits[:, no])


def logit_difference(vlm: VLM, first: str, second: str) -> Metric:
    """Return logit(``first``) − logit(``second``) as a metric for tools: over all tokens that begin the words.

    Raises:
        UserError: no first token tells the two words apart.
    """
    for_first, for_second = vlm.first_tokens(first, second)

    def difference(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
        return margin_of(logits[:, for_first], logits[:, for_second])

    return difference
