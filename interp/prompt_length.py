"""How many columns a prompt takes up in a batch, known without decoding or processing its picture.

Knows nothing of batches.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from PIL import Image

from interp.vlm import Prompt

if TYPE_CHECKING:
    from interp.vlm import VLM

Size = tuple[int, int]
"""Width and height of a picture in pixels."""


class Lengths:
    """Columns of one model's prompts: tokens of the rendered text, and those that the picture becomes.

    What the processor itself says of a picture's size (``_get_num_multimodal_tokens``, by which servers plan their
    batches); exact in the families of ``interp.families`` but for a few columns where a picture is cut into tiles. Good
    for forming batches, not for indexing them.
    """

    def __init__(self, vlm: "VLM") -> None:
        self._vlm = vlm
        self._texts: dict[tuple[str, bool], int] = {}
        self._pictures: dict[Size, int] = {}

    def of(self, texts: Sequence[str], sizes: Sequence[Size | None]) -> list[int]:
        """One length a prompt; ``sizes`` has None where there is no picture (or none that can be opened)."""
        prompts = [(text, size is not None) for text, size in zip(texts, sizes, strict=True)]
        self._read([prompt for prompt in dict.fromkeys(prompts) if prompt not in self._texts])
        for size in dict.fromkeys(sizes):
            if size is not None and size not in self._pictures:
                self._pictures[size] = self._tokens(size)
        return [
            self._texts[prompt] + (0 if size is None else self._pictures[size])
            for prompt, size in zip(prompts, sizes, strict=True)
        ]

    def _read(self, prompts: Sequence[tuple[str, bool]]) -> None:
        """Tokens of the text alone; the placeholder of the picture is counted with the picture."""
        if not prompts:
            return
        dot = Image.new("RGB", (1, 1))
        rendered = [self._vlm.render(Prompt(text, dot if pictured else None)) for text, pictured in prompts]
        placeholder = str(getattr(self._vlm.processor, "image_token", None) or "")
        begin = self._vlm.tokenizer.bos_token
        words = [text.replace(placeholder, "") if placeholder else text for text in rendered]
        special = not (begin and rendered[0].startswith(begin))
        ids = self._vlm.tokenizer(words, add_special_tokens=special)["input_ids"]
        self._texts.update(zip(prompts, map(len, ids), strict=True))

    def _tokens(self, size: Size) -> int:
        processor = self._vlm.processor
        if self._vlm.layout.cross_attended:
            return 1  # the placeholder alone
        if self._vlm.layout.geometry == "queries":
            return int(processor.num_query_tokens)
        edges = (size[1], size[0])
        if hasattr(processor, "_get_num_multimodal_tokens"):
            return int(processor._get_num_multimodal_tokens(image_sizes=[edges])["num_image_tokens"][0])
        # SmolVLM's does not say: its tiles, without the marks between them.
        tiles = processor.image_processor.get_number_of_image_patches(*edges)
        return int(tiles[0] if isinstance(tiles, tuple) else tiles) * int(processor.image_seq_len)
