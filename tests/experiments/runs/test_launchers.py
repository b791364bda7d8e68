"""The presets of Hydra's launchers compose."""

from pathlib import Path

import pytest
from hydra import compose, initialize
from hydra.core.global_hydra import GlobalHydra

import conf
from experiments.config import register
from experiments.runs.launch import Launch
from interp.checkpoints.config import ModelConfig
from interp.errors import UserError

PLUGINS = {"processes": "submitit", "slurm": "submitit", "ray_cluster": "ray"}
PRESETS = sorted(path.stem for path in (Path(conf.__file__).parent / "hydra" / "launcher").glob("*.yaml"))


def needs(plugin: str) -> None:
    extra = "slurm" if plugin == "submitit" else plugin
    pytest.importorskip(f"hydra_plugins.hydra_{plugin}_launcher", reason=f"pip install 'forestlens[{extra}]'")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_composes_and_says_its_command(preset: str) -> None:
    assert f"hydra/launcher={preset}" in (Path(conf.__file__).parent / f"hydra/launcher/{preset}.yaml").read_text()
    needs(PLUGINS[preset])
    register()
    GlobalHydra.instance().clear()
    with initialize(config_path=None, version_base="1.3"):
        config = compose("config", overrides=[f"hydra/launcher={preset}"], return_hydra_config=True)
    launcher = config.hydra.launcher
    target = {"processes": "LocalLauncher", "slurm": "SlurmLauncher", "ray_cluster": "RayLauncher"}[preset]
    assert launcher._target_.endswith(target)
    if preset == "slurm":
        assert (launcher.gpus_per_node, launcher.max_num_timeout) == (1, 10)


def test_a_model_over_all_cards_is_one_process() -> None:
    spread = ModelConfig("spread", "a/b", device_map="auto")
    assert Launch().placed(spread) == spread
    with pytest.raises(UserError, match=r"WORLD_SIZE=2 and model.device_map=auto: .*spread over all cards; start one"):
        Launch(rank=0, size=2).placed(spread)
