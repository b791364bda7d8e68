"""Hidden states of a causal language model over an answer that stands in a chat, after the question.

Nothing is generated and nothing is asked: the model reads question and answer, and the mean states of the answer's
first sentence, its second and all of it are what a classifier can be trained on (Zou et al. 2023, arXiv 2310.01405,
call this reading a representation). Layers above the one that is read are not computed.
"""

import functools
import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from interp.batching import BatchRule
from interp.checkpoints.composed import no_progress_bar
from interp.errors import UserError

if TYPE_CHECKING:
    import torch

READ = 256  # tokens of an answer; benchmarks cut answers at different lengths, and time grows with it
READ_QUESTION = 96  # tokens of a question
NOTHING = "…"  # stands for a text without a character
PARTS = ("first sentence", "second sentence", "answer")
LEAST = 4  # tokens of a sentence; a shorter one ("1.", "Sure!") goes with the next
RULE = BatchRule(rows=32, tokens=4096)
_END = re.compile(r"[.!?:\n。！？：]")


class Exchange(NamedTuple):
    """A question and the answer to it."""

    question: str
    answer: str


class ChatStates:
    """A causal language model cut off above decoder layer ``layer`` (1 is the first).

    ``source`` is a folder or a hub id. Without a ``dtype`` it computes in bfloat16 where the processor multiplies in
    it, which takes half the time, and else in float32.

    Raises:
        UserError: no such model, one without safetensors or without a chat template, or one with fewer layers.
    """

    def __init__(self, source: str | Path, *, layer: int, dtype: "torch.dtype | None" = None) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        dtype = dtype or (torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32)
        try:
            with no_progress_bar():
                self._tokenizer: Any = AutoTokenizer.from_pretrained(source)
                whole: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, use_safetensors=True)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{source}: no causal language model can be read from there ({str(error).splitlines()[0][:160]}); "
                "give a folder of save_pretrained or a hub id with safetensors"
            ) from error
        self._decoder: Any = whole.get_decoder().eval()
        if not 1 <= layer <= len(self._decoder.layers):
            raise UserError(
                f"layer={layer}: {source} has the decoder layers 1 to {len(self._decoder.layers)}; give one of those"
            )
        if not self._tokenizer.chat_template:
            raise UserError(f"{source} has no chat template; the answers are shown to it as a chat; give a chat model")
        self._decoder.layers = self._decoder.layers[:layer]

    def read(self, exchanges: Sequence[Exchange]) -> Float[np.ndarray, "exchange part hidden"]:
        """The mean states over the ``PARTS`` of each answer; of an answer of one sentence, it stands for the second.

        Batched by length, so that the order of ``exchanges`` costs nothing. What an exchange is batched with changes
        its states by rounding alone.
        """
        import torch

        chats = [self._encoded(one) for one in exchanges]
        found: dict[int, np.ndarray] = {}
        for batch in RULE.form([len(chat.ids) for chat in chats], [False] * len(chats)):
            with torch.inference_mode():
                states = self._states([chats[place] for place in batch])
            found |= dict(zip(batch, states.numpy(), strict=True))
        empty = np.zeros((0, len(PARTS), int(self._decoder.config.hidden_size)))
        return np.stack([found[place] for place in range(len(chats))]) if chats else empty

    def _states(self, chats: "Sequence[_Encoded]") -> "torch.Tensor":
        import torch

        longest = max(len(chat.ids) for chat in chats)
        ids = torch.zeros(len(chats), longest, dtype=torch.long)  # what stands after a chat's end is never attended to
        for row, chat in enumerate(chats):
            ids[row, : len(chat.ids)] = torch.tensor(chat.ids)
        caught: list[torch.Tensor] = []
        last = self._decoder.layers[-1]
        # The decoder's own result went through the final norm, which belongs to the last layer of the whole model.
        handle = last.register_forward_hook(
            lambda _module, _inputs, out: caught.append(out[0] if isinstance(out, tuple) else out)
        )
        try:
            self._decoder(input_ids=ids, use_cache=False)
        finally:
            handle.remove()
        means = [
            torch.stack([states[begins:ends].mean(0) for begins, ends in chat.parts])
            for chat, states in zip(chats, caught[0].float(), strict=True)
        ]
        return torch.stack(means)

    def _encoded(self, exchange: Exchange) -> "_Encoded":
        question, answer = self._plain(exchange.question, READ_QUESTION), self._plain(exchange.answer, READ)
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        encoded = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        shown = answer.strip()  # some templates strip it
        start = text.rindex(shown)
        inside = [
            place
            for place, (begins, ends) in enumerate(encoded["offset_mapping"])
            if begins < start + len(shown) and ends > start
        ]
        begins, ends = inside[0], inside[-1] + 1
        pieces = [text[slice(*encoded["offset_mapping"][place])] for place in inside]
        first, second = (sentences(pieces) * 2)[:2]
        parts = [(begins + left, begins + right) for left, right in (first, second)]
        return _Encoded(encoded["input_ids"][:ends], [*parts, (begins, ends)])

    def _plain(self, text: str, tokens: int) -> str:
        """The first ``tokens`` tokens of a text, without what would end its turn in the chat."""
        while any(found := [special for special in self._tokenizer.all_special_tokens if special in text]):
            text = functools.reduce(lambda left, special: left.replace(special, " "), found, text)
        offsets = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        cut = text if len(offsets) <= tokens else text[: offsets[tokens - 1][1]]
        return cut if cut.strip() else NOTHING


def sentences(tokens: Sequence[str]) -> list[tuple[int, int]]:
    """Where each sentence of a text begins and ends, in tokens; one of them at least.

    A sentence ends with a token that has a full stop, colon, question or exclamation mark or a line break, and has
    ``LEAST`` tokens; so has what is left at the end, or it is left out.
    """
    cuts = [0]
    for place, token in enumerate(tokens, start=1):
        if _END.search(token) and place - cuts[-1] >= LEAST:
            cuts.append(place)
    if len(tokens) - cuts[-1] >= LEAST or len(cuts) == 1:
        cuts.append(len(tokens))
    return list(itertools.pairwise(cuts))


class _Encoded(NamedTuple):
    """A chat's tokens up to the end of the answer, and where the answer's parts begin and end."""

    ids: list[int]
    parts: list[tuple[int, int]]
