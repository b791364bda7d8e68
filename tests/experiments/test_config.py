"""Configuration: every one in conf/ composes, and mistakes are reported before any heavy import."""

import dataclasses
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import MISSING
from typing import Any

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object

from experiments.config import CONF, build_run, options_of
from experiments.config.run import defaults_of, with_defaults, written
from tests.experiments.compose import composed, run_of
from tests.experiments.test_command_line import fresh


def asks_for_a_file(method: str) -> bool:
    """True for methods that are nothing without a file that a person gives."""
    return "???" in str(with_defaults(written()[f"method/{method}"]))


@pytest.mark.long
@pytest.mark.parametrize("exp", options_of("exp"))
def test_every_experiment_composes_and_says_its_command(exp: str) -> None:
    config = composed(f"+exp={exp}")
    assert build_run(config.copy()).name == exp
    task = HydraConfig.get().runtime.choices.task
    assert exp == task or exp not in options_of("task")  # one thing has one name
    assert config != composed(f"task={task}")  # else the task alone would do
    assert f"python -m experiments.run +exp={exp}" in (CONF / "exp" / f"{exp}.yaml").read_text()


@pytest.mark.long
@pytest.mark.parametrize("task", [name for name in options_of("task") if name != "plan"])  # plan precedes another
def test_every_task_composes_under_its_own_name(task: str) -> None:
    config = composed(f"task={task}")
    assert config.name == task
    module, _, name = config.task._target_.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.long
@pytest.mark.parametrize("method", [name for name in options_of("method") if not asks_for_a_file(name)])
def test_every_method_composes_and_is_the_arm_under_study(method: str) -> None:
    run = run_of(f"method={method}")
    assert run.arm == method
    assert next(iter(run.arms)) == "baseline"
    assert method in run.arms


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """The node and those inside it that name a class of this project."""
    if isinstance(node, dict):
        if "_target_" in node and defaults_of(node["_target_"]):
            yield node
        for value in node.values():
            yield from nodes(value)


TARGETS = sorted({node["_target_"] for option in written().values() for node in nodes(option)})
OBJECTS = {  # options whose defaults YAML cannot hold: the class sets them
    "experiments.benchmarks.iconworld.traces.Traces": {"kinds"},
    "experiments.benchmarks.table.table": {"further"},
    "experiments.evaluation.study.run": {"after"},
    "experiments.studies.localise.study.Localise": {"questions"},
    "experiments.studies.mossbench_leaderboard.MOSSBenchLeaderboard": {"judge"},
    "experiments.studies.vrtuning.safety_rows.WrittenSafety": {"ask"},
    "mitigation.vrtuning.settings.Settings": {"targets"},
}


@pytest.mark.parametrize("target", TARGETS)
def test_the_options_that_hydra_composes_are_those_of_the_class(target: str) -> None:
    class_ = get_object(target)
    made = (
        {field.name: field.default_factory for field in dataclasses.fields(class_)} if inspect.isclass(class_) else {}
    )
    defaults = {}
    for name, parameter in inspect.signature(class_).parameters.items():
        factory = made.get(name, MISSING)
        given = parameter.default if factory is MISSING else factory()  # type: ignore[operator]
        defaults[name] = "???" if given is inspect.Parameter.empty else given
    assert defaults_of(target) == {
        name: value for name, value in defaults.items() if name not in OBJECTS.get(target, set())
    }


def test_no_file_repeats_a_default_of_a_class() -> None:
    repeated = [
        f"{option}: {name}={value}"
        for option, outer in written().items()
        if not option.startswith("exp/")  # whose settings stay what they are if a default changes
        for node in nodes(outer)
        for name, value in node.items()
        if defaults_of(node["_target_"]).get(name, ...) == value
    ]
    assert repeated == []


@pytest.mark.long
@pytest.mark.parametrize("model", options_of("model"))
def test_every_model_composes(model: str) -> None:
    open_ = ("model.model=some/api", "model.base_url=http://127.0.0.1:8000/v1") if model == "api" else ()
    config = composed(f"model={model}", *open_)
    assert build_run(config.copy()).model.name == model


@pytest.mark.long
def test_the_configuration_hash_ignores_where_and_how_a_run_is_started() -> None:
    base = run_of("+exp=vcd_llava").config_hash
    assert base == run_of("+exp=vcd_llava", "fresh=true", "output_root=elsewhere").config_hash
    for change in ("seed=1", "method.alpha=0.25", "limit=3", "batch_size=5", "benchmark.seed=2"):
        assert base != run_of("+exp=vcd_llava", change).config_hash


@pytest.mark.long
def test_help_and_mistakes_are_answered_without_torch_or_transformers() -> None:
    for arguments in (["--help"], ["nosuchkey=1"], ["method.alpha=-1"], ["+method.gamma=1"]):
        answer = fresh(*arguments)
        assert "HEAVY []" in answer.stdout, arguments
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: arms.vcd.gamma")
    assert "Traceback" not in answer.stderr


@pytest.mark.long
def test_another_method_takes_the_place_of_the_experiments_own() -> None:
    own = run_of("+exp=vcd_llava")
    assert (own.arm, own.config["method"]["noise_step"]) == ("vcd", 700)
    for exp in ("vcd_llava", "mitigation_selection"):
        run = run_of(f"+exp={exp}", "method=icd", "method.alpha=0.5")
        assert run.arm == "icd"
        assert "vcd" not in run.arms
        assert run.config["method"] == run_of("method=icd", "method.alpha=0.5").config["method"]
    beside = run_of("+exp=vcd_llava", "method=prompt")
    assert (beside.arm, list(beside.arms)[:2]) == ("prompt", ["baseline", "prompt"])
    assert beside.arms["text_only"] == run_of("method=text_only").arms["text_only"]
    heavy = run_of("+exp=vcd_llava", "method.alpha=2.5", "method.beta=0.2").config["arms"]["text_only"]
    assert (heavy["alpha"], heavy["beta"]) == (2.5, 0.2)
    assert run_of("+exp=vcd_llava").config_hash == run_of("+exp=vcd_llava", "method=tuned/vcd").config_hash
