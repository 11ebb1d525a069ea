"""Other systems that do the same work: ScaLAPACK and Open MPI by small programs built with mpicxx, DTensor
in a Python of its own. A peer that is not installed raises Unavailable with its name."""

import functools
import json
import os
import pathlib
import shutil
import subprocess

from .measure import BINARIES, HERE, PROGRAM_SECONDS, Unavailable, run_program

PEERS = HERE / "peers"
# Built programs and the Python of DTensor: outside the checkout.
CACHE = pathlib.Path(os.environ.get("TESSERA_PEERS_DIR", pathlib.Path.home() / ".cache/tessera/peers"))


@functools.cache
def build(name, *libraries):
    """The path of tests/bench/peers/NAME.cc, built. Once a run."""
    if shutil.which("mpicxx") is None or shutil.which("mpirun") is None:
        raise Unavailable("Open MPI is not installed (tools/setup_peers)")
    CACHE.mkdir(parents=True, exist_ok=True)
    program = CACHE / name
    done = subprocess.run(["mpicxx", "-std=c++20", "-O2", "-Wall", "-DOMPI_SKIP_MPICXX", "-o", program, PEERS / f"{name}.cc", *libraries],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise Unavailable(f"{name} does not build: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return program


@functools.cache
def environment():
    """One BLAS thread a process and the kernels that workers take: OpenBLAS itself falls back to old ones on
    a CPU newer than it."""
    core = run_program([BINARIES / "tests/bench/limits/limits_bench", "blas"])["core"]
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OPENBLAS_CORETYPE": core, "OMPI_MCA_btl_base_warn_component_unused": "0"}


def mpirun(processes, program, arguments, flags=()):
    cores = len(os.sched_getaffinity(0))
    binding = ["--bind-to", "core"] if processes <= cores else ["--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return run_program(["mpirun", *root, "--oversubscribe", *binding, *flags, "-np", processes, program, *arguments],
                       env=environment())


def scalapack(work, processes, **sizes):
    """A reference: pdgemr2d from rows to columns, or pdgemm on several grids and blocks."""
    def measure(repetitions):
        program = build("scalapack_bench", "-lscalapack-openmpi", "-lopenblas")
        arguments = [work, *sizes.values(), max(2, repetitions // 3)]  # each on several grids
        return mpirun(processes, program, arguments)["variants"]
    return measure


# Settings of Open MPI: as shipped, and what suits one host better.
MPI_SETTINGS = {
    "as shipped": [],
    "ring": ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "4"],
    "rabenseifner": ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca", "coll_tuned_allreduce_algorithm", "6"],
}


def open_mpi(kind, total_bytes, processes):
    def measure(repetitions):
        program = build("collectives_bench")
        settings = MPI_SETTINGS if kind == "all_reduce" else {"as shipped": []}
        return {name: mpirun(processes, program, [kind, total_bytes, repetitions], flags)["variants"][kind]
                for name, flags in settings.items()}
    return measure


class DTensorServer:
    """Ranks of one Python program that measure what they are asked for, a JSON line each way; kept for the
    whole run, because starting takes seconds. Ranks that wait sleep."""

    def __init__(self):
        python = CACHE / "dtensor/bin/python"
        if not python.exists():
            raise Unavailable("torch is not installed (tools/setup_peers)")
        self.log = CACHE / "dtensor.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen([python, PEERS / "dtensor_bench.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=log, text=True, env=environment())

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Unavailable(f"DTensor's program ended: {self.log}")
        return json.loads(answer)

    def stop(self):
        self.process.stdin.close()
        self.process.wait(PROGRAM_SECONDS)


@functools.cache
def dtensor_server():
    return DTensorServer()


def dtensor(work, **question):
    """A reference: torch's DTensor on gloo, 2 ranks of one thread."""
    return lambda repetitions: dtensor_server().ask({"work": work, "repetitions": max(3, repetitions // 3), **question})


def stop():
    if dtensor_server.cache_info().currsize:
        dtensor_server().stop()
