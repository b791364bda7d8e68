"""A vision-language model with its processor: prompts in, answers and Yes/No margins out.

``load`` reads a checkpoint; ``VLM(model, processor)`` wraps a model in memory.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from PIL import Image
from torch import Tensor
from transformers import BatchFeature, LogitsProcessor, StoppingCriteriaList

from interp.batching import BatchContext
from interp.errors import UserError
from interp.families import PER_TOKEN, encode_pieces
from interp.generation import GREEDY, Generation, appended, check_call, new_tokens, seeded, special_tokens_alone
from interp.layout import layout_for
from interp.margin import (
    NO,
    YES,
    AnswerIds,
    Answering,
    Metric,
    Place,
    VerdictScores,
    answer_ids,
    margin_of,
    verdict_position,
)
from interp.output_head import float32_head, native_head
from interp.pictures import PictureRefused
from interp.preprocessing import configuration_digest, is_other, preprocessing_digest, tokenizer_digest, tokenizers_of
from interp.prompt import MARK, Prompt, render
from interp.thoughts import Thoughts

__all__ = ["VLM", "Generation", "Prompt"]

BY_TOKEN = PER_TOKEN | {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
"""Inputs with a column for each token."""
Run = Callable[[Mapping[str, Any], dict[str, Any]], Any]
"""(inputs, options) → output of ``model.generate``."""
Decode = Callable[[Run, Mapping[str, Any], dict[str, Any]], Any]
"""(run, inputs, options) → sequences of the inputs' rows."""


def _ids(value: int | Sequence[int] | None) -> set[int]:
    return {value} if isinstance(value, int) else set(value or ())


