"""A run's directory: begun or resumed, appended to, finished.

``outputs/<name>/<time>/`` with ``predictions.jsonl`` (one line per case and arm, appended and fsynced by batch). A run
is unfinished until it is marked: by ``finish`` or, where analyses follow its report, when none of them is missing
(``experiments.runs.analyses``). The newest unfinished one with an equal configuration hash is continued. That hash
covers the ``_target_`` paths of the configuration: after a module was renamed, or a default changed, the same command
begins a new run and leaves the unfinished one.

The processes of one launch share the directory: each appends to files of its own, and all read those of all
(``experiments.runs.records``). A process that continues alone what one process began appends to the same files.
"""

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from omegaconf import OmegaConf

from experiments.runs import records
from experiments.runs.launch import Launch
from interp.errors import UserError

IDENTITY = ".hydra/identity.json"
PREDICTIONS = "predictions.jsonl"
KEPT = "kept"  # a folder of what an interrupted analysis has measured; it goes when the analysis is done
BLOCK = 1 << 16  # bytes that are read at once from the end of a file
LAG = 60.0  # seconds until all machines see the same state of a shared file system


class RunStore:
    """The open directory of one run, from :func:`open_run`; a context manager, or closed with ``close``.

    ``launch`` are the processes that share it; ``resumed`` says whether it was there before; ``process`` is the number
    of the files that this one appends to.
    """

    def __init__(
        self, path: Path, lock: IO[str], *, resumed: bool, launch: Launch | None = None, process: int = 0
    ) -> None:
        self.path = path
        self.resumed = resumed
        self.launch = launch or Launch()
        self.process = process
        self._lock = lock

    def __enter__(self) -> "RunStore":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        known = any(self.path.glob("*.jsonl")) or any(self.path.glob("learned/**/*"))
        if kind is not None and self.launch.first and not self.resumed and not known:
            # Nothing was answered or learned, as when the model could not be loaded: remove the directory.
            shutil.rmtree(self.path, ignore_errors=self.launch.size > 1)
        self.close()

    def close(self) -> None:
        """Releases the lock on the directory, which the end of the process releases too."""
        self._lock.close()

    def finish(self) -> None:
        """Marks the run as finished: the same command then begins a new one. Only rank 0 writes."""
        if self.launch.first:
            identity = self.path / IDENTITY
            write_json(identity, read_object(identity) | {"finished": True})

    def records(self, file: str = PREDICTIONS) -> list[dict[str, Any]]:
        """All complete lines of all processes; of a case and arm the latest comes last.

        An incomplete last line of this process is cut off first, so that the next append starts on a new line. What
        other processes write at this moment may be among the lines: where all are to see the same, ``launch.wait``
        comes before and after.

        Raises:
            UserError: a line other than the last cannot be read.
        """
        mend(records.process_file(self.path / file, self.process))
        lines = []
        for path, number, line in records.complete_lines(self.path / file):
            if isinstance(line, ValueError):
                raise UserError(
                    f"{path}, line {number} is not JSON; mend or delete that line, or start with fresh=true"
                ) from line
            lines.append(line)
        return lines

    def append(self, lines: Iterable[Mapping[str, Any]], file: str = PREDICTIONS) -> None:
        """Appends the lines and forces them to disk before it returns.

        Raises:
            UserError: the disk is full or the directory cannot be written; the file is left as it was.
        """
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        path = records.process_file(self.path / file, self.process)
        before = _size(path)
        try:
            with path.open("a", encoding="utf-8") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
        except OSError as error:
            if path.is_file():
                os.truncate(path, before)  # no half-written batch
            raise _unwritten(path, error) from error

    def wait(self) -> None:
        """Waits until all processes are here and see what each of them has appended.

        Raises:
            UserError: this process does not see what another one has written.
        """
        if self.launch.size == 1:
            return
        sizes = {path.name: path.stat().st_size for path in self.path.glob("*.jsonl") if self._writes(path)}
        for theirs in self.launch.everyones(sizes):
            if not _seen(lambda theirs=theirs: all(_size(self.path / name) >= size for name, size in theirs.items())):  # type: ignore[misc]
                raise _not_shared(self.path, self.launch)

    def _writes(self, path: Path) -> bool:
        return records.process_of(path) == self.process

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Replaces ``name`` atomically. Only rank 0 writes.

        Raises:
            UserError: the disk is full or the directory cannot be written; what was there before stays.
        """
        if self.launch.first:
            write_json(self.path / name, value)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replaces ``path`` by indented JSON, atomically.

    Raises:
        UserError: it cannot be written; the old file stays.
        ValueError: a number is NaN or infinite.
    """
    temporary = path.with_name(path.name + ".part")
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path} ({error.strerror}); make room and run the same command again to go on")


