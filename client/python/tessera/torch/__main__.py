"""python -m tessera.torch SCRIPT: runs a script of torch as it is, with this device there and a session open.

The script's own words find it: torch.accelerator.current_accelerator(), `.to("tessera")`, Trainer, Accelerator, Lightning.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys

import tessera
import tessera.torch
from tessera._errors import InvalidArgumentError, TesseraError


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tessera.torch", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Runs a script of torch as it is, with the device tessera there and a session open.",
        epilog="Without --address, TESSERA_ADDRESS and ~/.config/tessera/config.json a cluster of this host is started, and ends with the script.")
    parser.add_argument("--address", help="of a cluster that runs, as tessera up prints it")
    parser.add_argument("--workers", type=int, help="of the cluster that is started; default one for each core")
    parser.add_argument("--memory", help="of each worker of that cluster, as 4GiB; default 1GiB")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the workers of that cluster; default cpu")
    parser.add_argument("--blocking", action="store_true", help="each op waits for its result, so that an error stands at its line")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="the script's own arguments")
    return parser.parse_args()


def _session(options: argparse.Namespace, stack: contextlib.ExitStack):
    own = options.workers is not None or options.memory is not None or options.device != "cpu"
    if options.address and own:
        raise InvalidArgumentError("--address names a cluster that runs; --workers, --memory and --device are for one that is started")
    if not own:
        try:
            return tessera.connect(options.address)
        except InvalidArgumentError:
            if options.address or os.environ.get("TESSERA_ADDRESS"):
                raise       # an address that is none, and not that there is none
    cluster = stack.enter_context(tessera.local_cluster(workers=options.workers, memory=options.memory, device=options.device))
    return cluster.connect()


def main() -> None:
    options = _options()
    with contextlib.ExitStack() as stack:
        try:
            session = _session(options, stack)
        except TesseraError as error:
            sys.exit(f"python -m tessera.torch: {error}")
        stack.callback(session.close)
        if options.blocking:
            stack.enter_context(tessera.blocking())
        sys.argv = [options.script, *options.arguments]
        if options.module:
            sys.path.insert(0, os.getcwd())
            runpy.run_module(options.script, run_name="__main__", alter_sys=True)
            return
        if not os.path.isfile(options.script):
            sys.exit(f"python -m tessera.torch: there is no file {options.script}")
        sys.path.insert(0, os.path.dirname(os.path.abspath(options.script)))
        runpy.run_path(options.script, run_name="__main__")


if __name__ == "__main__":
    main()
