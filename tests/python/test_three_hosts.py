"""The first chapter of docs/deploy.md, line by line: two machines and a laptop, which are namespaces, and what holds between them."""

import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import three_hosts  # noqa: E402
import two_hosts  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def deployed(tmp_path):
    """Makes the machines and what runs on them."""
    made = []

    def make(reach, without=()):
        made.append(three_hosts.ThreeHosts(tmp_path, reach).__enter__())
        made.append(three_hosts.Deployed(made[0], tmp_path, without).__enter__())
        return made[1]
    try:
        yield make
    except two_hosts.NotPermitted as reason:
        pytest.skip(str(reason))
    finally:
        for each in reversed(made):
            each.__exit__()


def made_by(deployed, *how, **options):
    try:
        return deployed(*how, **options)
    except two_hosts.NotPermitted as reason:
        pytest.skip(f"three network namespaces are not permitted here: {reason}")


# Both workers get 24 MiB of an array, and give them back; what they exchange crosses between the nodes.
MOVES = """
x = np.random.default_rng(5).standard_normal((3000, 2000))
mesh = session.init_device_mesh((2,))
for placements in ([ts.Shard(0)], [ts.Shard(1)], [ts.Replicate()]):
    d = session.distribute_tensor(x, mesh, placements).wait()
    np.testing.assert_array_equal(d.full_tensor(), x)
    np.testing.assert_array_equal(d.redistribute([ts.Shard(1)]).to_local((1,)), x[:, 1000:])
print(x.nbytes)
"""


def test_the_lines_of_the_page_make_a_cluster_of_two_machines(deployed):
    made = made_by(deployed, "forwarded")
    first, second = made.laptop
    made.on_laptop(first)
    # Tomorrow, in a new process.
    assert made.on_laptop("import tessera as ts\n" + second + "print(x.full_tensor().sum(), len({w['host'] for w in session.status()['workers']}))").split() == ["16777216.0", "2"]
    made.on_laptop(made.connected + MOVES)


@pytest.mark.parametrize("reach, without", [("dropped", []), ("none", []), ("none", ["--data-listen"])], ids=str)
def test_a_machine_that_the_laptop_does_not_reach_is_reached_by_way_of_the_other(deployed, reach, without):
    made = made_by(deployed, reach, without=without)
    if without:
        # No worker reaches it for clients either: it has no address for them.
        said = made.on_laptop(made.connected + """
try:
    session.distribute_tensor(np.ones((1000, 1000)), session.init_device_mesh((1,), workers=[1])).wait(timeout=30)
except ts.TesseraError as error:
    print(type(error).__name__, error)
""")
        assert "worker 1" in said and "--data-listen" in said, said
        return
    before = made.hosts.node2.received_bytes()
    moved = int(made.on_laptop(made.connected + MOVES))
    # Halves, columns and all of it up; the redistribution's halves on top.
    assert made.hosts.node2.received_bytes() - before > 2 * moved


def test_relayed_bytes_go_on_when_what_is_between_the_machines_breaks(deployed, tmp_path):
    made, often_enough = made_by(deployed, "none"), tmp_path / "often enough"
    start = f"""
import os
x = np.random.default_rng(5).standard_normal((3000, 2000))
mesh = session.init_device_mesh((2,))
rounds = 0
while rounds < 12 or not os.path.exists({str(often_enough)!r}):
    rounds += 1
    d = session.distribute_tensor(x, mesh, [ts.Shard(0)]).wait()
    np.testing.assert_array_equal(d.full_tensor(), x)
assert session.state == "open"
"""
    client = made.start_on_laptop(made.connected + start)
    cuts = tries = 0
    while client.poll() is None:
        cuts += made.hosts.break_connections()
        tries += 1
        if cuts >= 5 or tries == 600:       # some kernels break none
            often_enough.touch()
        time.sleep(0.1)
    assert client.returncode == 0, made.logs()
    if cuts == 0:
        pytest.skip("the kernel ends no connections of others (ss --kill)")
    assert cuts >= 5
