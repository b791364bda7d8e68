"""Inputs of a family whose processor takes no rendered text: IDEFICS wants each prompt as a list of texts and pictures.

Its processor also downloads whatever piece of a prompt looks like a URL, and a question may be one. The same inputs are
made here from the rendered text, whose template writes the placeholders itself. Knows nothing of models.
"""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from transformers import BatchFeature

from interp.errors import UserError


def encode_pieces(
    processor: Any, texts: Sequence[str], pictures: Sequence[Image.Image], *, name: str = "the model"
) -> BatchFeature:
    """Left-padded ``input_ids`` and ``attention_mask``, ``pixel_values``, and ``image_attention_mask``.

    ``pictures`` are one a text, or none at all. A token sees its prompt's picture from the placeholder on; without
    pictures nothing is seen, of pixels that are 0 (the processor's way to say "text alone").

    Raises:
        UserError: a text without exactly as many placeholders as pictures.
    """
    begin = processor.tokenizer.bos_token
    whole = [text if text.startswith(begin) else begin + text for text in texts]
    tokens = processor.tokenizer(whole, add_special_tokens=False, padding=True, return_tensors="pt")
    ids = tokens["input_ids"]
    places = ids == processor.image_token_id
    wanted = 1 if pictures else 0
    wrong = (places.sum(dim=1) != wanted).nonzero().flatten().tolist()
    if wrong:
        raise UserError(
            f"{int(places[wrong[0]].sum())} image placeholders for {wanted} images in a prompt of {name}; there must "
            "be as many; take the placeholder out of the prompt's words, or mend the chat template"
        )
    if pictures:
        pixels = torch.as_tensor(processor.image_processor(list(pictures), return_tensors="pt"))
    else:
        pixels = torch.zeros(len(texts), *processor.default_image_dims)
    return BatchFeature(
        {
            "input_ids": ids,
            "attention_mask": tokens["attention_mask"],
            "pixel_values": pixels[:, None],
            "image_attention_mask": (places.cumsum(dim=1) > 0).long()[..., None],
        }
    )
