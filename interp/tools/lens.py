"""The logit lens: what the model would say if it stopped after each layer: the Yes/No margin, and the likeliest tokens.

The hidden state goes directly through the final norm and the output head (nostalgebraist 2020, "interpreting GPT: the
logit lens"). Early layers use a different basis than the last one: a margin near 0 there means that no verdict has been
*written* yet, not that the information is absent. To test for information, see ``interp.tools.probes``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.hooks.residual import Place, place_name, residuals
from interp.output_head import float32_head
from interp.prompt import Prompt, listed
from interp.scaling import after_head
from interp.sequence_metric import SequenceMetric

if TYPE_CHECKING:
    from interp.generation import Metric
    from interp.vlm import VLM

TOP = 5
ROWS = 32  # whose logits are there at once


@dataclass(frozen=True)
class LensResult:
    """What the model would say at each place after each layer; on the CPU.

    ``margins`` are in logits, float32 (NaN if a prompt has no such place). ``tokens`` are the ids of the likeliest
    tokens, the first first, ``probabilities`` theirs (0 to 1, of the whole vocabulary), ``spelling`` their words.
    """

    margins: Float[Tensor, "place layer row"]
    tokens: Int[Tensor, "place layer row top"]
    probabilities: Float[Tensor, "place layer row top"]
    places: tuple[Place, ...]
    layers: tuple[int, ...]
    spelling: Mapping[int, str]

    def word(self, position: int, layer: int, row: int, rank: int = 0) -> str:
        """Return a token as text, by index; "" where a prompt has no such place."""
        here = (position, layer, row, rank)
        return "" if self.probabilities[here].isnan() else self.spelling[int(self.tokens[here])]

    @property
    def table(self) -> pd.DataFrame:
        """Tidy table with columns place, layer, row, rank (from 1), margin, token, probability."""
        shape = self.probabilities.shape
        axes = {"place": map(place_name, self.places), "layer": self.layers, "row": range(shape[2])}
        axes["rank"] = range(1, shape[3] + 1)
        table = pd.MultiIndex.from_product(axes.values(), names=list(axes)).to_frame(index=False)
        margins = self.margins[..., None].expand(shape).flatten().numpy()
        words = [self.word(*cell) for cell in np.ndindex(*shape)]
        return table.assign(margin=margins, token=words, probability=self.probabilities.flatten().numpy())


def logit_lens(
    vlm: "VLM",
    prompts: Prompt | Sequence[Prompt],
    *,
    layers: Sequence[int] | None = None,
    places: Sequence[Place] = ("verdict",),
    top: int = TOP,
    metric: "Metric | None" = None,
    batch_size: int | None = None,
) -> LensResult:
    """Return margins and the ``top`` likeliest tokens at ``places`` and ``layers`` (default: 0, the embeddings, to the
    last).

    At the verdict, the last layer gives ``vlm.score``. For a place with several tokens the mean state is read;
    positions (0, −1, ...) are read one by one. ``metric``, a function of the logits, takes the margin's place.

    Raises:
        UserError: as ``interp.hooks.residual.residuals``.
    """
    vlm.require("lens")
    read = residuals(vlm, listed(prompts), places=places, layers=layers, batch_size=batch_size)
    shape = read.values.shape[:3]
    margins, tokens, probabilities = [], [], []
    for logits in _logits(vlm, read.values.flatten(0, 2)):
        margins.append((metric or vlm.margin)(logits).float().cpu())
        result = logits.float().softmax(-1).topk(min(top, logits.shape[-1]))
        tokens.append(result.indices.cpu())
        probabilities.append(result.values.cpu())
    ids = torch.cat(tokens)
    return LensResult(
        margins=torch.cat(margins).reshape(shape),
        tokens=ids.reshape(*shape, -1),
        probabilities=torch.cat(probabilities).reshape(*shape, -1),
        places=tuple(places),
        layers=read.layers,
        spelling={token: vlm.tokenizer.decode([token]) for token in ids.unique().tolist()},
    )


def lens_margins(vlm: "VLM", hidden: Float[Tensor, "row width"]) -> Float[Tensor, " row"]:
    """Return the margins of hidden states; float32 on the CPU."""
    return torch.cat([vlm.margin(logits).cpu() for logits in _logits(vlm, hidden)])


def sequence_lens(
    vlm: "VLM", prompts: Sequence[Prompt], metric: SequenceMetric, layers: Sequence[int]
) -> Float[Tensor, "layer row"]:
    """Return the exact margin of whole openings that each layer would give, float32 on the CPU."""
    margins = torch.empty(len(layers), len(prompts))
    states = {}
    for stem in metric.stems:
        begun = [replace(prompt, answer_prefix=(*prompt.answer_prefix, *stem)) for prompt in prompts]
        states[stem] = residuals(vlm, begun, places=range(-len(stem), 1), layers=layers).values
    for layer in range(len(layers)):
        for rows in torch.arange(len(prompts)).split(ROWS):

            def after(stem: tuple[int, ...], layer: int = layer, rows: Tensor = rows) -> Tensor:
                return torch.stack([torch.cat(list(_logits(vlm, step))) for step in states[stem][:, layer, rows]], 1)

            margins[layer, rows] = metric.read(after).cpu()
    return margins


def _logits(vlm: "VLM", hidden: Float[Tensor, "row width"]) -> Iterator[Float[Tensor, "some vocab"]]:
    """Yield the float32 logits of hidden states, some rows at once: all at once would take gigabytes."""
    norm, head = (vlm.module_map.module(vlm.model, part) for part in ("final_norm", "lm_head"))
    after = after_head(vlm.model, vlm.module_map)
    for batch in hidden.split(ROWS):
        with torch.no_grad(), float32_head(vlm.model):
            yield after(head(norm(batch.to(vlm.device, vlm.dtype))))
