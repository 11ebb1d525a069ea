"""The limits of time that other tests hold: late once is tried again, late always and wrong once are told."""

import pytest

import in_time


def tries(*outcomes):
    """A test that ends so, one outcome a try; how often it is tried."""
    made = []

    @in_time.tried_again
    def test():
        made.append(outcomes[len(made)])
        if made[-1] is not None:
            raise made[-1]

    return test, made


def test_late_once_is_tried_again():
    test, made = tries(in_time.Late(), None)
    test()
    assert len(made) == 2


def test_late_always_is_late():
    test, made = tries(*[in_time.Late()] * 9)
    with pytest.raises(in_time.Late):
        test()
    assert len(made) == 3


def test_what_is_wrong_is_not_tried_again():
    test, made = tries(ValueError("wrong"), None)
    with pytest.raises(ValueError, match="wrong"):
        test()
    assert len(made) == 1


def test_a_limit_tells_how_long_it_took():
    with pytest.raises(in_time.Late, match="not below 0"):
        with in_time.Limit(0):
            pass
    with in_time.Limit(60):
        pass
    with pytest.raises(ValueError), in_time.Limit(0):     # what went wrong matters more
        raise ValueError
