"""What the command line says beside any study: its help, former names, mistakes in a sentence, and ``task=doctor``.

Imports neither torch nor transformers.
"""

from experiments.command_line.former_names import FORMER, in_todays_words
from experiments.command_line.help_page import (
    COMMANDS,
    FIRST,
    greeting,
    help_page,
    options_of,
    register_help,
    top_level_options,
)
from experiments.command_line.mistakes import in_a_sentence, unknown_flag
from experiments.command_line.plan_apart import with_plan_apart

__all__ = [
    "COMMANDS",
    "FIRST",
    "FORMER",
    "greeting",
    "help_page",
    "in_a_sentence",
    "in_todays_words",
    "options_of",
    "register_help",
    "top_level_options",
    "unknown_flag",
    "with_plan_apart",
]
