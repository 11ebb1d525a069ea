"""Scripts that tests run in processes of their own, forked from one that has imported torch: to import it takes seconds each time."""

import multiprocessing
import os
import pathlib
import runpy
import signal
import subprocess
import sys
import tempfile

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "torch", "torch.distributed", "tessera.torch_ranks"])


def _run(command, environment, out, err):
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for number, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.argv = command
    sys.path.insert(0, os.path.dirname(command[0]))
    runpy.run_path(command[0], run_name="__main__")


def run_script(command, timeout, environment):
    """As subprocess.run([python, *command], capture_output=True, text=True) does it."""
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        process = CONTEXT.Process(target=_run, args=([*map(str, command)], environment, out.name, err.name))
        process.start()
        process.join(timeout)
        is_late = process.exitcode is None
        if is_late:
            os.killpg(process.pid, signal.SIGKILL)      # with its ranks
            process.join()
        texts = [pathlib.Path(file.name).read_text(errors="replace") for file in (out, err)]
    if is_late:
        raise subprocess.TimeoutExpired(command, timeout, *texts)
    return subprocess.CompletedProcess(command, process.exitcode, *texts)
