"""Whether a dataset can be trained on, and a hash of what is in it. Knows nothing of models."""

import hashlib
import json
from typing import TYPE_CHECKING

from interp.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

_NEEDED = {"sft": ("prompt", "completion"), "dpo": ("prompt", "chosen", "rejected")}
_CHUNK = 1000  # rows read at once


def check_dataset(dataset: "Dataset", trainer: str) -> None:
    """UserError for an empty dataset, one without the trainer's columns, or with a row that has not one picture."""
    import pyarrow.compute as pc

    if len(dataset) == 0:
        raise UserError("the dataset is empty; training needs at least one example; look at which rows were skipped")
    if "images" not in dataset.column_names:
        raise UserError("the dataset has no pictures; a column 'images' holds one a row; build it with vrtuning.data")
    if missing := [name for name in _NEEDED[trainer] if name not in dataset.column_names]:
        raise UserError(
            f"the dataset has no column {', '.join(missing)}; trainer={trainer} needs {', '.join(_NEEDED[trainer])}; "
            f"build it with preferences={trainer == 'dpo'}"
        )
    raw = dataset.select_columns(["images"]).with_format("arrow")
    row = 0
    for batch in raw.iter(_CHUNK):
        for count in pc.list_value_length(batch["images"]).to_pylist():
            row += 1
            if count != 1:
                raise UserError(f"row {row} of the dataset has {count or 0} pictures; each has one; leave it out")


def data_digest(dataset: "Dataset") -> str:
    """``sha256:`` and 12 hex digits over the texts and pictures (their bytes, or paths), in order."""
    digest = hashlib.sha256()
    for batch in dataset.with_format("arrow").iter(_CHUNK):
        for row in batch.to_pylist():
            for picture in row.pop("images"):
                digest.update(picture["bytes"] or str(picture["path"]).encode())
            digest.update(json.dumps(row, sort_keys=True).encode())
    return f"sha256:{digest.hexdigest()[:12]}"
