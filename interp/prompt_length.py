"""Prompt lengths in tokens: texts are counted by the tokenizer, a picture is encoded once for each size."""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from interp.pictures import PictureRefused
from interp.prompt import Prompt

Size = tuple[int, int]
"""Width and height of a picture in pixels."""


class Lengths:
    """Prompt lengths for one ``VLM``: tokens of the rendered text, and what a picture of that size adds.

    A blank picture of each size is encoded once, with a question of one character, so that the model's own processor
    says how many tokens it takes, in every family. Words that merge with what the processor puts around a picture can
    make a length wrong by a token. Use it to form batches, not to index them. A picture of a size in ``refused`` counts
    as nothing.
    """

    def __init__(self, vlm: Any) -> None:
        self.vlm = vlm
        self._texts: dict[tuple[str, bool, str | None], int] = {}
        self._pictures: dict[Size, int] = {}
        self.refused: dict[Size, str] = {}  # sizes that the model's processor cannot take, with its reason

    def of(self, texts: Sequence[str], sizes: Sequence[Size | None]) -> list[int]:
        """The length of each prompt. A size is None if there is no picture, or none that can be opened."""
        return self._counted([(text, size is not None, None) for text, size in zip(texts, sizes, strict=True)], sizes)

    def of_prompts(self, prompts: Sequence[Prompt]) -> list[int]:
        """The length of each prompt, its system text included."""
        sizes = [None if prompt.image is None else prompt.image.size for prompt in prompts]
        counted = self._counted([(prompt.text, prompt.image is not None, prompt.system) for prompt in prompts], sizes)
        return [length + len(prompt.begun) for length, prompt in zip(counted, prompts, strict=True)]

    def refusal(self, size: Size) -> str:
        """Why the model's processor cannot take a picture of this size, "" if it can."""
        self._count_picture(size)
        return self.refused.get(size, "")

    def _counted(self, prompts: Sequence[tuple[str, bool, str | None]], sizes: Sequence[Size | None]) -> list[int]:
        self._read([prompt for prompt in dict.fromkeys(prompts) if prompt not in self._texts])
        for size in dict.fromkeys(sizes):
            if size is not None:
                self._count_picture(size)
        return [
            self._texts[prompt] + (0 if size is None else self._pictures[size])
            for prompt, size in zip(prompts, sizes, strict=True)
        ]

    def _count_picture(self, size: Size) -> None:
        if size in self._pictures:
            return
        try:
            self._pictures[size] = self._added(size)
        except PictureRefused as refusal:
            self._pictures[size], self.refused[size] = 0, str(refusal)

    def _read(self, prompts: Sequence[tuple[str, bool, str | None]]) -> None:
        """Caches the numbers of text tokens; the placeholder counts as text."""
        if not prompts:
            return
        dot = Image.new("RGB", (1, 1))
        words = [self.vlm.render(Prompt(text, dot if pictured else None, system)) for text, pictured, system in prompts]
        begin = self.vlm.tokenizer.bos_token
        special = not (begin and words[0].startswith(begin))
        ids = self.vlm.tokenizer(words, add_special_tokens=special)["input_ids"]
        ends = self.vlm.ends_of_texts if special else 0
        self._texts.update((prompt, len(row) - ends) for prompt, row in zip(prompts, ids, strict=True))

    def _added(self, size: Size) -> int:
        """The tokens of a prompt with a picture of this size that are not in its text."""
        asked = ("?", True, None)
        self._read([asked] if asked not in self._texts else [])
        encoded = self.vlm.inputs([Prompt("?", Image.new("RGB", size))])
        return int(encoded["input_ids"].shape[1]) - self._texts[asked]
