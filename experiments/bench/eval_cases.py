"""The cases that answering is timed on: IconWorld's, with files to decode and sentences of many lengths where asked.

Imports neither torch nor transformers.
"""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from experiments.benchmarks.iconworld import IconWorld
from experiments.benchmarks.iconworld.scene import Scene
from experiments.benchmarks.sample import Kind, Loaded, Sample
from experiments.study import limited

SIDE = 672  # pixels of a file, as photographs of a benchmark have or more
FILLER = 60  # words at most in front of a sentence


@dataclass(frozen=True)
class EvalCases:
    """A benchmark of ``count`` cases of IconWorld; with ``folder``, as JPEG files in it and with words in front."""

    count: int
    folder: str | None = None
    name: str = "bench_eval"
    kind: ClassVar[Kind] = "yes_no"

    def load(self) -> Loaded:
        """The cases; files are drawn where they are not there yet."""
        loaded = IconWorld().load()
        samples = limited(loaded.samples, self.count)
        if self.folder is not None:
            samples = [_as_file(sample, Path(self.folder), number) for number, sample in enumerate(samples)]
        return loaded._replace(samples=samples)

    def development(self) -> None:
        """None."""
        return None


def _as_file(sample: Sample, folder: Path, number: int) -> Sample:
    assert isinstance(sample.image, Scene)
    path = folder / f"{number}.jpg"
    if not path.exists():
        replace(sample.image, size=SIDE).render().save(path)
    rng = random.Random(sample.id)
    words = " ".join(rng.choices(sample.prompt.split(), k=rng.randint(0, FILLER)))
    return replace(sample, image=path, prompt=f"{words} {sample.prompt}".strip())
