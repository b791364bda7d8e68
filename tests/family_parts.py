"""What the small models of ``tests/families.py`` are made of: tokenizers, chat templates, vision towers, weights.

What is not the real thing, and so is not exercised:
- torchvision has no CPU build for this torch, so image processors are the PIL ones and no processor has its video part.
  Those of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and InternVL refuse to be built without one: the check is bypassed for that
  argument alone (``image_part_alone``). Videos are therefore not covered.
- SmolVLM's processor also wants ``num2words`` (it spells out a video's frame count) and reads two numbers off its video
  processor when it renders a chat: both are stood in for.
- Tokenizers are trained on a few words; chat templates keep the shape of the published ones, in fewer lines.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import transformers as hf
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.processing_utils import ProcessorMixin

from tests.tiny import WORDS, Pieces

TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
PATCH = 8
GATES = ("lambda_1", "lambda_2", "alpha_cross_attn", "alpha_dense", "gate", "gate_attn", "gate_ffn")
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": PATCH,
}

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}IMAGE"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
INST = (
    "<s>{% for m in messages %}{% if m['role'] == 'system' %}<<SYS>>\n{{ m['content'][0]['text'] }}\n<</SYS>>\n\n"
    "{% elif m['role'] == 'user' %}[INST] {% for part in m['content'] %}{% if part['type'] == 'image' %}<image>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %} [/INST]{% endif %}{% endfor %}"
)
USER_COLON = (
    "<s>{% for m in messages %}{{ m['role'] | capitalize }}:"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %} {{ part['text'] }}{% endif %}"
    "{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
# The wording of IDEFICS' model card: no space after a picture.
USER_PICTURE = USER_COLON.replace("<image>", "<fake_token_around_image><image><fake_token_around_image>").replace(
    "{% else %} {{", "{% else %}{{ ' ' if loop.first else '' }}{{"
)
# Gemma has no system role: the system text is put before the first question.
TURNS = (
    "<s>{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'][0]['text'] + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ system }}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<start_of_image>"
    "{% else %}{{ part['text'] | trim }}{% endif %}{% endfor %}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
# Llama 3's headers; the picture's placeholder comes first in its turn. As in the published one, the system text must be
# a string, and words without a picture get a date.
HEADERS = (
    "<s>{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}"
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% set pictured = messages[0]['content'] | selectattr('type', 'equalto', 'image') | list | length %}"
    "{% if system or not pictured %}<|start_header_id|>system<|end_header_id|>\n\n"
    "{% if not pictured %}Today Date: {{ date_string }}\n\n{% endif %}{{ system }}<|eot_id|>{% endif %}"
    "{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<|image|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# Neither PaliGemma nor InstructBLIP publishes a template: the words alone, for PaliGemma after the image.
WORDS_ALONE = (
    "{% for m in messages %}{% for part in m['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% if not loop.last %} {% endif %}{% endfor %}"
)
IMAGE_THEN_WORDS = (
    "{% for m in messages %}{% for part in m['content'] if part['type'] == 'image' %}<image>{% endfor %}{% endfor %}"
    + WORDS_ALONE
)


def bpe(*special: str, byte_level: bool = False, bos: bool = False, **named: str) -> Any:
    """A BPE over a few words: byte-level (GPT-2's kind) or with ``▁`` for spaces (SentencePiece's kind)."""
    backend = Tokenizer(models.BPE(byte_fallback=not byte_level, unk_token=None))
    first = ["<pad>", "<s>", "</s>"]
    if byte_level:
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
        first += [f"<0x{byte:02X}>" for byte in range(256)]
        alphabet = []
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=first, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([" ".join(WORDS)] * 2, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=list(special),
        extra_special_tokens=named,
    )


@contextmanager
def image_part_alone() -> Iterator[None]:
    """Let a processor be built without its video and audio parts; image processor and tokenizer are checked."""
    check = ProcessorMixin.check_argument_for_proper_class

    def lenient(self: Any, name: str, argument: Any) -> Any:
        return check(self, name, argument) if name in ("image_processor", "tokenizer") else None

    with (
        mock.patch.object(ProcessorMixin, "check_argument_for_proper_class", lenient),
        mock.patch("transformers.models.smolvlm.processing_smolvlm.num2words", str, create=True),
    ):
        yield


def revived(name: str, weight: torch.Tensor) -> None:
    """Draws a weight anew, in place, whose default would hide the image from a tiny model, or that has none."""
    if weight.ndim > 1 and (not torch.isfinite(weight).all() or weight.std() < 0.1):
        weight.normal_(0, 0.2)  # several vision configs draw with 1e-10
    elif not torch.isfinite(weight).all() or name.endswith(GATES):
        weight.fill_(1.0)  # gates and layer scales are shut at first, or nearly so


def build(model_class: Any, config: Any, processor: Any, *, seed: int, attention: str = "sdpa") -> Pieces:
    """The model in float32 and eval mode, its weights drawn from ``seed`` alone."""
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                revived(name, weight)
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = 2, 0
    head = model.get_output_embeddings()
    silent = (
        0,
        1,
        getattr(config, "image_token_id", None) or 0,
    )  # a trained model never says <pad>, <s> or a placeholder
    with torch.no_grad():
        head.weight[[token for token in silent if token < len(head.weight)]] = 0
        if getattr(head, "additional_fc", None) is not None:  # IDEFICS: of placeholders and marks alone
            head.additional_fc.weight.zero_()
    return Pieces(model, processor)
