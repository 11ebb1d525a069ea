"""Counts the source files that an edit of headers compiles again, those of the program and those of its tests.

The compiler wrote down which headers each file read (bazel-bin/**/*.d), so build first. With --seconds each file of the
program that reads one of the headers is compiled as Bazel does, one after the other, and the processor time that the
compilers took is added up: an absolute figure, so it says something only beside another one of the same run.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ("schemas/", "server/", "kernels/", "client/")


def sources_by_dependency_file() -> dict[pathlib.Path, tuple[str, set[str]]]:
    """Each .d file of the build: its source file, and all files that the compiler read for it."""
    out = {}
    for file in (ROOT / "bazel-bin").resolve().rglob("_objs/*/*.d"):
        words = file.read_text().replace("\\\n", " ").split()
        if len(words) > 1:
            out[file] = (words[1], set(words[2:]))
    return out


def readers(headers: list[str]) -> tuple[list[str], list[str]]:
    """Files of the program and files of tests that read one of the headers, each once."""
    found = {source for source, read in sources_by_dependency_file().values() if read & set(headers)}
    program = sorted(source for source in found if source.startswith(PROGRAM))
    return program, sorted(source for source in found if source.startswith("tests/"))


def commands_of(sources: set[str]) -> dict[str, list[str]]:
    """The compiler's command of each source file, as Bazel runs it."""
    asked = subprocess.run(
        ["bazel", "--nohome_rc", "aquery", 'mnemonic("CppCompile", //...)', "--output=jsonproto", "--noinclude_artifacts",
         "--noshow_progress"], cwd=ROOT, check=True, capture_output=True, text=True)
    out = {}
    for action in json.loads(asked.stdout)["actions"]:
        arguments = action["arguments"]
        source = arguments[arguments.index("-c") + 1] if "-c" in arguments else ""
        if source in sources:
            out[source] = arguments
    return out


def compile_seconds(command: list[str], folder: pathlib.Path) -> float:
    """Processor time of one compilation, whose results go to /dev/null."""
    quiet = list(command)
    quiet[quiet.index("-o") + 1] = os.devnull
    for option in ("-MF",):
        if option in quiet:
            quiet[quiet.index(option) + 1] = os.devnull
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(quiet, cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools/rebuilds", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("headers", nargs="+", metavar="HEADER", help="a path from the root, as schemas/ops/op_ids.h")
    parser.add_argument("--files", action="store_true", help="name the files, too")
    parser.add_argument("--seconds", action="store_true", help="compile the program's files and add up the processor time")
    arguments = parser.parse_args()
    for header in arguments.headers:
        if not (ROOT / header).is_file():
            print(f"tools/rebuilds: there is no {header}; give a path from the root, as schemas/ops/op_ids.h", file=sys.stderr)
            return 2
    program, tests = readers(arguments.headers)
    if not program and not tests:
        print("tools/rebuilds: no compiled file reads that; has everything been built (tools/build)?", file=sys.stderr)
        return 1
    print(f"{len(program)} files of the program and {len(tests)} of tests read {', '.join(arguments.headers)}")
    if arguments.files:
        print("\n".join(program + tests))
    if arguments.seconds:
        commands = commands_of(set(program))
        folder = (ROOT / "bazel-bin").resolve().parents[2]
        seconds = {source: compile_seconds(commands[source], folder) for source in program if source in commands}
        slowest = max(seconds, key=seconds.get)
        print(f"{sum(seconds.values()):.0f} s of processor time for {len(seconds)} files of the program; "
              f"the slowest is {slowest} with {seconds[slowest]:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
