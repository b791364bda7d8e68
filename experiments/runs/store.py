"""The directory of a run: opened, appended to, merged and finished.

``outputs/<name>/<time>/`` holds ``predictions.jsonl`` and other JSON lines, appended and forced to disk by batch. A run
is unfinished until it is marked (``RunStore.finish``, or ``experiments.runs.analyses`` if analyses follow). The newest
unfinished run with an equal configuration hash continues. The hash covers the ``_target_`` paths of the configuration,
so a renamed module or a changed default begins a new run.

The processes of a launch share the directory. Rank 0 holds the lock and appends to ``predictions.jsonl``; rank 3
appends to ``predictions.3.jsonl``. Rank 0 merges these files whenever all processes wait for each other, and when a
launch begins.
"""

import glob
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
KEPT = "kept"  # a folder of what an interrupted analysis has measured; it goes when the analysis is done
LAG = 60.0  # seconds until all machines see the same state of a shared file system
_NUMBERED = re.compile(r"\.(\d+)\.jsonl$")


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
        lines = []
        for path, number, line in complete_lines(self.path / file):
            if isinstance(line, ValueError):
                raise UserError(
                    f"{path}, line {number} is not JSON; mend or delete that line, or start with fresh=true"
                ) from line
            lines.append(line)
        return lines

    def append(self, lines: Iterable[Mapping[str, Any]], file: str = PREDICTIONS) -> None:
        """Append the lines, and force them to disk before returning.

        Raises:
            UserError: the disk is full or the directory cannot be written; the file is left as it was.
        """
        rank = self.launch.rank
        path = self.path / (file if not rank else f"{Path(file).stem}.{rank}.jsonl")
        _append(path, "".join(_line(line) for line in lines).encode())

    def replace(self, lines: Iterable[Mapping[str, Any]], file: str = PREDICTIONS) -> None:
        """Replace a file by ``lines``, whole or not at all. Only rank 0 writes.

        Raises:
            UserError: it cannot be written; the old file stays.
        """
        if self.launch.first:
            write_text(self.path / file, "".join(map(_line, lines)))

    def wait(self) -> None:
        """Wait until all processes are here, merge what they appended, and go on when each sees the merged files.

        Raises:
            UserError: a process does not see what another one has written.
        """
        if self.launch.size == 1:
            return
        written = {path.name: _size(path) for path in self.path.glob(f"*.{self.launch.rank}.jsonl")}
        everyones = self.launch.everyones(written)
        if self.launch.first:
            for sizes in everyones:
                self._see(sizes)
            _merge(self.path)
        merged = {path.name: _size(path) for path in self.path.glob("*.jsonl") if not _NUMBERED.search(path.name)}
        self._see(self.launch.everyones(merged)[0])

    def _see(self, sizes: Mapping[str, int]) -> None:
        if not _seen(lambda: all(_size(self.path / name) >= size for name, size in sizes.items())):
            raise _not_shared(self.path, self.launch)

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
        path = Path(agreed["path"])
        if not _seen((path / IDENTITY).exists):
            raise _not_shared(path, launch)
        return RunStore(path, None, resumed=agreed["resumed"], launch=launch)
    unfinished = None if fresh else _unfinished(folder, config_hash)
    try:
        path = unfinished or _new_directory(folder)
        lock = _locked(path)
        identity = path / IDENTITY
        if not identity.exists():
            identity.parent.mkdir(exist_ok=True)
            (identity.parent / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
            write_json(identity, {"config_hash": config_hash, "finished": False})
        _mend(path)
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror}); make it writable or choose another place with output_root=<dir>"
        ) from error
    launch.everyones({"path": str(path), "resumed": unfinished is not None})
    return RunStore(path, lock, resumed=unfinished is not None, launch=launch)


def reopened(path: Path) -> RunStore:
    """Open an existing run, whatever its configuration, to add to it in a launch of one process.

    Raises:
        UserError: another process is writing it, or it cannot be written.
    """
    try:
        lock = _locked(path)
        _mend(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}); make it writable, or copy the run to where you may write"
        ) from error
    return RunStore(path, lock, resumed=True)


def complete_lines(path: Path) -> Iterator[tuple[Path, int, Any]]:
    """Yield file, line number and value of the lines of all processes in place of ``path``.

    An incomplete last line is left out. A line that is not JSON has a ValueError as its value.
    """
    for file in files_of(path):
        complete, _, _ = file.read_bytes().rpartition(b"\n")
        for number, value in parsed(complete.split(b"\n")):
            yield file, number, value


def files_of(path: Path) -> list[Path]:
    """Return the files of all processes in place of ``path``: its own, then the numbered ones that are not merged."""
    numbered = [file for file in path.parent.glob(f"{glob.escape(path.stem)}.*.jsonl") if _NUMBERED.search(file.name)]
    return [*([path] if path.exists() else []), *sorted(numbered, key=_number)]


def parsed(lines: Iterable[str | bytes]) -> Iterator[tuple[int, Any]]:
    """Yield the number, from 1, and the value of each line that is not blank; a ValueError if it is not JSON."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                yield number, error


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
    try:
        with atomic_write(path) as draft:
            draft.write_text(text, encoding="utf-8", errors="replace", newline="")
    except OSError as error:
        raise _unwritten(path, error) from error


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n"


def _append(path: Path, content: bytes) -> None:
    before = _size(path)
    try:
        with path.open("ab") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
    except OSError as error:
        if path.is_file():
            os.truncate(path, before)  # no half-written batch
        raise _unwritten(path, error) from error


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
    for file in sorted((file for file in folder.glob("*.jsonl") if _NUMBERED.search(file.name)), key=_number):
        _append(folder / _NUMBERED.sub(".jsonl", file.name), file.read_bytes())
        file.unlink()


def _number(file: Path) -> int:
    numbered = _NUMBERED.search(file.name)
    return int(numbered[1]) if numbered else 0


def _unwritten(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path} ({error.strerror}); make room and run the same command again to go on")


def _not_shared(path: Path, launch: Launch) -> UserError:
    return UserError(
        f"process {launch.rank} of {launch.size} does not see {path} as the first process does; the machines of a "
        "launch need one file system; choose a place on it with output_root=<dir>"
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _seen(look: Callable[[], bool]) -> bool:
    """Return whether ``look`` becomes true within ``LAG``: a network file system shows others' files with a delay."""
    end = time.monotonic() + LAG
    while not look():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


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
    for attempt in range(100):
        path = folder / (f"{stamp}_{attempt}" if attempt else stamp)
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise UserError(f"{folder} holds 100 runs of this second; start again")


def _unfinished(folder: Path, config_hash: str) -> Path | None:
    for path in sorted(folder.glob(f"*/{IDENTITY}"), reverse=True):
        identity = read_object(path)
        if identity.get("config_hash") == config_hash and not identity.get("finished"):
            return path.parent.parent
    return None
