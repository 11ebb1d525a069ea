"""How much of the PTX of a GPU's kernels the conformance tests have run, by family, all shards together.

    ptx_coverage.py BAZEL_TESTLOGS [--kernels] [--lines KERNEL]

Ends with status 1 where a family has less than GOAL percent. --kernels: also each kernel that isn't run whole. --lines:
a kernel's PTX, with a mark before each instruction that isn't run. An instruction that no test has run is one whose fault
no test would find.
"""

import argparse
import collections
import pathlib
import sys
import zipfile

GOAL = 95
TESTS = "tests/conformance/kernels/image"


def read(logs):
    """The instructions that were run of each kernel (family, name), and their lines; the PTX of families."""
    run, lines, texts = {}, {}, {}
    for outputs in sorted((pathlib.Path(logs) / TESTS).glob("**/outputs.zip")):
        with zipfile.ZipFile(outputs) as files:
            if "ptx_coverage.txt" not in files.namelist():
                continue
            for line in files.read("ptx_coverage.txt").decode().splitlines():
                family, kernel, bits, numbers = line.split(" ")
                before = run.setdefault((family, kernel), 0)
                run[family, kernel] = before | int("1" + bits, 2)  # the first one keeps the zeros after it
                lines[family, kernel] = [int(n) for n in numbers.split(",")]
                texts[family] = files.read(f"{family}.ptx").decode().splitlines()
    return {kernel: bin(bits)[3:] for kernel, bits in run.items()}, lines, texts


def print_lines(name, kernels, lines, texts):
    for (family, kernel), run in kernels.items():
        if kernel != name:
            continue
        seen = collections.defaultdict(str)
        for bit, line in zip(run, lines[family, kernel]):
            seen[line] = max(seen[line], bit)
        first, last = min(seen), max(seen)
        for number in range(first, last + 1):
            mark = "####" if seen.get(number) == "0" else ""
            print(f"{mark:4} {number:6} {texts[family][number - 1]}")


def main(options):
    kernels, lines, texts = read(options.logs)
    if not kernels:
        print(f"PTX coverage: no test has run a kernel ({TESTS})")
        return 0
    if options.lines:
        print_lines(options.lines, kernels, lines, texts)
        return 0
    families = collections.defaultdict(lambda: [0, 0])
    for (family, kernel), run in sorted(kernels.items()):
        families[family][0] += run.count("1")
        families[family][1] += len(run)
        if options.kernels and "0" in run:
            print(f"  {family} {kernel}: {run.count('1')} of {len(run)}")
    low = []
    for family, (run, instructions) in families.items():
        print(f"PTX coverage of {family}: {run} of {instructions} instructions, {100 * run / instructions:.1f} %")
        if 100 * run < GOAL * instructions:
            low.append(family)
    if low:
        print(f"PTX coverage is below {GOAL} %: {', '.join(low)}")
    return 1 if low else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs")
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--lines", metavar="KERNEL")
    sys.exit(main(parser.parse_args()))
