"""Prompt lengths in tokens, computed without decoding or processing the pictures."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from interp.prompt import Prompt

Size = tuple[int, int]
"""Width and height of a picture in pixels."""


class Lengths:
    """Prompt lengths for one ``VLM``: tokens of the rendered text plus image tokens.

    The number of image tokens comes from the processor (``_get_num_multimodal_tokens``, which inference servers use to
    plan batches). It is exact for the families of ``interp.families``, except that it can be off by a few columns where
    a picture is cut into tiles. Use it to form batches, not to index them.
    """

    def __init__(self, vlm: Any) -> None:
        self.vlm = vlm
        self._texts: dict[tuple[str, bool, str | None], int] = {}
        self._pictures: dict[Size, int] = {}

    def of(self, texts: Sequence[str], sizes: Sequence[Size | None]) -> list[int]:
        """The length of each prompt. A size is None if there is no picture, or none that can be opened."""
        return self._counted([(text, size is not None, None) for text, size in zip(texts, sizes, strict=True)], sizes)

    def of_prompts(self, prompts: Sequence[Prompt]) -> list[int]:
        """The length of each prompt, its system text included."""
        sizes = [None if prompt.image is None else prompt.image.size for prompt in prompts]
        return self._counted([(prompt.text, prompt.image is not None, prompt.system) for prompt in prompts], sizes)

    def _counted(self, prompts: Sequence[tuple[str, bool, str | None]], sizes: Sequence[Size | None]) -> list[int]:
        self._read([prompt for prompt in dict.fromkeys(prompts) if prompt not in self._texts])
        for size in dict.fromkeys(sizes):
            if size is not None and size not in self._pictures:
                self._pictures[size] = self._tokens(size)
        return [
            self._texts[prompt] + (0 if size is None else self._pictures[size])
            for prompt, size in zip(prompts, sizes, strict=True)
        ]

    def _read(self, prompts: Sequence[tuple[str, bool, str | None]]) -> None:
        """Caches the numbers of text tokens. The picture's placeholder is counted with the picture."""
        if not prompts:
            return
        dot = Image.new("RGB", (1, 1))
        rendered = [
            self.vlm.render(Prompt(text, dot if pictured else None, system)) for text, pictured, system in prompts
        ]
        placeholder = str(getattr(self.vlm.processor, "image_token", None) or "")
        begin = self.vlm.tokenizer.bos_token
        words = [text.replace(placeholder, "") if placeholder else text for text in rendered]
        special = not (begin and rendered[0].startswith(begin))
        ids = self.vlm.tokenizer(words, add_special_tokens=special)["input_ids"]
        self._texts.update(zip(prompts, map(len, ids), strict=True))

    def _tokens(self, size: Size) -> int:
        processor = self.vlm.processor
        if self.vlm.layout.cross_attended:
            return 1  # the placeholder alone
        if self.vlm.layout.geometry == "queries":
            return int(processor.num_query_tokens)
        edges = (size[1], size[0])
        if hasattr(processor, "_get_num_multimodal_tokens"):
            return int(processor._get_num_multimodal_tokens(image_sizes=[edges])["num_image_tokens"][0])
        # SmolVLM's processor lacks that method: count its tiles, without the delimiters between them.
        tiles = processor.image_processor.get_number_of_image_patches(*edges)
        return int(tiles[0] if isinstance(tiles, tuple) else tiles) * int(processor.image_seq_len)
