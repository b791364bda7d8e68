"""The directory of a run: opened, appended to, merged and finished.

``outputs/<name>/<time>/`` holds ``predictions.jsonl`` and other JSON lines, appended and forced to disk by batch. A run
is unfinished until it is marked (``RunStore.finish``, or ``experiments.report.sections`` if analyses follow). The
newest unfinished run with an equal configuration hash continues. The hash covers the ``_target_`` paths of the
configuration, so a renamed module or a changed default begins a new run.

The processes of a launch share the directory. Rank 0 holds the lock and appends to ``predictions.jsonl``; rank 3
appends to ``predictions.3.jsonl``. Rank 0 merges these files whenever all processes wait for each other, and when a
launch begins.
"""

import itertools
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from omegaconf import OmegaConf

from experiments.runs.launch import Launch
from interp.atomic import atomic_write
from interp.errors import UserError

IDENTITY = ".hydra/identity.json"
PREDICTIONS = "predictions.jsonl"
_NUMBERED = re.compile(r"(.+)\.(\d+)\.jsonl")


class RunStore:
    """The open directory of one run, from ``open_run``; a context manager.

    ``launch`` are the processes that share it. ``resumed`` says whether it was there before.
    """

    def __init__(self, path: Path, lock: FileLock | None, *, resumed: bool, launch: Launch | None = None) -> None:
        self.path = path
        self.resumed = resumed
        self.launch = launch or Launch()
        self._lock = lock  # of rank 0

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        measured = any(self.path.glob("*.jsonl")) or any(self.path.glob("learned/**/*"))
        if kind is not None and self.launch.first and not self.resumed and not measured:
            shutil.rmtree(self.path, ignore_errors=self.launch.size > 1)  # as when the model could not be loaded
        self.close()

    def close(self) -> None:
        """Release the lock on the directory. The end of the process releases it too."""
        if self._lock is not None:
            self._lock.release()

    def finish(self) -> None:
        """Mark the run as finished, so that the same command begins a new one. Only rank 0 writes."""
        if self.launch.first:
            identity = self.path / IDENTITY
            write_json(identity, read_object(identity) | {"finished": True})

    def records(self, file: str = PREDICTIONS) -> list[dict[str, Any]]:
        """Return all complete lines; the latest line of a case and arm comes last.

        Raises:
            UserError: a line cannot be read.
        """
        lines = list(complete_lines(self.path / file))
        for path, number, line in lines:
            if isinstance(line, ValueError):
                raise UserError(f"{path}, line {number} is not JSON; correct or delete it, or start with fresh=true")
        return [line for _, _, line in lines]

    def append(self, lines: Iterable[Mapping[str, Any]], file: str = PREDICTIONS) -> None:
        """Append the lines, and force them to disk before returning.

        Raises:
            UserError: the disk is full or the directory cannot be written; the file is left as it was.
        """
        rank = self.launch.rank
        path = self.path / (f"{Path(file).stem}.{rank}.jsonl" if rank else file)
        _append(path, "".join(map(_line, lines)).encode())

    def replace(self, lines: Iterable[Mapping[str, Any]], file: str = PREDICTIONS) -> None:
        """Replace a file by ``lines``, whole or not at all. Only rank 0 writes.

        Raises:
            UserError: it cannot be written; the old file stays.
        """
        if self.launch.first:
            write_text(self.path / file, "".join(map(_line, lines)))

    def wait(self) -> None:
        """Wait until all processes are here, merge what they appended, and go on with the merged files."""
        self.launch.wait()
        if self.launch.size > 1 and self.launch.first:
            _merge(self.path)
        self.launch.wait()

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replace ``name`` by indented JSON, whole or not at all. Only rank 0 writes.

        Raises:
            UserError: the disk is full or the directory cannot be written; the old file stays.
        """
        if self.launch.first:
            write_json(self.path / name, value)


def open_run(
    output_root: str,
    name: str,
    config: Mapping[str, Any],
    config_hash: str,
    *,
    fresh: bool,
    launch: Launch | None = None,
) -> RunStore:
    """Continue the newest unfinished run with ``config_hash``, or begin a new one; the same for all processes.

    Raises:
        UserError: the directory cannot be written, ``name`` leaves it, or another launch is at work in the same run.
    """
    launch = launch or Launch.current()
    folder = Path(output_root) / name
    if not folder.resolve().is_relative_to(Path(output_root).resolve()):
        raise UserError(f"name={name!r}: must stay inside {output_root}; use letters, digits, '_' and '-'")
    launch.wait()  # until all have closed what they had open before
    if not launch.first:
        agreed = launch.everyones(None)[0]
        return RunStore(Path(agreed["path"]), None, resumed=agreed["resumed"], launch=launch)
    unfinished = None if fresh else _unfinished(folder, config_hash)
    with _writable(folder, "make it writable or choose another place with output_root=<dir>"):
        path = unfinished or _new_directory(folder)
        lock = _locked(path)
        identity = path / IDENTITY
        if not identity.exists():
            identity.parent.mkdir(exist_ok=True)
            (identity.parent / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
            write_json(identity, {"config_hash": config_hash, "finished": False})
        _mend(path)
    launch.everyones({"path": str(path), "resumed": unfinished is not None})
    return RunStore(path, lock, resumed=unfinished is not None, launch=launch)


def reopened(path: Path) -> RunStore:
    """Open an existing run of any configuration, to add to it in a launch of one process.

    Raises:
        UserError: another process is writing it, or it cannot be written.
    """
    with _writable(path, "make it writable, or copy the run to where you may write"):
        lock = _locked(path)
        _mend(path)
    return RunStore(path, lock, resumed=True)


def complete_lines(path: Path) -> Iterator[tuple[Path, int, Any]]:
    """Yield file, line number and value of the lines of all processes in place of ``path``.

    An incomplete last line and blank lines are left out. A line that is not JSON has a ValueError as its value.
    """
    for file in [*([path] if path.exists() else []), *_numbered(path.parent, path.stem)]:
        complete, _, _ = file.read_bytes().rpartition(b"\n")
        for number, line in enumerate(complete.decode("utf-8", "replace").split("\n"), start=1):
            if line.strip():
                try:
                    yield file, number, json.loads(line)
                except ValueError as error:
                    yield file, number, error


def _numbered(folder: Path, stem: str = "") -> list[Path]:
    """Return the files of processes other than the first, by their number; of one ``stem`` or of all."""
    files = ((file, _NUMBERED.fullmatch(file.name)) for file in folder.glob("*.jsonl"))
    numbered = [(int(name[2]), file) for file, name in files if name and name[1] in (stem or name[1],)]
    return [file for _, file in sorted(numbered)]


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in ``path``; empty if the file is missing or cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace ``path`` by indented JSON, whole or not at all.

    Raises:
        UserError: it cannot be written; the old file stays.
        ValueError: a number is NaN or infinite.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` in UTF-8, whole or not at all.

    Raises:
        UserError: it cannot be written; the old file stays.
    """
    with _writable(path), atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="replace", newline="")


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _append(path: Path, content: bytes) -> None:
    before = path.stat().st_size if path.exists() else 0
    with _writable(path):
        try:
            with path.open("ab") as handle:
                handle.write(content)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError:
            if path.is_file():
                os.truncate(path, before)  # no half-written batch
            raise


