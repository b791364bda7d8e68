"""A word-level tokenizer and LLaVA-1.5's chat form, for models that are made here: organisms, and random stand-ins."""

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<unk>", "<s>", "</s>", "<image>")

# An optional system text, then USER and ASSISTANT, the image before the words.
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}"
    "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}\n"
    "{% else %}"
    "{{ message['role'].upper() }}: "
    "{% for part in message['content'] if part['type'] == 'image' %}<image>\n{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% else %}\n{% endif %}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def build_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """A word-level tokenizer over the words and marks of ``texts``; words it has not seen become ``<unk>``."""
    splitter = pre_tokenizers.Whitespace()
    words = sorted({word for text in texts for word, _ in splitter.pre_tokenize_str(text)})
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)  # joins words with spaces, marks without
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=["<image>"],
        padding_side="left",
        model_max_length=512,
    )
