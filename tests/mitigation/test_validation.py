"""Settings out of range are named with their value and range."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from interp.errors import UserError
from mitigation.attention_steering import AttentionSteering
from mitigation.controls import CutoffOnly, SelfContrast, TextOnly
from mitigation.method import Baseline
from mitigation.peers.agla import AGLA
from mitigation.peers.icd_m3id_pai import M3ID, PAI, InstructionContrast
from mitigation.prior_correction import PriorCorrection
from mitigation.threshold import ConstantShift
from mitigation.validation import check_alpha, check_beta, check_noise_step, check_seed, check_shift
from mitigation.vcd import VCD
from mitigation.verbalise import Verbalise
from mitigation.wrappers import Sampled, Shifted

WRONG: list[tuple[Callable[[Any], None], list[Any], str]] = [
    (check_alpha, [-1, -1e-9, math.nan, math.inf, "1", None, True], "alpha={}; .*0 or more"),
    (check_beta, [0, -0.1, 1.01, math.nan, math.inf, "0.1", False], r"beta={}; .*\(0, 1\]"),
    (check_noise_step, [-1, 1000, 500.0, "500", None, True], "noise_step={}; .*0 .*999"),
    (check_seed, [0.5, "0", None, True], "seed={}; .*integer"),
    (check_shift, [math.nan, -math.inf, "1", None], "shift={}; .*finite"),
]


@pytest.mark.parametrize(("check", "value", "message"), [(c, v, m) for c, values, m in WRONG for v in values])
def test_a_wrong_value_is_named_with_its_range(check: Callable[[Any], None], value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message.format(repr(value).replace(".", r"\."))):
        check(value)


SETTINGS: list[tuple[Any, dict[str, Any], str]] = [
    (VCD, {"alpha": -0.5}, r"alpha=-0\.5; .*0 or more"),
    (VCD, {"beta": 0.0}, r"beta=0\.0; .*\(0, 1\]"),
    (VCD, {"beta": 1.5}, r"beta=1\.5; .*\(0, 1\]"),
    (VCD, {"noise_step": 1000}, "noise_step=1000; .*0 .*999"),
    (VCD, {"noise_step": -1}, "noise_step=-1; .*0 .*999"),
    (VCD, {"noise": "salt"}, "noise='salt'; .*diffusion.*swapped"),
    (VCD, {"branch": "third"}, "branch='third'; .*auto, paired, sequential"),
    (TextOnly, {"alpha": -1.0}, r"alpha=-1\.0; .*0 or more"),
    (TextOnly, {"beta": 0.0}, r"beta=0\.0; .*\(0, 1\]"),
    (SelfContrast, {"alpha": -1.0}, r"alpha=-1\.0; .*0 or more"),
    (SelfContrast, {"beta": 2.0}, r"beta=2\.0; .*\(0, 1\]"),
    (CutoffOnly, {"beta": 0.0}, r"beta=0\.0; .*\(0, 1\]"),
    (PriorCorrection, {"weight": -1.0}, r"weight=-1\.0; .*0 or more"),
    (PriorCorrection, {"prior": "dark"}, "prior='dark'; .*swapped"),
    (PriorCorrection, {"pictures": 0}, "pictures=0; .*1 to 32"),
    (PriorCorrection, {"beta": 0.0}, r"beta=0\.0; "),
    (Shifted, {"method": PriorCorrection(), "shift": float("inf")}, "shift=inf; "),
    (Shifted, {"method": Baseline(), "shift": float("nan")}, r"shift=nan; .*finite"),
    (Shifted, {"method": Sampled(Baseline()), "shift": 1.0}, "sample last"),
    (Shifted, {"method": 3, "shift": 1.0}, "method=3; "),
    (ConstantShift, {"shift": float("inf")}, "shift=inf"),
    (AttentionSteering, {"weight": float("inf")}, "weight=inf; "),
    (AttentionSteering, {"layers": []}, r"layers=\[\]; .*null"),
    (AttentionSteering, {"layers": 1}, "layers=1; .*null"),
    (AttentionSteering, {"layers": [1, 1]}, r"layers=\[1, 1\]; .*once"),
    (AttentionSteering, {"method": 3}, "method=3; "),
    (AGLA, {"alpha": -1.0}, r"alpha=-1\.0; .*0 or more"),
    (AGLA, {"keep": 1.5}, r"keep=1\.5; .*from 0 to 1"),
    (AGLA, {"beta": 2.0}, r"beta=2\.0"),
    (InstructionContrast, {"alpha": -1.0}, r"alpha=-1\.0"),
    (InstructionContrast, {"disturbance": " "}, "disturbance=''"),
    (M3ID, {"threshold": 1.5}, r"threshold=1\.5; .*from 0 to 1"),
    (M3ID, {"forgetting": -0.1}, r"forgetting=-0\.1; "),
    (PAI, {"gamma": 0.5}, r"gamma=0\.5; .*1 or more"),
    (PAI, {"first_layer": -1}, "first_layer=-1; "),
    (Verbalise, {"describe": "me"}, "describe='me'; describe is one of model, oracle"),
    (Verbalise, {"resolve": "x"}, "resolve='x'; resolve is one of rule, before, pointing, alone"),
    (Verbalise, {"description_tokens": 0}, "description_tokens=0; .*1 or more"),
    (Verbalise, {"question": " "}, "give a question"),
]


@pytest.mark.parametrize(("kind", "settings", "message"), SETTINGS)
def test_a_method_checks_its_settings_when_it_is_made(kind: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(**settings)
