"""A few cuts of tools/cuts; a thousand of them are made by hand."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import cuts  # noqa: E402
import two_hosts  # noqa: E402


def test_cuts_between_two_namespaces_lose_nothing_and_repeat_nothing():
    try:
        said = cuts.run(cuts=20, seed=8)
    except two_hosts.NotPermitted as reason:
        pytest.skip(f"two network namespaces are not permitted here: {reason}")
    assert (said["cuts"], said["lost"], said["twice"]) == (20, 0, 0)
    assert said["amid"] >= 8 and said["uploads"] and said["downloads"]


def test_a_wrong_number_is_told():
    class Three:
        def full_tensor(self):
            return cuts.np.array([1.0, 5.0, 3.0])

    with pytest.raises(cuts.Wrong, match="1 of 3 elements differ"):
        cuts.compare(Three(), cuts.np.array([1.0, 2.0, 3.0]))
