"""How much of the PTX of a GPU's kernels the conformance tests have run, by family, all shards together.

    ptx_coverage.py BAZEL_TESTLOGS [--kernels]

Ends with status 1 where a family has less than LEAST percent. --kernels: also each kernel that isn't run whole. An
instruction that no test has run is one whose fault no test would find.
"""

import collections
import pathlib
import sys
import zipfile

GOAL = 95
# Of families that are below the goal: what they have, so that it doesn't become less.
LEAST = {"attention": 51, "copy": 68, "create": 45, "index": 66, "order": 75, "reduce": 49, "terms": 48, "window": 84}
TEST = "tests/conformance/kernels/image/image_conformance_test"


def read(logs):
    """Of each kernel (family, name) which instructions were run."""
    run = {}
    for outputs in sorted((pathlib.Path(logs) / TEST).glob("**/outputs.zip")):
        with zipfile.ZipFile(outputs) as files:
            for line in files.read("ptx_coverage.txt").decode().splitlines():
                family, kernel, bits = line.split(" ")
                before = run.setdefault((family, kernel), 0)
                run[family, kernel] = before | int("1" + bits, 2)  # the first one keeps the zeros after it
    return {kernel: bin(bits)[3:] for kernel, bits in run.items()}


def main(logs, *options):
    kernels = read(logs)
    if not kernels:
        print(f"PTX coverage: no test has run a kernel ({TEST})")
        return 0
    families = collections.defaultdict(lambda: [0, 0])
    for (family, kernel), run in sorted(kernels.items()):
        families[family][0] += run.count("1")
        families[family][1] += len(run)
        if "--kernels" in options and "0" in run:
            print(f"  {family} {kernel}: {run.count('1')} of {len(run)}")
    low = []
    for family, (run, instructions) in families.items():
        least = LEAST.get(family, GOAL)
        print(f"PTX coverage of {family}: {run} of {instructions} instructions, {100 * run / instructions:.1f} %"
              + (f" (goal: {GOAL} %)" if family in LEAST else ""))
        if 100 * run < least * instructions:
            low.append(f"{family} (at least {least} %)")
    if low:
        print(f"PTX coverage is too low: {', '.join(low)}")
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
