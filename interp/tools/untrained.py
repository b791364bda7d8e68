"""Untrained models: a model's own architecture with random weights, as a control of what is read inside it.

Pictures and words can be told apart in a random network too. What a probe reads there as well is no evidence of what
training put in (Conneau et al. 2018, "What you can cram into a single vector"; Zhang and Bowman 2018, "Language
modeling teaches you more than translation does"; Adebayo et al. 2018, "Sanity checks for saliency maps").

Weights are made from the configuration, and each tensor then takes the trained one's numbers in random order: equal in
size and spread, and empty of all that was learned. Weights as they are initialised would be no control in families that
draw their vision tower with 1e-10 or begin with closed gates.
"""

import copy
from typing import TYPE_CHECKING, Any

import torch

from interp.checkpoints.config import GIB, free_memory
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM

ROOM = 1.5  # free memory that an untrained model takes, in sizes of its weights


def why_not(vlm: "VLM") -> str | None:
    """Return why there can be no untrained model next to this one, as a clause; None where there can."""
    if len(set((getattr(vlm.model, "hf_device_map", None) or {"": 0}).values())) > 1:
        return "the model is spread over several devices"
    size = sum(one.numel() * one.element_size() for one in vlm.model.parameters())
    free = free_memory(vlm.device)
    if free is not None and free < ROOM * size:
        return f"it takes {ROOM * size / GIB:.1f} GiB beside the model, of which {free / GIB:.1f} are free"
    return None


def untrained(vlm: "VLM", *, seed: int = 0) -> "VLM":
    """Return the same model with random weights, drawn from ``seed``, on the same device and with the same processor.

    Parameters that the architecture does not have by itself (an adapter's) are left out.

    Raises:
        UserError: there is no room for it (``why_not``).
    """
    from interp.vlm import VLM

    if why := why_not(vlm):
        raise UserError(f"an untrained model of {vlm.name}'s shape cannot be made: {why}; use a smaller model")
    current = {name.replace(".base_layer.", "."): weight for name, weight in vlm.model.named_parameters()}
    kind: Any = type(vlm.model)
    with torch.random.fork_rng(devices=[vlm.device] if vlm.device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(seed)
        model = kind._from_config(copy.deepcopy(vlm.model.config), dtype=vlm.dtype)
        for name, weight in model.named_parameters():
            trained = current.get(name)
            if trained is not None and trained.shape == weight.shape and trained.dtype == weight.dtype:
                numbers = trained.detach().cpu().flatten()
                weight.copy_(numbers[torch.randperm(len(numbers))].view_as(weight))
    result = VLM(model.eval().to(vlm.device), vlm.processor, name=f"{vlm.name} untrained")
    result.batches.follow(vlm.batches)
    return result
