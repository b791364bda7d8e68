"""``task=publish``: the folder and its card."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from experiments.report.saved_run import read_run
from experiments.runs.results_table import read_results
from experiments.studies.publish import card
from interp.errors import UserError
from interp.tensor_file import read_tensors
from mitigation.own_file import OwnLearner, file_digest
from mitigation.vrtuning.checkpoint import adapter_hash
from tests.experiments.compose import ran, run_of
from tests.experiments.evaluation.test_faulty_method import own
from tests.experiments.evaluation.test_learning_file import SCORES
from tests.experiments.synthetic_run import predictions, with_environment, write_run
from tests.snapshots import check

VCD = {"_target_": "mitigation.vcd.VCD", "alpha": 1.0}


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A finished run with an arm of settings alone, on a model of the hub."""
    folder = write_run(tmp_path / "run", predictions(80), draws=50)
    config = {"seed": 0, "protocol": "generate", "max_new_tokens": 8, "arms": {"baseline": {}, "vcd": VCD}}
    model = {"name": "llava", "path": "llava-hf/llava-1.5-7b-hf", "revision": "f" * 40, "dtype": "bfloat16"}
    return with_environment(folder, config=config, model=model, command="python -m experiments.run note='```x'")


def publish(folder: Path, *overrides: str) -> None:
    run = run_of("task=publish", f"run={folder}", *overrides)
    run.task(run)


