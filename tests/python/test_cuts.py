"""A few cuts of tools/cuts; a thousand of them are made by hand."""

import os
import pathlib
import subprocess
import sys

import pytest

import tessera as ts

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import cuts  # noqa: E402
import two_hosts  # noqa: E402
from tls_cluster import TlsCluster  # noqa: E402


def test_cuts_between_two_namespaces_lose_nothing_and_repeat_nothing():
    try:
        said = cuts.run(cuts=20, seed=8)
    except two_hosts.NotPermitted as reason:
        pytest.skip(f"two network namespaces are not permitted here: {reason}")
    assert (said["cuts"], said["lost"], said["twice"]) == (20, 0, 0)
    # 11 of these steps wait for the end of what they send, which is more than the bytes before the cut: on any machine.
    assert said["amid"] >= 8 and said["uploads"] and said["downloads"]


CLIENT = """
import sys
import numpy as np, tessera as ts
session = ts.connect(sys.argv[1], token=sys.argv[2], ca=sys.argv[3], lease=60)
x = session.distribute_tensor(np.ones(1 << 16)).wait()
print("there", flush=True)
sys.stdin.readline()
print(float((x + 1).sum()), session.state, flush=True)
"""


def test_a_half_open_connection_counts_as_gone_and_its_session_goes_on():
    """Nothing gets through, and nobody says so: neither side's kernel knows that the other one isn't there."""
    try:
        with two_hosts.TwoHosts() as hosts, TlsCluster(workers=1, host=hosts[0], flags=["--session-silence=3"]) as cluster:
            command = hosts[1].command(sys.executable, "-c", CLIENT, cluster.address, cluster.token, cluster.certificates / "ca.crt")
            client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                      env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
            assert client.stdout.readline() == "there\n"
            with hosts.link_down():
                two_hosts.wait_until(lambda: "has said nothing for 3 s (session_silence)" in cluster.coordinator_log(), "the silence")
                with cluster.connect(address=cluster.unix) as other:   # which goes on meanwhile
                    assert float(ts.ones((4,), device_mesh=other.default_mesh).sum()) == 4
            said, _ = client.communicate("\n", timeout=60)
            assert said.split() == ["131072.0", "open"] and client.returncode == 0
    except two_hosts.NotPermitted as reason:
        pytest.skip(f"two network namespaces are not permitted here: {reason}")


def test_a_wrong_number_is_told():
    class Three:
        def full_tensor(self):
            return cuts.np.array([1.0, 5.0, 3.0])

    with pytest.raises(cuts.Wrong, match="1 of 3 elements differ"):
        cuts.compare(Three(), cuts.np.array([1.0, 2.0, 3.0]))
