"""Cuts between two network namespaces: a cluster in one, a client that reaches it over TLS in the other, and between them
connections that end again and again, each after a byte that the seed chooses.

    python cuts.py --cuts 1000 --seed 7

One Session object goes through all of it. Each step has one cut: of the coordinator's connections while ops of a chain are
asked for (x += 1, in the memory of x, so one that ran twice would show), or of the workers' while a tensor is brought or
fetched. It holds if in the end every number is the one that the ops make, the client and the coordinator have the same
handles, and the coordinator has issued as many instances as for the same steps without any cut: none lost, none run
twice. Else it says its seed and what differs."""

import argparse
import json
import os
import random
import subprocess
import sys
import time

import numpy as np

import tessera as ts

import two_hosts
from tls_cluster import CutProxy, TlsCluster

WORKERS = 2
FIRST_DOOR, FIRST_PROXY = 7430, 7530   # of the workers, and of what the client takes for them; the coordinator's is after
KEPT = 24
CLIENT_SECONDS = 3600


class Wrong(Exception):
    """The difference."""


# ---- the client, in a namespace of its own ---------------------------------------------------------------------------


class Steps:
    """The same ones for a seed, with cuts or without."""

    def __init__(self, session, seed):
        self.session, self.rng = session, random.Random(seed)
        self.mesh = session.init_device_mesh((WORKERS,))
        self.total, self.count = session.distribute_tensor(np.zeros(64), self.mesh, [ts.Shard(0)]), 0
        self.kept = []
        self.done = {"ops": 0, "uploads": 0, "downloads": 0}

    def one(self, cutting):
        kind = self.rng.choices(["ops", "upload", "download"], [5, 1, 1])[0]
        after = self.rng.randrange(1, 2_000 if kind == "ops" else 400_000) if self.rng.random() < 0.8 else 0
        which = self.rng.random()
        cutting.arm(cutting.control if kind == "ops" else cutting.data, which, after)
        getattr(self, kind)()
        cutting.make_sure()

    def ops(self):
        for _ in range(self.rng.randrange(1, 150)):
            self.total += 1
            self.count += 1
            self.done["ops"] += 1
        if self.rng.random() < 0.7:   # else the cut comes while they are on their way
            self.total.wait()
        self.keep(self.total * 2, np.full(64, 2.0 * self.count))

    def upload(self):
        values = np.random.default_rng(self.rng.getrandbits(32)).standard_normal((self.rng.randrange(100, 500), 700))
        made = self.session.distribute_tensor(values, self.mesh, [self.rng.choice([ts.Shard(0), ts.Shard(1), ts.Replicate()])])
        made.wait()
        self.done["uploads"] += 1
        self.keep(made, values)

    def download(self):
        if not self.kept:
            return self.upload()
        compare(*self.rng.choice(self.kept))
        self.done["downloads"] += 1

    def keep(self, tensor, values):
        self.kept.append((tensor, values))
        if len(self.kept) > KEPT:
            del self.kept[self.rng.randrange(KEPT)]

    def end(self):
        """The handles of both sides, when everything has been compared."""
        compare(self.total, np.full(64, float(self.count)))
        for tensor, values in self.kept:
            compare(tensor, values)
        self.session.sync()
        own = sorted([self.total._handle, *(tensor._handle for tensor, _ in self.kept)])
        deadline = time.monotonic() + 60
        while (theirs := sorted(one["handle"] for one in self.session._status()["tensors"])) != own:
            if time.monotonic() > deadline:
                raise Wrong(f"the client has the handles {own}, the coordinator {theirs}")
            time.sleep(0.05)
        return len(own)


def compare(tensor, values):
    got = tensor.full_tensor()
    if not np.array_equal(got, values):
        raise Wrong(f"{np.count_nonzero(got != values)} of {values.size} elements differ; the first is {got.flat[0]}, not {values.flat[0]}")


class NoCuts:
    control = data = ()

    def arm(self, proxies, which, after):
        pass

    def make_sure(self):
        pass


class Cuts:
    """One in each step, by one of the proxies."""

    def __init__(self, control, data):
        self.control, self.data = control, data
        self.armed, self.before, self.after = None, 0, 0
        self.amid = 0   # that came in the middle of something, at the byte that the seed said

    def arm(self, proxies, which, after):
        self.armed = proxies[int(which * len(proxies))]
        self.before, self.after = self.armed.cuts, after
        self.armed.cut_after(after) if after else self.armed.cut()

    def make_sure(self):
        if self.armed.cuts == self.before:
            self.armed.cut_after(None)
            self.armed.cut()
        elif self.after:
            self.amid += 1


def client(cluster_address, cluster, seed, cuts):
    """Prints what happened, as JSON."""
    proxies = [CutProxy(port, cluster["host"], own) for own, port in cluster["doors"]]
    result = {"seed": seed, "cuts": cuts}
    issued = []
    for cutting in (NoCuts(), Cuts(proxies[-1:], proxies[:-1])):
        with ts.connect(cluster_address, token=cluster["token"], ca=cluster["ca"]) as session:
            before, began = session._status()["next_ordinal"], time.monotonic()
            steps, same = Steps(session, seed), session.id
            for _ in range(cuts):
                steps.one(cutting)
            result["handles"] = steps.end()
            issued.append(session._status()["next_ordinal"] - before)
            if session.id != same or session.state != "open":
                raise Wrong(f"session {same} is {session.state}, with number {session.id}")
            result.update(steps.done, seconds=round(time.monotonic() - began, 1))
    result["instances"], result["amid"] = issued[1], cutting.amid
    result["lost"], result["twice"] = max(0, issued[0] - issued[1]), max(0, issued[1] - issued[0])
    if issued[0] != issued[1]:
        raise Wrong(f"{issued[1]} instances were issued; without cuts {issued[0]}")
    print(json.dumps(result), flush=True)


# ---- both hosts --------------------------------------------------------------------------------------------------------


def run(cuts, seed):
    """The client's output; raises Wrong, with the seed, and two_hosts.NotPermitted where there are no namespaces."""
    with two_hosts.TwoHosts() as hosts, TlsCluster(workers=0, host=hosts[0], flags=["--max-segment-ops=1"]) as cluster:
        doors = []
        for index in range(WORKERS):
            doors.append((FIRST_PROXY + index, FIRST_DOOR + index))
            cluster.start_worker(index, address=f"localhost:{FIRST_PROXY + index}", data_port=FIRST_DOOR + index)
        cluster.wait_for_workers(WORKERS)
        doors.append((FIRST_PROXY + WORKERS, int(cluster.clients.rpartition(":")[2])))
        told = {"host": hosts[0].address, "doors": doors, "token": cluster.token, "ca": str(cluster.certificates / "ca.crt")}
        command = hosts[1].command(sys.executable, __file__, "--client", json.dumps(told), "--cuts", cuts, "--seed", seed)
        done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_SECONDS,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        if done.returncode != 0:
            raise Wrong(f"tools/cuts --cuts {cuts} --seed {seed}: {done.stderr[-3000:]}\n{cluster.coordinator_log()[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seed = random.SystemRandom().getrandbits(31) if options.seed is None else options.seed
    if options.client:
        told = json.loads(options.client)
        return client(f"tls://localhost:{told['doors'][-1][0]}", told, seed, options.cuts)
    print(f"{options.cuts} cuts, seed {seed}", flush=True)
    try:
        print(json.dumps(run(options.cuts, seed)))
    except (Wrong, two_hosts.NotPermitted) as error:
        sys.exit(f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
