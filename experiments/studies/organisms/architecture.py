"""The two organisms before training: a tiny LLaVA of two million parameters, and one with SmolLM2-135M inside.

The second has the first one's vision tower, a new projector and a LoRA adapter (peft's). No parameter is added to its
language model: the image token takes the row of a special token of SmolLM2's that never occurs in text. What was
trained of it is kept in parts, without the language model; ``whole`` puts them together.
"""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoTokenizer,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.llava.modeling_llava import LlavaMultiModalProjector

from experiments.studies.organisms.biased_labels import vocabulary_texts
from interp.checkpoints.cache import ADAPTER, EYES, SMOLLM2, content_hash
from interp.checkpoints.load import no_progress_bar
from interp.checkpoints.word_level import CHAT_TEMPLATE, build_tokenizer
from interp.errors import UserError
from interp.layout import Layout, layout_for
from interp.loading import load
from mitigation.vrtuning.model import target_pattern

IMAGE_SIZE = 48
PATCH_SIZE = 8
IMAGE_TOKEN = "<image>"
PARTS = "parts"  # in a checkpoint of the second organism: what was trained of it
UNUSED = "<reponame>"  # of the code in SmolLM2's first corpus; its own chat never writes it
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# SmolLM2's own form (ChatML) without the system text that it puts before every question; the image before the words.
CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Pieces(NamedTuple):
    """A model under training with its processor.

    Of the second organism ``adapter`` is peft's view of ``model``, and ``base`` the folder of its language model.
    """

    processor: LlavaProcessor
    model: LlavaForConditionalGeneration
    adapter: PeftModel | None = None
    base: Path | None = None

    def save(self, folder: Path) -> None:
        """Writes the checkpoint: the first organism's in bfloat16, the second's as ``save_whole``, with its parts."""
        self.model.bfloat16()
        if self.base is None:
            self.model.save_pretrained(folder)
            self.processor.save_pretrained(folder)
            return
        self._save_parts(folder / PARTS)
        save_whole(folder / PARTS, self.base, folder)

    def _save_parts(self, folder: Path) -> None:
        """All but the language model: configuration, processor, ``EYES``, and the adapter in peft's format."""
        assert self.adapter is not None
        assert self.base is not None
        folder.mkdir(parents=True)
        self.model.config.save_pretrained(folder)
        self.model.generation_config.save_pretrained(folder)
        self.processor.save_pretrained(folder)
        _tidy(folder / "tokenizer.json")
        layout = layout_for(self.model)
        seen = (f"{layout.vision_tower}.", f"{layout.projector}.")
        eyes = {name: value for name, value in self.model.state_dict().items() if name.startswith(seen)}
        save_file(eyes, folder / EYES, metadata={"format": "pt"})
        settings = self.adapter.peft_config["default"]
        settings.base_model_name_or_path, settings.revision = SMOLLM2, content_hash(self.base)
        self.adapter.save_pretrained(str(folder / ADAPTER), save_embedding_layers=False)
        (folder / ADAPTER / "README.md").unlink()  # peft's empty card


