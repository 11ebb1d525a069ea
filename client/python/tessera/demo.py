"""The demo: nearest neighbours of 1797 handwritten digits on four workers, every step checked.

Run by `tessera demo` and tools/demo. Exit status 1 when a check fails.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import sys
import time

import numpy as np

import tessera as ts

WORKERS = 4
ACCURACY = 0.98831
ROWS = [450, 450, 450, 447]
MATMUL_BYTES = [344_832, 344_832, 344_832, 345_600]
TURN_BYTES = [2_424_600, 2_424_600, 2_424_600, 2_413_800]
COLOURS = (34, 33, 32, 35)
SHADES = " .:-=+*#%@"


class Report:
    """Prints what happens, and keeps it with the checks for --json."""

    def __init__(self, as_json: bool):
        self.out = sys.stderr if as_json else sys.stdout
        self.colour = not as_json and self.out.isatty() and "NO_COLOR" not in os.environ
        self.facts: dict = {}
        self.checks: dict[str, bool] = {}

    def paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def head(self, text: str) -> None:
        self.say("\n" + self.paint(text, 1))

    def say(self, text: str = "") -> None:
        print(text, file=self.out, flush=True)

    def check(self, name: str, good: bool) -> None:
        self.checks[name] = bool(good)
        self.say(f"  {self.paint('ok', 32) if good else self.paint('FAILED', 31)}  {name}")


def find_digits() -> pathlib.Path:
    """digits.csv.gz, which the package with servers has, and tools/digits puts into .venv/data of the checkout."""
    if given := os.environ.get("TESSERA_DIGITS"):
        return pathlib.Path(given)
    if (own := pathlib.Path(__file__).with_name("digits.csv.gz")).exists():
        return own
    for folder in [pathlib.Path(__file__).resolve(), pathlib.Path.cwd() / "x"]:
        for parent in folder.parents:
            if (path := parent / ".venv" / "data" / "digits.csv.gz").exists():
                return path
    raise FileNotFoundError("digits.csv.gz is not there; run tools/digits")


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(find_digits(), "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return np.ascontiguousarray(table[:, :-1], dtype=np.float32), table[:, -1].astype(np.int64)


def picture(image: np.ndarray) -> str:
    shades = (image / 16 * (len(SHADES) - 1)).astype(int)
    return "\n".join("    " + "".join(SHADES[v] * 2 for v in row) for row in shades)


def owners(report: Report, tensor, rows: int = 8, columns: int = 16) -> str:
    """The matrix as a grid; each cell shows the position that holds its centre."""
    lines = []
    for r in range(rows):
        line = "    "
        for c in range(columns):
            i = int((r + 0.5) * tensor.shape[0] / rows)
            j = int((c + 0.5) * tensor.shape[1] / columns)
            for p, position in enumerate(tensor.device_mesh.positions()):
                (top, bottom), (left, right) = tensor.box(position)
                if top <= i < bottom and left <= j < right:
                    line += report.paint(f"{p} ", COLOURS[p % len(COLOURS)])
                    break
        lines.append(line)
    return "\n".join(lines)


def show_cluster(report: Report, cluster, session) -> None:
    report.head("The cluster")
    status = session.status()
    report.say(f"  coordinator, pid {cluster.coordinator_pid}, at {session.address}")
    for worker in status["workers"]:
        report.say(f"  worker {worker['index']}: pid {worker['pid']}, {worker['device']}, {worker['state']}, "
                   f"{worker['memory_bytes'] >> 20} MiB")
    report.check("four workers are alive", sum(w["state"] == "alive" for w in status["workers"]) == WORKERS)


def distribute(report: Report, session, mesh, images):
    report.head(f"{len(images)} images of 8x8, one a row, split over the workers by rows")
    report.say("  one of them:")
    report.say(picture(images[0].reshape(8, 8)))
    x = session.distribute_tensor(images, mesh, [ts.Shard(0)])
    report.say(f"  x = {x!r}")
    boxes = [x.box(p) for p in mesh.positions()]
    rows = [stop - start for (start, stop), _ in boxes]
    sizes = [n * images.shape[1] * 4 for n in rows]
    for p, (n, size) in enumerate(zip(rows, sizes)):
        report.say(f"  position {p}: {n} rows, {size} bytes")
    report.facts.update(rows=rows, bytes=sizes)
    report.check("rows per position are 450, 450, 450, 447", rows == ROWS)
    report.check("each position holds its rows",
                 all(np.array_equal(x.to_local(p), images[box[0][0]:box[0][1]]) for p, box in zip(mesh.positions(), boxes)))
    return x


def gram_matrix(report: Report, session, x, images):
    report.head("The Gram matrix, x @ x.T")
    plan = ts.explain(ts.matmul, x, x.T)
    for line in str(plan).splitlines():
        report.say("  " + line)
    report.say(f"  bytes that each position takes from others: {plan.bytes_received}")
    with session.comm_debug() as comm:
        gram = x @ x.T
    report.say(f"  bytes that the workers counted:             {comm.bytes_received}")
    report.say(f"  gram = {gram!r}")
    report.facts["matmul"] = {"planned": plan.bytes_received, "counted": comm.bytes_received}
    report.check("the plan's bytes are 344,832 three times and 345,600", plan.bytes_received == MATMUL_BYTES)
    report.check("the workers counted what the plan says", comm.bytes_received == plan.bytes_received)
    report.check("the matrix equals NumPy's, exactly", np.array_equal(gram.full_tensor(), images @ images.T))
    return gram


def turn(report: Report, session, gram, images):
    report.head("From rows to columns")
    plan = gram.explain_redistribute([ts.Shard(1)])
    report.say("  who holds what, before:")
    report.say(owners(report, gram))
    with session.comm_debug() as comm:
        columns = gram.redistribute(placements=[ts.Shard(1)])
    report.say("  and after:")
    report.say(owners(report, columns))
    for step in plan.steps:
        report.say(f"  {step}")
    report.say(f"  planned: {plan.bytes_received}")
    report.say(f"  counted: {comm.bytes_received}")
    report.facts["redistribute"] = {"planned": plan.bytes_received, "counted": comm.bytes_received,
                                    "collectives": comm.collective_counts}
    report.check("the plan's bytes are 2,424,600 three times and 2,413,800", plan.bytes_received == TURN_BYTES)
    report.check("the workers counted what the plan says", comm.bytes_received == plan.bytes_received)
    report.check("the turned matrix equals NumPy's, exactly", np.array_equal(columns.full_tensor(), images @ images.T))


def neighbours(report: Report, session, mesh, x, gram, images, labels):
    report.head("Nearest neighbours, leaving each image itself out")
    norms = ts.sum(x * x, axis=1)
    distances = norms[:, None] + norms[None, :] - 2 * gram
    n = len(images)
    away = ts.where(ts.eye(n, dtype="f32", device_mesh=mesh, placements=[ts.Shard(0)]) == 1, np.float32(1e9), distances)
    nearest = ts.argmin(away, axis=1).full_tensor()
    exact = (images * images).sum(1)
    dense = exact[:, None] + exact[None, :] - 2 * (images @ images.T)
    np.fill_diagonal(dense, 1e9)
    right = int((labels[nearest] == labels).sum())
    accuracy = right / n
    report.say(f"  {right} of {n} are right: accuracy {accuracy:.5f}")
    report.facts.update(right=right, accuracy=round(accuracy, 5))
    report.check("the neighbours equal NumPy's, exactly", np.array_equal(nearest, dense.argmin(1)))
    report.check(f"the accuracy is {ACCURACY}", round(accuracy, 5) == ACCURACY)


def too_large(report: Report, mesh, x):
    report.head("A request that doesn't fit")
    error = None
    try:
        ts.zeros((1 << 16, 1 << 16), dtype="f64", device_mesh=mesh, placements=[ts.Shard(0)]).wait(timeout=30)
    except ts.ResourceExhaustedError as refused:
        error = str(refused)
    report.say(f"  ResourceExhaustedError: {error}")
    report.facts["refused"] = error
    report.check("it is refused with the numbers", error is not None and any(c.isdigit() for c in error))
    report.check("everything else goes on", np.isfinite(float(ts.sum(x))))


def run(report: Report, transport: str | None) -> None:
    images, labels = load_digits()
    started = time.monotonic()
    with ts.local_cluster(workers=WORKERS, memory="256MiB", transport=transport) as cluster:
        session = cluster.connect()
        mesh = session.init_device_mesh((WORKERS,))
        show_cluster(report, cluster, session)
        x = distribute(report, session, mesh, images)
        gram = gram_matrix(report, session, x, images)
        turn(report, session, gram, images)
        neighbours(report, session, mesh, x, gram, images, labels)
        too_large(report, mesh, x)
        session.close()
    report.facts["seconds"] = round(time.monotonic() - started, 3)


def main() -> int:
    parser = argparse.ArgumentParser(prog="tessera demo", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--transport", choices=["shm", "ucx"], default=None, help="between workers")
    options = parser.parse_args()
    report = Report(options.json)
    error = None
    try:
        run(report, options.transport)
    except (ts.TesseraError, OSError) as failure:
        error = f"{type(failure).__name__}: {failure}"
        print(f"demo: {error}", file=sys.stderr)
    good = error is None and all(report.checks.values())
    report.say(f"\n{sum(report.checks.values())} of {len(report.checks)} checks passed in {report.facts.get('seconds', 0)} s")
    if options.json:
        print(json.dumps({"ok": good, "checks": report.checks, "error": error, **report.facts}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
