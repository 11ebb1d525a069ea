"""A few rounds of tools/faults; more of them, with other seeds, are run by hand."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import coordinator_kills  # noqa: E402
import faults  # noqa: E402


@pytest.mark.parametrize("transport", ["shm", "ucx"])
def test_rounds_of_faults_hold(transport):
    assert faults.run(rounds=2, seed=20, transport=transport) > 0


def test_rounds_in_which_the_coordinator_alone_is_killed_have_no_error_at_all():
    assert faults.run(rounds=1, seed=40, transport="shm", kill=("coordinator",)) > 0


def test_rounds_in_which_the_coordinator_workers_and_clients_are_killed_hold():
    assert faults.run(rounds=1, seed=50, transport="shm", kill=("coordinator", "worker", "client")) > 0


def test_a_round_in_which_tessera_up_and_what_it_keeps_are_killed_holds():
    assert faults.run(rounds=1, seed=60, transport="shm", kill=faults.KILLED) > 0


def test_a_round_in_which_tessera_up_and_the_coordinator_alone_are_killed_has_no_error_at_all():
    assert faults.run(rounds=1, seed=300, transport="tls", kill=("up", "coordinator")) > 0


def test_a_coordinator_that_is_killed_in_the_middle_of_transfers_and_files_loses_nothing():
    done = coordinator_kills.run(kills=8, seed=3, kinds=("transfers", "files"))
    assert all(compared > 2 * coordinator_kills.KEPT for _, compared in done.values())


def test_a_wrong_number_fails_a_round():
    with pytest.raises(faults.Wrong, match="1 of 3 elements differ, the first at .1.: 5.0, NumPy has 2.0"):
        faults.compare(faults.np.array([1.0, 5.0, 3.0]), faults.np.array([1.0, 2.0, 3.0]))
