"""Ranks on two hosts (network namespaces that the test makes), two on each: what is matched and moved between hosts is what it is on one."""

import os
import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import two_hosts  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("rank_hosts_program.py")
RANKS = 4


@pytest.fixture(scope="module")
def hosts():
    try:
        with two_hosts.TwoHosts() as made:
            yield made
    except two_hosts.NotPermitted as reason:
        pytest.skip(f"two network namespaces are not permitted here: {reason}")


@pytest.mark.parametrize("transport", ["shm+ucx", "shm+tls"])
def test_ranks_of_two_hosts_get_what_numpy_says(hosts, transport):
    with two_hosts.Cluster(hosts, memory="96MiB", transport=transport) as cluster:
        before = hosts[0].received_bytes()
        environment = {**os.environ, "TESSERA_ADDRESS": cluster.address, "TORCHELASTIC_RUN_ID": transport}
        ranks = [subprocess.Popen(hosts[rank // 2].command(sys.executable, PROGRAM, rank, RANKS), env=environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for rank in range(RANKS)]
        try:
            told = [rank.communicate(timeout=100)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        crossed = hosts[0].received_bytes() - before
    assert told == ["ok\n"] * RANKS
    assert crossed > 10 << 20      # no page of ranks spans hosts
