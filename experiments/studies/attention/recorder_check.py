"""The recorder's self-test, once a model, revision and machine type within a run, with its numbers on record."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.runs.directory import read_object, write_json
from interp.errors import UserError

if TYPE_CHECKING:
    from interp.vlm import VLM


def self_test_once(vlm: "VLM", path: Path) -> dict[str, Any]:
    """What the self-test measured, from ``path`` where it passed there before for the same weights, type and device.

    Raises:
        UserError: it fails, with the numbers; ``path`` then says so too.
    """
    from interp.recorder_check import self_test

    subject = {
        "model": vlm.name,
        "revision": vlm.revision,
        "device": vlm.device.type,
        "dtype": str(vlm.dtype).removeprefix("torch."),
    }
    before = read_object(path)
    if vlm.revision is not None and before.get("passed") and subject.items() <= before.items():
        return before
    try:
        found = subject | {"passed": True} | asdict(self_test(vlm))
    except UserError as error:
        write_json(path, subject | {"passed": False, "error": str(error)})
        raise
    write_json(path, found)
    return found
