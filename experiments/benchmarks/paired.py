"""What the loaders of paired refusal benchmarks share: reading a published JSON file, and making cases of its entries.

An entry becomes cases that should be answered (benign) and cases that should be refused (contrast); two that differ in
the picture or in the text alone are a counterfactual pair. Knows no benchmark.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from experiments.benchmarks.checks import Unfit, published, readable_text
from experiments.types import Drawable, Gold, Kind, Loaded, Sample, Subset
from interp.errors import UserError

SIDES: Mapping[str, tuple[Subset, Gold]] = {"safe": ("benign", "comply"), "unsafe": ("contrast", "refuse")}
UNFIT = "unfit entry"


@dataclass(frozen=True)
class PairedRefusals:
    """A published refusal benchmark in the folder ``root``; under ``strict`` every case of it must be there.

    A loader says in ``GET`` what to get and where to put it, in ``EXPECTED`` which absences its published files have
    themselves, in ``CLUSTER_ON_IMAGE`` whether one picture is one cluster, and finds the cases.
    """

    root: str | None = None
    strict: bool = False
    kind: ClassVar[Kind] = "refusal"
    GET: ClassVar[str] = ""
    EXPECTED: ClassVar[tuple[str, ...]] = ()
    CLUSTER_ON_IMAGE: ClassVar[bool] = False

    def find(self) -> "Collected":
        """All cases that the published files name."""
        raise NotImplementedError

    def load(self) -> Loaded:
        """The cases that can be asked; every picture is decoded once to make sure.

        Raises:
            UserError: no case can be asked, or under ``strict`` not every one.
        """
        found = self.find()
        return published(
            found.samples,
            found.absent,
            root=found.root,
            where=str(self.root),
            strict=self.strict,
            expected=self.EXPECTED,
            get=self.GET,
            cluster_on_image=self.CLUSTER_ON_IMAGE,
        )

    def development(self) -> None:
        """The set has no development split."""
        return None


def question(text: str) -> str:
    """The cluster of all cases that ask this."""
    return f"question:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"


def folder_of(root: str | None, what: str) -> Path:
    """The folder ``root``; ``what`` is the sentence on what to get and where to put it.

    Raises:
        UserError: none was given, or it is no folder.
    """
    if not root:
        raise UserError(f"benchmark.root is not set; {what}; set benchmark.root to that folder")
    folder = Path(root).expanduser().absolute()
    if not folder.is_dir():
        raise UserError(f"benchmark root {folder} is not a folder; {what}; set benchmark.root to that folder")
    return folder


def first_there(folder: Path, names: Sequence[str]) -> Path:
    """The first of ``names`` that lies in the folder; the first name where none does, for the message."""
    return next((folder / name for name in names if (folder / name).is_file()), folder / names[0])


def is_there(path: Path) -> bool:
    """Whether it is a file; False also for a name that no file can have, such as one of 5,000 letters."""
    try:
        return path.is_file()
    except OSError:
        return False


def json_file(path: Path, kind: type, what: str) -> Any:
    """The value of a JSON file, which is a list or an object as ``kind`` says.

    Raises:
        UserError: there is no such file, or it holds something else.
    """
    text = readable_text(path, what)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}); {what}") from error
    if not isinstance(value, kind) or not value:
        name = "list" if kind is list else "object"
        raise UserError(f"{path} holds no {name} with something in it, as the published file does; {what}")
    return value


class Collected:
    """Cases as they are made, and the entries that none could be made of, with the reason."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.samples: list[Sample] = []
        self.absent: dict[str, str] = {}
        self._seen: set[str] = set()

    def refuse(self, case: str, where: str, error: Unfit) -> None:
        """Notes that no case ``case`` can be made of an entry."""
        self.absent[case] = f"{UNFIT}: {where}: {error}"

    def add(
        self,
        case: str,
        of: str,
        *,
        scenario: str,
        text: str,
        prompt: str,
        image: Path | Drawable,
        cluster: str = "",
        pair: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """One case; ``of`` is safe or unsafe. Of two with one id the first is kept."""
        if case in self._seen:
            self.absent[f"{case} (again)"] = f"duplicate id: {case} is there before; the first one is kept"
            return
        self._seen.add(case)
        subset, gold = SIDES[of]
        self.samples.append(
            Sample(case, subset, scenario, gold, text, prompt, image, cluster=cluster, pair=pair, tags=dict(tags or {}))
        )
