"""Ops of the catalog: reductions beside NumPy in one process, normalisations beside plain loops, a sort beside two sorts and
an exchange, attention and bf16 products beside torch."""

import dataclasses
import pathlib
import subprocess
import sys

import numpy as np

import tessera as ts

from . import measure
from .measure import MIB, Goal, Unavailable, seconds_of

ROWS, COLUMNS = 8192, 8192      # 256 MiB of f32
NUMPY = (Goal("numpy", 0.6),)
LOOPS = (Goal("limit", 1.3),)


@dataclasses.dataclass(frozen=True)
class Reduction:
    name: str
    axis: object

    def measure(self, options):
        with measure.running(2, 1024 * MIB) as session:
            mesh = session.init_device_mesh((2,))
            a = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), np.float32)
            a = a > 99 if self.name == "any" else a     # none is: NumPy stops at the first that is
            x = session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()
            ours, numpys = getattr(ts, self.name), getattr(np, self.name)
            want = np.asarray(numpys(a, axis=self.axis))
            got = ours(x, axis=self.axis).full_tensor()
            exact = self.name in ("max", "min", "argmax", "any")
            measure.check(np.array_equal(got, want) if exact else np.allclose(got, want, rtol=1e-3, atol=1e-3 * ROWS), self.name)
            reference = lambda repetitions: {"one process": seconds_of(lambda: numpys(a, axis=self.axis), repetitions)}  # noqa: E731
            return measure.beside(options, lambda: ours(x, axis=self.axis).wait(), {"numpy": reference}, NUMPY, bytes=a.nbytes)


@dataclasses.dataclass(frozen=True)
class Pass:
    """Along rows of 64 MiB of f32, which both workers have half of."""
    name: str

    def measure(self, options):
        rows = columns = 4096
        limit = measure.limit("pass", kind=self.name, rows=rows, columns=columns)
        with measure.running(2, 512 * MIB) as session:
            mesh = session.init_device_mesh((2,))
            a = np.random.default_rng(1).standard_normal((rows, columns), np.float32)
            x = session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()
            run = {"cumsum": lambda: ts.cumulative_sum(x, axis=1), "var": lambda: ts.var(x, axis=1),
                   "softmax": lambda: ts.softmax(x), "layer_norm": lambda: ts.layer_norm(x)}[self.name]
            wide = a[:2].astype(np.float64)
            centred = wide - wide.mean(1, keepdims=True)
            e = np.exp(wide)
            want = {"cumsum": wide.cumsum(1), "var": wide.var(1), "softmax": e / e.sum(1, keepdims=True),
                    "layer_norm": centred / np.sqrt(wide.var(1, keepdims=True) + 1e-5)}[self.name]
            measure.check(np.allclose(run()[:2].full_tensor(), want, rtol=1e-3, atol=1e-3), self.name)
            return measure.beside(options, lambda: run().wait(), {"limit": limit}, LOOPS, bytes=a.nbytes)


def beside_each_other(programs, repetitions):
    """Seconds of each repetition of programs that run at the same time, each of one thread: the slowest counts. A program is
    a command that prints its seconds for each line that it reads."""
    running = [subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for program in programs]
    samples = []
    for _ in range(repetitions + 1):        # the first warms up
        for each in running:
            each.stdin.write("\n")
            each.stdin.flush()
        samples.append(max(float(each.stdout.readline()) for each in running))
    for each in running:
        each.stdin.close()
        each.wait()
    return samples[1:]


SORTING = """
import sys, time, numpy as np
a = np.random.default_rng(int(sys.argv[1])).standard_normal(int(sys.argv[2]), np.float32)
for line in sys.stdin:
    b = a.copy()
    start = time.perf_counter()
    b.sort()
    print(time.perf_counter() - start, flush=True)
"""

# The same work by torch, in the Python that tools/setup_torch makes.
TORCH = """
import sys, time, torch
torch.set_num_threads(1)
if sys.argv[1] == "attention":
    q, k, v = (torch.randn(1, 4, 2048, 64) for _ in range(3))
    run = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v)
else:
    a, b = torch.randn(1024, 2048).bfloat16(), torch.randn(2048, 2048).bfloat16()
    run = lambda: a @ b
for line in sys.stdin:
    start = time.perf_counter()
    run()
    print(time.perf_counter() - start, flush=True)
"""


def torch_programs(name, count):
    setup = measure.HERE.parents[1] / "tools" / "setup_torch"
    python = subprocess.run([setup, "--path"], capture_output=True, text=True, check=True).stdout.strip()
    if not pathlib.Path(python).exists():
        raise Unavailable("there is no Python with torch: tools/setup_torch makes it")
    return [[python, "-c", TORCH, name]] * count


