"""``python -m experiments.run``: one command, one task. Only this file knows Hydra's application."""

import sys

import hydra
from omegaconf import DictConfig

from experiments.schema import open_door, register
from interp.errors import UserError

register()


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def main(config: DictConfig) -> None:
    """Checks the configuration, then runs its task; what a person can mend ends in one sentence and exit code 2."""
    try:
        run = open_door(config)
        run.task(run)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped; the same command continues where it ended", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
