"""What follows from the options that were chosen by name: what the arm under study and the model are called."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig

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


def check_method_fits(only: str | None) -> None:
    """Refuses another method than ``only``, that of an experiment which gives its settings to other arms.

    Raises:
        UserError: names the experiment, and how to add the method beside its own.
    """
    if only is None or not HydraConfig.initialized():
        return
    choices = HydraConfig.get().runtime.choices
    if (chosen := str(choices.get("method"))) != only:
        raise UserError(
            f"+exp={choices.get('exp')} is about method={only}, and gives its settings to other arms; leave method "
            f"out, or add {chosen} as a further arm: +method@arms.{chosen.replace('/', '_')}={chosen}"
        )


def named_by_what_is_loaded(node: Any) -> Any:
    """The model's node; where the command line gives its path and no name, the path's last part is its name.

    Of a model behind an API the id there stands for the path.
    """
    if not (isinstance(node, dict) and HydraConfig.initialized()):
        return node
    place = "model" if "base_url" in node else "path"
    given = {override.partition("=")[0].lstrip("+") for override in HydraConfig.get().overrides.task}
    moved = f"model.{place}" in given and "model.name" not in given
    return node | {"name": _last_part(str(node[place]))} if moved and node.get(place) else node


def _last_part(path: str) -> str:
    """The last part of a path or hub id; of "." and the like that of the folder meant."""
    last = path.rstrip("/").rpartition("/")[2]
    return Path(path).resolve().name or path if last in ("", ".", "..") else last
