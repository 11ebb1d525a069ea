"""Values of the client that need no server."""

import numpy as np
import pytest

import in_time
import tessera as ts


def test_placements_are_values():
    assert ts.Shard(1) == ts.Shard(1) != ts.Shard(0)
    assert ts.Partial() == ts.Partial("sum") != ts.Partial("max")
    assert len({ts.Shard(0), ts.Shard(0), ts.Replicate(), ts.Partial()}) == 3
    assert (str(ts.Shard(2)), str(ts.Replicate()), str(ts.Partial("avg"))) == ("S(2)", "R", "P(avg)")
    assert eval(repr(ts.Partial("min")), vars(ts)) == ts.Partial("min")


@pytest.mark.parametrize("make", [lambda: ts.Partial("median"), lambda: ts.Shard("x")])
def test_bad_placements_are_refused(make):
    with pytest.raises(ts.InvalidArgumentError):
        make()


def test_explicit_shard_sizes_are_values():
    sized = ts.Shard(0, sizes=[3, 1, 5])
    assert sized == ts.Shard(0, [3, 1, 5]) != ts.Shard(0) and str(sized) == "S(0;3,1,5)"
    assert repr(sized) == "Shard(0, sizes=[3, 1, 5])" and len({sized, ts.Shard(0, sizes=(3, 1, 5))}) == 1
    for sizes in ([], [-1, 2], [1.5], "ab"):
        with pytest.raises(ts.InvalidArgumentError, match="sizes"):
            ts.Shard(0, sizes=sizes)


@pytest.mark.parametrize("error, base", [
    (ts.InvalidArgumentError, ValueError), (ts.DTypeError, TypeError), (ts.IndexOutOfRangeError, IndexError),
    (ts.NotFoundError, KeyError), (ts.FailedPreconditionError, RuntimeError), (ts.ResourceExhaustedError, MemoryError),
    (ts.UnavailableError, ConnectionError), (ts.DeadlineExceededError, TimeoutError), (ts.CancelledError, RuntimeError),
    (ts.UnauthenticatedError, PermissionError), (ts.PermissionDeniedError, PermissionError),
    (ts.UnimplementedError, NotImplementedError), (ts.InternalError, RuntimeError)])
def test_errors_have_a_built_in_base(error, base):
    assert issubclass(error, base) and issubclass(error, ts.TesseraError)
    assert str(error("what went wrong")) == "what went wrong"


@pytest.mark.parametrize("address", ["", "unix:", "tcp:127.0.0.1:1", "/tmp/x", "unix\0:/x"])
def test_a_bad_address_is_invalid(address, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TESSERA_ADDRESS", raising=False)
    with pytest.raises(ts.InvalidArgumentError):
        ts.connect(address)


@in_time.tried_again
def test_no_server_fails_at_once(tmp_path):
    with in_time.Limit(1), pytest.raises(ts.UnavailableError, match="no server at unix:"):
        ts.connect(f"unix:{tmp_path}/nobody.sock")


def test_a_path_that_is_too_long_is_invalid():
    with pytest.raises(ts.InvalidArgumentError, match="limit is 107"):
        ts.connect("unix:/" + "x" * 200)


@pytest.mark.parametrize("options", [
    {"workers": 0}, {"workers": -1}, {"workers": 2**70}, {"workers": "two"}, {"memory": 0}, {"memory": "lots"},
    {"memory": "-1GiB"}, {"device": "tpu"}, {"transport": "pigeon"}, {"address": "tcp:0.0.0.0:1"}])
def test_a_cluster_that_makes_no_sense_is_refused(options):
    with pytest.raises(ts.InvalidArgumentError):
        ts.local_cluster(**options)


def test_functions_without_a_session_say_so(monkeypatch):
    monkeypatch.setattr(ts._context, "open_sessions", lambda: [])
    with pytest.raises(ts.FailedPreconditionError, match="session"):
        ts.zeros((2,))


def test_a_dtype_has_numpys_names_and_the_notations():
    from tessera._dtypes import code_of
    assert code_of("f32", "t") == code_of(np.float32, "t") == code_of("float32", "t") == code_of(ts.float32, "t")
    with pytest.raises(ts.DTypeError, match="unknown dtype 'f7'"):
        code_of("f7", "zeros")
    assert code_of("bf16", "t") == code_of(ts.bfloat16, "t") == code_of("bfloat16", "t")
    for name, one, other in (("i8", "int8", "int64"), ("u8", "uint8", "uint64")):
        with pytest.raises(ts.DTypeError, match=f'say "{one}" or "{other}"'):
            code_of(name, "zeros")
    assert code_of("c64", "t") == code_of(np.complex64, "t") == code_of(ts.complex64, "t")
    assert code_of("f8e4m3", "t") == code_of(ts.float8_e4m3fn, "t") == code_of("float8_e4m3fn", "t")
