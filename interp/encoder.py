"""What a model is, and how its processor makes inputs of prompts: the base of ``interp.vlm.VLM``."""

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from typing import Any

import torch
from PIL import Image
from transformers import BatchFeature

from interp.checkpoints.config import is_other
from interp.errors import UserError
from interp.families import PER_TOKEN, encode_pieces
from interp.generation import AnswerIds, answer_ids, appended
from interp.messages import PictureRefused
from interp.module_map import module_map_of
from interp.prompt import MARK, Prompt, render

LENGTH = 12  # hex digits of a digest
FORM = ".2"  # of the digest: two of other forms are not compared
# What files say of themselves, of the library that wrote them, or of how they were loaded, and not of what they do.
ASIDE = frozenset(
    (
        *("processor_class", "image_processor_type", "transformers_version", "name_or_path", "_name_or_path"),
        *("architectures", "dtype", "torch_dtype", "use_cache", "quantization_config"),
    )
)
LAST_CALL = ("padding", "truncation")  # of the tokenizer's own state
PLAIN = (bool, int, float, str, list, tuple, type(None))
BY_TOKEN = PER_TOKEN | {"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids"}
"""Inputs with a column for each token."""


def ids_of(value: int | Sequence[int] | None) -> set[int]:
    """Return the tokens of a setting that may be one token, several or none."""
    return {value} if isinstance(value, int) else set(value or ())


