"""Which part of IconWorld a case belongs to, by what the alignment of this organism never said (``heldout``)."""

from experiments.benchmarks.iconworld.parts import part_of
from experiments.smol_organism.heldout import HELD_OUT_CONCEPTS, HELD_OUT_TEMPLATES, held_out_pairs
from experiments.types import Sample


def part(sample: Sample) -> str | None:
    """As ``part_of``."""
    return part_of(sample, templates=HELD_OUT_TEMPLATES, concepts=HELD_OUT_CONCEPTS, pairs=held_out_pairs())