def sorts_and_exchange(elements):
    """Two processes that sort a half each, the slower one counts; and the time of an exchange of the halves' halves."""
    exchange = measure.limit("redistribute", extents=(2, elements // 2), mesh=(2,), source=(0,), destination=(1,), element_bytes=4)

    def reference(repetitions):
        programs = [[sys.executable, "-c", SORTING, str(i), str(elements // 2)] for i in range(2)]
        samples = beside_each_other(programs, repetitions)
        moved = min(min(found) for found in exchange(repetitions).values())
        return {"sorts and exchange": [seconds + moved for seconds in samples]}
    return reference


def sort(options):
    """64 MiB of f32, sharded on the dim that is sorted."""
    elements = 64 * MIB // 4
    with measure.running(2, 768 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        a = np.random.default_rng(1).standard_normal(elements, np.float32)
        x = session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()
        measure.check(np.array_equal(ts.sort(x).full_tensor(), np.sort(a)), "sort")
        return measure.beside(options, lambda: ts.sort(x).wait(), {"limit": sorts_and_exchange(elements)}, (Goal("limit", 1.5),),
                              bytes=a.nbytes)


def attention(options):
    """8 heads of 2048 x 64, f32: half of the heads on each worker, beside torch's kernel on half of the heads."""
    reference = lambda repetitions: {"half of the heads": beside_each_other(torch_programs("attention", 1), repetitions)}  # noqa: E731
    with measure.running(2, 512 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        rng = np.random.default_rng(1)
        arrays = {name: rng.standard_normal((1, 8, 2048, 64), np.float32) for name in "qkv"}
        q, k, v = (session.distribute_tensor(array, mesh, [ts.Shard(1)]).wait() for array in arrays.values())
        run = lambda: ts.scaled_dot_product_attention(q, k, v)  # noqa: E731
        scores = arrays["q"][0, 7] @ arrays["k"][0, 7].T / 8
        e = np.exp(scores - scores.max(1, keepdims=True))
        want = e / e.sum(1, keepdims=True) @ arrays["v"][0, 7]
        measure.check(np.allclose(run()[0, 7].full_tensor(), want, rtol=1e-3, atol=1e-4), "attention")
        return measure.beside(options, lambda: run().wait(), {"torch": reference}, (Goal("torch", 1.2),))


def bf16_product(options):
    """2048^3 in bf16, the rows of one operand on two workers: beside torch (oneDNN) in two processes with half of them each."""
    reference = lambda repetitions: {"two halves": beside_each_other(torch_programs("matmul", 2), repetitions)}  # noqa: E731
    with measure.running(2, 512 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        rng = np.random.default_rng(1)
        a, b = (rng.standard_normal((2048, 2048), np.float32).astype(ts.bfloat16) for _ in range(2))
        x = session.distribute_tensor(a, mesh, [ts.Shard(0)]).wait()
        y = session.distribute_tensor(b, mesh, [ts.Replicate()]).wait()
        want = a[:2].astype(np.float32) @ b.astype(np.float32)
        measure.check(np.allclose((x @ y)[:2].full_tensor().astype(np.float32), want, rtol=2e-2, atol=0.5), "bf16 product")
        return measure.beside(options, lambda: (x @ y).wait(), {"torch": reference}, (Goal("torch", 1 / 0.9),))


def tiny_indexing(options):
    """x[i], x[i] = v and float(x) of a tiny tensor, alone; and assignments in a row."""
    singles, count = (200, 2_000) if options.quick else (2_000, 20_000)
    with measure.running(2, 64 * MIB) as session:
        mesh = session.init_device_mesh((2,))
        x = session.distribute_tensor(np.zeros(8), mesh, [ts.Shard(0)]).wait()
        zero = session.distribute_tensor(np.zeros(()), mesh, [ts.Replicate()]).wait()

        def assign():
            x[3] = 1.0
            x.wait()

        def assign_many():
            for i in range(count):
                x[i % 8] = float(i)
            x.wait()

        microseconds = lambda run: float(np.median(seconds_of(run, singles, warm_ups=50))) * 1e6  # noqa: E731
        found = {"get_us": microseconds(lambda: x[3].wait()), "set_us": microseconds(assign),
                 "float_us": microseconds(lambda: float(zero)),
                 "assignments_per_second": count / min(seconds_of(assign_many, 3, warm_ups=1))}
        measure.check(np.array_equal(x.full_tensor(), [count - 8 + i for i in range(8)]), "tiny_indexing")
    return found


REDUCTIONS = {f"{name}_{'all' if axis is None else f'axis{axis}'}_256MiB": Reduction(name, axis)
              for name in ("sum", "mean", "max", "min", "argmax", "any") for axis in (None, 0, 1)}
CASES = REDUCTIONS | {f"{name}_64MiB": Pass(name) for name in ("var", "softmax", "layer_norm", "cumsum")}
OTHERS = {"sort_64MiB": sort, "attention_8x2048x64": attention, "matmul_2048_bf16": bf16_product,
          "tiny_indexing": tiny_indexing}


def run(options, name):
    return CASES[name].measure(options)
