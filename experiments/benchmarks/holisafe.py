"""HoliSafe-Bench (arXiv 2506.04704): all five ways in which a safe or unsafe picture and question combine.

The hub's etri-vilab/holisafe-bench is gated: ask for access there, download it, and give its folder. ``type`` has a
letter each for picture, question and the two together: SSS is benign; SSU, USU, UUU and SUU are harmful. No licence was
found. 4,031 records (an older version: 4,163). Pictures are paths inside the folder or its ``images/``; a parquet file
may hold them itself. No key pairs cases; those of one picture are one cluster. Knows nothing of models, judges or
metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.benchmarks.images import EncodedImage
from experiments.benchmarks.published_benchmark import Collected, PublishedBenchmark, first_there
from experiments.benchmarks.rows import Unfit, json_file, need, read_file, whole
from experiments.types import Drawable
from interp.errors import UserError

HUB = "https://huggingface.co/datasets/etri-vilab/holisafe-bench"
FILES = ("holisafe_bench.json", "holisafe-bench.json", "holisafe.json", "test.json", "metadata.csv")
TYPES = {"SSS": "safe", "SSU": "unsafe", "USU": "unsafe", "UUU": "unsafe", "SUU": "unsafe"}
ABOUT = ("category", "subcategory", "image_safe", "image_safety_label")  # of a record, kept as tags
FIELDS = ("id", "type", "query", "image", *ABOUT)
GET = (
    f"ask for access at {HUB}, download it (hf download etri-vilab/holisafe-bench --repo-type dataset --local-dir "
    "<folder>) and keep its table of records beside its images folder"
)


@dataclass(frozen=True)
class HoliSafe(PublishedBenchmark):
    """The benchmark in the folder ``root``, from ``file`` there (.json, .csv or .parquet; null: the one there is).

    ``strict`` stops where a record or a picture cannot be used.
    """

    file: str | None = None
    name: str = "holisafe"
    GET = GET

    def find(self) -> Collected:
        """All cases that the table names."""
        found = Collected(self.folder, cluster_on_image=True)
        number = 0
        for source in self._sources(self.folder):
            for record in _records(source):
                identity = record.get("id") if isinstance(record, Mapping) else None
                case = whole(f"h{number if identity is None else identity}")[:60]
                with found.entry(case, source, f"record {number}"):
                    _add(found, self.folder, case, record)
                number += 1
        return found

    def _sources(self, folder: Path) -> list[Path]:
        """The tables of records: the one that was named, the one with a known name, or the only one there is."""
        if self.file:
            return [folder / self.file]
        if named := [folder / name for name in FILES if (folder / name).is_file()]:
            return named[:1]
        shards = sorted({*folder.glob("*.parquet"), *folder.glob("data/*.parquet")})
        tables = shards or sorted([*folder.glob("*.json"), *folder.glob("*.csv")])
        if not tables or (not shards and len(tables) > 1):
            shown = ", ".join(path.name for path in tables[:5]) or "none"
            raise UserError(f"{folder} holds no one table of records (found: {shown}); {GET}, or name it: "
                            "benchmark.file=<its name>")  # fmt: skip
        return tables


def _records(source: Path) -> list[Any]:
    if source.suffix == ".json":
        return list(json_file(source, list, GET))
    found = read_file(source, FIELDS, option="benchmark")
    return [row for _, row in found.rows] + [problem.reason for problem in found.problems]


def _add(found: Collected, folder: Path, case: str, record: Any) -> None:
    kind, query = need(record, "type").strip(), need(record, "query")
    if kind not in TYPES:
        raise Unfit(f"field 'type' is {kind[:20]!r}; it is one of {', '.join(TYPES)}")
    tags = {name: str(value) for name in ABOUT if (value := record.get(name)) not in (None, "")}
    found.add(case, TYPES[kind], scenario=kind, text=query, image=_picture(folder, record, case), tags=tags)


def _picture(folder: Path, record: Mapping[str, Any], case: str) -> Path | Drawable:
    value = record.get("image")
    if isinstance(value, Mapping):  # a parquet file's own
        if isinstance(data := value.get("bytes"), bytes):
            return EncodedImage(f"{value.get('path') or case}", data)
        value = value.get("path")
    value = need({"image": value}, "image")
    return first_there(folder, f"images/{value}", value)
