"""Plans of the bundled organism, in a process of their own; prints a line of JSON for each.

``python -m tests.experiments.planning.job <command> ...``: each command is the arguments of one, in one string.
"""

import json
import sys
from typing import Any

from experiments.planning.measure import as_json, measured
from experiments.planning.models import Asked
from interp.device_ledger import Rates
from tests.experiments.compose import run_of

RATES = Rates(1e12, 1e11, 1e-5)


def plan(command: str, gib: float = 24.0) -> dict[str, Any]:
    """What is measured for a command."""
    return as_json(measured(run_of(*command.split()), Asked(20, 48, 48), gib, RATES))


def longer() -> dict[str, Any]:
    """A step of eight tokens added up from three, and done."""
    from experiments.planning import measure

    command = "method=vcd max_new_tokens=8"
    added = plan(command)["outcomes"]
    measure.PLANNED_TOKENS = 8
    return {"added": added, "done": plan(command)["outcomes"]}


if __name__ == "__main__":
    for one in sys.argv[1:]:
        print(json.dumps(longer() if one == "longer" else plan(one)), flush=True)