class VLM:
    """Model, processor and layout. ``revision`` is the weights' hub commit or hash, None for a model built in memory.

    The tokenizer is set to pad on the left, with its end token if it has no padding token. A peft wrapper is removed:
    the inner model contains the adapter's layers and has the module paths of ``layout``. Callables in ``on_encode`` are
    called with the prompts and the model inputs after every ``encode``. ``batches`` forms the batches of loops over
    prompts (``interp.batching``). ``refused`` are tools that a proof refuses, with the reason. ``thinking`` are the
    marks of a thought, if not those that are known (``interp.thoughts``). ``verdict`` says where an answer without a
    thought has its verdict: its first token, or the last Yes or No (``"last"``). ``prefill_cache`` is set by a study
    whose methods ask the same prompts (``interp.speed.prefill_cache``); None: ``generate`` reads all prompts.

    Raises:
        UserError: the family is not supported, or the tokenizer has no token to pad with.
    """

    def __init__(self, model: Any, processor: Any, *, name: str = "", revision: str | None = None) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.processor = processor
        self.layout = layout_for(self.model)
        self.name = name or self.layout.model_type
        self.revision = revision
        self.refused: Mapping[str, str] = {}
        self.thinking: Mapping[str, str] | None = None
        self.verdict = "first"
        self.on_encode: list[Callable[[Sequence[Prompt], BatchFeature], object]] = []
        self.batches = BatchContext(self)
        self.prefill_cache: Any = None  # an interp.speed.prefill_cache.PrefillCache
        self.tokenizer = processor.tokenizer
        self.tokenizer.padding_side = "left"  # generate() continues from the last column
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token or self.tokenizer.unk_token
        if self.tokenizer.pad_token is None:
            raise UserError(
                f"the tokenizer of {self.name} has neither a padding token nor an end token to use instead; "
                "set processor.tokenizer.pad_token"
            )

    def require(self, tool: str) -> None:
        """Checks that a proof of this model (``interp.proof``), if there was one, lets ``tool`` be trusted.

        Raises:
            UserError: the proof refused it.
        """
        if why := self.refused.get(tool):
            raise UserError(
                f"{tool} on {self.name} would be wrong: {why}; task=prove shows every check; take a tool that it lets"
                " through"
            )

    @property
    def device(self) -> torch.device:
        """The device for inputs; if the model is spread over several, that of its embeddings."""
        if getattr(self.model, "_hf_hook", None) is None:  # accelerate's hook, which moves inputs and weights
            return self.model.device
        embeddings = self.model.get_input_embeddings()
        place = embeddings.weight.device
        return torch.device(embeddings._hf_hook.execution_device) if place.type == "meta" else place

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.model.dtype

    @cached_property
    def answer_ids(self) -> AnswerIds:
        """The first tokens of "Yes" and "No" after a rendered prompt; see ``answer_ids``.

        In families that were tuned to say "yes" and "no" (PaliGemma, InstructBLIP) those of the lower case count too.
        """
        yes, no = self.first_tokens(YES, NO)
        if self.layout.lower_case:
            lower = self.first_tokens(YES.lower(), NO.lower())
            yes, no = (list(dict.fromkeys([*one, *other])) for one, other in zip((yes, no), lower, strict=True))
        return AnswerIds(yes, no)

    @cached_property
    def spelled(self) -> AnswerIds:
        """All tokens that are Yes or No, whatever their case and the blanks around them: those of a later verdict."""
        texts = self.tokenizer.batch_decode([[token] for token in range(len(self.tokenizer))])
        said = [str(text).strip().casefold() for text in texts]
        yes, no = (
            sorted({*first, *(token for token, text in enumerate(said) if text == word.casefold())})
            for word, first in zip((YES, NO), self.answer_ids, strict=True)
        )
        return AnswerIds(yes, no)

    def _answers_behind(self, begun: Sequence[int], token: int) -> AnswerIds:
        """The first tokens of Yes and No behind the tokens ``begun``, in the case in which ``token`` says one."""
        said = str(self.tokenizer.decode([token])).strip()
        words = (
            (YES.lower(), NO.lower()) if said.islower() else (YES.upper(), NO.upper()) if said.isupper() else (YES, NO)
        )
        text = str(self.tokenizer.decode(list(begun), skip_special_tokens=False))
        try:
            behind = answer_ids(self.tokenizer, text, name=self.name, words=words)
        except UserError:  # no spelling of its own there
            behind = self.answer_ids
        yes, no = (
            sorted({one for one in ids if one in spelled} | ({token} & set(spelled)))
            for ids, spelled in zip(behind, self.spelled, strict=True)
        )
        return AnswerIds(yes, no) if yes and no else self.answer_ids

    @property
    def answer_spellings(self) -> dict[str, list[str]]:
        """The tokens that count as Yes and as No, as the vocabulary spells them."""
        return {
            name: [str(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]
            for name, ids in zip((YES, NO), self.answer_ids, strict=True)
        }

    def first_tokens(self, one: str, other: str) -> AnswerIds:
        """The first tokens of two other answers, as ``answer_ids`` are of "Yes" and "No".

        Raises:
            UserError: no first token distinguishes them.
        """
        # With an image, because some templates write its placeholder in any case.
        probe = Prompt("?", Image.new("RGB", (1, 1)))
        return answer_ids(self.tokenizer, self.render(probe), name=self.name, words=(one, other))

    @property
    def rounded(self) -> str:
        """Why margins are rounded as the model's type is, as a sentence; "" if they are float32."""
        return native_head(self.model)

    def float32_logits(self, metric: Metric | None = None) -> AbstractContextManager[None]:
        """While open, the logits that ``metric`` (default: the margin) needs are float32 (``interp.output_head``)."""
        answers = [token for ids in self.answer_ids for token in ids]
        return float32_head(self.model, answers if metric is None or metric == self.margin else None)

    @property
    def speaker(self) -> Any:
        """The module with the output head, which runs the forwards of generate(); in InstructBLIP it is nested."""
        return self.model.get_submodule(self.layout.lm_head.rpartition(".")[0])

    @property
    def preprocessing(self) -> str:
        """A digest of configuration, processor, chat template, tokenizer and end tokens (``interp.preprocessing``).

        With the weights' ``revision`` it is what the model is.
        """
        return preprocessing_digest(self.processor, known=self._known_digests, ends=self.end_ids)

    @property
    def identity(self) -> list[str]:
        """What identifies the model where its answers or measurements are kept: name, weights, preprocessing, dtype."""
        named = [str(self.thinking)] if self.thinking else []
        return [self.name, str(self.revision), self.preprocessing, str(self.dtype), *named]

    def other_than(self, known: Mapping[str, Any]) -> str:
        """What tells this model from the one whose ``revision`` and ``preprocessing`` are ``known``; "" if nothing.

        What was recorded without preprocessing, or under another version of transformers, is compared by its weights.
        """
        if known.get("revision") != self.revision:
            return f"its weights ({known.get('revision')}, here {self.revision})"
        if is_other(before := known.get("preprocessing"), self.preprocessing):
            return f"its configuration, processor, chat template or tokenizer ({before}, here {self.preprocessing})"
        return ""

    @cached_property
    def _known_digests(self) -> dict[str, str]:
        """Of what takes long to read and does not change: configuration and tokenizers."""
        tokenizers = {name: tokenizer_digest(one) for name, one in tokenizers_of(self.processor).items()}
        return {"configuration": configuration_digest(self.model.config), **tokenizers}

    @property
    def _speakers(self) -> list[Any]:
        """The modules whose generation settings act in ``generate``: the model itself, and a speaker nested in it."""
        modules = [self.model] if self.speaker is self.model else [self.model, self.speaker]
        return [module for module in modules if getattr(module, "generation_config", None) is not None]

    @cached_property
    def end_ids(self) -> set[int]:
        """The tokens that end an answer: the checkpoint's, the tokenizer's, and the one behind an answer in the chat.

        All three, because one alone may be wrong: InstructBLIP's generation config names the begin token, and that of
        IDEFICS lacks ``<end_of_utterance>``.
        """
        return _ids(self.speaker.generation_config.eos_token_id) | _ids(self.tokenizer.eos_token_id) | self._turn_end()

    def _turn_end(self) -> set[int]:
        """The special token right behind an answer in the chat template; empty if there is none."""
        messages = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
        messages.append({"role": "assistant", "content": [{"type": "text", "text": MARK}]})
        try:
            _, mark, behind = self.processor.apply_chat_template(messages).rpartition(MARK)
        except Exception:  # a template that takes no answers
            return set()
        behind = behind.lstrip() if mark else ""  # some leave answers out
        specials = {content: token for token, content in self._specials().items()}
        found = max((content for content in specials if behind.startswith(content)), key=len, default="")
        return {specials[found]} if found else set()

    def _specials(self) -> dict[int, str]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        return {number: str(token) for number, token in added.items() if token.special and str(token)}

    def render(self, prompt: Prompt) -> str:
        """The prompt as text, up to where the answer begins. The image is a single placeholder.

        Raises:
            UserError: as ``interp.prompt.render``; or the chat template ends it with an end token.
        """
        text = render(self.processor, prompt, layout=self.layout, name=self.name)
        if end := next((end for end in self._ends if text.rstrip().endswith(end)), ""):
            raise UserError(
                f"the chat template of {self.name} ends a prompt with the end token {end!r}, behind which a model "
                "begins another text; a template asked for add_generation_prompt ends where the answer begins; set "
                "model.chat_template (in Python: processor.chat_template) to one that does"
            )
        return text

    @cached_property
    def _ends(self) -> list[str]:
        """The end tokens as texts, without one that begins texts too."""
        ends = self.tokenizer.convert_ids_to_tokens(sorted(self.end_ids))
        return [str(end) for end in ends if end and end != self.tokenizer.bos_token]

    def encode(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """Left-padded model inputs, on the model's device and with pixels in its dtype.

        Raises:
            UserError: no prompts, prompts with and without an image in one batch, no image for a family that needs
                one, a picture that the processor refuses (``PictureRefused``), or a prompt that ``render`` rejects.
        """
        encoded = self.inputs(prompts)
        for listener in self.on_encode:
            listener(prompts, encoded)
        return encoded

    def inputs(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """What ``encode`` returns. Subclasses override this to change the inputs, which ``on_encode`` then sees."""
        cache = self.prefill_cache
        batch = self._processed(prompts) if cache is None else cache.encoded(prompts, self._processed)
        if not any(prompt.begun for prompt in prompts):
            return batch
        tails, pad = [prompt.begun for prompt in prompts], self.tokenizer.pad_token_id
        return BatchFeature(appended(batch, tails, pad=pad, side="left", kind=self.answer_kind))

    @property
    def answer_kind(self) -> int:
        """The token type of an answer: 1 for PaliGemma, whose prompt (type 0) has bidirectional attention."""
        return int(self.layout.model_type == "paligemma")

    def _processed(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """The processor's outputs."""
        texts = [self.render(prompt) for prompt in prompts]
        pictures = [prompt.image for prompt in prompts if prompt.image is not None]
        if not texts:
            raise UserError("no prompts in this batch; a batch has at least one; check the benchmark and its limit")
        if 0 < len(pictures) < len(texts):
            raise UserError(
                f"{len(pictures)} of {len(texts)} prompts in one batch have an image; either all or none may; "
                "ask those without an image in a batch of their own"
            )
        if len(texts) > 1 and (why := self.refused.get("score")):
            raise UserError(f"several prompts of {self.name} at once would be wrong: {why}; ask one (batch_size=1)")
        # Set again because training may have changed it. Passed as an argument, it would also reach InstructBLIP's
        # Q-Former, whose positions are absolute.
        self.tokenizer.padding_side = "left"
        options: dict[str, Any] = {"return_tensors": "pt", "padding": True}
        begin = self.tokenizer.bos_token
        if begin and texts[0].startswith(begin):
            options["add_special_tokens"] = False  # the template wrote <s> already
        try:
            batch = self._made(texts, pictures, **options)
        except UserError:
            raise
        except Exception as error:
            self._check_pictures(pictures, error)
            raise
        if (mask := batch.get("qformer_attention_mask")) is not None:
            # Padded left where the checkpoint's tokenizer says so, which its absolute positions do not allow.
            order = mask.argsort(dim=1, descending=True, stable=True)
            for name in ("qformer_input_ids", "qformer_attention_mask"):
                batch[name] = batch[name].gather(1, order)
        batch.pop("labels", None)  # PaliGemma's processor always adds them, all "ignore"
        return batch.to(self.device, dtype=self.dtype)

    def _made(self, texts: list[str], pictures: list[Image.Image], **options: Any) -> BatchFeature:
        """The processor's outputs, without the tokens that the tokenizer puts behind every text."""
        if self.layout.prompt == "pieces":
            return encode_pieces(self.processor, texts, pictures, name=self.name)
        images = [[picture] for picture in pictures] or None
        process = self.processor if images else self._without_images
        batch = process(text=texts, images=images, **options)
        if images and self._takes_types and "mm_token_type_ids" not in batch:
            batch = process(text=texts, images=images, return_mm_token_type_ids=True, **options)
        if options.get("add_special_tokens", True) and self.ends_of_texts:
            for name in BY_TOKEN & batch.keys():
                batch[name] = batch[name][:, : -self.ends_of_texts]
        return batch

    @cached_property
    def _takes_types(self) -> bool:
        """Whether the model needs to be told which tokens are image tokens; not every processor does so unasked."""
        return "mm_token_type_ids" in inspect.signature(self.model.forward).parameters

    @cached_property
    def ends_of_texts(self) -> int:
        """How many tokens the tokenizer puts behind every text (its end token, where it was saved so).

        They are taken off: a model that finds the end of a text behind a prompt begins another one.
        """
        bare, whole = (self.tokenizer("a", add_special_tokens=given)["input_ids"] for given in (False, True))
        for start in range(len(whole) - len(bare) + 1):
            if whole[start : start + len(bare)] == bare:
                return len(whole) - start - len(bare)
        return 0

    def _check_pictures(self, pictures: Sequence[Image.Image], error: Exception) -> None:
        """After the processor's ``error``: which picture it cannot take.

        Raises:
            PictureRefused: this one.
        """
        for place, picture in enumerate(pictures):
            try:
                self.processor.image_processor(picture, return_tensors="pt")
            except Exception as own:  # processors raise whatever a size provokes
                raise PictureRefused(
                    f"the processor of {self.name} refuses a picture of {picture.width} × {picture.height} pixels "
                    f"({type(own).__name__}: {' '.join(str(own).split())}); scale it, or leave its case out",
                    place,
                ) from error

    def _without_images(self, **arguments: Any) -> BatchFeature:
        """Text-only inputs. Turns the errors of families that require an image into a ``UserError``."""
        pixels = inspect.signature(self.model.generate).parameters.get("pixel_values")
        if pixels is None or pixels.default is not inspect.Parameter.empty:
            try:
                return self.processor(**arguments)
            except ValueError as error:
                if "image" not in str(error):
                    raise
        raise UserError(f"{self.name} cannot answer without an image; give every prompt one, a blank one if need be")

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
        """Answers the prompts: greedily, unless ``generate_kwargs`` say otherwise, ignoring the checkpoint's settings.

        ``encoded`` are inputs made by ``encode``, possibly modified. ``seed`` is required for ``do_sample=True`` and
        leaves the global generator alone; a sampled answer depends on its batch. Margins are read from the scores that
        the verdict was chosen from: after every processor, before sampling (``interp.margin``). It is the first token;
        behind a thought the answer's Yes or No, or else its first token. ``decode`` runs the model in another batch and
        returns the sequences of the prompts' rows (``mitigation.contrastive.paired.PairedBatch``).

        Raises:
            UserError: right-padded inputs, several sequences per prompt, sampling without a seed, or scores of the
                model that are no numbers.
        """
        self.batches.go_on()
        batch = self.encode(prompts) if encoded is None else encoded
        options = GREEDY | self._special_tokens() | generate_kwargs
        check_call(options, batch["attention_mask"], seed)
        rendered = [self.render(prompt) for prompt in prompts]
        later = self.answering(prompts).later if prompts else []
        scores = VerdictScores(logits_processor or (), self.answer_ids, options, later=later)
        options |= {"max_new_tokens": max_new_tokens, "logits_processor": scores.processors}
        if self.batches.stop is not None:
            options["stopping_criteria"] = StoppingCriteriaList([*options.get("stopping_criteria", ()), self._go_on])
        with special_tokens_alone(*self._speakers), seeded(seed, self.device), float32_head(self.model):
            try:
                output = self._run(batch, options) if decode is None else decode(self._run, batch, options)
            except (ValueError, RuntimeError) as error:
                self._check_fit(error)
                raise
        if logits_processor and not scores.ran:
            raise UserError(
                f"{self.name} has a generate of its own that runs no logits processor; a method that changes logits "
                "would change nothing; take one that does not (baseline, prompt, verbalise), or another model"
            )
        scores.check_model(self.name, self.dtype)
        ends = _ids(options["eos_token_id"])
        sequences = getattr(output, "sequences", output)
        rows = new_tokens(sequences, batch["input_ids"], ends=ends, pad=options["pad_token_id"])
        apart = self.told_apart(rows, rendered, [prompt.begun for prompt in prompts])
        places = self._verdicts(rows, apart["thought_tokens"])
        return Generation(
            **apart,
            token_ids=rows,
            margins=scores.margins(len(rows), places),
            finished=[bool(row) and row[-1] in ends for row in rows],
            prompts=rendered,
            unshifted=scores.unshifted(len(rows), places),
            sampled=scores.sampled,
            keys=[prompt.key for prompt in prompts],
            verdicts=places,
        )

    def _run(self, batch: Mapping[str, Any], options: dict[str, Any]) -> Any:
        """Return the output of the model's ``generate``; take the prefill from the cache if there is one."""
        shared = {} if self.prefill_cache is None else self.prefill_cache.decoding(self, batch, options)
        return self.model.generate(**batch, **options, **shared)

    def prefill(self, inputs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """Return the result of ``run``, a prefill of ``inputs`` outside ``generate``, or a copy from the cache."""
        return run() if self.prefill_cache is None else self.prefill_cache.second_branch(self, inputs, run)

    def _verdicts(self, rows: Sequence[Sequence[int]], thought: Sequence[int]) -> list[Place] | None:
        """Where the verdicts of generated ``rows`` are, of which the first ``thought`` tokens are a thought's.

        None where each is the first token.
        """
        if self.verdict == "last":
            answers = self.answer_ids
            return [Place(verdict_position(self.tokenizer, ids, answers), answers) for ids in rows]
        if not any(thought):
            return None
        return [
            self._behind(ids, end) if end else Place(0, self.answer_ids) for ids, end in zip(rows, thought, strict=True)
        ]

    def _behind(self, ids: Sequence[int], thought: int) -> Place:
        """The verdict behind a thought: the answer's Yes or No, or else its first token that is no blank."""
        rest = list(ids[thought:])
        at = verdict_position(self.tokenizer, rest, self.spelled, opening=True)
        if at is None:
            written = (self.tokenizer.decode([token], skip_special_tokens=True).strip() for token in rest)
            at = next((place for place, text in enumerate(written) if text), None)
        if at is None:
            return Place(None, self.answer_ids)
        step = thought + at
        return Place(step, self._answers_behind(ids[thought - 1 : step], ids[step]))

    def answering(self, prompts: Sequence[Prompt]) -> Answering:
        """Follows where the verdicts of answers to ``prompts`` may come, while they are generated."""
        rendered, thoughts = self.render(prompts[0]), self.thoughts
        if self.verdict == "last":
            return Answering(self.spelled, anywhere=True)
        if not thoughts.expected(rendered):
            return Answering(self.answer_ids)
        opened = thoughts.opened(rendered)
        begun = [thoughts.spoken(p.begun, "", opened=opened) if p.begun else None for p in prompts]
        closed = [one is not None and one.finished and bool(one.tokens) for one in begun]
        at_once = [one.finished if one is not None else not opened for one in begun]
        return Answering(self.spelled, thoughts, at_once=at_once, closed=closed)

    @property
    def thoughts(self) -> Thoughts:
        """The marks of a thought, by which thought and answer are told apart."""
        template = str(self.processor.chat_template)
        return Thoughts(self.tokenizer, ends=self.end_ids, named=self.thinking, template=template)

    @property
    def thinks(self) -> bool:
        """Whether a thought is to be expected behind a prompt, by chat template and marks (``interp.thoughts``)."""
        return self.thoughts.expected(self.render(Prompt("?", Image.new("RGB", (1, 1)))))

    def told_apart(
        self, rows: Sequence[Sequence[int]], rendered: Sequence[str], begun: Sequence[Sequence[int]] = ()
    ) -> dict[str, Any]:
        """Thoughts and answers of generated ids, as ``Thoughts.apart``; the template opens all prompts alike.

        Of answers that had ``begun``, a thought is told with what it began with, and one that was whole is left out.
        """
        thoughts = self.thoughts
        opened = bool(rendered) and thoughts.opened(rendered[0])
        found = thoughts.apart(rows, opened=opened)
        for row, before in enumerate(begun):
            if not before:
                continue
            whole = thoughts.apart([[*before, *rows[row]]], opened=opened)
            tokens = whole["thought_tokens"][0] - len(before)
            if tokens > 0:
                text, thought = whole["texts"][0], whole["thoughts"][0]
            else:
                text, thought, tokens = self.tokenizer.decode(rows[row], skip_special_tokens=True).strip(), "", 0
            found["texts"][row], found["thoughts"][row], found["thought_tokens"][row] = text, thought, tokens
        return found

    def _check_fit(self, error: Exception) -> None:
        """After a forward's ``error``: whether processor and model count a picture's tokens alike.

        Raises:
            UserError: they do not.
        """
        words = str(error).lower()
        if "image features" in words and "image tokens" in words:
            raise UserError(
                f"processor and weights of {self.name} do not fit: {' '.join(str(error).split())}; they count the "
                "tokens of a picture alike; take the processor files that came with these weights"
            ) from error

    def _go_on(self, input_ids: Int[Tensor, "row column"], scores: Any, **_: Any) -> Bool[Tensor, " row"]:
        """A stopping criterion that ends no answer: it leaves ``generate`` where the work is wanted no more."""
        self.batches.go_on()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def _special_tokens(self) -> dict[str, Any]:
        """The end and padding ids for ``generate``."""
        return {"eos_token_id": sorted(self.end_ids) or None, "pad_token_id": self.tokenizer.pad_token_id}

    def positions(self, attention_mask: Int[Tensor, "row column"]) -> dict[str, Int[Tensor, "row column"]]:
        """``position_ids`` for a padded batch in one forward, as in generate(); empty where the model has its own."""
        if self.layout.position_kind != "1d":
            return {}
        return {"position_ids": (attention_mask.long().cumsum(-1) - 1).clamp(min=0)}

    def score(
        self, prompts: Sequence[Prompt], *, encoded: Mapping[str, Any] | None = None, metric: Metric | None = None
    ) -> Float[Tensor, " row"]:
        """The margin of each prompt with one forward; float32 on the CPU. Takes inputs padded on either side.

        ``metric`` replaces the margin by another function of the logits of the first answer token.
        """
        self.require("score")
        self.batches.go_on()
        batch = dict(self.encode(prompts) if encoded is None else encoded)
        mask = batch["attention_mask"]
        last = (mask.shape[-1] - 1 - mask.flip(-1).argmax(-1)).tolist()
        batch |= self.positions(mask)  # if padding counted, a margin would depend on its batch
        # A list: the hidden states it selects from may be on another device than the inputs.
        columns = sorted(set(last))
        # Without a cache: nothing is decoded, and keys and values take gigabytes at 7B.
        try:
            with torch.no_grad(), self.float32_logits(metric):
                logits = self.model(**batch, logits_to_keep=columns, use_cache=False).logits
        except (ValueError, RuntimeError) as error:
            self._check_fit(error)
            raise
        if logits.shape[1] != len(columns):  # some families give the logits of every column all the same
            columns = list(range(logits.shape[1]))
        chosen = logits[list(range(len(last))), [columns.index(column) for column in last]]
        return (metric or self.margin)(chosen).float().cpu()

    def margin(
        self, logits: Float[Tensor, "row vocab"], *, of: Int[Tensor, " vocab"] | None = None
    ) -> Float[Tensor, " row"]:
        """logit(Yes) − logit(No) in float32, each the log-sum-exp over its first tokens (``answer_ids``).

        ``of`` are the tokens of the columns of ``logits``, if those are not the whole vocabulary.
        """
        if of is None:
            yes, no = self.answer_ids
        else:
            columns = {token: column for column, token in enumerate(of.tolist())}
            yes, no = ([columns[token] for token in ids] for ids in self.answer_ids)
        return margin_of(logits[:, yes], logits[:, no])


def logit_difference(vlm: VLM, one: str, other: str) -> Metric:
    """logit(``one``) − logit(``other``), as ``VLM.margin`` is for Yes and No: over all tokens that begin the words.

    For tools to measure in the margin's place.

    Raises:
        UserError: no first token tells the two words apart.
    """
    for_one, for_other = vlm.first_tokens(one, other)

    def difference(logits: Float[Tensor, "row vocab"]) -> Float[Tensor, " row"]:
        return margin_of(logits[:, for_one], logits[:, for_other])

    return difference
