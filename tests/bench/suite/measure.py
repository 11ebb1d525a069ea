"""Samples taken in turns, and figures made of them.

A *reference* is what a figure stands beside: a limit (plain processes without the service) or a peer
(another system). It is a function that measures once more and gives {variant: [seconds]}; the variant
with the fastest sample of the run counts. It raises Unavailable where it can't run here.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
import time

import numpy as np

import tessera as ts

HERE = pathlib.Path(__file__).resolve().parents[1]
BINARIES = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", HERE.parents[1] / "bazel-bin"))
MIB = 1 << 20
PROGRAM_SECONDS = 240  # a reference that takes longer hangs


class Unavailable(Exception):
    """Why a reference can't run here."""


class WrongValues(SystemExit):
    """A figure of wrong values is none: the run ends."""


@dataclasses.dataclass(frozen=True)
class Options:
    rounds: int = 4
    repetitions: int = 9  # a round
    quick: bool = False
    peers: bool = False


@dataclasses.dataclass(frozen=True)
class Goal:
    """At most `ratio` times the reference's time and `plus_seconds`; best beside best."""
    reference: str
    ratio: float
    plus_seconds: float = 0.0

    def met(self, own_seconds, references):
        return own_seconds <= self.ratio * references[self.reference]["best_seconds"] + self.plus_seconds

    def __str__(self):
        plus = f" + {self.plus_seconds * 1e6:.0f} us" if self.plus_seconds else ""
        return f"<= {self.ratio:g}x {self.reference}{plus}"


SHORT_SECONDS, SHORT_REPETITIONS = 0.02, 5


def seconds_of(run, repetitions, warm_ups=2):
    """A list of seconds; what `run` returns is dropped outside the timed part."""
    samples = []
    for i in range(warm_ups + repetitions):
        start = time.perf_counter()
        kept = run()
        took = time.perf_counter() - start
        del kept
        if i >= warm_ups:
            samples.append(took)
    return samples


def summary(samples):
    return {"best_seconds": min(samples), "median_seconds": float(np.median(samples)), "samples": samples}


def run_program(command, **more):
    """A program's output, as JSON. Ends the run when it fails: it says wrong values so."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, timeout=PROGRAM_SECONDS, **more)
    if done.returncode != 0:
        raise WrongValues(f"{command[0]}: exit status {done.returncode}")
    return json.loads(done.stdout)


def limit(subcommand, **arguments):
    """A reference: what plain processes reach, from tests/bench/limits."""
    command = [BINARIES / "tests/bench/limits/limits_bench", subcommand]
    for name, value in arguments.items():
        text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        command.append(f"--{name.replace('_', '-')}={text}")
    return lambda repetitions: run_program([*command, f"--repetitions={repetitions}"])["variants"]


def beside(options, own, references, goals=(), in_a_row=1, **facts):
    """A figure: samples of `own` and of every reference in turns, so that a slow minute meets all. `own` does what a
    reference does as often as `in_a_row` says; its times are divided by that."""
    own_samples, variants, skipped = [], {name: {} for name in references}, {}
    # The machine's other work hits short runs more: as many more samples of both.
    repetitions = options.repetitions * (SHORT_REPETITIONS if min(seconds_of(own, 2)) < SHORT_SECONDS else 1)
    for _ in range(options.rounds):
        for name, reference in references.items():
            if name in skipped:
                continue
            try:
                for variant, samples in reference(repetitions).items():
                    variants[name].setdefault(variant, []).extend(samples)
            except Unavailable as reason:
                skipped[name] = str(reason)
        own_samples += [seconds / in_a_row for seconds in seconds_of(own, repetitions)]
    return figure(own_samples, {name: found for name, found in variants.items() if name not in skipped}, goals,
                  skipped=skipped, **facts)


def figure(own_samples, variants, goals=(), skipped=None, **facts):
    ours, references = summary(own_samples), {}
    for name, found in variants.items():
        fastest = min(found, key=lambda variant: min(found[variant]))
        reference = summary(found[fastest])
        references[name] = {**reference, "variant": fastest, "best_of_variants": {v: min(s) for v, s in found.items()},
                            "best_ratio": ours["best_seconds"] / reference["best_seconds"],
                            "median_ratio": ours["median_seconds"] / reference["median_seconds"]}
    return {"tessera": ours, "references": references, "skipped": skipped or {},
            "goals": [{"text": str(goal), "met": goal.met(ours["best_seconds"], references)}
                      for goal in goals if goal.reference in references], **facts}


TOUCHED_BYTES_PER_SECOND = 512 * MIB  # by each worker, of all workers' memory, in the background of its first seconds


@contextlib.contextmanager
def running(workers, memory_bytes, **more):
    """A session of a fresh cluster, when its page tables are there."""
    with ts.local_cluster(workers=workers, memory=int(memory_bytes), **more) as cluster, cluster.connect() as session:
        session.cluster_of_bench = cluster
        time.sleep(workers * memory_bytes / TOUCHED_BYTES_PER_SECOND)
        yield session


def check(right, what):
    if not right:
        raise WrongValues(f"{what}: wrong values")
