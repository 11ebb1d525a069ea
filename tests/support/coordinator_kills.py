"""A coordinator that is killed by SIGKILL again and again, while clients compute, bring and fetch arrays, load and save files, and train by
captured steps. No value may be wrong, no handle lost, and no client may see an error.

    python coordinator_kills.py --kills 1000 [--seed S] [--clients ops,transfers,files,steps]

Each client has tensors of its beginning, which it looks at in the end; `steps` needs torch (tools/setup_torch), and compares its losses
to the bit with those of a pool that nobody kills."""

import argparse
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ("ops", "transfers", "files", "steps")
WORKERS = 2
KEPT = 40
END_SECONDS = 300


class Wrong(Exception):
    """A run's findings."""


def same(got, wanted, what):
    if not np.array_equal(got, wanted):
        raise Wrong(f"{what}: {np.count_nonzero(got != wanted)} of {wanted.size} elements differ")


# ---- clients, each a process of its own; a turn gives how many values it has compared


def ops(session, mesh, rng, folder):
    wanted = rng.integers(-4, 5, (150, 200)).astype("f8")
    x = session.distribute_tensor(wanted, mesh, [ts.Shard(0)])
    for i in range(int(rng.integers(5, 300))):
        x, wanted = x * 2.0 - x + float(i % 3), wanted + float(i % 3)
    x = x.redistribute(mesh, [ts.Shard(1)])
    same(np.asarray(x), wanted, "a chain of ops")
    same(np.asarray(x @ x.T), wanted @ wanted.T, "a product")
    return 2


def transfers(session, mesh, rng, folder):
    wanted = rng.standard_normal((int(rng.integers(500, 4000)), 500))  # 2 to 16 MB
    x = session.distribute_tensor(wanted, mesh, [ts.Shard(int(rng.integers(2)))])
    same(x.full_tensor(), wanted, "an array that was brought and fetched")
    return 1


def files(session, mesh, rng, folder):
    wanted = rng.standard_normal((int(rng.integers(200, 2000)), 400)).astype("f4")
    np.save(folder / "in.npy", wanted)
    x = ts.load(str(folder / "in.npy"), mesh, [ts.Shard(0)], session=session)
    same(np.asarray(x), wanted, "a file that was loaded")
    ts.save(str(folder / "out.npy"), x + 1)
    same(np.load(folder / "out.npy"), wanted + np.float32(1), "a file that was saved")
    return 2


def losses(session, mesh, seed, count=30):
    import torch
    import torch.nn.functional as F

    import tessera.torch as tt
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
    model = tt.distribute_module(model, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    place = [ts.Shard(0)]
    batches = [(tt.distribute_tensor(torch.randn(16, 16), mesh, place), tt.distribute_tensor(torch.randint(0, 4, (16,)), mesh, place))
               for _ in range(3)]

    @tt.capture
    def step(x, labels):
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    found = np.array([step(*batches[i % len(batches)]).item() for i in range(count)])
    if step.replays == 0:
        raise Wrong("no step was captured")
    return found


def steps(session, mesh, rng, folder, quiet={}):
    seed = int(rng.integers(4))
    if seed not in quiet:
        with ts.local_cluster(workers=WORKERS, memory="128MiB") as cluster, cluster.connect() as other:
            quiet[seed] = losses(other, other.init_device_mesh((WORKERS,)), seed)
    found = losses(session, mesh, seed)
    same(found, quiet[seed], f"losses of captured steps ({found} and {quiet[seed]})")
    return len(found)


def client(address, kind, seed, folder):
    rng, stopping = np.random.default_rng(seed), threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopping.set()), daemon=True).start()
    turn = {"ops": ops, "transfers": transfers, "files": files, "steps": steps}[kind]
    with ts.connect(address, token="t", stall_timeout=120) as session:
        mesh = session.init_device_mesh((WORKERS,))
        made = [rng.standard_normal((20, 30)) for _ in range(KEPT)]
        kept = [session.distribute_tensor(values, mesh, [ts.Shard(0)]) for values in made]
        for number, tensor in enumerate(kept):
            tensor.name = f"kept {number}"
        print("ready", flush=True)
        compared, turns = 0, 0
        while not stopping.is_set():
            compared += turn(session, mesh, rng, folder)
            turns += 1
        for number, (tensor, values) in enumerate(zip(kept, made)):
            same(np.asarray(tensor), values, f"tensor {number} of the beginning")
            same(np.asarray(session[f"kept {number}"]), values, f"the name of tensor {number}")
        print(f"done {turns} {compared + 2 * KEPT}", flush=True)


# ---- the run


def start_client(pool, kind, seed, folder):
    python = [sys.executable] if kind != "steps" else [ROOT / "tools/python", "--torch"]
    command = [*python, __file__, "--client", pool.address, "--clients", kind, "--seed", str(seed), "--folder", str(folder)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    started.kind = kind
    if started.stdout.readline() != "ready\n":
        raise Wrong(f"the client of {kind} does not start:\n{started.communicate()[1][-3000:]}")
    return started


def run(kills, seed, kinds=KINDS, say=lambda text: None):
    """{kind: (turns, values compared)}; raises Wrong."""
    from state_pool import Pool
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tessera-kills-"))
    rng = random.Random(seed)
    (folder / "files").mkdir()
    # With snapshots often, so that many a start is from one.
    pool = Pool(folder, workers=WORKERS, outlive=120, flags=["--snapshot-after=0.1"], worker_flags=[f"--files={folder}/files"])
    clients = []
    try:
        clients = [start_client(pool, kind, rng.getrandbits(32), folder / "files") for kind in kinds]
        for number in range(1, kills + 1):
            time.sleep(rng.uniform(0.02, 0.3))
            pool.restart()
            for one in clients:
                if one.poll() is not None:
                    raise Wrong(f"after {number} kills the client of {one.kind} ended with status {one.returncode}:\n"
                                f"{one.communicate()[1][-4000:]}")
            if number % 50 == 0:
                say(f"{number} kills")
        done = {}
        for one in clients:
            out, err = one.communicate(timeout=END_SECONDS)
            if one.returncode != 0:
                raise Wrong(f"the client of {one.kind} ended with status {one.returncode}:\n{err[-4000:]}")
            done[one.kind] = tuple(map(int, out.split()[1:]))
        if [worker.poll() for worker in pool.workers] != [None] * WORKERS:
            raise Wrong("a worker has ended")
        return done
    except (Wrong, AssertionError, subprocess.TimeoutExpired) as error:
        raise Wrong(f"seed {seed}: {type(error).__name__}: {str(error)[-4000:]}\n{pool.text()[-4000:]}") from error
    finally:
        for one in clients:
            if one.poll() is None:
                one.kill()
                one.communicate()
        pool.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=lambda text: tuple(text.split(",")), default=KINDS, metavar=",".join(KINDS))
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.clients) - set(KINDS):
        parser.error(f"--clients: {', '.join(sorted(unknown))}; it is some of {', '.join(KINDS)}")
    if options.client:
        return client(options.client, options.clients[0], options.seed, options.folder)
    began = time.monotonic()
    try:
        done = run(options.kills, options.seed, options.clients, lambda text: print(text, flush=True))
    except Wrong as error:
        sys.exit(str(error))
    for kind, (turns, compared) in done.items():
        print(f"{kind}: {turns} turns, {compared} results compared, 0 wrong")
    print(f"{options.kills} kills in {time.monotonic() - began:.0f} s, seed {options.seed}: no wrong value, no handle lost, no error")


if __name__ == "__main__":
    main()
