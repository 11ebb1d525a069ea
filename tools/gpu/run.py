"""Runs the steps of tools/gpu_test on the machine's GPU. It needs nothing but the folder that pack.py has gathered, and a driver."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import machine
from steps import STEPS, Step, named

LAST_LINES = 20     # of a step that failed
TO_END_SECONDS = 10


class Report:
    """The lines for docs/gpu.md, on stdout and in a file, one by one, so that they are there if the run is cut."""

    def __init__(self, results: str | None, log: str | None):
        self.files = [open(results, "w", encoding="utf-8")] if results else []
        self.log = open(log, "w", encoding="utf-8") if log else None
        self.failed = False

    def say(self, line: str) -> None:
        for file in (sys.stdout, *self.files):
            print(line, file=file, flush=True)

    def fail(self, line: str) -> None:
        self.failed = True
        self.say(line)

    def keep(self, step: Step, text: str) -> None:
        """All that a step said, for who looks for the cause."""
        if self.log:
            print(f"==== {step.name}: {' '.join((step.program, *step.arguments))}\n{text}", file=self.log, flush=True)


class Runner:
    def __init__(self, folder: pathlib.Path, work: pathlib.Path, report: Report, seconds: float):
        self.folder, self.work, self.report = folder, work, report
        self.end = time.monotonic() + seconds
        self.missing: dict[str, str] = {}       # what the machine lacks, and the words for it
        self.sanitizer = machine.sanitizer()
        (work / "here").mkdir()     # tests leave nothing where they run
        self.environment = {**os.environ, "TESSERA_BIN_DIR": str(folder / "bin"), "TESSERA_TEST_GPU": "real", "TMPDIR": str(work),
                            # Programs that are compiled here are kept for the steps of this run, and no earlier run's are taken.
                            "XDG_CACHE_HOME": str(work / "cache"), "CUDA_CACHE_PATH": str(work / "cache/cuda"), "UCX_LOG_LEVEL": "error",
                            "PYTHONPATH": str(folder / "site"), "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1"}
        self.environment.setdefault("HOME", str(work))
        self.environment.setdefault("PATH", os.defpath)
        for name in ("PYTHONHOME", "PYTHONSTARTUP", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "TESSERA_ADDRESS", "TESSERA_TEST_TRANSPORT", "NCCL_HOSTID"):
            self.environment.pop(name, None)

    def look_around(self) -> None:
        """Finds the libraries, and says what the machine is."""
        self.report.say(f"date: {datetime.datetime.now(datetime.timezone.utc):%F}")
        facts = machine.describe()
        if "why" in facts:
            raise SystemExit(f"tools/gpu_test: there is no GPU here: {facts['why']}")
        release, memory = machine.driver_release(), facts.get("memory_bytes")
        self.report.say(f"device: {facts['name']}" + (f", {memory / 2**30:.0f} GiB" if memory else "") +
                        f", compute capability {facts['compute_capability']}; driver {release + ', ' if release else ''}CUDA {facts['cuda']}")
        if facts["compute_mode"] == machine.EXCLUSIVE_PROCESS:
            self.report.say("the GPU's compute mode is exclusive: one process at a time, so steps with several workers will fail")
        versions = []
        for library in machine.LIBRARIES:
            path, version = machine.find(library, self.environment)
            if path:
                self.environment[library.variable] = path
                versions.append(f"{library.title} {version}")
                print(f"tools/gpu_test: {library.title} is {path}", file=sys.stderr)
            else:
                self.missing[library.title] = version
        self.report.say("libraries: " + ", ".join([*versions, *(f"no {title}" for title in self.missing)]))
        if not self.sanitizer:
            self.missing["compute-sanitizer"] = "it is neither in PATH nor with the toolkit"

    def command(self, step: Step) -> list[str]:
        if step.program == "pytest":
            files = [str(self.folder / argument) if argument.startswith("tests/") else argument for argument in step.arguments]
            return [sys.executable, "-m", "pytest", "-q", "-rfEs", "--no-fold-skipped", "-p", "no:cacheprovider", "--color=no", "--durations=5", "--maxfail=20",
                    "-o", "faulthandler_timeout=60", f"--basetemp={self.work / step.name}", f"--rootdir={self.folder}", *files]
        program = [str(self.folder / "bin" / step.program), *step.arguments]
        tool, _, options = step.needs.partition(" ")
        return [self.sanitizer, *options.split(), "--error-exitcode", "1", *program] if tool == "compute-sanitizer" else program

    def run(self, step: Step) -> None:
        tool = step.needs.partition(" ")[0]
        if tool in self.missing:
            return self.report.say(f"{step.title}: not run: {self.missing[tool]}")
        seconds = min(step.most_seconds, self.end - time.monotonic())
        if seconds <= 0:
            return self.report.fail(f"{step.title}: FAILED: not run, the time of the whole run was over")
        start = time.monotonic()
        with tempfile.TemporaryFile(dir=self.work) as log, tempfile.TemporaryFile(dir=self.work) as out:
            code = self.wait(self.command(step), dict(step.environment), seconds, log, out if step.prints else log)
            took = time.monotonic() - start
            text, printed = (self.text_of(file) for file in (log, out))
        self.report.keep(step, text + printed)
        self.judge(step, code, text, took, seconds)
        if step.prints and (figures := os.environ.get("TESSERA_GPU_FIGURES")):
            pathlib.Path(figures).write_text(printed, encoding="utf-8")

    @staticmethod
    def text_of(file) -> str:
        file.seek(0)
        return file.read().decode(errors="replace")

    def wait(self, command: list[str], environment: dict[str, str], seconds: float, log, out) -> int | None:
        """The exit code, or None where it took too long. Its children end with it: they are its process group, or end by its pipes."""
        process = subprocess.Popen(command, cwd=self.work / "here", env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=log, start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)   # pytest says then where it stands
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TO_END_SECONDS)
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def judge(self, step: Step, code: int | None, text: str, took: float, seconds: float) -> None:
        lines = text.splitlines()
        cases, left_out = count(step, text)
        skips = sum(map(len, left_out.values()))
        # A program of tests that leaves something out has not found what it needs: its filters name what it runs.
        skipped = step.program != "pytest" and re.search(r"^skipped: |  SKIPPED ", text, re.MULTILINE)
        if code == 0 and not skipped and (cases or not is_tests(step)):
            said = [f"{cases} cases"] if cases else []
            said += [f"{skips} left out"] if skips else []
            self.report.say(f"{step.title}: passed ({', '.join([*said, f'{took:.0f} s'])})")
            for reason, names in left_out.items():
                self.report.say(f"    left out: {', '.join(dict.fromkeys(names))}: {reason}")
        else:
            late = f"after {seconds:.0f} s" + (", when the time of the whole run was over" if seconds < step.most_seconds else "")
            why = late if code is None else "a test was skipped" if skipped else f"exit status {code}"
            self.report.fail(f"{step.title}: FAILED ({why})")
            named_lines = [line for line in lines if re.match(r"(FAILED|ERROR) |\[  FAILED  \] \S+ \(", line)]
            for line in [*named_lines, *lines[-LAST_LINES:]]:
                self.report.say(f"    {line}")
        if step.prints and code == 0:
            for line in lines:
                self.report.say(line)


def is_tests(step: Step) -> bool:
    return step.program == "pytest" or step.program.endswith("_test")


def count(step: Step, text: str) -> tuple[int, dict[str, list[str]]]:
    """The cases that passed, and the names of those that were left out, by reason."""
    if step.program != "pytest":
        return text.count("[       OK ]"), {}
    passed = re.search(r"^(?:=+ )?(?:\d+ failed, )?(\d+) passed", text, re.MULTILINE)
    left_out: dict[str, list[str]] = {}
    for test, reason in re.findall(r"^SKIPPED \S+?::(\w+)(?:\[.*\])? - (?:Skipped: )?(.*)$", text, re.MULTILINE):
        left_out.setdefault(reason, []).append(test)
    return int(passed[1]) if passed else 0, left_out


def find_driver() -> None:
    """Starts this program again where the loader has to be told where the driver is."""
    folder = machine.driver_folder(dict(os.environ))
    if folder is None:
        sys.exit("tools/gpu_test: there is no GPU here: libcuda.so.1, which comes with NVIDIA's driver, is neither where the loader looks "
                 f"nor in {', '.join(machine.DRIVER_FOLDERS)}")
    if folder:
        path = ":".join(filter(None, (os.environ.get("LD_LIBRARY_PATH"), folder)))
        os.execve(sys.executable, [sys.executable, "-sE", *sys.argv], {**os.environ, "LD_LIBRARY_PATH": path})


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/gpu_test", allow_abbrev=False, description="What GPU workers rely on, and what they do, on the machine's own "
                                     "GPU. Prints results for docs/gpu.md; exit status 1 when something failed or there is no GPU.")
    parser.add_argument("--pack", metavar="FILE", help="builds, and packs all that a run needs elsewhere into FILE, a .tar.xz below 64 MiB")
    parser.add_argument("--from", metavar="FILE", help="runs what was packed: no build, no toolkit; a driver is all that it takes")
    parser.add_argument("--list", action="store_true", help="the steps and what they are, and nothing else")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these steps alone")
    parser.add_argument("--results", metavar="FILE", help="what is printed, in FILE as well")
    parser.add_argument("--log", metavar="FILE", help="all that the steps say, in FILE")
    parser.add_argument("--seconds", type=float, default=570, help="steps that haven't begun by then fail; 570, so that all is said in 10 minutes")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)    # the arguments alone
    parser.epilog = "With TESSERA_GPU_FIGURES=FILE the figures are kept there, as JSON."
    options = parser.parse_args(arguments)
    try:
        options.steps = named(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.check:
        sys.exit()
    if options.list:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)   # who wants the first lines alone has them
        for step in STEPS:
            print(f"{step.name:13} {step.title}")
        sys.exit()
    return options


def main() -> None:
    options = parse(sys.argv[1:])
    folder = pathlib.Path(__file__).resolve().parents[2]
    find_driver()
    report = Report(options.results, options.log)
    work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-"))   # a short path: sockets lie there
    held = machine.hold_open()
    try:
        runner = Runner(folder, work, report, options.seconds)
        runner.look_around()
        for step in options.steps:
            runner.run(step)
    finally:
        for descriptor in held:
            os.close(descriptor)
        shutil.rmtree(work, ignore_errors=True)
    sys.exit(report.failed)


if __name__ == "__main__":
    main()
