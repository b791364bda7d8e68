"""MOSSBench from the Hugging Face hub, as the entries that ``mossbench`` reads. Needs a network once, then the cache.

The hub's table is flat (``metadata_over``, …) and its card calls that column a truth value, which it is not.
"""

import re
from pathlib import Path
from typing import Any

from experiments.benchmarks.images import EncodedImage
from experiments.benchmarks.mossbench import BENIGN, Entry, Part
from interp.errors import UserError

DATASET = "AIcell/MOSSBench"
CASES_A_TYPE = 100  # pids 1-100 are type 1, 101-200 type 2, 201-300 type 3, in both sets


def hub_entries(part: Part, revision: str | None) -> list[Entry]:
    """The entries of one set. Raises UserError where it cannot be fetched."""
    name = "oversensitivity" if part is BENIGN else "contrast"
    try:
        import datasets

        table = datasets.load_dataset(DATASET, name, split="train", revision=revision)
        # Undecoded: pictures from the hub are opened as carefully as those on disk.
        rows = list(table.cast_column("image", datasets.Image(decode=False)))
    except Exception as error:  # offline, no such revision, a table that its own card contradicts: each its own type
        said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise UserError(
            f"{DATASET} ({name}) cannot be fetched from the hub ({said}); it needs a network or an earlier download; "
            "or clone the repository and set benchmark.source=repository benchmark.root=<clone>"
        ) from error
    return [hub_entry(row, f"{DATASET} ({name})") for row in rows]


def hub_entry(row: dict[str, Any], where: str) -> Entry:
    """A row in the form of the repository's JSON."""
    pid = str(row.get("pid", ""))
    metadata = {name.removeprefix("metadata_"): value for name, value in row.items() if name.startswith("metadata_")}
    if not re.fullmatch(r"type [123]", str(metadata.get("over"))) and re.fullmatch(r"[0-9]{1,3}", pid):
        metadata["over"] = f"type {(int(pid) - 1) // CASES_A_TYPE + 1}"
    image = row.get("image") or {}
    data, path = image.get("bytes"), image.get("path")
    fields = {k: v for k, v in row.items() if k != "image" and not k.startswith("metadata_")}
    picture = EncodedImage(f"{path or pid}", data) if data is not None else Path(path) if path else None
    return Entry(pid, fields | {"pid": pid, "metadata": metadata, "image": path}, picture, where)
