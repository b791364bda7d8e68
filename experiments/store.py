"""A run's directory: chosen, continued, appended to, closed. Knows nothing of models or statistics.

``outputs/<name>/<time>/`` with ``predictions.jsonl`` (a line a case and arm, appended and fsynced by batch). A run
is unfinished until ``finish`` was called, after its report; the newest unfinished one with an equal configuration hash
is continued.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from interp.errors import UserError

IDENTITY = ".hydra/identity.json"
Key = tuple[str, str, str]  # case id, arm, hash of the settings that can change its answer


class RunStore:
    """The open directory of one run, from :func:`open_run`; a context manager, or to be closed with ``close``."""

    def __init__(self, path: Path, lock: IO[str], *, resumed: bool) -> None:
        self.path = path
        self.resumed = resumed
        self._lock = lock

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not self.resumed and not list(self.path.glob("*.jsonl")):
            shutil.rmtree(self.path)  # nothing was answered: a run that failed at its model leaves no litter
        self.close()

    def close(self) -> None:
        """Lets go of the directory; nothing is lost by not calling it."""
        self._lock.close()

    def finish(self) -> None:
        """The last act of a run: from now on the same command begins a new one."""
        identity = self.path / IDENTITY
        write_json(identity, read_object(identity) | {"finished": True})

    def records(self, file: str = "predictions.jsonl") -> list[dict[str, Any]]:
        """All complete lines; a half-written last line is cut off first, so that the next append starts clean.

        Raises:
            UserError: a line other than the last cannot be read.
        """
        path = self.path / file
        if not path.exists():
            return []
        raw = path.read_bytes()
        complete, _, rest = raw.rpartition(b"\n")
        if rest:
            with path.open("rb+") as handle:
                handle.truncate(len(raw) - len(rest))
        return [_parsed(line, number, path) for number, line in enumerate(complete.split(b"\n"), 1) if line.strip()]

    def append(self, records: Iterable[Mapping[str, Any]], file: str = "predictions.jsonl") -> None:
        """Writes whole lines and forces them to disk before it returns.

        Raises:
            UserError: the disk is full or the directory cannot be written; what was there before stays.
        """
        lines = "".join(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n" for record in records)
        try:
            with (self.path / file).open("a", encoding="utf-8") as handle:
                handle.write(lines)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            raise UserError(
                f"cannot write {self.path / file} ({error.strerror}); make room and run the same command again to go on"
            ) from error

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replaces ``name`` in one step, so that a reader never sees half of it."""
        write_json(self.path / name, value)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Atomic, indented, without NaN."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _parsed(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        return json.loads(line)
    except ValueError as error:
        raise UserError(
            f"{path}, line {number} is not JSON; mend or delete that line, or start with fresh=true"
        ) from error


def open_run(output_root: str, name: str, config: Mapping[str, Any], config_hash: str, *, fresh: bool) -> RunStore:
    """Continues the newest unfinished run with ``config_hash``, or begins one.

    Raises:
        UserError: the directory cannot be written, ``name`` leaves it, or another process is at work in the same run.
    """
    folder = Path(output_root) / name
    if not folder.resolve().is_relative_to(Path(output_root).resolve()):
        raise UserError(f"name={name!r}: must stay inside {output_root}; use letters, digits, '_' and '-'")
    path = None if fresh else _unfinished(folder, config_hash)
    resumed = path is not None
    try:
        path = path or _new_directory(folder)
        lock = (path / ".lock").open("a")
        if not resumed:
            (path / ".hydra").mkdir()
            (path / ".hydra" / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
            write_json(path / IDENTITY, {"config_hash": config_hash, "finished": False})
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror}); make it writable or choose another place with output_root=<dir>"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise UserError(
            f"another process is writing {path}; wait for it, or start a second run with fresh=true"
        ) from error
    return RunStore(path, lock, resumed=resumed)


def _new_directory(folder: Path) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in range(100):
        path = folder / (stamp if attempt == 0 else f"{stamp}_{attempt}")
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise UserError(f"{folder} holds 100 runs of this second; start again")


def _unfinished(folder: Path, config_hash: str) -> Path | None:
    for path in sorted(folder.glob(f"*/{IDENTITY}"), reverse=True):
        run = path.parent.parent
        identity = read_object(path)
        if identity.get("config_hash") == config_hash and not identity.get("finished"):
            return run
    return None


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; empty where there is none, or none that can be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
