"""A run's directory: nothing lost, nothing doubled, continued by what it is and not by where."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.runs import shards
from experiments.runs.launch import Launch
from experiments.runs.resumption import RunStore, open_run, write_json
from interp.errors import UserError
from tests.experiments.writer_job import Alone

CONFIG = {"name": "x", "seed": 0}


def open_x(
    root: Path, config_hash: str = "h", *, fresh: bool = False, name: str = "x", launch: Launch | None = None
) -> RunStore:
    return open_run(str(root), name, CONFIG, config_hash, fresh=fresh, launch=launch)


def record(case: str, arm: str = "a") -> dict[str, str]:
    return {"case": case, "arm": arm, "settings": "s"}


def member(store: RunStore, rank: int, size: int) -> RunStore:
    """Another process of the launch that has opened ``store``."""
    return RunStore(store.path, (store.path / ".lock").open("a+"), resumed=True, launch=Alone(rank, size))


def cases(store: RunStore) -> list[str]:
    return [one["case"] for one in store.records()]


def test_records_come_back_in_order_across_appends(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        assert store.records() == []
        store.append([{"case": "1", "text": "ü\n"}])
        store.append([{"case": "2"}, {"case": "3"}])
        assert [record["case"] for record in store.records()] == ["1", "2", "3"]


def test_an_unfinished_run_is_continued_and_a_finished_one_is_not(tmp_path: Path) -> None:
    with open_x(tmp_path) as first:
        assert not first.resumed
    with open_x(tmp_path) as second:
        assert second.resumed
        assert second.path == first.path
        second.finish()
    with open_x(tmp_path) as third:
        assert not third.resumed
        assert third.path != first.path


def test_a_run_that_fails_before_its_first_answer_leaves_no_litter_and_one_with_answers_stays(tmp_path: Path) -> None:
    with pytest.raises(UserError), open_x(tmp_path) as empty:
        raise UserError("no such model")
    assert not empty.path.exists()
    begun = open_x(tmp_path)
    begun.append([{"case": "1"}])
    begun.__exit__(UserError, UserError("the disk is full"), None)
    assert begun.path.exists()


def test_another_configuration_or_fresh_begins_anew(tmp_path: Path) -> None:
    with open_x(tmp_path) as first:
        pass
    with open_x(tmp_path, "other") as other, open_x(tmp_path, fresh=True) as fresh:
        assert len({first.path, other.path, fresh.path}) == 3


def test_the_newest_unfinished_run_is_taken(tmp_path: Path) -> None:
    with open_x(tmp_path):
        pass
    with open_x(tmp_path, fresh=True) as newer:
        pass
    with open_x(tmp_path) as continued:
        assert continued.path == newer.path


@given(cut=st.integers(min_value=0, max_value=200))
def test_a_half_written_last_line_is_cut_and_the_rest_kept(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    with open_x(tmp_path_factory.mktemp("run")) as store:
        store.append([{"case": str(number), "response": "Yes. ümlaut"} for number in range(4)])
        path = store.path / "predictions.jsonl"
        raw = path.read_bytes()
        cut = min(cut, len(raw))
        path.write_bytes(raw[:cut])
        kept = store.records()
        assert [record["case"] for record in kept] == [str(number) for number in range(raw[:cut].count(b"\n"))]
        store.append([{"case": "next"}])
        assert [record["case"] for record in store.records()] == [*(record["case"] for record in kept), "next"]


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        (store.path / "predictions.jsonl").write_text('{"case": "1"}\n{broken\n{"case": "2"}\n')
        with pytest.raises(UserError, match=r"predictions\.jsonl, line 2"):
            store.records()


def test_a_second_process_is_refused_while_the_first_is_at_work(tmp_path: Path) -> None:
    with open_x(tmp_path) as store, pytest.raises(UserError, match="another process"):
        open_x(tmp_path)
    assert store.path.is_dir()


def test_nan_is_never_written(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        with pytest.raises(ValueError, match="JSON"):
            store.append([{"margin": float("nan")}])
        with pytest.raises(ValueError, match="JSON"):
            write_json(store.path / "metrics.json", {"auroc": float("inf")})
        assert not (store.path / "metrics.json").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="output_root"):
        open_x(tmp_path)


def test_a_file_in_the_way_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file")
    with pytest.raises(UserError, match=r"cannot write .*output_root=<dir>"):
        open_x(tmp_path / "outputs")


def test_a_name_cannot_leave_the_output_root(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must stay inside"):
        open_x(tmp_path, name="../elsewhere")


def test_json_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    write_json(path, {"a": 1})
    write_json(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_processes_append_to_parts_and_gathering_puts_them_in_one_process_order(tmp_path: Path) -> None:
    with open_x(tmp_path, launch=Alone(0, 2)) as first:
        first.append([record("before", "other")])
        first.gather()
        second = member(first, 1, 2)
        second.append([record("3"), record("4")])
        first.append([record("0"), record("1")])
        second.append([record("6"), record("7")])
        assert cases(first) == cases(second) == ["before"]  # what all agree on, until they gather
        places = {(str(case), "a", "s"): case // 2 for case in range(8)}
        second.gather(places=places)  # the first process' affair
        assert cases(first) == ["before"]
        first.gather(places=places)
        assert cases(first) == cases(second) == ["before", "0", "1", "3", "4", "6", "7"]
        second.append([record("2")])
        first.append([record("5")])
        first.gather(places=places)
        assert cases(first) == ["before", "0", "1", "3", "2", "4", "5", "6", "7"]  # within a batch as written
        assert sorted(path.name for path in first.path.glob("*.json*")) == ["predictions.jsonl"]


def test_what_a_killed_launch_left_is_found_by_any_number_of_processes(tmp_path: Path) -> None:
    with open_x(tmp_path, launch=Alone(0, 3)) as first:
        first.append([record("0")])
        for rank in (1, 2):
            member(first, rank, 3).append([record(str(rank))])
        with shards.part(first.path / "predictions.jsonl", 2).open("a") as torn:
            torn.write('{"case": "ha')
    with open_x(tmp_path) as alone:
        assert cases(alone) == ["0", "1", "2"]
        alone.append([record("-1")])
        alone.gather(places={(str(case), "a", "s"): case for case in range(-1, 3)})
        assert cases(alone) == ["-1", "0", "1", "2"]  # one process puts in order what several began


@pytest.mark.parametrize("moment", ["draft", "merged", "parts removed"])
def test_a_merge_cut_off_at_any_moment_is_taken_up(tmp_path: Path, moment: str) -> None:
    with open_x(tmp_path, launch=Alone(0, 2)) as first:
        first.append([record("0")])
        first.gather()
        first.append([record("1")])
        member(first, 1, 2).append([record("2")])
        path, lines = first.path / "predictions.jsonl", [json.dumps(record(case)) + "\n" for case in "012"]
        if moment == "draft":
            (first.path / "predictions.jsonl.part").write_text(lines[0][:5])
        else:
            (first.path / "predictions.jsonl.merged").write_text("".join(lines))
        if moment == "parts removed":
            shards.part(path, 0).unlink()
            shards.part(path, 1).unlink()
    with open_x(tmp_path) as again:
        assert cases(again) == ["0", "1", "2"]
        assert not again.path.joinpath("predictions.jsonl.merged").exists()
        assert shards.parts(path) == []


def test_a_launch_shares_its_lock_and_another_is_refused_while_any_of_its_processes_lives(tmp_path: Path) -> None:
    class Second(Alone):
        def agree(self, value: str | None) -> str:
            return json.dumps({"path": str(first.path), "resumed": False})

    first = open_x(tmp_path, launch=Alone(0, 2))
    second = open_x(tmp_path, launch=Second(1, 2))
    assert second.path == first.path
    for launch in (None, Alone(0, 2)):
        with pytest.raises(UserError, match="another process is writing"):
            open_x(tmp_path, launch=launch)
    first.close()  # killed
    with pytest.raises(UserError, match="another process is writing"):
        open_x(tmp_path)
    second.close()
    with open_x(tmp_path) as later:
        assert later.resumed


def test_machines_without_a_shared_file_system_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Alone):
        def agree(self, value: str | None) -> str:
            return json.dumps({"path": str(tmp_path / "there"), "resumed": False}) if value is None else "17"

    monkeypatch.setattr("experiments.runs.resumption.LAG", 0.05)
    with pytest.raises(UserError, match=r"process 1 of 2 does not see .*there as the first .*output_root=<dir>"):
        open_x(tmp_path, launch=Elsewhere(1, 2))
    with open_x(tmp_path, launch=Alone(0, 2)) as first:
        other = RunStore(first.path, (first.path / ".lock").open(), resumed=False, launch=Elsewhere(1, 2))
        with pytest.raises(UserError, match=r"does not see .*predictions\.jsonl"):
            other.gather()


def test_only_the_first_process_writes_tables_and_finishes(tmp_path: Path) -> None:
    with open_x(tmp_path, launch=Alone(0, 2)) as first:
        other = member(first, 1, 2)
        other.write_json("metrics.json", {"a": 1})
        other.finish()
        assert not (first.path / "metrics.json").exists()
        other.__exit__(UserError, UserError("x"), None)
        assert first.path.exists()
    with open_x(tmp_path) as again:
        assert again.resumed


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        store.append([{"case": "1"}])
        for name in ("skips.jsonl", "metrics.json.part"):
            (store.path / name).symlink_to("/dev/full")
        with pytest.raises(UserError, match=r"cannot write .*skips\.jsonl \(No space left on device\); make room"):
            store.append([{"case": "2"}], "skips.jsonl")
        with pytest.raises(UserError, match=r"cannot write .*metrics\.json \(No space left on device\); make room"):
            store.write_json("metrics.json", {"a": 1})
        (store.path / "skips.jsonl").unlink()
    with open_x(tmp_path) as again:
        assert again.resumed
        again.write_json("metrics.json", {"a": 2})
        assert cases(again) == ["1"]


def test_half_a_batch_is_taken_back_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes some bytes of the batch and then no more."""

    def full(handle: int) -> None:
        os.truncate(handle, os.fstat(handle).st_size - 5)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with open_x(tmp_path) as store:
        store.append([{"case": "1"}])
        before = (store.path / "predictions.jsonl").read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(UserError, match="No space left"):
                store.append([{"case": "2"}, {"case": "3"}])
        assert (store.path / "predictions.jsonl").read_bytes() == before


