"""Settings out of range are named with their value and range."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from interp.errors import UserError
from mitigation.validation import check_alpha, check_beta, check_noise_step, check_seed, check_shift

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
