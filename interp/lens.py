"""The Yes/No margin that the model would give if it stopped at each point of the residual stream, and where it parts.

Logit lens: the state goes through the final norm and the output head as if no layer came after (nostalgebraist 2020,
"interpreting GPT: the logit lens"). Early points speak another basis than the last one, so a margin near 0 there says
that nothing is *written as a verdict* yet, not that nothing is known: for that, see ``interp.probes``. Knows nothing of
benchmarks.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from interp.hooks.residual import residuals

if TYPE_CHECKING:
    from interp.vlm import VLM, Prompt


def lens(
    vlm: "VLM",
    prompts: "Sequence[Prompt]",
    *,
    points: Sequence[int] | None = None,
    place: str = "verdict",
    batch_size: int = 32,
) -> Float[Tensor, "point row"]:
    """Margins at ``points`` (default: 0, the embeddings, to L) of ``place``; float32 on the CPU.

    The last point of the verdict is ``vlm.score``. Elsewhere than at the verdict the mean state of the place is read,
    NaN where a prompt has no such place.

    Raises:
        UserError: as ``interp.hooks.residual.residuals``.
    """
    read = residuals(vlm, prompts, places=(place,), points=points, batch_size=batch_size)
    return torch.stack([spoken(vlm, read.at(place, point), batch_size) for point in read.points])


def spoken(vlm: "VLM", hidden: Float[Tensor, "row width"], batch_size: int = 32) -> Float[Tensor, "row"]:
    """The margins of states that were read already: through the final norm and the output head; float32 on the CPU."""
    norm, head = (vlm.layout.module(vlm.model, part) for part in ("final_norm", "lm_head"))
    cap = getattr(vlm.model.config.get_text_config(), "final_logit_softcapping", None)
    found = []
    with torch.no_grad():
        for some in hidden.split(batch_size):  # a vocabulary's logits of all cases at once would be gigabytes
            logits = head(norm(some.to(vlm.device, vlm.dtype)))
            found.append(vlm.margin(logits if cap is None else (logits / cap).tanh() * cap).cpu())
    return torch.cat(found)