def test_a_merge_on_a_full_disk_keeps_the_parts(tmp_path: Path) -> None:
    with open_x(tmp_path, launch=Alone(0, 2)) as first:
        first.append([record("1")])
        draft = first.path / "predictions.jsonl.part"
        draft.symlink_to("/dev/full")
        with pytest.raises(UserError, match="No space left"):
            first.gather()
        draft.unlink()
        first.gather()
        assert cases(first) == ["1"]


@pytest.mark.parametrize("block", [3, 1 << 16])
def test_mending_finds_the_last_whole_line_at_any_distance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(shards, "BLOCK", block)
    path = tmp_path / "x.jsonl"
    expected: dict[bytes, bytes] = {b"": b"", b"half": b"", b"a\n": b"a\n", b"a\n\nhalf and more": b"a\n\n"}
    for raw, kept in expected.items():
        path.write_bytes(raw)
        shards.mend(path)
        assert path.read_bytes() == kept


def test_one_process_writes_into_one_file_and_puts_it_in_order(tmp_path: Path) -> None:
    """However its arms took turns, and however often it was killed: the order is that of the places."""
    with open_x(tmp_path) as store:
        store.append([record("1"), record("0")])
        assert cases(store) == ["1", "0"]
        store.gather()
        assert cases(store) == ["1", "0"]
        store.gather(places={("0", "a", "s"): 0, ("1", "a", "s"): 1})
        assert cases(store) == ["0", "1"]
        assert [path.name for path in store.path.glob("*.jsonl*")] == ["predictions.jsonl"]
