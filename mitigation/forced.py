"""Log-probabilities of given beginnings of an answer under any method that answers through ``vlm.generate``.

If the method changes no logits, all beginnings are read as a tree of tokens after one prefill. Otherwise the tokens are
forced: each step's scores are read after the method's own logits processors and before its cutoff (``uncut_scores`` of
``interp.generation``). So a contrasted method is asked for its contrasted scores.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import DynamicCache, LogitsProcessor
from transformers.cache_utils import DynamicLayer

from interp.errors import UserError
from interp.families import PER_TOKEN
from interp.generation import Generation, cache_in, uncut_scores, with_cache
from interp.output_head import float32_head
from interp.prefill_cache import altered
from mitigation.branches import BranchMethod
from mitigation.method import abilities
from mitigation.wrappers import WrappedVLM

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt
    from mitigation.method import Method

Tokens = tuple[int, ...]
AT_ONCE = 32  # tokens of a tree in one forward, so that their logits fit into memory


class ForcedTokens(LogitsProcessor):
    """Forces the tokens ``stem``, and reads the log-probabilities of the stem followed by each of the tokens ``ends``.

    ``after`` are the method's own processors, which run before this one.
    """

    unscored = "its tokens are forced"

    def __init__(self, stem: Sequence[int], ends: Sequence[int], after: Sequence[LogitsProcessor]) -> None:
        self._stem, self._ends, self._after = list(stem), list(ends), list(after)
        self._sum: Tensor | None = None  # [row], of the stem so far
        self._step = 0
        self.log_probabilities: Float[Tensor, "row end"] | None = None

    def __call__(
        self, input_ids: Int[Tensor, "row position"], scores: Float[Tensor, "row vocab"]
    ) -> Float[Tensor, "row vocab"]:
        """Return scores that leave only the next token of the stem; after the stem the scores as they are."""
        uncut = uncut_scores(self._after, scores)
        if uncut is None:
            raise UserError("the method left a step out, and its scores of forced tokens are not known")
        chances = uncut.float().log_softmax(-1)
        before = 0.0 if self._sum is None else self._sum
        if self._step == len(self._stem):
            self.log_probabilities = (chances[:, self._ends].T + before).T.cpu()
            return scores
        token = self._stem[self._step]
        self._step += 1
        self._sum = chances[:, token] + before
        forced = torch.full_like(scores, -torch.inf)
        forced[:, token] = 0.0
        return forced


def reads_trees(vlm: "VLM", batch: Mapping[str, Any]) -> bool:
    """Return whether a forward of the model may have any mask: it attends to all columns, and nothing changes it."""
    config = vlm.model.config.get_text_config()
    if vlm.module_map.position_kind == "mrope" and "image_grid_thw" not in batch:
        return False  # only pictures set ``rope_deltas``
    with torch.no_grad():
        plain = vlm.speaker is vlm.model and not altered(vlm.model) and not PER_TOKEN & batch.keys()
    growing = all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
    return plain and growing and config._attn_implementation in ("sdpa", "eager")


def read_tree(vlm: "VLM", batch: Mapping[str, Any], openings: Sequence[Tokens]) -> Float[Tensor, "row opening"]:
    """Return log P(opening | prompt), float32 on the CPU: each prompt and each shared beginning is read once."""
    nodes = sorted({opening[:size] for opening in openings for size in range(1, len(opening))})  # parents first
    ends: dict[Tokens, set[int]] = {}
    for opening in openings:
        for size, token in enumerate(opening):
            ends.setdefault(opening[:size], set()).add(token)
    chances: dict[Tokens, Tensor] = {(): torch.zeros(len(batch["input_ids"]), device=vlm.device)}

    def read(node: Tokens, logits: Float[Tensor, "row vocab"]) -> None:
        total = logits.float().logsumexp(-1)
        for token in ends[node]:
            chances[(*node, token)] = chances[node] + logits[:, token].float() - total

    prompt = batch["attention_mask"].bool()
    with torch.no_grad(), float32_head(vlm.model):
        output = vlm.model(**batch, **vlm.positions(batch["attention_mask"]), use_cache=True, logits_to_keep=1)
        read((), output.logits[:, -1])
        for start in range(0, len(nodes), AT_ONCE):
            chunk = nodes[start : start + AT_ONCE]
            sees = [[node[: len(other)] == other for other in nodes[: start + len(chunk)]] for node in chunk]
            visible = torch.cat([
                prompt[:, None].expand(-1, len(chunk), -1),
                torch.tensor(sees, device=vlm.device).expand(len(prompt), -1, -1),
            ], dim=-1)[:, None]  # fmt: skip
            mask = torch.zeros(visible.shape, dtype=vlm.dtype, device=vlm.device)
            depth = torch.tensor([len(node) - 1 for node in chunk], device=vlm.device)
            output = vlm.model(
                input_ids=prompt.new_tensor([node[-1] for node in chunk], dtype=torch.long).expand(len(prompt), -1),
                attention_mask=mask.masked_fill(~visible, torch.finfo(vlm.dtype).min),
                position_ids=_after(vlm, prompt, depth),
                use_cache=True,
                **with_cache(cache_in(output)),
            )
            for column, node in enumerate(chunk):
                read(node, output.logits[:, column])
    return torch.stack([chances[opening] for opening in openings], dim=1).cpu()


def _after(
    vlm: "VLM", prompt: Bool[Tensor, "row column"], depth: Int[Tensor, " node"]
) -> Int[Tensor, "*kind row node"]:
    """Return the positions of tokens at a ``depth`` after the prompts."""
    if vlm.module_map.position_kind == "1d":
        return prompt.sum(-1, keepdim=True) + depth
    return (prompt.sum(-1, keepdim=True) + depth + vlm.model.model.rope_deltas).expand(3, -1, -1)


class ForcedVLM(WrappedVLM):
    """A VLM whose ``generate`` reads all ``openings``, if it can, or else forces ``stem``, the beginning of several.

    Tokens are forced after the method's own processors. Every step of it has scores.
    """

    late_verdicts = True  # methods then keep the scores of every step
    leaves_out_steps = False

    def __init__(self, vlm: "VLM", openings: Sequence[Tokens], stem: Tokens, ends: Sequence[int]) -> None:
        super().__init__(vlm)
        self._openings, self._stem, self._ends = openings, stem, ends
        self.forcing: list[ForcedTokens] = []  # of each call that forces tokens
        self.read: list[Float[Tensor, "row opening"]] = []  # of each call that reads all openings

    def generate(
        self,
        prompts: "Sequence[Prompt]",
        *,
        logits_processor: Sequence[LogitsProcessor] | None = None,
        encoded: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> "Generation":
        """Generate with forced tokens; after all openings are read, return empty answers."""
        nothing = Generation(
            [""] * len(prompts), [[] for _ in prompts], torch.full((len(prompts),), torch.nan), [True] * len(prompts)
        )
        if (read_openings := getattr(self._vlm, "read_openings", None)) is not None:  # a model behind an API
            self.read.append(read_openings(prompts, self._openings))
            return nothing
        processors = list(logits_processor or ())
        batch = self.encode(prompts) if encoded is None else encoded
        if not processors and options.keys() == {"max_new_tokens"} and reads_trees(self._vlm, batch):
            self.read.append(read_tree(self._vlm, batch, self._openings))
            return nothing
        self.forcing.append(ForcedTokens(self._stem, self._ends, processors))
        options["max_new_tokens"] = len(self._stem) + 1
        return super().generate(prompts, encoded=batch, logits_processor=[*processors, self.forcing[-1]], **options)


def log_probabilities(
    method: "Method", vlm: "VLM", prompts: "Sequence[Prompt]", openings: Sequence[Tokens]
) -> Float[Tensor, "row opening"]:
    """Return log P(opening | prompt) under ``method``, float32 on the CPU.

    If tokens have to be forced, openings that differ only in their last token are read in one call. Set
    ``vlm.prefill_cache``, so that the prompts are read once.

    Args:
        method: answers greedily through ``vlm.generate``.
        vlm: the model.
        prompts: one row each.
        openings: token ids of beginnings of an answer.

    Raises:
        UserError: the method's scores cannot be read: it draws tokens, or answers in several calls or its own loop.
    """
    if reason := abilities(method).unscored or abilities(method).unforced:
        raise UserError(f"{method!r} has no scores of forced tokens: {reason}")
    if isinstance(method, BranchMethod) and hasattr(vlm, "read_openings"):
        raise UserError(
            f"{method!r} has no scores of forced tokens over an API: it contrasts them; ask the weights here"
        )
    chances = torch.empty(len(prompts), len(openings))
    stems: dict[Tokens, list[int]] = {}
    for column, opening in enumerate(openings):
        stems.setdefault(tuple(opening[:-1]), []).append(column)
    for stem, columns in stems.items():
        forced = ForcedVLM(vlm, openings, stem, [openings[column][-1] for column in columns])
        method.generate(cast("VLM", forced), prompts, max_new_tokens=len(stem) + 1)
        read = [*forced.read, *(forcing.log_probabilities for forcing in forced.forcing)]
        if len(read) != 1 or read[0] is None or len(read[0]) != len(prompts):
            raise UserError(f"{method!r} does not answer all prompts by one vlm.generate, so no token can be forced")
        if forced.read:
            return read[0]
        chances[:, columns] = read[0]
    return chances
