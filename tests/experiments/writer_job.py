"""A writer of a run's records that is killed again and again: ``python -m tests.experiments.writer_job <folder>``.

Nothing here needs torch. Each life is a fork that opens the run as one, two or three processes would (one after
another, since only the files count), appends what is missing and merges; the parent kills it after a random time. The
last line printed is JSON: how many lives were killed, how many runs came to their end, and what was wrong with them.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.launch import Launch
from experiments.runs.resumption import IDENTITY, PREDICTIONS, RunStore, open_run, read_object

ARMS, BATCHES, ROWS = 2, 5, 2
Batch = list[dict[str, str]]


@dataclass(frozen=True)
class Alone(Launch):
    """One of several processes where there is but one: it waits for nobody."""

    def wait(self) -> None: ...

    def agree(self, value: str | None) -> str:
        assert value is not None
        return value


def key(record: dict[str, str]) -> tuple[str, str, str]:
    return record["case"], record["arm"], record["settings"]


def batches(arm: int) -> list[Batch]:
    """What an undisturbed writer appends for an arm, batch by batch; lines of very different length."""
    return [
        [
            {"case": f"{batch}.{row}", "arm": f"arm{arm}", "settings": "s", "response": "ü\n" * (7**row * (1 + batch))}
            for row in range(ROWS)
        ]
        for batch in range(BATCHES)
    ]


def opened(root: Path, launch: Launch) -> RunStore:
    """The run in ``root``."""
    return open_run(str(root), "x", {"a": 1}, "hash", fresh=False, launch=launch)


def write(root: Path, size: int, *, order: random.Random) -> None:
    """A launch of ``size`` processes, whose appends come in any order."""
    with opened(root, Alone(0, size)) as store, (root / f"{store.path.name}.appended").open("a+b", 0) as appended:
        appended.seek(0)
        known = {line.decode() for line in appended.read().split(b"\n")[:-1]}
        for arm in range(ARMS):
            everything = batches(arm)
            places = {key(record): place for place, batch in enumerate(everything) for record in batch}
            done = {key(record) for record in store.records()}
            if forgotten := {case for case in known if case.startswith(f"arm{arm} ")} - {
                f"{a} {c}" for c, a, _ in done
            }:
                raise AssertionError(f"{len(forgotten)} appended records are gone")
            pending = [batch for batch in everything if any(key(record) not in done for record in batch)]
            for rank, batch in _mixed(pending, size, order):
                own = RunStore(store.path, store._lock, resumed=True, launch=Alone(rank, size))
                own.append([record for record in batch if key(record) not in done])
                appended.write("".join(f"{record['arm']} {record['case']}\n" for record in batch).encode())
            store.gather(PREDICTIONS, places)
        store.finish()


def _mixed(pending: list[Batch], size: int, order: random.Random) -> Iterator[tuple[int, Batch]]:
    shares = {rank: Alone(rank, size).share(pending) for rank in range(size)}
    while waiting := [rank for rank, share in shares.items() if share]:
        rank = order.choice(waiting)
        yield rank, shares[rank].pop(0)


def life(root: Path, size: int, seconds: float | None, seed: int) -> bool:
    """Forks a launch and kills it after ``seconds`` (None: not at all); True where it has come to its end."""
    child = os.fork()
    if child == 0:
        try:
            write(root, size, order=random.Random(seed))
        except BaseException as error:
            print(f"in a life: {error!r}", flush=True)
            os._exit(1)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)  # of a child that has ended it does nothing: nobody has waited for it yet
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), code
    return code == 0


def tear(root: Path, rng: random.Random) -> None:
    """Now and then leaves half a line, as a kill in the middle of a write would."""
    files = [path for path in sorted(root.glob("x/*/*.jsonl")) if not read_object(path.parent / IDENTITY)["finished"]]
    if files and rng.random() < 0.5:
        with rng.choice(files).open("ab") as handle:
            handle.write('{"case": "ü'.encode()[:-1])


def wrong(root: Path) -> list[str]:
    """What the finished runs in ``root`` have lost, doubled or put elsewhere."""
    runs = [path.parent.parent for path in (root / "x").glob(f"*/{IDENTITY}") if read_object(path)["finished"]]
    return ["nothing finished"] if not runs else [problem for run in runs for problem in _wrong(run)]


def _wrong(run: Path) -> list[str]:
    everything = [record for arm in range(ARMS) for batch in batches(arm) for record in batch]
    expected = [json.dumps(record, ensure_ascii=False) for record in everything]
    found = (run / PREDICTIONS).read_text(encoding="utf-8").split("\n")[:-1]
    problems = [f"{len(set(expected) - set(found))} lost"] if set(expected) - set(found) else []
    problems += [f"{len(found) - len(set(found))} doubled"] if len(found) > len(set(found)) else []
    problems += ["another order"] if not problems and found != expected else []
    left = [path.name for path in run.iterdir() if path.name not in (PREDICTIONS, ".hydra", ".lock")]
    return [*problems, f"left: {', '.join(left)}"] if left else problems


def main(folder: Path, kills: int) -> None:
    rng = random.Random(0)
    started = time.perf_counter()
    life(folder / "undisturbed", 2, None, 0)
    longest = time.perf_counter() - started
    killed = runs = 0
    problems = wrong(folder / "undisturbed")
    while killed < kills:
        root = folder / str(runs)
        if life(root, rng.choice([1, 2, 3]), rng.uniform(0, longest), rng.randrange(1000)):
            problems += wrong(root)
            runs += 1
        else:
            killed += 1
            tear(root, rng)
    life(folder / str(runs), 1, None, 0)
    problems += wrong(folder / str(runs))
    print(json.dumps({"killed": killed, "runs": runs + 1, "wrong": problems}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
