"""A few rounds of tools/faults; more of them, with other seeds, are run by hand."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
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


def test_a_wrong_number_fails_a_round():
    with pytest.raises(faults.Wrong, match="1 of 3 elements differ, the first at .1.: 5.0, NumPy has 2.0"):
        faults.compare(faults.np.array([1.0, 5.0, 3.0]), faults.np.array([1.0, 2.0, 3.0]))
