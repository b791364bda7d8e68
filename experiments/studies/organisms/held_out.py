"""What the second organism's alignment never says.

Left out are eight of IconWorld's 24 sentences, six of its 24 things, and a fifth of the remaining pairs of sentence and
thing. No sentence of the alignment uses the verb of a left-out one; related ones do (punch for hit, chop for slash).
All things are seen in pictures, with captions. Imports no torch.
"""

import random
from functools import cache

from experiments.benchmarks.iconworld.sentences import RISKY

HELD_OUT_TEMPLATES = frozenset({"hit", "poison", "slash", "hack", "attack", "warm", "lock", "hospital"})
HELD_OUT_CONCEPTS = frozenset({"bomb", "balloon", "cake", "rat", "cat", "syringe"})
HELD_OUT_SHARE = 0.2


@cache
def held_out_pairs() -> frozenset[tuple[str, str]]:
    """Return (template, thing) names that are held out besides templates and things; always the same."""
    rng = random.Random("smol_organism:held-out pairs")
    chosen: set[tuple[str, str]] = set()
    for template in RISKY:
        if template.name in HELD_OUT_TEMPLATES:
            continue
        for side in (template.safe, template.unsafe):
            allowed = [thing for thing in side if thing.concept not in HELD_OUT_CONCEPTS]
            count = min(len(allowed) - 1, round(HELD_OUT_SHARE * len(allowed) + rng.uniform(-0.5, 0.5)))
            chosen.update((template.name, thing.name) for thing in rng.sample(allowed, max(0, count)))
    return frozenset(chosen)
