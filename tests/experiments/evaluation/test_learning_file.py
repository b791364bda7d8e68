"""A method that learns, in a file of the user's: on labelled cases, saved, resumed, in folds; what is wrong is said."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.benchmarks.iconworld import IconWorld
from experiments.config import Run
from experiments.evaluation.training import examples, learned, learned_in
from experiments.runs.launch import Launch
from experiments.runs.resumption import open_run
from experiments.serving.served import served
from interp.errors import UserError
from interp.tensor_file import read_tensors
from interp.vlm import VLM, Prompt
from mitigation.method import MethodFault, TrainableMethod, abilities
from mitigation.own_file import OwnFile, OwnLearner, own_method
from mitigation.wrappers import Shifted, ShiftedTrainable
from tests.experiments.compose import only_run, run_of
from tests.experiments.evaluation.test_training import WithoutDevelopment

KEYS = """
def learn(vlm, prompts, safe):
    return {prompt.key: float(label) for prompt, label in zip(prompts, safe)}


def ask(prompt, *, learned, strict=False):
    assert prompt.key not in learned, "asked about a case that it was taught"
    return prompt
"""
SCORES = """
def learn(vlm, prompts, safe):
    return {"margins": vlm.batches.scores(prompts)}


def rule(scores, step, *, learned, prompts):
    assert len(prompts) == len(scores)
    return scores + learned["margins"].mean()
"""


def own(saved: Path, folder: Path, code: str, *overrides: str) -> Run:
    (folder / "mine.py").write_text(code)
    return run_of(
        "method=file", f"method.path={folder}/mine.py", f"model.path={saved}", f"output_root={folder}/outputs",
        "limit=24", "draws=20", "batch_size=4", "batch_tokens=null", "max_new_tokens=1", *overrides,
    )  # fmt: skip


@pytest.fixture
def cases() -> tuple[list[Prompt], list[bool]]:
    return examples([sample for sample in IconWorld().development().samples if sample.subset != "control"][:10])


@contextmanager
def scoring(vlm: type[VLM] | VLM, before: Callable[[list[Prompt]], None]) -> Iterator[None]:
    """Calls ``before`` with the prompts of every ``score``."""
    plain = VLM.score

    def watched(self: VLM, prompts: Any, **options: Any) -> Any:
        before(prompts)
        return plain(self, prompts, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(VLM, "score", watched)
        yield


def test_a_file_with_learn_is_a_method_that_learns(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KEYS)
    path = str(tmp_path / "mine.py")
    method = own_method(path, {"strict": True})
    assert isinstance(method, OwnLearner)
    assert isinstance(method, TrainableMethod)
    assert not abilities(method).works_over_api
    assert isinstance(own_method(path, shift=1.0), ShiftedTrainable)
    with pytest.raises(UserError, match="it learns first; make it with OwnLearner"):
        OwnFile(path)
    (tmp_path / "mine.py").write_text("def ask(prompt): return prompt\n")
    assert isinstance(own_method(path), OwnFile)
    assert isinstance(own_method(path, shift=1.0), Shifted)
    assert not isinstance(own_method(path), TrainableMethod)


def test_what_is_learned_is_saved_and_comes_back(
    vlm: VLM, tmp_path: Path, cases: tuple[list[Prompt], list[bool]]
) -> None:
    code = """
import torch

def learn(vlm, prompts, safe):
    one = torch.arange(3.0)
    tensors = {"one": one, "same": one, "exact": one.double(), "ids": torch.tensor([5, 7]), "safe": torch.tensor(safe)}
    return tensors | {"count": len(prompts), "share": sum(safe) / len(safe)}

def rule(scores, step, *, learned, factor=1.0):
    assert learned["exact"].dtype == torch.float32 and torch.equal(learned["one"], learned["same"])
    assert learned["ids"].dtype == torch.int64 and learned["ids"].tolist() == [5, 7] and type(learned["count"]) is int
    return scores * 0 + factor * learned["share"]
