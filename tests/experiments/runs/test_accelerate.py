"""The files for ``accelerate launch``: accelerate reads them, and what FSDP is to wrap is there in every family."""

import re
from pathlib import Path

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy

import conf
from interp.module_map import module_map_of
from tests.families import FAMILIES, every_family

FOLDER = Path(conf.__file__).parent / "accelerate"
FILES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
TYPES = {"cpu_two_processes": "MULTI_GPU", "deepspeed_zero3": "DEEPSPEED", "fsdp": "FSDP", "multi_gpu": "MULTI_GPU"}
FSDP = (FOLDER / "fsdp.yaml").read_text()
WRAPPED = {
    family: names.split(",")
    for names, families in re.findall(r"#   ([\w,]+): ([\w, ]+)", FSDP)
    for family in families.split(", ")
}


@pytest.mark.parametrize("name", FILES)
def test_accelerate_reads_it(name: str) -> None:
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.distributed_type == TYPES[name]
    assert (config.num_machines, config.num_processes) == (1, 2 if name.startswith("cpu") else 8)
    assert f"--config_file conf/accelerate/{name}.yaml" in (FOLDER / f"{name}.yaml").read_text()


def test_fsdp_names_its_layers_for_every_family() -> None:
    assert set(WRAPPED) == set(FAMILIES)
    given = load_config_from_file(str(FOLDER / "fsdp.yaml")).fsdp_config["fsdp_transformer_layer_cls_to_wrap"]
    assert WRAPPED["llava"] == [given]


@pytest.mark.parametrize("family", every_family())
def test_fsdp_wraps_the_language_model_s_layers_and_nothing_else(family: str) -> None:
    model = FAMILIES[family]().model
    settings = load_config_from_file(str(FOLDER / "fsdp.yaml")).fsdp_config
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=settings["fsdp_version"],
        auto_wrap_policy=settings["fsdp_auto_wrap_policy"].lower(),
        transformer_cls_names_to_wrap=WRAPPED[family],
    )
    policy = fsdp2_prepare_auto_wrap_policy(plugin, model)
    wrapped = [module for module in model.modules() if policy(module)]
    assert wrapped == list(module_map_of(model).module(model, "layers"))
