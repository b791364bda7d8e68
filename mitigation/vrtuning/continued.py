"""The verdict's place in an answer that reasons first, and a model asked again at that place."""

import copy
import re
from collections.abc import Sequence

from transformers import BatchFeature

from interp.vlm import VLM, Prompt
from mitigation.vrtuning.batch import answer_kind, appended

_CLOSING = re.compile(r"[\W_]*(?:yes|no)[\W_]*", re.IGNORECASE)
_OPENING = re.compile(r"[\W_]*(?:yes|no)(?![^\W_])", re.IGNORECASE)


def verdict_position(vlm: VLM, ids: Sequence[int]) -> int | None:
    """The index in the generated ``ids`` of the token that says Yes or No, None where there is no verdict.

    That is the last such token if no word follows it, or else the first token of an answer that begins with its
    verdict; as the evaluation's verdict rule reads answers.
    """
    answers = {token for spellings in vlm.answer_ids for token in spellings}
    last = next((place for place in reversed(range(len(ids))) if ids[place] in answers), None)
    if last is not None and _CLOSING.fullmatch(_text(vlm, ids[last:])):
        return last
    return 0 if last is not None and ids[0] in answers and _OPENING.match(_text(vlm, ids)) else None


def _text(vlm: VLM, ids: Sequence[int]) -> str:
    return str(vlm.tokenizer.decode(list(ids), skip_special_tokens=True))


class Continued(VLM):
    """The model asked to go on after ``begun``, the tokens each prompt's answer has so far (a list a row, in order).

    Every method works on it unchanged, so its margins are read as that method sees them.
    """

    begun: Sequence[Sequence[int]]

    def __init__(self, vlm: VLM, begun: Sequence[Sequence[int]]) -> None:
        self.__dict__.update(copy.copy(vlm.__dict__))
        self.begun = begun

    def encode(self, prompts: Sequence[Prompt]) -> BatchFeature:
        """As ``VLM.encode``, with the answers begun."""
        batch = super().encode(prompts)
        pad = self.tokenizer.pad_token_id
        return BatchFeature(appended(batch, self.begun, pad=pad, side="left", kind=answer_kind(self)))
