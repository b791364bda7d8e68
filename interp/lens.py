"""The logit lens: the Yes/No margin that the model would give if it stopped after each layer.

The hidden state goes directly through the final norm and the output head (nostalgebraist 2020, "interpreting GPT: the
logit lens"). Early layers use a different basis than the last one: a margin near 0 there means that no verdict has been
*written* yet, not that the information is absent. To test for information, see ``interp.probes``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.residual import residuals

if TYPE_CHECKING:
    from interp.prompt import Prompt
    from interp.vlm import VLM


def logit_lens(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    *,
    layers: Sequence[int] | None = None,
    place: str = "verdict",
    batch_size: int | None = None,
) -> Float[Tensor, "layer row"]:
    """Margins in logits at ``layers`` (default: 0, the embeddings, to the last); float32 on the CPU.

    At the verdict, the last layer gives ``vlm.score``. For a place with several tokens the mean state is read. NaN if a
    prompt has no such place.

    Raises:
        UserError: as ``interp.hooks.residual.residuals``.
    """
    read = residuals(vlm, prompts, places=(place,), layers=layers, batch_size=batch_size)
    return torch.stack([lens_margins(vlm, read.at(place, layer)) for layer in read.layers])


def lens_margins(vlm: "VLM", hidden: Float[Tensor, "row width"], batch_size: int = 32) -> Float[Tensor, "row"]:
    """The margins of given hidden states; float32 on the CPU."""
    norm, head = (vlm.layout.module(vlm.model, part) for part in ("final_norm", "lm_head"))
    cap = getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None)
    found = []
    with torch.no_grad():
        for some in hidden.split(batch_size):  # all rows' logits at once would take gigabytes
            logits = head(norm(some.to(vlm.device, vlm.dtype)))
            found.append(vlm.margin(logits if cap is None else (logits / cap).tanh() * cap).cpu())
    return torch.cat(found)
