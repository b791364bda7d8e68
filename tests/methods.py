"""One of every method, with settings that a model of two layers feels: tests that go over all methods take them here.

Importing this module loads neither torch nor transformers, as configuring a method does not.
"""

from typing import Any

import mitigation
from mitigation import (
    ECSO,
    M3ID,
    PAI,
    VCD,
    AblateDirection,
    AblateRandom,
    AttentionSteering,
    Baseline,
    CalibratedShift,
    ConstantShift,
    ContextPrompt,
    CutoffOnly,
    DirectionSteering,
    DriftCorrection,
    InstructionContrast,
    PriorCorrection,
    SafetyPrompt,
    Sampled,
    SelfContrast,
    Shifted,
    TextOnly,
    TruthReadout,
    Verbalise,
    YesBias,
)

METHODS: dict[str, Any] = {
    "baseline": Baseline(),
    "context_prompt": ContextPrompt(),
    "safety_prompt": SafetyPrompt(),
    "vcd_sequential": VCD(branch="sequential"),
    "vcd_paired": VCD(branch="paired"),
    "self_contrast": SelfContrast(),
    "text_only": TextOnly(),
    "cutoff": CutoffOnly(),
    "constant_shift": ConstantShift(1.0),
    "shifted_sequential": Shifted(VCD(branch="sequential"), 1.0),
    "shifted_paired": Shifted(VCD(branch="paired"), 1.0),
    "sampled": Sampled(CutoffOnly()),
    "prior_correction": PriorCorrection(),
    "prior_of_noise": PriorCorrection(prior="noise", pictures=2),
    "attention_steering": AttentionSteering(),
    "attention_steering_relative": AttentionSteering(relative=True, all_text=True),
    "ablate_random": AblateRandom(),
    "icd": InstructionContrast(),
    "m3id": M3ID(),
    "pai": PAI(first_layer=0),
    "verbalise": Verbalise(description_tokens=3),
    "verbalise_with_picture": Verbalise(picture=True, description_tokens=3),
    "ecso": ECSO(description_tokens=3),
}
"""Methods that answer, by name."""

LEARNERS: dict[str, Any] = {
    "readout": TruthReadout(),
    "steering": DirectionSteering(),
    "ablate_direction": AblateDirection(),
    "drift": DriftCorrection(),
    "calibrated_shift": CalibratedShift(),
    "yes_bias": YesBias(),
}
"""Methods that learn, or are fitted, before they answer."""


def public_methods() -> set[str]:
    """The names of all public classes that answer, learn or are fitted, but for interfaces."""
    doing = ("generate", "learn", "fit")
    public = {name: getattr(mitigation, name) for name in mitigation.__all__}
    classes = {
        name: one for name, one in public.items() if isinstance(one, type) and not getattr(one, "_is_protocol", 0)
    }
    return {name for name, one in classes.items() if any(callable(getattr(one, does, None)) for does in doing)}
