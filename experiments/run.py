"""The command line, ``python -m experiments.run``: composes a configuration with Hydra and runs its task."""

import errno
import os
import sys
import time

import hydra
from omegaconf import DictConfig

from experiments.command_line import in_todays_words, register_help
from experiments.config import build_run, register
from experiments.runs.launch import Launch, check_task
from interp.errors import UserError

FULL = (errno.ENOSPC, errno.EDQUOT)
MORE_MEMORY = (
    "take a smaller batch_size, smaller weights (model.dtype=bfloat16), a smaller model, or spread it over several "
    "devices (model.device_map=auto)"
)
register()
register_help()


def main() -> None:
    """Replaces former names on the command line, then hands it to Hydra."""
    launch = Launch()
    try:
        launch = Launch.current()
        sys.argv[1:], notes = in_todays_words(sys.argv[1:])
    except UserError as error:
        stop(launch, f"error: {error}", 2)
    if launch.first:
        for note in notes:
            print(note, file=sys.stderr)
    try:
        start()
    except BrokenPipeError:  # the reader of our output, such as head, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


@hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")
def start(config: DictConfig) -> None:
    """Checks the configuration and runs its task; errors that the user can fix end in one sentence and exit code 2."""
    launch, run = Launch(), None
    try:
        launch = Launch.current()
        launch.join()
        run = build_run(config)
        check_task(run.task, launch)
        run.task(run)
    except UserError as error:
        stop(launch, f"error: {error}", 2)
    except OSError as error:
        if error.errno not in FULL:
            raise
        stop(launch, f"error: {error.strerror}; make room and run the same command again, which goes on from here", 2)
    except (RuntimeError, MemoryError) as error:
        from experiments.evaluation.batching import out_of_memory

        if not out_of_memory(error):
            raise
        model = config.model if run is None else run.model
        stop(launch, f"error: not enough memory for {model.name}; {MORE_MEMORY}", 2)
    except KeyboardInterrupt:
        stop(launch, "stopped; the same command continues where it ended", 130)


def stop(launch: Launch, sentence: str, code: int) -> None:
    """Ends this process, and with it the launch; only the first process to fail prints ``sentence``."""
    if launch.speaks():
        print(sentence, file=sys.stderr, flush=True)
    if launch.size > 1:
        time.sleep(1)  # the launcher kills all processes when one ends: leave time to print
    sys.exit(code)


if __name__ == "__main__":
    main()