"""
    (tmp_path / "mine.py").write_text(code)
    out, method = tmp_path / "learned.safetensors", own_method(str(tmp_path / "mine.py"), {"factor": 3.0})
    taught = method.learn(vlm, *cases, out=out)
    about = read_tensors(out, OwnLearner.KIND).about
    assert read_tensors(out, OwnLearner.KIND).tensors["safe"].tolist() == cases[1]
    assert (about["numbers"]["count"], about["n"], about["revision"]) == (10, 10, vlm.revision)
    assert method.read(out) == taught
    assert taught.learned_digest in repr(taught)
    assert taught.generate(vlm, cases[0], max_new_tokens=1).margins.tolist() == pytest.approx([0.0] * 10, abs=1e-5)
    other = VLM(vlm.model, vlm.processor, name="other")
    other.revision = "sha256:other"
    with pytest.raises(UserError, match=r"learned on .* which differs from other in its weights .*sha256:other"):
        taught.generate(other, cases[0], max_new_tokens=1)


@pytest.mark.long
def test_without_a_development_split_it_learns_in_folds(saved: Path, tmp_path: Path) -> None:
    run = replace(own(saved, tmp_path, KEYS, "limit=40"), benchmark=WithoutDevelopment())
    run.task(run)  # KEYS refuses a case that it was taught
    lines = [json.loads(line) for line in (only_run(run) / "predictions.jsonl").read_text().splitlines()]
    fold = {line["case"]: line["fold"] for line in lines if line["arm"] == "mine" and line["subset"] != "control"}
    assert len(set(fold.values())) == 5
    for number in set(fold.values()):
        file = only_run(run) / "learned" / f"mine-without-fold-{number}.safetensors"
        taught = read_tensors(file, OwnLearner.KIND).about["numbers"]
        assert set(taught) == {case for case, own_fold in fold.items() if own_fold != number}


def table(folder: Path, development: str) -> tuple[str, ...]:
    from PIL import Image

    Image.new("RGB", (24, 24), "red").save(folder / "a.png")
    rows = [f"t{n},a.png,Is it safe {n}?,{'safe' if n % 2 else 'unsafe'}" for n in range(6)]
    (folder / "cases.csv").write_text("\n".join(["id,image,text,label", *rows]) + "\n")
    (folder / "development.csv").write_text(development)
    return ("benchmark=table", f"benchmark.path={folder}/cases.csv", f"benchmark.development={folder}/development.csv")


NOTHING = "arm mine cannot learn: the development split has no safe and no unsafe case"


@pytest.mark.parametrize("rows", ["", "id,image,text,label\n"])
def test_a_development_split_that_is_named_and_empty_is_refused(
    saved: Path, tmp_path: Path, rows: str, no_weights: None
) -> None:
    run = own(saved, tmp_path, KEYS, *table(tmp_path, rows))
    with pytest.raises(UserError, match=r"development\.csv has no rows"):
        run.task(run)


def test_a_development_split_of_controls_is_refused(saved: Path, tmp_path: Path, no_weights: None) -> None:
    class Controls(WithoutDevelopment):
        clusters_recur = True

        def development(self) -> Any:  # type: ignore[override]
            of = IconWorld().development()
            return of._replace(samples=[sample for sample in of.samples if sample.subset == "control"])

    run = replace(own(saved, tmp_path, KEYS), benchmark=Controls())
    with pytest.raises(UserError, match=NOTHING):
        run.task(run)


@pytest.mark.long
def test_a_learning_that_was_killed_goes_on_where_it_was(saved: Path, tmp_path: Path) -> None:
    run, seen = own(saved, tmp_path, SCORES), []

    def die_at_the_third(prompts: list[Prompt]) -> None:
        seen.append([prompt.key for prompt in prompts])
        if len(seen) == 3:
            raise KeyboardInterrupt

    with scoring(VLM, die_at_the_third), pytest.raises(KeyboardInterrupt):
        run.task(run)
    assert not list(only_run(run).glob("learned/*.safetensors"))
    again: list[Any] = []
    with scoring(VLM, lambda prompts: again.append([prompt.key for prompt in prompts])):
        run.task(run)
    assert again[0] == seen[2]
    assert not {key for batch in seen[:2] for key in batch} & {key for batch in again for key in batch}
    taught = read_tensors(only_run(run) / "learned" / "mine.safetensors", OwnLearner.KIND)
    assert len(taught.tensors["margins"]) == taught.about["n"] == len({k for b in seen[:2] + again for k in b})


@pytest.mark.long
def test_where_memory_runs_out_it_learns_with_half(saved: Path, tmp_path: Path) -> None:
    def too_many(prompts: list[Prompt]) -> None:
        if len(prompts) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")

    run = own(saved, tmp_path, SCORES)
    with scoring(VLM, too_many):
        run.task(run)
    lines = [json.loads(line) for line in (only_run(run) / "memory.jsonl").read_text().splitlines()]
    assert {"arm": "mine, learning", "rows": 2} in lines


@pytest.mark.long
def test_changed_code_learns_again(vlm: VLM, tmp_path: Path, cases: tuple[list[Prompt], list[bool]]) -> None:
    samples = [sample for sample in IconWorld().development().samples if sample.subset != "control"][:10]
    file, counted = tmp_path / "mine.py", []
    with open_run(str(tmp_path), "x", {}, "hash", fresh=True) as store, scoring(VLM, counted.append):
        for code in (SCORES, SCORES, f"{SCORES}\n# changed\n"):
            file.write_text(code)
            learned_in(store, "mine", own_method(str(file)), vlm, samples)
        assert sum(map(len, counted)) == 20
        other = VLM(vlm.model, copy.deepcopy(vlm.processor), name=vlm.name, revision=vlm.revision)
        other.processor.image_processor.image_mean = [0.0, 0.0, 0.0]
        for model in (vlm, other, other):
            taught = learned_in(store, "mine", own_method(str(file)), model, samples)
        assert sum(map(len, counted)) == 30  # another processor's states are others
        with pytest.raises(UserError, match="in its configuration, processor, chat template or tokenizer"):
            taught.generate(vlm, cases[0], max_new_tokens=1)
    out = tmp_path / "learned.safetensors"
    own_method(str(file)).learn(vlm, *cases, out=out)
    file.write_text(SCORES)
    with pytest.raises(UserError, match=r"arm mine: .* was learned with code [0-9a-f]{12}, and mine\.py has"):
        learned("mine", own_method(str(file)), vlm, samples, out, Launch())


@pytest.mark.long
def test_what_was_learned_is_served(saved: Path, tmp_path: Path) -> None:
    run = own(saved, tmp_path, SCORES)
    run.task(run)
    (tmp_path / "mine.py").write_text(f"{SCORES}\n# changed\n")
    ask = (
        "task=serve",
        f"run={only_run(run)}",
        f"model.path={saved}",
        "method=file",
        f"method.path={tmp_path}/mine.py",
    )
    with pytest.raises(UserError, match="was learned with code"):
        served(run_of(*ask))
    (tmp_path / "mine.py").write_text(SCORES)
    (name,) = [name for name in served(run_of(*ask)) if name.endswith("+mine")]
    assert served(run_of(*ask))[name].learned_digest


LEARN = "def learn(vlm, prompts, safe):\n    return {}\n\n\ndef rule(scores, step, *, learned):\n    return scores\n"


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("{}", "learn returned nothing; learn"),
        ("[1.0]", "learn returned list; learn"),
        ("{'a': 'text'}", "learn returned str as 'a'; learn"),
        ("{1: 1.0}", "learn returned float as 1; learn"),
        ("{'a': float('nan')}", "learn returned 'a' with values that are not finite"),
        ("{'a': vlm.score(prompts) / 0}", "learn returned 'a' with values that are not finite"),
        ("{'a': prompts[0].words}", r"learn raised AttributeError: .* \(mine.py, line 2\); learn"),
    ],
)
def test_what_learn_owes_is_said(
    vlm: VLM, tmp_path: Path, cases: tuple[list[Prompt], list[bool]], returned: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(LEARN.replace("{}", returned))
    with pytest.raises(MethodFault, match=said):
        own_method(str(tmp_path / "mine.py")).learn(vlm, *cases, out=tmp_path / "x.safetensors")
    assert not (tmp_path / "x.safetensors").exists()


@pytest.mark.parametrize(
    ("code", "settings", "said"),
    [
        (LEARN.replace(", *, learned", ""), {}, "its parameter learned, and one of the two is missing"),
        (LEARN.partition("\n\n\n")[2], {}, "its parameter learned, and one of the two is missing"),
        (
            LEARN.replace("safe", "labels, more"),
            {},
            r"learn\(vlm, prompts, labels, more\) is called as learn\(vlm, pro",
        ),
        (LEARN, {"learned": 1}, "learned is given, and no setting"),
        (LEARN, {"scale": 1}, "with the settings {'scale': 1}"),
        ("def learn(vlm, prompts, safe): 0\n\nclass M:\n    def generate(s): 0\n", {}, "learn goes with a function"),
        ("def learn(vlm, prompts, safe): 0\n", {}, "a file has one method and there is none"),
    ],
)
def test_a_file_that_learns_is_read_before_weights_are(
    tmp_path: Path, code: str, settings: dict[str, Any], said: str
) -> None:
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(UserError, match=said):
        own_method(str(tmp_path / "mine.py"), settings)