@pytest.mark.long
def test_the_card_has_table_intervals_statements_limits_command_and_versions(finished: Path) -> None:
    publish(finished, "task.license=apache-2.0")
    text = (finished / "published" / "README.md").read_text(encoding="utf-8")
    check(Path(__file__).with_name("snapshots") / "card.txt", text)
    auroc = read_results(finished).get("vcd", "auroc")
    assert re.search(rf"^\| vcd .*\| {auroc.value:.3f} \[\d\.\d+–\d\.\d+\] ", text, re.MULTILINE)
    for record in predictions(4):  # no case goes out
        assert record["text"] not in text
    (shown,) = re.findall(r"^```json\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)  # which the command cannot end
    assert json.loads(shown) == json.loads((finished / "published" / "settings.json").read_text())


def test_text_of_a_model_is_no_markup(finished: Path) -> None:
    with_environment(finished, model={"name": "<img src=x onerror=alert(1)>[a](b)", "path": "organism:llava"})
    text = card(read_run(finished), "vcd", {})
    said = text.partition("---\n\n")[2].partition("## Settings")[0]
    assert "<img" not in re.sub(r"\\<", "", said)
    assert "](b)" not in re.sub(r"\\\]", "", said)
    assert "evidence about no real model" in text
    assert "base_model" not in text.split("---\n")[1]


def adapter(folder: Path, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text("{}")
    return folder


@pytest.mark.long
def test_an_adapter_of_the_run_goes_in_and_another_does_not(finished: Path) -> None:
    wanted, _ = adapter(finished / "adapters" / "b" / "adapter"), adapter(finished / "adapters" / "a" / "adapter", b"x")
    config = {"arms": {"baseline": {}, "vcd": {"_target_": "x.NewAdapter", "adapter": "b"}}}
    model = {"name": "llava", "path": "llava-hf/llava-1.5-7b-hf", "adapters": {"vcd": adapter_hash(wanted)}}
    publish(with_environment(finished, config=config, model=model))
    sent = finished / "published"
    assert (sent / "adapter_model.safetensors").read_bytes() == b"weights"
    head = yaml.safe_load((sent / "README.md").read_text().split("---\n")[1])
    assert head["library_name"] == "peft"
    code = (sent / "README.md").read_text().partition("```python\n")[2].partition("```")[0]
    compile(code, "card", "exec")
    assert 'AutoModelForImageTextToText.from_pretrained("llava-hf/llava-1.5-7b-hf", revision=None)' in code
    config = json.loads((sent / "adapter_config.json").read_text())
    assert config == {"base_model_name_or_path": "llava-hf/llava-1.5-7b-hf"}
    (wanted / "adapter_config.json").write_text("{ }")
    with pytest.raises(UserError, match="vcd answered with the adapter sha256:"):
        publish(finished)


@pytest.mark.long
def test_an_adapter_names_its_model_on_the_hub_and_no_folder_of_this_machine(finished: Path, tmp_path: Path) -> None:
    folder, home = adapter(finished / "adapters" / "b" / "adapter"), str(tmp_path / "home" / "weights")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": home, "r": 8}))
    record = {"base": "llava", "base_path": home, "settings": {"data": f"{home}/train.csv"}, "steps": 3}
    (folder / "vrtuning.json").write_text(json.dumps(record))
    config = {"arms": {"baseline": {}, "vcd": {"_target_": "x.NewAdapter", "adapter": str(folder)}}}
    model = {"name": "llava", "path": home, "adapters": {"vcd": adapter_hash(folder)}}
    command = f"python -m experiments.run model.path={home} 'arms.b.settings={{path: {home}/b.py}}' task.repo=a/b/c"
    with_environment(finished, config=config, model=model, command=command)
    with pytest.raises(UserError, match=r"trained on the model in the folder .*weights, .* task\.base=owner/name"):
        publish(finished)
    assert not (finished / "published").exists()
    publish(finished, "task.base=owner/base")
    sent = finished / "published"
    found = {path.name: path.read_bytes().decode(errors="replace") for path in sent.iterdir()}
    assert [name for name, text in found.items() if str(tmp_path) in text] == []
    assert json.loads(found["adapter_config.json"]) == {"base_model_name_or_path": "owner/base", "r": 8}
    assert json.loads(found["vrtuning.json"]) == {
        "base": "llava", "base_path": "owner/base", "settings": {"data": "train.csv"}, "steps": 3,
    }  # fmt: skip
    assert yaml.safe_load(found["README.md"].split("---\n")[1])["base_model"] == "owner/base"
    assert "model.path=weights 'arms.b.settings={path: b.py}' task.repo=a/b/c" in found["README.md"]


@pytest.mark.long
def test_what_a_file_of_the_users_learned_is_published_with_the_file(saved: Path, tmp_path: Path) -> None:
    folder = ran(own(saved, tmp_path, SCORES, "limit=24", "batch_size=24"))
    publish(folder)
    sent = folder / "published"
    assert sorted(path.name for path in sent.iterdir()) == [
        "README.md", "learned.safetensors", "mine.py", "settings.json",
    ]  # fmt: skip
    assert read_tensors(sent / "learned.safetensors", OwnLearner.KIND).about["code"] == file_digest(SCORES.encode())
    assert 'method.read(Path("learned.safetensors"))' in (sent / "README.md").read_text()
    assert json.loads((sent / "settings.json").read_text())["method"]["path"] == "mine.py"
    assert str(tmp_path) not in (sent / "settings.json").read_text() + (sent / "README.md").read_text()
    (tmp_path / "mine.py").write_text(SCORES + "\n")
    with pytest.raises(UserError, match=r"mine was answered by .*mine.py with the digest .* has changed"):
        publish(folder)
    (tmp_path / "mine.py").write_text(SCORES)
    (folder / "learned" / "mine.safetensors").rename(folder / "learned" / "mine-without-fold-0.safetensors")
    with pytest.raises(UserError, match=r"mine was learned in folds"):
        publish(folder)


@pytest.mark.long
@pytest.mark.parametrize(
    ("overrides", "environment", "said"),
    [
        (["task.arm=nowhere"], {}, "has no results of an arm nowhere; it has vcd, calibrated_shift, prompt"),
        ([], {"finished": None}, "is not finished"),
    ],
)
def test_what_cannot_be_published_is_said(
    finished: Path, overrides: list[str], environment: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        publish(with_environment(finished, **environment), *overrides)
    assert not (finished / "published").exists()
