"""The command line, ``forestlens`` or ``python -m experiments.run``: composes a configuration and runs its task.

Imports only the standard library at the top: whoever presses Ctrl-C while the rest is imported reads a sentence too.
"""

import errno
import os
import signal
import sys
import time
from functools import partial, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

    from experiments.config import Run
    from experiments.runs.launch import Launch

FULL = (errno.ENOSPC, errno.EDQUOT)
MORE_MEMORY = (
    "take a smaller batch_size, smaller weights (model.dtype=bfloat16), a smaller model, or spread it over several "
    "devices (model.device_map=auto)"
)
CONTINUES = "stopped; the same command continues where it ended"
INTERRUPTED = 130
OTHERS_WAIT = 10.0  # seconds
WHOLE_ERRORS = "HYDRA_FULL_ERROR"
ASKED_FOR_WHOLE_ERRORS = os.environ.get(WHOLE_ERRORS) == "1"


def main() -> None:
    """Hands the command line to Hydra; while the task runs, ``sys.argv`` is what was typed for this run."""
    signal.signal(signal.SIGINT, _nothing_yet)
    _packages_before_the_working_directory()
    import hydra

    from experiments.command_line.arguments import for_hydra
    from experiments.command_line.help_page import greeting, help_page
    from experiments.command_line.mistakes import in_a_sentence, unknown_flag
    from experiments.command_line.removed import removed_feature

    if not sys.argv[1:]:
        print(greeting(), end="")
        return
    if sys.argv[1:] == ["--version"]:  # Hydra would give its own
        from importlib.metadata import version

        print(f"forestlens {version('forestlens')}")
        return
    from experiments.config import register
    from experiments.runs.launch import Launch
    from interp.errors import UserError

    launch = Launch()
    try:
        if sys.argv[1] == "new":
            from experiments.command_line.new import new

            print(new(sys.argv[2:]), end="")
            return
        register()
        launch = Launch.current()
        if message := removed_feature(sys.argv[1:]) or unknown_flag(sys.argv[1:]):
            raise UserError(message)
    except UserError as error:
        stop(launch, f"error: {error}", 2)
    arguments = sys.argv[1:]
    sys.argv[1:] = composed = for_hydra(arguments)
    done: list[tuple[Run, Path]] = []  # of a sweep, in this process
    if analyses := sys.modules.get("experiments.runs.analyses"):  # of a command before this one, in a test
        analyses.UNFINISHED.clear()
    task = update_wrapper(partial(start, arguments, done), start)
    os.environ[WHOLE_ERRORS] = "1"  # until the task begins: Hydra hands us its errors instead of printing them
    try:
        if {"--help", "-h"} & set(arguments):  # Hydra would list all groups by itself, which takes seconds
            print(help_page(arguments), end="", flush=True)
        else:
            hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")(task)()
            if len(done) > 1 and launch.first:
                from experiments.studies.join_reports import beside_each_other

                beside_each_other(done[-1][0], [folder for _, folder in done])
            _say_what_failed()
    except BrokenPipeError:  # the reader of our output, such as head, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except Exception as error:
        if ASKED_FOR_WHOLE_ERRORS or (message := in_a_sentence(error, composed)) is None:
            raise
        stop(launch, f"error: {message}", 2)


def start(arguments: "Sequence[str]", done: "list[tuple[Run, Path]]", config: "DictConfig") -> None:
    """Checks the configuration and runs its task; errors that the user can fix end in one sentence and exit code 2.

    ``arguments`` are those that were typed; ``done`` are the runs of the sweep before this one, which joins them.
    """
    from experiments.command_line.arguments import of_this_run
    from experiments.config import build_run
    from experiments.runs.launch import Launch, check_task
    from interp.errors import UserError

    if not ASKED_FOR_WHOLE_ERRORS:
        os.environ.pop(WHOLE_ERRORS, None)
    sys.argv[1:] = of_this_run(arguments)
    launch, run = Launch(), None
    try:
        launch = Launch.current()
        launch.join()
        run = build_run(config)
        check_task(run.task, launch)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(folder := run.task(run), Path):
            done.append((run, folder))
    except UserError as error:
        stop(launch, f"error: {error}", 2)
    except OSError as error:
        if error.errno not in FULL:
            raise
        stop(launch, f"error: {error.strerror}; make room and run the same command again, which goes on from here", 2)
    except (RuntimeError, MemoryError) as error:
        from interp.batching import out_of_memory

        if not out_of_memory(error):
            raise
        model = config.model if run is None else run.model
        stop(launch, f"error: not enough memory for {model.name}; {MORE_MEMORY}", 2)
    except KeyboardInterrupt:
        stop(launch, CONTINUES, INTERRUPTED)


def _say_what_failed() -> None:
    """Exit code 1 where a run was not finished: requests never got through, or an analysis failed. It said which."""
    analyses = sys.modules.get("experiments.runs.analyses")
    if analyses is not None and analyses.UNFINISHED:
        sys.exit(1)


def stop(launch: "Launch", sentence: str, code: int) -> NoReturn:
    """Prints ``sentence`` and ends this process, and with it the launch.

    Where rank 0 fails alike it alone prints: the others leave it time, and are ended by the launcher meanwhile. That
    the run was stopped is rank 0's to say.
    """
    if not launch.first and sentence != CONTINUES:
        time.sleep(OTHERS_WAIT)
    if launch.first or sentence != CONTINUES:
        print(sentence, file=sys.stderr, flush=True)
    sys.exit(code)


def _nothing_yet(*_: Any) -> None:
    """Ctrl-C before the task has begun: nothing is to be saved, and an import under way would answer with its own."""
    if os.environ.get("RANK", "0") == "0":
        print(CONTINUES, file=sys.stderr, flush=True)
    os._exit(INTERRUPTED)


def _packages_before_the_working_directory() -> None:
    """Puts the working directory at the end of the import path, after the folder that holds our packages.

    ``python -m`` puts it first, so that the user's own ``conf/`` or ``experiments/`` would be taken for ours.
    ``forestlens`` leaves it out, so that a ``_target_`` in a user's file would not be found. An editable install finds
    our packages after all folders on the path, so theirs is put there too. Nothing is moved in a clone, where the
    working directory is our own.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:  # it was removed under us
        return
    ours = Path(__file__).resolve().parents[1]
    if here == ours or sys.flags.safe_path:
        return
    others = [entry for entry in sys.path if Path(entry).resolve() not in (here, ours)]
    sys.path[:] = [*others, str(ours), str(here)]


if __name__ == "__main__":
    main()