def _mend(folder: Path) -> None:
    """Mend what a killed launch left: cut off incomplete last lines, merge the files of its processes, remove drafts.

    No other process writes meanwhile.
    """
    for draft in folder.rglob(".*.part*"):
        shutil.rmtree(draft) if draft.is_dir() else draft.unlink()
    for file in folder.glob("*.jsonl"):
        content = file.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(file, content.rfind(b"\n") + 1)
    _merge(folder)


def _merge(folder: Path) -> None:
    """Append the numbered files to the file of rank 0 and remove them. A line twice, after a kill, counts once."""
    for file in _numbered(folder):
        _append(folder / f"{file.stem.rpartition('.')[0]}.jsonl", file.read_bytes())
        file.unlink()


@contextmanager
def _writable(path: Path, way_out: str = "make room and run the same command again to go on") -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); {way_out}") from error


def _locked(path: Path) -> FileLock:
    """Lock a run until the process ends.

    Raises:
        UserError: another launch holds the lock.
    """
    lock = FileLock(path / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"another process is writing {path}; wait for it, or start a second run with fresh=true"
        ) from None
    return lock


def _new_directory(folder: Path) -> Path:
    stamp = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for attempt in itertools.count():
        path = folder / (f"{stamp}_{attempt}" if attempt else stamp)
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError("unreachable")


def _unfinished(folder: Path, config_hash: str) -> Path | None:
    for path in sorted(folder.glob(f"*/{IDENTITY}"), reverse=True):
        identity = read_object(path)
        if identity.get("config_hash") == config_hash and not identity.get("finished"):
            return path.parent.parent
    return None
