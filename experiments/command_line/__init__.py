"""What the command line says beside any study: its help, mistakes in a sentence, and ``task=doctor``.

Imports neither torch nor transformers.
"""

from experiments.command_line.arguments import for_hydra, of_this_run, spelled_out
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

__all__ = [
    "COMMANDS",
    "FIRST",
    "for_hydra",
    "greeting",
    "help_page",
    "in_a_sentence",
    "of_this_run",
    "options_of",
    "register_help",
    "spelled_out",
    "top_level_options",
    "unknown_flag",
]