def _not_shared(path: Path, launch: Launch) -> UserError:
    return UserError(
        f"process {launch.rank} of {launch.size} does not see {path} as the first process does; the machines of a "
        "launch need one file system; choose a place on it with output_root=<dir>"
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _seen(look: Callable[[], bool]) -> bool:
    """Whether ``look`` becomes true within ``LAG``: on a network file system others' files appear with a delay."""
    end = time.monotonic() + LAG
    while not look():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def open_run(
    output_root: str,
    name: str,
    config: Mapping[str, Any],
    config_hash: str,
    *,
    fresh: bool,
    launch: Launch | None = None,
) -> RunStore:
    """Continues the newest unfinished run with ``config_hash``, or begins a new one; the same for all processes.

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
        lock, process = _locked(path, fcntl.LOCK_SH), agreed["process"] + launch.rank
        return RunStore(path, lock, resumed=agreed["resumed"], launch=launch, process=process)
    unfinished = None if fresh else _unfinished(folder, config_hash)
    try:
        path = unfinished or _new_directory(folder)
        lock = _locked(path, fcntl.LOCK_EX)
        _prepare(path, config, config_hash)
        process = _first_process(path, launch)
    except OSError as error:
        raise UserError(
            f"cannot write {folder} ({error.strerror}); make it writable or choose another place with output_root=<dir>"
        ) from error
    if launch.size > 1:
        _lock(lock, fcntl.LOCK_SH, path)  # from now on the others may join
        launch.everyones({"path": str(path), "resumed": unfinished is not None, "process": process})
    return RunStore(path, lock, resumed=unfinished is not None, launch=launch, process=process)


def reopened(path: Path) -> RunStore:
    """The directory of a run that is there, whatever its configuration, to add to it; in a launch of one process.

    Raises:
        UserError: another process is writing it, or it cannot be written.
    """
    try:
        lock = _locked(path, fcntl.LOCK_EX)
        return RunStore(path, lock, resumed=True, process=_first_process(path, Launch()))
    except OSError as error:
        raise UserError(
            f"cannot write {path} ({error.strerror}); make it writable, or copy the run to where you may write"
        ) from error


def _prepare(path: Path, config: Mapping[str, Any], config_hash: str) -> None:
    """Writes the identity of a new run, or mends what an earlier launch has left. No other process writes."""
    identity = path / IDENTITY
    if not identity.exists():
        identity.parent.mkdir(exist_ok=True)
        (identity.parent / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(dict(config))))
        write_json(identity, {"config_hash": config_hash, "finished": False})
    for file in path.glob("*.jsonl"):
        mend(file)


def _first_process(path: Path, launch: Launch) -> int:
    """The number of this launch's first process: 0 where it is alone and no other had more, else after all others.

    So the files of a later launch come after those of an earlier one.
    """
    numbers = [records.process_of(file) for file in path.glob("*.jsonl")]
    return 0 if not numbers or (launch.size == 1 and max(numbers) == 0) else max(numbers) + 1


def mend(path: Path) -> None:
    """Cuts off an incomplete last line, where there is one."""
    if not path.exists():
        return
    with path.open("rb+") as handle:
        end = handle.seek(0, os.SEEK_END)
        place = end
        while place:
            start = max(0, place - BLOCK)
            handle.seek(start)
            if (found := handle.read(place - start).rfind(b"\n")) >= 0:
                place = start + found + 1
                break
            place = start
        if place < end:
            handle.truncate(place)


def _locked(path: Path, kind: int) -> IO[str]:
    lock = (path / ".lock").open("a+")  # over NFS a shared lock needs a file that can be read
    _lock(lock, kind, path)
    return lock


def _lock(lock: IO[str], kind: int, path: Path) -> None:
    """Locks until the process ends, exclusively (rank 0) or shared by the processes of a launch.

    Raises:
        UserError: another launch holds the lock.
    """
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise UserError(
            f"another process is writing {path}; wait for it, or start a second run with fresh=true"
        ) from error


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
    """The JSON object in ``path``; empty where the file is missing or cannot be read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
