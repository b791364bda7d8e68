"""What follows from the options that were chosen by name: what the arm under study and the model are called."""

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from interp.errors import UserError

OWN = "file"  # the option of a method in a file of the user's


def arm_name(option: str, tree: Mapping[str, Any]) -> str:
    """The name of the arm under study: that of its option, or of a user's own file without ``.py``.

    Raises:
        UserError: the file is called as another arm.
    """
    path = tree["method"].get("path") if option == OWN and isinstance(tree["method"], dict) else None
    name = Path(str(path)).stem if path else option.rpartition("/")[2]  # method=tuned/vcd is the arm vcd
    if path and (name == "baseline" or name in tree["arms"]):
        raise UserError(f"method.path={path}: there is an arm {name} already; give the file another name")
    return name


def check_method_fits() -> None:
    """Refuses another method than the experiment's own where that one's settings are given to other arms.

    Raises:
        UserError: names the experiment, and how to add the method beside its own.
    """
    if not HydraConfig.initialized():
        return
    hydra = HydraConfig.get()
    name, chosen = hydra.runtime.choices.get("exp"), str(hydra.runtime.choices.get("method"))
    experiment = _option("exp", name, hydra.runtime.config_sources) if name else {}
    entries = [entry for entry in experiment.get("defaults", ()) if isinstance(entry, Mapping)]
    own = next((entry["override /method"] for entry in entries if "override /method" in entry), chosen)
    if own != chosen and ("method" in experiment or "${method." in str(experiment)):
        raise UserError(
            f"+exp={name} is about method={own}, and gives its settings to other arms; leave method out, or add "
            f"{chosen} as a further arm: +method@arms.{chosen.replace('/', '_')}={chosen}"
        )


def named_by_what_is_loaded(node: Any) -> Any:
    """The model's node; where its path was overridden and its name was not, the path's last part is its name.

    Overridden means: on the command line, or to another value than that of the chosen option in ``conf/model``. Of a
    model behind an API the id there stands for the path.
    """
    if not (isinstance(node, dict) and HydraConfig.initialized()):
        return node
    hydra = HydraConfig.get()
    place = "model" if "base_url" in node else "path"
    given = {override.partition("=")[0].lstrip("+") for override in hydra.overrides.task}
    option = _option("model", hydra.runtime.choices.get("model"), hydra.runtime.config_sources)
    renamed = "model.name" in given or _differs(node, option, "name")
    inherited = place in option and "name" not in option  # an option made from another, which has another path
    moved = f"model.{place}" in given or _differs(node, option, place) or inherited
    return node | {"name": _last_part(str(node[place]))} if moved and not renamed and node.get(place) else node


def _option(group: str, name: Any, sources: Any) -> Mapping[str, Any]:
    """The option's own file, not composed, from the first place that Hydra finds it in; empty where there is none."""
    for source in sources:
        if source.schema in ("pkg", "file"):
            file = (files(source.path) if source.schema == "pkg" else Path(source.path)) / group / f"{name}.yaml"
            if file.is_file():
                found = OmegaConf.to_container(OmegaConf.create(file.read_text(encoding="utf-8")))
                return {str(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    return {}


def _differs(node: Mapping[str, Any], option: Mapping[str, Any], key: str) -> bool:
    """Whether the option has another value of ``key`` written out than the node."""
    value = option.get(key)
    return value is not None and "${" not in str(value) and value != "???" and node.get(key) != value


def _last_part(path: str) -> str:
    """The last part of a path or hub id; of "." and the like that of the folder meant."""
    last = path.rstrip("/").rpartition("/")[2]
    return Path(path).resolve().name or path if last in ("", ".", "..") else last
