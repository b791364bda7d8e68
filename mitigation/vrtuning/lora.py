"""Where the adapter sits: the linear layers of the language model, and nowhere else. Paths come from the layout."""

import re
from typing import TYPE_CHECKING, Any

from interp.errors import UserError
from interp.layout import Layout
from mitigation.vrtuning.settings import Settings

if TYPE_CHECKING:
    from peft import LoraConfig


def target_pattern(layout: Layout, targets: tuple[str, ...]) -> str:
    """A regular expression that the full names of the adapted layers match (peft uses ``re.fullmatch``).

    The vision tower has layers of the same names (``q_proj``), so the decoder's path is part of it.
    """
    names = "|".join(re.escape(name) for name in targets)
    return rf"{re.escape(layout.layers)}\.\d+\.(?:.+\.)?(?:{names})"


def lora_config(model: Any, layout: Layout, settings: Settings) -> "LoraConfig":
    """peft's settings for ``model``; UserError where no layer of it has one of the names."""
    from peft import LoraConfig

    pattern = target_pattern(layout, settings.targets)
    if not any(re.fullmatch(pattern, name) for name, _ in model.named_modules()):
        raise UserError(
            f"no layer named {', '.join(settings.targets)} in the language model of this {layout.model_type} "
            f"checkpoint ({layout.layers}); an adapter needs at least one; mend targets"
        )
    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # peft says int and divides
        lora_dropout=settings.dropout,
        target_modules=pattern,
        task_type="CAUSAL_LM",
    )
