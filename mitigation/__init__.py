"""Methods that change a vision-language model's answers, and the controls they have to beat.

A method is a value; the model is passed in: ``VCD(alpha=1.0).generate(vlm, prompts, max_new_tokens=16)``. Importing
this package loads no torch; each name is imported when it is first used.

Methods
    Method, Baseline             the interface of a method; the unmodified model
    ContextPrompt, SafetyPrompt  a sentence before the question; a system prompt
    VCD                          visual contrastive decoding: against a noised, blurred, black or different picture
    Verbalise                    puts the picture into words, the words into the request, and judges that
    ECSO                         answers, checks the answer for harm, and answers again from a description
    PriorCorrection              subtracts the margin that the sentence has without its picture
    InstructionContrast, M3ID, PAI published baselines at their published settings
    AttentionSteering            raises attention on the picture in chosen layers
    Thinking, TwoSteps   a thought switched off, bounded or begun; thought and answer by two methods

Methods trained on labelled cases
    TrainableMethod              the interface of a method that learns
    TruthReadout                 adds the logit of a probe of the truth to the verdict
    DirectionSteering            adds a direction to the residual stream
    AblateDirection, AblateRandom        removes a direction from it, or from the weights; a random one
    DriftCorrection              subtracts a picture's drift of the verdict's state, so that it is read like words
    VRTuning                     a LoRA adapter trained to reason first (``mitigation.vrtuning`` trains it)

Controls
    TextOnly                     contrast with the question alone
    SelfContrast, CutoffOnly     contrast with the same picture; only the plausibility cutoff
    ConstantShift, CalibratedShift, YesBias      a constant on the margin: given, fitted, or matching a share of Yes

Around any method
    Shifted, ShiftedTrainable    adds a constant to its margin
    Sampled                      samples its tokens

Your own file
    OwnFile, OwnLearner          the method in a Python file; a file with a learn

For plain ``model.generate``
    diffuse_images               the processor's inputs with noised pictures
    VisualContrastiveLogitsProcessor     VCD as a logits processor
    generate_paired              VCD in one batch of clean and noised rows

Before a method is tried
    prior_margins, prior_share   how much of the verdicts the sentence explains, and whether removing it can help
"""

# ruff: noqa: F401  the imports below are those that __getattr__ makes, when a name is first used
from importlib import import_module
from typing import TYPE_CHECKING, Any

from interp import module_of

if TYPE_CHECKING:
    from mitigation.attention_steering import AttentionSteering
    from mitigation.contrastive.corruption import diffuse_images
    from mitigation.contrastive.paired import generate_paired
    from mitigation.contrastive.processors import VisualContrastiveLogitsProcessor
    from mitigation.controls import CutoffOnly, SelfContrast, TextOnly, YesBias
    from mitigation.ecso import ECSO
    from mitigation.learned.activation_steering import DirectionSteering
    from mitigation.learned.direction_ablation import AblateDirection, AblateRandom
    from mitigation.learned.drift import DriftCorrection
    from mitigation.learned.probe_readout import TruthReadout
    from mitigation.method import Baseline, Method, TrainableMethod
    from mitigation.own_file import OwnFile, OwnLearner
    from mitigation.peers import M3ID, PAI, InstructionContrast
    from mitigation.prior_correction import PriorCorrection, prior_margins, prior_share
    from mitigation.prompting import ContextPrompt, SafetyPrompt
    from mitigation.thinking import Thinking, TwoSteps
    from mitigation.threshold import CalibratedShift, ConstantShift
    from mitigation.vcd import VCD
    from mitigation.verbalise import Verbalise
    from mitigation.vrtuning.method import VRTuning
    from mitigation.wrappers import Sampled, Shifted, ShiftedTrainable

_MODULE_OF = module_of(__file__)
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'mitigation' has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
