"""A run's directory: nothing lost, nothing doubled, continued by what it is and not by where."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest

from experiments.runs.launch import Launch
from experiments.runs.store import RunStore, open_run, write_json
from interp.errors import UserError

CONFIG = {"name": "x", "seed": 0}


def open_x(
    root: Path, config_hash: str = "h", *, fresh: bool = False, name: str = "x", launch: Launch | None = None
) -> RunStore:
    return open_run(str(root), name, CONFIG, config_hash, fresh=fresh, launch=launch)


def cases(store: RunStore) -> list[str]:
    return [one["case"] for one in store.records()]


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


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        (store.path / "predictions.jsonl").write_text('{"case": "1"}\n{broken\n{"case": "2"}\n')
        with pytest.raises(UserError, match=r"predictions\.jsonl, line 2"):
            store.records()


def test_nan_is_never_written(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        with pytest.raises(ValueError, match="JSON"):
            store.append([{"margin": float("nan")}])
        with pytest.raises(ValueError, match="JSON"):
            write_json(store.path / "metrics.json", {"auroc": float("inf")})
        assert not (store.path / "metrics.json").exists()


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


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(tmp_path: Path) -> None:
    with open_x(tmp_path) as store:
        store.append([{"case": "1"}])
        draft = f".metrics.{os.getpid()}-{threading.get_ident()}.part.json"
        for name in ("skips.jsonl", draft):
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
