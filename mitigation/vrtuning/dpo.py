"""The preference variant: TRL's DPO for vision, the grounded verdict chosen over the one that the text suggests."""

from typing import Any


def dpo_trainer(given: dict[str, Any], arguments: dict[str, Any], *, beta: float) -> Any:
    """TRL's trainer; the reference is the same model with its adapter switched off, so no second copy is held."""
    from trl import DPOConfig, DPOTrainer

    return DPOTrainer(args=DPOConfig(**arguments, beta=beta), **given)
