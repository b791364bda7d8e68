"""Prompt lengths in tokens: texts are counted by the tokenizer, a picture is encoded once for each size."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from interp.pictures import PictureRefused
from interp.prompt import Prompt

Size = tuple[int, int]
"""Width and height of a picture in pixels."""


class Lengths:
    """Prompt lengths for one ``VLM``: tokens of the rendered text, and what a picture of that size adds.

    A blank picture of each size is encoded once, with a question of one character, so the model's own processor says
    how many tokens a picture has. Words that merge with what the processor puts around a picture can make a length
    wrong by a token. Use it to form batches, not to index them. A picture of a size in ``refused`` counts as nothing.
    """

    def __init__(self, vlm: Any) -> None:
        self.vlm = vlm
        self._texts: dict[tuple[Any, ...], int] = {}
        self._pictures: dict[Size, int] = {}
        self.refused: dict[Size, str] = {}  # sizes that the model's processor cannot take, with its reason

    def of(self, prompts: Sequence[Prompt], sizes: Sequence[Sequence[Size]]) -> list[int]:
        """Return the length of each prompt, with pictures of these ``sizes`` in place of its own."""
        keys = [_words(prompt) for prompt in prompts]
        self._read({key: prompt for key, prompt in zip(keys, prompts, strict=True) if key not in self._texts})
        for size in dict.fromkeys(size for row in sizes for size in row):
            self._count_picture(size)
        prefixes = [self.vlm.prefix_tokens(prompt) if prompt.answer_prefix else () for prompt in prompts]
        return [
            self._texts[key] + sum(self._pictures[size] for size in row) + len(prefix)
            for key, row, prefix in zip(keys, sizes, prefixes, strict=True)
        ]

    def of_prompts(self, prompts: Sequence[Prompt]) -> list[int]:
        """Return the length of each prompt, its system text included."""
        return self.of(prompts, [[image.size for image in prompt.images] for prompt in prompts])

    def refusal(self, size: Size) -> str:
        """Why the model's processor cannot take a picture of this size, "" if it can."""
        self._count_picture(size)
        return self.refused.get(size, "")

    def _count_picture(self, size: Size) -> None:
        if size in self._pictures:
            return
        try:
            self._pictures[size] = self._added(size)
        except PictureRefused as refusal:
            self._pictures[size], self.refused[size] = 0, str(refusal)

    def _read(self, prompts: Mapping[tuple[Any, ...], Prompt]) -> None:
        """Cache the numbers of text tokens; a placeholder counts as text."""
        if not prompts:
            return
        words = [self.vlm.render(prompt) for prompt in prompts.values()]
        begin = self.vlm.tokenizer.bos_token
        special = not (begin and words[0].startswith(begin))
        ids = self.vlm.tokenizer(words, add_special_tokens=special)["input_ids"]
        ends = self.vlm.ends_of_texts if special else 0
        self._texts.update((key, len(row) - ends) for key, row in zip(prompts, ids, strict=True))

    def _added(self, size: Size) -> int:
        """Return how many tokens a prompt with a picture of this size has that are not in its text."""
        prompt = Prompt("?", Image.new("RGB", size))
        key = _words(prompt)
        self._read({} if key in self._texts else {key: prompt})
        encoded = self.vlm.inputs([prompt])
        return int(encoded["input_ids"].shape[1]) - self._texts[key]


def _words(prompt: Prompt) -> tuple[Any, ...]:
    """Return what decides the text tokens: the words, and where pictures are."""
    turns = [(turn.role, *(part if isinstance(part, str) else None for part in turn.parts)) for turn in prompt.messages]
    return (prompt.text, prompt.image is not None, prompt.system, *turns)
