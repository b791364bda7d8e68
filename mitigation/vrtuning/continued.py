"""The verdict's place in an answer that reasons first, and a model asked again at that place."""

import copy
from collections.abc import Sequence

from transformers import BatchFeature

from interp.answers import AnswerIds
from interp.vlm import VLM, Prompt
from mitigation.vrtuning.batch import answer_kind, appended


def verdict_position(vlm: VLM, ids: Sequence[int]) -> int | None:
    """The index in the generated ``ids`` of the token that says Yes or No, None where there is no verdict.

    That is the last such token if no letter or digit follows it, or else the first token of all; as the evaluation's
    verdict rule reads an answer that ends, or begins, with its verdict.
    """
    answers = {token for known in _known(vlm) for token in known}
    for place in reversed(range(len(ids))):
        if ids[place] in answers:
            rest = vlm.tokenizer.decode(list(ids[place:]), skip_special_tokens=True).strip().lower()
            if rest.strip("\"'*_.,;:!)]} \n") in ("yes", "no"):
                return place
            break
    return 0 if ids and ids[0] in answers else None


def _known(vlm: VLM) -> AnswerIds:
    return vlm.answer_ids


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
