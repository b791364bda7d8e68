"""The command line, ``forestlens`` or ``python -m experiments.run``: composes a configuration and runs its task.

Imports only the standard library at the top: whoever presses Ctrl-C while the rest is imported reads a sentence too.
"""

import errno
import os
import signal
import sys
import time
from functools import partial, update_wrapper
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

MORE_MEMORY = "take a smaller batch_size, model.dtype=bfloat16, a smaller model, or model.device_map=auto"
CONTINUES = "stopped; the same command continues where it ended"
FULL_ERRORS = "HYDRA_FULL_ERROR"
TRACEBACKS = os.environ.get(FULL_ERRORS) == "1"


def main() -> None:
    """Answer a command; errors that the user can fix end in one sentence and exit code 2.

    Hydra composes the configuration. While a task runs, ``sys.argv`` is what was typed for this run.
    """
    signal.signal(signal.SIGINT, _stop_at_once)
    if find_spec("resource") is None:  # which Linux and macOS have
        stop("error: forestlens runs on Linux and macOS; on Windows, type this in WSL", 2)
    _packages_before_the_working_directory()
    typed = sys.argv[1:]
    try:
        if _answered_without_a_run(typed):
            return
        import hydra

        from experiments.command_line.arguments import expand, in_a_sentence
        from experiments.config import register
        from interp.errors import UserError

        register()
        try:
            sys.argv[1:] = words = expand(typed)
        except UserError as error:
            stop(f"error: {error}", 2)
        done: list[tuple[Any, Path]] = []  # of a sweep, in this process
        os.environ[FULL_ERRORS] = "1"  # until the task begins: Hydra hands us its errors instead of printing them
        try:
            task = update_wrapper(partial(start, typed, done), start)
            hydra.main(version_base="1.3", config_path=None, config_name="config")(task)()
        except Exception as error:
            if TRACEBACKS or (message := in_a_sentence(error, words)) is None:
                raise
            stop(f"error: {message}", 2)
        if len(done) > 1 and _first():
            from experiments.studies.join_reports import beside_each_other

            beside_each_other(done[-1][0], [folder for _, folder in done])
    except BrokenPipeError:  # the reader of our output, such as head, has stopped
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    analyses = sys.modules.get("experiments.report.sections")
    if analyses and analyses.UNFINISHED:  # requests never got through, or an analysis failed; it said which
        analyses.UNFINISHED.clear()
        sys.exit(1)


def _answered_without_a_run(typed: list[str]) -> bool:
    """Print the greeting, the version or the help if the command asks for one of them, and return whether it does."""
    from experiments.command_line.help_page import greeting, help_page

    if not typed:
        print(greeting(), end="")
    elif typed == ["--version"]:  # Hydra would give its own
        from importlib.metadata import version

        print(f"forestlens {version('forestlens')}")
    elif {"--help", "-h"} & set(typed):  # Hydra would list all groups, which takes seconds
        print(help_page(typed), end="", flush=True)
    else:
        return False
    return True


def start(typed: list[str], done: list[tuple[Any, Path]], config: Any) -> None:
    """Check the configuration and run its task; errors that the user can fix end in one sentence and exit code 2.

    Args:
        typed: the arguments of the command.
        done: the runs of the sweep before this one, which joins them.
        config: the composed configuration.
    """
    from experiments.command_line.arguments import of_this_run
    from experiments.config import build_run
    from experiments.runs.launch import Launch, check_task
    from interp.errors import UserError

    if not TRACEBACKS:
        os.environ.pop(FULL_ERRORS, None)
    sys.argv[1:] = of_this_run(typed)
    run = None
    try:
        launch = Launch.current()
        launch.join()
        run = build_run(config)
        check_task(run.task, launch)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(folder := run.task(run), Path):
            done.append((run, folder))
    except UserError as error:
        stop(f"error: {error}", 2)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        stop(f"error: {error.strerror}; make room and run the same command again, which goes on from here", 2)
    except (RuntimeError, MemoryError) as error:
        from interp.batching import out_of_memory

        if not out_of_memory(error):
            raise
        stop(f"error: not enough memory for {(run or config).model.name}; {MORE_MEMORY}", 2)
    except KeyboardInterrupt:
        stop(CONTINUES, 130)


def stop(sentence: str, code: int) -> NoReturn:
    """Print ``sentence`` and end this process, and with it the launch.

    Only rank 0 says that the run was stopped. If rank 0 fails alike, it alone prints: the others leave it time, and
    are ended by the launcher meanwhile.
    """
    if not _first() and sentence != CONTINUES:
        time.sleep(10)
    if _first() or sentence != CONTINUES:
        print(sentence, file=sys.stderr, flush=True)
    sys.exit(code)


def _first() -> bool:
    """Return whether this process is rank 0 of its launch, or the only one."""
    return os.environ.get("WORLD_SIZE", "1") == "1" or os.environ.get("RANK", "0") == "0"


def _stop_at_once(*_: Any) -> None:
    """End at Ctrl-C before the task has begun: nothing is to be saved, and imports would answer with a traceback."""
    if _first():
        print(CONTINUES, file=sys.stderr, flush=True)
    os._exit(130)


def _packages_before_the_working_directory() -> None:
    """Put the working directory at the end of the import path, after the folder that holds our packages.

    ``python -m`` puts it first, so that the user's own ``conf/`` or ``experiments/`` would be taken for ours.
    ``forestlens`` does not list it, so that a ``_target_`` in a user's file would not be found. An editable install
    finds our packages after all folders on the path, so their folder is put there too. In a clone, where the working
    directory is our own, nothing changes.
    """
    try:
        ours, here = Path(__file__).resolve().parents[1], Path.cwd()
    except FileNotFoundError:  # it was removed under us
        return
    if here == ours or sys.flags.safe_path:
        return
    others = [entry for entry in sys.path if Path(entry).resolve() not in (here, ours)]
    sys.path[:] = [*others, str(ours), str(here)]


if __name__ == "__main__":
    main()
