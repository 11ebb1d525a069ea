"""torch's own tests of a backend of torch.distributed, run on `tessera`: the _DistTestBase that torch's wheel has.

A rank is a forked process (0.05 s, where a spawned one imports torch for 3). TESSERA_ADDRESS names the cluster. dist_suite.txt
names the tests that pass, with the number of ranks from which torch runs them; torch skips the others, which are of GPUs
or of one other backend.

    tools/python --torch tests/torch/dist_suite.py                 # the tests of dist_suite.txt, 3 ranks
    tools/python --torch tests/torch/dist_suite.py --ranks 8
    tools/python --torch tests/torch/dist_suite.py --fast          # the subset that tools/test runs
    tools/python --torch tests/torch/dist_suite.py --all           # all that torch has
    tools/python --torch tests/torch/dist_suite.py test_scatter    # by name
    tools/python --torch tests/torch/dist_suite.py --as-gloo --all # what torch runs on gloo, with this backend under gloo's name
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import pathlib
import sys
import tempfile
import unittest

EXPECTED = pathlib.Path(__file__).with_suffix(".txt")
# One or two of each kind.
FAST = """test_DistributedDataParallelCPU test_all_gather_coalesced_with_empty test_all_gather_complex test_all_reduce_full_group_max
test_all_reduce_sum_async test_barrier_full_group test_broadcast test_destroy_group test_gather_full_group test_irecv test_isend
test_reduce_sum_twice test_scatter_complex test_send_recv_any_source_torch_profiler test_send_recv_with_tag""".split()

# torch's test -> why it can't pass on a backend of any name but torch's own.
CAN_NOT_PASS = {
    "test_ddp_logging_data_cpu": "it compares the name of the backend with what DDP logs, which is 'custom' for every foreign one",
}


def answer_to_gloo() -> None:
    """Groups of the backend gloo are groups of tessera. Not of gloo's type: DDP's logger reads an object of that type as gloo's own."""
    import torch.distributed as dist

    from tessera.torch_ranks import create
    dist.Backend._plugins["GLOO"] = dist.Backend._BackendPlugin(lambda opts, pg_options: create(opts, pg_options, name="gloo"), True)
    dist.Backend.backend_type_map["gloo"] = dist.ProcessGroup.BackendType.CUSTOM


def test_class(ranks: int, folder: str, as_gloo: bool = False):
    os.environ.update(BACKEND="gloo" if as_gloo else "tessera", WORLD_SIZE=str(ranks), TEMP_DIR=folder, MASTER_ADDR="127.0.0.1", MASTER_PORT="0",
                      OMP_NUM_THREADS="1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for name in ("barrier", "test_dir", "init_dir"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    import torch
    import torch.multiprocessing
    from torch.testing._internal.distributed import distributed_test

    import tessera.torch_ranks  # noqa: F401 - a forked rank has it already

    if as_gloo:
        answer_to_gloo()
    torch.set_num_threads(1)
    logging.disable(logging.INFO)

    class TesseraTest(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    for name in CAN_NOT_PASS:
        setattr(TesseraTest, name, unittest.skip(CAN_NOT_PASS[name])(getattr(TesseraTest, name)))
    return TesseraTest


class Names(unittest.TextTestResult):
    """The outcome of each test by its name."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.outcomes = {}

    def _note(self, test, outcome):
        self.outcomes[test._testMethodName] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self._note(test, "passed")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._note(test, "failed")

    def addError(self, test, err):
        super().addError(test, err)
        self._note(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self._note(test, "skipped")


def expected(ranks: int) -> list[str]:
    rows = [line.split() for line in EXPECTED.read_text(encoding="utf-8").splitlines()]
    return [name for name, least_ranks in rows if ranks >= int(least_ranks)]


def run(names: list[str] | None, ranks: int, as_gloo: bool = False) -> dict[str, str]:
    """All that torch has without names."""
    with tempfile.TemporaryDirectory() as folder:
        tests = test_class(ranks, folder, as_gloo)
        named = unittest.TestLoader().getTestCaseNames(tests) if names is None else names
        suite = unittest.TestSuite(tests(name) for name in named)
        return unittest.TextTestRunner(resultclass=Names, verbosity=2).run(suite).outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="TEST", help="those of dist_suite.txt, if none is named")
    parser.add_argument("--ranks", type=int, default=3)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--fast", action="store_true", help="the subset that tools/test runs")
    which.add_argument("--all", action="store_true", help="all that torch has")
    parser.add_argument("--as-gloo", action="store_true", help="under gloo's name, which has more tests")
    options = parser.parse_args()
    if options.all:
        names = None
    else:
        names = options.names or (FAST if options.fast else expected(options.ranks))
    outcomes = run(names, options.ranks, options.as_gloo)
    by_outcome = {outcome: sorted(name for name, its in outcomes.items() if its == outcome) for outcome in ("passed", "failed", "skipped")}
    print(json.dumps({outcome: len(found) for outcome, found in by_outcome.items()} | {"names": by_outcome}))
    # A skipped test of the list is one that torch has changed.
    sys.exit(1 if by_outcome["failed"] or (not options.all and by_outcome["skipped"]) else 0)


if __name__ == "__main__":
    main()
