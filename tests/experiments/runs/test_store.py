"""The run's store as a state machine: whatever is appended by whom, killed when and continued how, nothing is lost."""

import json
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from experiments.runs import record_fields
from experiments.runs.launch import Launch
from experiments.runs.record_fields import read_records
from experiments.runs.store import IDENTITY, PREDICTIONS, RunStore, open_run, read_object
from interp.errors import UserError
from tests.experiments.one_process import Alone

ARMS = ("b", "a")
TORN = '{"case": "ü'.encode()[:-1]
FILES = st.sampled_from((PREDICTIONS, "development.jsonl"))
sizes = st.integers(1, 3)


class Store(RuleBasedStateMachine):
    """A run's directory under launches of one to three processes, each killed at any moment.

    ``lines`` are what was appended to a file and is on disk, in order; ``latest`` of a case and arm the last answer.
    """

    @initialize(size=sizes)
    def begin(self, size: int) -> None:
        self.root = Path(tempfile.mkdtemp())
        self.lines: dict[str, list[str]] = {PREDICTIONS: [], "development.jsonl": []}
        self.latest: dict[tuple[str, str], int] = {}
        self.turn = self.finished = 0
        self.answer_prefix = False
        self.processes: list[RunStore] = []
        self.launch(size)

    def launch(self, size: int) -> None:
        """All processes of a launch, of which the first opens the run."""
        first = open_run(str(self.root), "x", {"a": 1}, "hash", fresh=False, launch=Alone(0, size))
        assert first.resumed is self.answer_prefix
        self.answer_prefix = True
        others = [RunStore(first.path, None, resumed=True, launch=Alone(rank, size)) for rank in range(1, size)]
        self.processes = [first, *others]

    @rule(file=FILES, arm=st.sampled_from(ARMS), cases=st.lists(st.integers(0, 4), min_size=1, max_size=4))
    def append(self, file: str, arm: str, cases: list[int]) -> None:
        """A batch of answers, lines of very different length; in a launch a case is one process' own."""
        batch, rank = [], cases[0] % len(self.processes)
        for case in (case for case in cases if case % len(self.processes) == rank):
            self.turn += 1
            batch.append({"case": f"c{case}", "arm": arm, "text": "ü\n" * (case**4), "turn": self.turn})
            if file == PREDICTIONS:
                self.latest[f"c{case}", arm] = self.turn
        self.processes[rank].append(batch, file)
        self.lines[file] += [json.dumps(line, ensure_ascii=False) for line in batch]

    @rule(torn=st.booleans(), rank=st.integers(0, 2), file=FILES, finished=st.sampled_from((False, False, True)),
          size=sizes)  # fmt: skip
    def end(self, torn: bool, rank: int, file: str, finished: bool, size: int) -> None:
        """The run ends, or all processes are killed and one was writing a line; then the command is given again."""
        store = self.processes[rank % len(self.processes)]
        name = f"{Path(file).stem}.{store.launch.rank}.jsonl" if store.launch.rank else file
        own = store.path / name
        with pytest.raises(UserError, match="another process is writing"):  # as long as the first one lives
            self.launch(size)
        if finished:
            store.finish()
            finished = store.launch.first
        elif torn and own.exists():
            with own.open("ab") as handle:
                handle.write(TORN)
        for process in self.processes:
            process.close()
        if finished:
            self.begin_anew()
        self.launch(size)

    def begin_anew(self) -> None:
        """The next launch finds nothing to continue."""
        self.lines = {file: [] for file in self.lines}
        self.latest = {}
        self.answer_prefix = False
        self.finished += 1

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every process sees every line once; of a case and arm the latest comes last."""
        for store in self.processes:
            for file, lines in self.lines.items():
                found = store.records(file)
                assert sorted(json.dumps(line, ensure_ascii=False) for line in found) == sorted(lines)
            current = {(line["case"], line["arm"]): line["turn"] for line in record_fields.current(store.records())}
            assert current == self.latest

    def teardown(self) -> None:
        runs = [read_object(path) for path in self.root.glob(f"x/*/{IDENTITY}")]
        assert sum(run["finished"] for run in runs) == self.finished
        for process in self.processes:
            process.close()
        shutil.rmtree(self.root)


TestStore = pytest.mark.long(Store.TestCase)
TestStore.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_the_order_is_the_same_no_matter_which_process_wrote(tmp_path: Path) -> None:
    answers = [{"case": f"c{case}", "arm": arm} for arm in ARMS for case in (2, 10, 1)]
    one, three = (open_run(str(tmp_path / str(size)), "x", {"a": 1}, "h", fresh=True) for size in (1, 3))
    with one, three:
        one.append(answers)
        for rank in (2, 0, 1):
            RunStore(three.path, None, resumed=True, launch=Alone(rank, 3)).append(answers[rank::3])
        expected = [{"case": f"c{case}", "arm": arm} for arm in ARMS for case in (1, 2, 10)]
        for store in (one, three):
            store.write_json("environment.json", {"config": {"arms": dict.fromkeys(ARMS)}})
            assert record_fields.ordered(store.records(), ARMS) == read_records(store.path) == expected
        assert [path.name for path in sorted(one.path.glob("*.jsonl"))] == [PREDICTIONS]
        assert len(list(three.path.glob("*.jsonl"))) == 3
    with open_run(str(tmp_path / "3"), "x", {"a": 1}, "h", fresh=False) as again:  # merged by the next launch
        assert [path.name for path in again.path.glob("*.jsonl")] == [PREDICTIONS]
        assert read_records(again.path) == expected


def test_processes_that_wait_merge_their_files(tmp_path: Path) -> None:
    meeting = threading.Barrier(2)
    told: dict[int, Any] = {}

    class Two(Launch):
        def everyones(self, value: Any) -> list[Any]:
            told[self.rank] = value
            meeting.wait(10)
            values = [told[0], told[1]]
            meeting.wait(10)
            return values

    first = open_run(str(tmp_path), "x", {"a": 1}, "h", fresh=True, launch=Alone(0, 2))
    stores = [RunStore(first.path, None, resumed=True, launch=Two(rank, 2)) for rank in range(2)]
    for rank, store in enumerate(stores):
        store.append([{"case": str(rank), "arm": "a"}])
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(RunStore.wait, stores))
    assert [path.name for path in first.path.glob("*.jsonl")] == [PREDICTIONS]
    assert [line["case"] for line in stores[1].records()] == ["0", "1"]
    first.close()


def test_what_a_later_launch_answers_replaces_what_another_process_had_answered() -> None:
    store = Store()
    store.begin(2)
    store.append(PREDICTIONS, "a", [1])  # by the second process
    store.end(False, 0, PREDICTIONS, False, 1)
    store.append(PREDICTIONS, "a", [1])
    store.nothing_is_lost()
    store.teardown()
