"""A neighbour of one hostile session gets right values, and no server holds more than its limits say; each attack runs by hand:
tools/faults --memory-cap."""

import pytest

import hostile_sessions
import tessera as ts


@pytest.mark.parametrize("number", hostile_sessions.ATTACKS)
def test_a_hostile_session_harms_no_neighbour(number):
    if number in ("5", "9"):
        pytest.importorskip({"5": "zarr", "9": "h5py"}[number])
    (result,) = hostile_sessions.run([number], seconds=0.5)
    assert result["beside"]["ops"] > 0 and result["beside"]["transfers"] > 0
    print(hostile_sessions.row(result))


def test_memory_above_the_limit_fails_a_round(monkeypatch):
    monkeypatch.setattr(hostile_sessions, "MOST_GROWTH", -1)
    with pytest.raises(hostile_sessions.Wrong, match="servers grew by .* -1 are allowed"):
        hostile_sessions.run(["14"], seconds=0.1)


def test_a_neighbours_wrong_value_fails_a_round(monkeypatch):
    with ts.local_cluster(2, memory="64MiB") as cluster, cluster.connect() as session:
        monkeypatch.setattr(hostile_sessions.np, "arange", lambda *_, **__: hostile_sessions.np.ones(8))
        with pytest.raises(hostile_sessions.Wrong, match="a sum is 16.0, not 36"):
            hostile_sessions.measure(session, 0.1)