class Encoder:
    """Model, processor, layout and tokens. See ``interp.vlm.VLM`` for the attributes.

    Raises:
        UserError: the family is not supported, or the tokenizer has no token to pad with.
    """

    def __init__(self, model: Any, processor: Any, *, name: str = "", revision: str | None = None) -> None:
        self.model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.processor = processor
        self.module_map = module_map_of(self.model)
        self.name = name or self.module_map.model_type
        self.revision = revision
        self.refused: Mapping[str, str] = {}
        self.thinking: Mapping[str, str] | None = None
        self.on_encode: list[Callable[[Sequence[Prompt], BatchFeature], object]] = []
        self.prefill_cache: Any = None  # an interp.prefill_cache.PrefillCache
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
        """Check that the self-check of this model (``interp.selfcheck``), if there was one, trusts ``tool``.

        Raises:
            UserError: it refused the tool.
        """
        if why := self.refused.get(tool):
            raise UserError(
                f"{tool} on {self.name} would be wrong: {why}; task=prove shows every check; take a tool that it lets"
                " through"
            )

    @property
    def device(self) -> torch.device:
        """Return the device for inputs; if the model is spread over several, the device of its embeddings."""
        if getattr(self.model, "_hf_hook", None) is None:  # accelerate's hook, which moves inputs and weights
            return self.model.device
        embeddings = self.model.get_input_embeddings()
        device = embeddings.weight.device
        return torch.device(embeddings._hf_hook.execution_device) if device.type == "meta" else device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self.model.dtype

    def first_tokens(self, first: str, other: str) -> AnswerIds:
        """Return the first tokens of two other answers, as ``answer_ids`` are of "Yes" and "No".

        Raises:
            UserError: no first token distinguishes them.
        """
        # With an image, because some templates write its placeholder in any case.
        probe = Prompt("?", Image.new("RGB", (1, 1)))
        return answer_ids(self.tokenizer, self.render(probe), name=self.name, words=(first, other))

    @property
    def speaker(self) -> Any:
        """The module with the output head, which runs the forwards of generate(); in InstructBLIP it is nested."""
        return self.model.get_submodule(self.module_map.lm_head.rpartition(".")[0])

    @property
    def preprocessing(self) -> str:
        """A digest of configuration, processor, chat template, tokenizer and end tokens ("sha256:3f…@5.23").

        With the weights' ``revision`` it is what the model is. The class of an image processor counts: PIL and
        torchvision scale pictures to other pixels. The classes are transformers', and write other settings in another
        version. So a digest names the minor version, and only two of the same version are compared.
        """
        parts = {
            name: [type(part).__name__, _settings(part.to_dict())] if hasattr(part, "to_dict") else _settings(part)
            for name, part in vars(self.processor).items()
            if name not in self._known_digests and (isinstance(part, PLAIN) or hasattr(part, "to_dict"))
        }
        library = ".".join(version("transformers").split(".")[:2])
        decisive = [self._known_digests, sorted(self.end_ids), str(self.processor.chat_template), parts]
        return f"sha256:{_digest(decisive)}@{library}{FORM}"

    @property
    def identity(self) -> list[str]:
        """What identifies the model where its answers or measurements are kept: name, weights, preprocessing, dtype."""
        named = [str(self.thinking)] if self.thinking else []
        return [self.name, str(self.revision), self.preprocessing, str(self.dtype), *named]

    def other_than(self, earlier: Mapping[str, Any]) -> str:
        """Return what tells this model from the one whose ``revision`` and ``preprocessing`` are ``earlier``; "" if
        nothing.

        What was recorded without preprocessing, or under another version of transformers, is compared by its weights.
        """
        if earlier.get("revision") != self.revision:
            return f"its weights ({earlier.get('revision')}, here {self.revision})"
        if is_other(before := earlier.get("preprocessing"), self.preprocessing):
            return f"its configuration, processor, chat template or tokenizer ({before}, here {self.preprocessing})"
        return ""

    @cached_property
    def _known_digests(self) -> dict[str, str]:
        """Of what takes long to read and does not change: configuration and tokenizers; InstructBLIP has two."""
        tokenizers = {name: _state(part) for name, part in vars(self.processor).items() if hasattr(part, "get_vocab")}
        digested = {"configuration": _settings(self.model.config.to_diff_dict()), **tokenizers}
        return {name: _digest(value) for name, value in digested.items()}

    @cached_property
    def end_ids(self) -> set[int]:
        """The tokens that end an answer: the checkpoint's, the tokenizer's, and the one behind an answer in the chat.

        All three, because one of them may be wrong: InstructBLIP's generation config names the begin token, and
        IDEFICS' lacks ``<end_of_utterance>``.
        """
        return (
            ids_of(self.speaker.generation_config.eos_token_id) | ids_of(self.tokenizer.eos_token_id) | self._turn_end()
        )

    def _turn_end(self) -> set[int]:
        """Return the special token right behind an answer in the chat template; empty if there is none."""
        messages = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
        messages.append({"role": "assistant", "content": [{"type": "text", "text": MARK}]})
        try:
            _, mark, behind = self.processor.apply_chat_template(messages).rpartition(MARK)
        except Exception:  # a template that takes no answers
            return set()
        behind = behind.lstrip() if mark else ""  # some leave answers out
        specials = {content: token for token, content in self._specials().items()}
        result = max((content for content in specials if behind.startswith(content)), key=len, default="")
        return {specials[result]} if result else set()

    def _specials(self) -> dict[int, str]:
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        return {number: str(token) for number, token in added.items() if token.special and str(token)}

    def render(self, prompt: Prompt) -> str:
        """Return the prompt as text, up to where the answer begins. The image is a single placeholder.

        Raises:
            UserError: as ``interp.prompt.render``; or the chat template ends it with an end token.
        """
        text = render(self.processor, prompt, module_map=self.module_map, name=self.name)
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
        """Return what ``encode`` returns. Subclasses override this to change the inputs, which ``on_encode``
        then sees.
        """
        cache = self.prefill_cache
        batch = self._processed(prompts) if cache is None else cache.encoded(prompts, self._processed)
        if not any(prompt.answer_prefix for prompt in prompts):
            return batch
        tails, pad = [self.prefix_tokens(prompt) for prompt in prompts], self.tokenizer.pad_token_id
        return BatchFeature(appended(batch, tails, pad=pad, side="left", kind=self.answer_kind))

    def prefix_tokens(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the tokens that the answer begins with (``Prompt.answer_prefix``)."""
        if not any(isinstance(part, str) for part in prompt.answer_prefix):
            return tuple(part for part in prompt.answer_prefix if not isinstance(part, str))
        ids: list[int] = []
        for part in prompt.answer_prefix:
            ids += self._continuing(self.render(prompt), part) if isinstance(part, str) else [part]
        return tuple(ids)

    def _continuing(self, before: str, text: str) -> list[int]:
        """Return the tokens of ``text`` after ``before``; if the tokens of both join, the tokens of ``text`` without
        ``before``.
        """
        first, both, alone = self.tokenizer([before, before + text, text], add_special_tokens=False)["input_ids"]
        return list(both[len(first) :] if both[: len(first)] == first else alone)

    @property
    def answer_kind(self) -> int:
        """The token type of an answer: 1 for PaliGemma, whose prompt (type 0) has bidirectional attention."""
        return int(self.module_map.model_type == "paligemma")

    def _processed(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """Return the processor's outputs."""
        texts = [self.render(prompt) for prompt in prompts]
        images = [list(prompt.images) for prompt in prompts]
        pictured = sum(map(bool, images))
        if not texts:
            raise UserError("no prompts in this batch; a batch has at least one; check the benchmark and its limit")
        if 0 < pictured < len(texts):
            raise UserError(
                f"{pictured} of {len(texts)} prompts in one batch have an image; either all or none may; "
                "ask those without an image in a batch of their own"
            )
        numbers = sorted(set(map(len, images)))
        if self.module_map.crossing_layers and len(numbers) > 1:  # words before a picture see the padding
            raise UserError(
                f"prompts with {' and '.join(map(str, numbers))} images in one batch of {self.name} would change each "
                "other; ask prompts with as many images together (vlm.batches does)"
            )
        if len(texts) > 1 and (why := self.refused.get("score")):
            raise UserError(f"several prompts of {self.name} at once would be wrong: {why}; ask one (batch_size=1)")
        if any(prompt.messages for prompt in prompts):
            self.require("conversation")
        # Set again because training may have changed it. Passed as an argument, it would also reach InstructBLIP's
        # Q-Former, whose positions are absolute.
        self.tokenizer.padding_side = "left"
        options: dict[str, Any] = {"return_tensors": "pt", "padding": True}
        begin = self.tokenizer.bos_token
        if begin and texts[0].startswith(begin):
            options["add_special_tokens"] = False  # the template wrote <s> already
        try:
            batch = self._made(texts, images, **options)
        except UserError:
            raise
        except Exception as error:
            self._check_pictures(images, error)
            raise
        if (mask := batch.get("qformer_attention_mask")) is not None:
            # Padded left where the checkpoint's tokenizer says so, which its absolute positions do not allow.
            order = mask.argsort(dim=1, descending=True, stable=True)
            for name in ("qformer_input_ids", "qformer_attention_mask"):
                batch[name] = batch[name].gather(1, order)
        batch.pop("labels", None)  # PaliGemma's processor always adds them, all "ignore"
        return batch.to(self.device, dtype=self.dtype)

    def _made(self, texts: list[str], images: list[list[Image.Image]], **options: Any) -> BatchFeature:
        """Return the processor's outputs, without the tokens that the tokenizer puts behind every text."""
        if self.module_map.prompt == "pieces":
            return encode_pieces(self.processor, texts, images, name=self.name)
        pictured = any(images)
        process = self.processor if pictured else self._without_images
        batch = process(text=texts, images=images if pictured else None, **options)
        if pictured and self._takes_types and "mm_token_type_ids" not in batch:
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
        bare, full = (self.tokenizer("a", add_special_tokens=given)["input_ids"] for given in (False, True))
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return len(full) - start - len(bare)
        return 0

    def _check_pictures(self, images: Sequence[Sequence[Image.Image]], error: Exception) -> None:
        """After the processor's ``error``: which picture it cannot take.

        Raises:
            PictureRefused: this one.
        """
        for row, picture in ((row, picture) for row, pictures in enumerate(images) for picture in pictures):
            try:
                self.processor.image_processor(picture, return_tensors="pt")
            except Exception as cause:  # processors raise whatever a size provokes
                raise PictureRefused(
                    f"the processor of {self.name} refuses a picture of {picture.width} × {picture.height} pixels "
                    f"({type(cause).__name__}: {' '.join(str(cause).split())}); scale it, or leave its case out",
                    row,
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


def _state(tokenizer: Any) -> Any:
    """Return vocabulary, merges, normalisation and special tokens; of a slow tokenizer only the vocabulary."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [sorted(tokenizer.get_vocab().items()), str(tokenizer.special_tokens_map)]
    state = {name: value for name, value in json.loads(backend.to_str()).items() if name not in LAST_CALL}
    return state | {"special": str(tokenizer.special_tokens_map)}


def _settings(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {str(name): _settings(value) for name, value in given.items() if name not in ASIDE}
    return [_settings(each) for each in given] if isinstance(given, list | tuple) else given


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:LENGTH]
