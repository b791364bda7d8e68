"""From a Hydra configuration to one typed ``Run``. No other package sees a DictConfig; torch is not imported here.

Mistakes are reported with their key before any weights load. Hydra reports unknown keys and wrong types at the top
level, through ``Schema``. ``experiments.config.nodes`` reports those in a node with a ``_target_``, against the
target's dataclass or signature.
"""

from experiments.config.build import build_run, composed, register
from experiments.config.options import CONF, options_of, source_lines, written
from experiments.config.run import Run, Schema, answered_elsewhere, digest

__all__ = [
    "CONF",
    "Run",
    "Schema",
    "answered_elsewhere",
    "build_run",
    "composed",
    "digest",
    "options_of",
    "register",
    "source_lines",
    "written",
]
