"""tessera keep --copies: the workers of one host side by side, as a pod of Kubernetes has them."""

import os
import re
import signal
import subprocess

import numpy as np
import pytest

import tessera as ts
from test_operating import TOKENS, WORKER, running
from test_server_faults import BINARIES, wait_until

TESSERA = BINARIES / "client/cli/tessera"


def keep(*words, **environment):
    return subprocess.Popen([TESSERA, "keep", *map(str, words)], env={**os.environ, **TOKENS, **environment}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def pids_of(pool):
    with pool.connect("admin-token") as admin:
        return {one["index"]: one["pid"] for one in admin.status()["workers"] if one["state"] == "alive"}


def test_workers_run_side_by_side_and_one_that_is_killed_comes_back_alone():
    with running(workers=0) as pool:
        kept = keep("--copies", 2, "--", WORKER, f"--coordinator={pool.socket}", "--index={}", "--workers-on-host=2", "--memory=16MiB",
                    f"--socket-dir={pool.folder}")
        try:
            pool.await_workers(2)
            before = pids_of(pool)
            os.kill(before[1], signal.SIGKILL)
            wait_until(lambda: pids_of(pool).get(1) not in (None, before[1]))
            assert pids_of(pool)[0] == before[0]
            with pool.connect() as session:
                x = np.arange(64.0).reshape(8, 8)
                d = session.distribute_tensor(x, session.init_device_mesh((2,)), [ts.Shard(0)])
                np.testing.assert_array_equal((d @ d.redistribute([ts.Shard(1)])).full_tensor(), x @ x)
        finally:
            kept.terminate()
        assert kept.wait(timeout=60) == 0
        assert "killed by signal 9; it is started again" in kept.stderr.read()
        for pid in pids_of(pool).values():
            wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
        kept.stdout.close()
        kept.stderr.close()


def test_the_worst_status_is_told_when_all_have_ended():
    kept = keep("--copies", 3, "--", "sh", "-c", "echo {} of {}; exit $(({} * 2))")   # 0, 2 and 4 are not started again
    said, _ = kept.communicate(timeout=60)
    assert kept.returncode == 4 and sorted(said.splitlines()) == ["0 of 0", "1 of 1", "2 of 2"]


def test_one_alone_has_its_words_as_they_are():
    kept = keep("--", "echo", "{}")
    assert kept.communicate(timeout=60)[0] == "{}\n" and kept.returncode == 0


def test_a_keeper_that_is_killed_takes_its_copies_along():
    kept = keep("--copies", 2, "--", "sh", "-c", "echo $$; exec sleep 600")
    pids = [int(kept.stdout.readline()) for _ in range(2)]
    kept.kill()
    kept.wait(timeout=60)
    for pid in pids:
        wait_until(lambda pid=pid: not os.path.exists(f"/proc/{pid}"))
    kept.stdout.close()
    kept.stderr.close()


@pytest.mark.parametrize("copies", ["0", "65", "many"])
def test_a_number_that_is_none_is_refused(copies):
    kept = keep("--copies", copies, "--", "true")
    said = kept.communicate(timeout=60)[1]
    assert kept.returncode == 2 and re.search("--copies", said), said
