"""Questions about what is in a picture, answered Yes or No: does a mitigation blind the model? (``guard=true``)

IconWorld's own (is there such a thing, is there a prohibition sign), or a file in the layout of POPE (arXiv 2305.10355:
JSON lines with ``question_id``, ``image``, ``text`` and ``label``, yes or no). Pictures are in the file's folder, or in
``images/`` there. Questions about one picture are one cluster. Nothing in them is about safety.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, cast

from experiments.benchmarks.iconworld.perception import PerceptionQuestion, perception_questions
from experiments.benchmarks.table import Table
from experiments.types import Benchmark, Gold, Kind, Loaded, Sample, Subset
from interp.errors import UserError

KINDS = ("presence", "sign")
SUBSETS: dict[str, tuple[Gold, Subset]] = {"yes": ("yes", "over_safety"), "no": ("no", "typical")}


@dataclass(frozen=True)
class PictureQuestions:
    """IconWorld's questions about its test pictures: ``per_kind`` of each of ``KINDS``. Pictures of one thing are one
    cluster."""

    per_kind: int = 200
    name: str = "iconworld"
    kind: ClassVar[Kind] = "yes_no"

    def load(self) -> Loaded:
        """The questions as cases."""
        return Loaded([_case(one) for one in perception_questions("test", per_kind=self.per_kind) if one.kind in KINDS],
                      {}, "")  # fmt: skip

    def development(self) -> None:
        """There is no development split."""


def _case(one: PerceptionQuestion) -> Sample:
    gold, subset = SUBSETS[one.answer.rstrip(".").lower()]
    thing = one.scene.thing.concept
    return Sample(one.id, subset, one.kind, gold, one.question, one.question, one.scene, cluster=thing)


def guard_questions(guard: object) -> Benchmark:
    """What ``guard=`` names: IconWorld's questions (true), or those of a file.

    Raises:
        UserError: it is neither.
    """
    if guard is True:
        return PictureQuestions()
    if not isinstance(guard, str) or not guard.endswith(".jsonl"):
        raise UserError(
            f"guard={str(guard)[:80]}: must be true (IconWorld's questions), false, or a .jsonl file in POPE's layout"
        )
    folder = Path(guard).expanduser().absolute().parent / "images"
    pope = Table(
        guard,
        reads="picture",
        images=str(folder) if folder.is_dir() else None,
        columns={"id": "question_id", "cluster": "image"},
        option="guard",
    )
    return cast(Benchmark, pope)  # its kind follows from what it reads
