"""From a Hydra configuration to one typed ``Run``. No other package sees a DictConfig; torch is not imported here.

Mistakes are reported with their key before any weights load. Hydra reports unknown keys and wrong types at the top
level, through ``Schema``. ``experiments.config.build`` reports those in a node with a ``_target_``, against the
target's dataclass or signature.
"""

from experiments.config.build import build_run as build_run
from experiments.config.build import composed as composed
from experiments.config.run import CONF as CONF
from experiments.config.run import Run as Run
from experiments.config.run import Schema as Schema
from experiments.config.run import answered_elsewhere as answered_elsewhere
from experiments.config.run import digest as digest
from experiments.config.run import options_of as options_of
from experiments.config.run import register as register