def _tidy(path: Path) -> None:
    """Writes a tokenizer without the padding of its last call, and without indentation, in half the bytes."""
    found = json.loads(path.read_text(encoding="utf-8")) | {"padding": None, "truncation": None}
    path.write_text(json.dumps(found, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


def whole(parts: Path, base: Path) -> LlavaForConditionalGeneration:
    """The second organism in float32: the language model in ``base``, rounded to bfloat16, with ``parts``.

    The adapter is added to the weights in float64, where the sum of these values is exact: the same everywhere.

    Raises:
        UserError: ``base`` is another language model.
    """
    model = assembled(AutoConfig.from_pretrained(parts, local_files_only=True), base, load_file(parts / EYES))
    merged: Any = PeftModel.from_pretrained(model.double(), str(parts / ADAPTER)).double().merge_and_unload()
    return merged.float().eval()


def save_whole(parts: Path, base: Path, folder: Path) -> None:
    """Writes ``whole`` with its processor to ``folder`` as one plain checkpoint, in float32.

    In bfloat16 the sums would be rounded: the adapter adds less to many a weight than its last bit.
    """
    whole(parts, base).save_pretrained(folder)
    for path in parts.iterdir():
        if path.is_file() and path.name != EYES and not (folder / path.name).exists():
            shutil.copy(path, folder / path.name)


def assembled(config: Any, base: Path, eyes: dict[str, Tensor]) -> LlavaForConditionalGeneration:
    """The model of ``config`` without an adapter, in float32: ``base`` rounded to bfloat16, and ``eyes``.

    Raises:
        UserError: the weights in ``base`` do not fit.
    """
    layout = layout_for(config)
    state = {
        _placed(name, layout): tensor.to(torch.bfloat16)
        for file in sorted(base.glob("*.safetensors"))
        for name, tensor in load_file(file).items()
    }
    try:
        with no_progress_bar():
            loaded: Any = LlavaForConditionalGeneration.from_pretrained(
                None, config=config, state_dict=state | eyes, dtype=torch.float32, output_loading_info=True
            )
    except RuntimeError as error:
        raise UserError(
            f"the language model in {base} does not fit ({str(error).splitlines()[0][:120]}); it must be {SMOLLM2}"
        ) from error
    model, info = loaded
    if wrong := sorted({*info["missing_keys"], *info["unexpected_keys"]}):
        raise UserError(
            f"the language model in {base} does not fit: {len(wrong)} parameters are missing or left over "
            f"({wrong[0]}, ...); it must be {SMOLLM2}"
        )
    return model  # type: ignore[no-any-return]


def _placed(name: str, layout: Layout) -> str:
    """A language model's parameter by its name in the whole model."""
    head, _, rest = name.partition(".")
    return f"{layout.language_model if head == 'model' else layout.lm_head}.{rest}"


def _processor(tokenizer: PreTrainedTokenizerFast, chat_template: str) -> LlavaProcessor:
    """Resizes pictures to 48 × 48, expands ``<image>`` to 36 tokens, and carries the chat template."""
    side = {"height": IMAGE_SIZE, "width": IMAGE_SIZE}
    image_processor = CLIPImageProcessorPil(
        size=side, crop_size=side, do_center_crop=False, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return LlavaProcessor(
        image_processor=image_processor,
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=chat_template,
    )


def _config(vision: CLIPVisionConfig, text: LlamaConfig, tokenizer: PreTrainedTokenizerFast) -> LlavaConfig:
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(text, name, getattr(tokenizer, name))
    return LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.get_vocab()[IMAGE_TOKEN],
        vision_feature_layer=-1,
        vision_feature_select_strategy="default",
        image_seq_length=(IMAGE_SIZE // PATCH_SIZE) ** 2,
        tie_word_embeddings=text.tie_word_embeddings,
    )


def _with_ends(model: LlavaForConditionalGeneration, tokenizer: PreTrainedTokenizerFast) -> None:
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(model.generation_config, name, getattr(tokenizer, name))


def build_llava() -> Pieces:
    """The first organism with random weights from the global generator; seed it first."""
    tokenizer = build_tokenizer(vocabulary_texts())
    vision = CLIPVisionConfig(
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=IMAGE_SIZE,
        patch_size=PATCH_SIZE,
    )
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=4,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    model = LlavaForConditionalGeneration(_config(vision, text, tokenizer))
    _with_ends(model, tokenizer)
    return Pieces(_processor(tokenizer, CHAT_TEMPLATE), model)


def smol_tokenizer(base: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of SmolLM2 in ``base``, with ``<image>`` in place of a special token that text never holds."""
    own = AutoTokenizer.from_pretrained(base, local_files_only=True)
    state = json.loads(own.backend_tokenizer.to_str())
    vocabulary = state["model"]["vocab"]
    row = vocabulary.pop(UNUSED)
    vocabulary[IMAGE_TOKEN] = row
    for added in state["added_tokens"]:
        if added["id"] == row:
            added["content"] = IMAGE_TOKEN
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        unk_token="<|endoftext|>",
        additional_special_tokens=[IMAGE_TOKEN],
        padding_side="left",
        model_max_length=8192,
    )


def build_smol(base: Path, eyes_from: str | Path = "organism:llava", *, rank: int) -> Pieces:
    """The second organism in float32: SmolLM2 from the folder ``base``, rounded to bfloat16; the vision tower of
    ``eyes_from``; a random projector; an adapter that changes nothing yet, with alpha twice the ``rank``.

    Projector and adapter are drawn from the global generator; seed it first. They alone require gradients.
    """
    tokenizer = smol_tokenizer(base)
    seeing = load(eyes_from, device="cpu", dtype="float32").model
    text = AutoConfig.from_pretrained(base, local_files_only=True)
    for name in ("architectures", "_model_name_or_path", "quantization_config"):
        text.__dict__.pop(name, None)
    config = _config(seeing.config.vision_config, text, tokenizer)
    layout = layout_for(seeing)
    tower = layout.module(seeing, "vision_tower").state_dict()
    projector = LlavaMultiModalProjector(config).state_dict()
    eyes = {f"{layout.vision_tower}.{name}": tensor for name, tensor in tower.items()}
    eyes |= {f"{layout.projector}.{name}": tensor for name, tensor in projector.items()}
    model = assembled(config, base, eyes)
    _with_ends(model, tokenizer)
    settings = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=target_pattern(layout, TARGETS), task_type="CAUSAL_LM"
    )
    adapter = get_peft_model(model, settings)  # puts it into ``model``, and freezes all else
    layout.module(model, "projector").requires_grad_(True)
    return Pieces(_processor(tokenizer, CHATML), model, adapter, base)
