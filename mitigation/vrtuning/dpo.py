"""The preference variant: TRL's DPO for vision, the grounded verdict chosen over the one that the text suggests."""

from typing import Any

from interp.errors import UserError
from interp.layout import Layout


def dpo_trainer(given: dict[str, Any], arguments: dict[str, Any], *, beta: float, layout: Layout) -> Any:
    """TRL's trainer; the reference is the same model with its adapter switched off, so no second copy is held.

    Raises:
        UserError: the family's output head is where TRL's fused log-probabilities do not look for it (InstructBLIP).
    """
    if "." in layout.lm_head:
        raise UserError(
            f"trainer=dpo with {layout.model_type}; TRL reads log-probabilities from a head directly under the model, "
            f"this family's is {layout.lm_head}; choose trainer=sft"
        )
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(args=DPOConfig(**arguments, beta=beta), **given)
