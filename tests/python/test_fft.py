"""ts.fft against NumPy, on every kind of placement."""

import numpy as np
import pytest

import tessera as ts
from conftest import IS_EMULATED

S, R, P = ts.Shard, ts.Replicate, ts.Partial
PLACEMENTS = [[R(), R()], [S(0), R()], [R(), S(1)], [S(0), S(1)], [S(1), S(1)], [S(0, sizes=[4, 1]), S(1)]]


def close(got, want, tolerance=1e-9):
    got = np.asarray(got.full_tensor())
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def draw(rng, shape, dtype):
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_one_axis(session, mesh22, rng, name, dtype):
    if name in ("rfft", "ihfft") and np.dtype(dtype).kind == "c":
        return
    a = draw(rng, (5, 8), dtype)
    for placements in PLACEMENTS:
        x = session.distribute_tensor(a, mesh22, placements)
        for axis in (0, 1, -1):
            for n in (None, 3, 7, 12):
                for norm in ("backward", "ortho", "forward", None):
                    close(getattr(ts.fft, name)(x, n=n, axis=axis, norm=norm), getattr(np.fft, name)(a, n=n, axis=axis, norm=norm),
                          2e-5 if np.dtype(dtype).itemsize // (2 if np.dtype(dtype).kind == "c" else 1) == 4 else 1e-10)


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_several_axes(session, mesh22, rng, name):
    a = draw(rng, (4, 5, 6), np.float64 if name == "rfftn" else np.complex128)
    for placements in ([S(0), S(1)], [S(2), R()], [S(1), S(1)]):
        x = session.distribute_tensor(a, mesh22, placements)
        for options in ({}, {"axes": (0, 2)}, {"axes": (2, 0)}, {"s": (3, 8), "axes": (-1, 0)}, {"norm": "ortho"}, {"axes": (1,)}):
            close(getattr(ts.fft, name)(x, **options), getattr(np.fft, name)(a, **options), 1e-10)


@pytest.mark.parametrize("n", [1, 2, 3, 11, 13, 64, 97, 210, 1009, 4096, 10007])
def test_lengths(session, mesh4, rng, n):
    if n == 10007 and IS_EMULATED:
        pytest.skip("the emulated cuFFT adds up all n * n products of a prime length")
    a = draw(rng, (4, n), np.complex128)
    x = session.distribute_tensor(a, mesh4, [S(0)])
    with session.comm_debug() as comm:
        y = ts.fft.fft(x).wait()
    assert sum(comm.bytes_received) == 0 and y.placements == (S(0),)
    close(y, np.fft.fft(a), 1e-9 * max(1, n ** 0.5))
    close(ts.fft.ifft(y), a, 1e-10)
    close(ts.fft.irfft(ts.fft.rfft(ts.real(x)), n=n), a.real, 1e-10)


def test_shifts_and_frequencies(session, mesh22, rng):
    for n in (1, 4, 5):
        close(ts.fft.fftfreq(n, d=0.5), np.fft.fftfreq(n, d=0.5))
        close(ts.fft.rfftfreq(n, d=0.5), np.fft.rfftfreq(n, d=0.5))
    a = draw(rng, (4, 5), np.float64)
    x = session.distribute_tensor(a, mesh22, [S(0), S(1)])
    for axes in (None, 0, (0, 1), (-1,)):
        close(ts.fft.fftshift(x, axes=axes), np.fft.fftshift(a, axes=axes))
        close(ts.fft.ifftshift(x, axes=axes), np.fft.ifftshift(a, axes=axes))


def test_bad_input_is_said_by_the_function(session, mesh22, rng):
    x = session.distribute_tensor(draw(rng, (4, 5), np.complex128), mesh22, [S(0), R()])
    with pytest.raises(ts.DTypeError, match="^rfft: needs a real dtype"):
        ts.fft.rfft(x)
    with pytest.raises(ts.InvalidArgumentError, match="^fft: norm is 'twice'"):
        ts.fft.fft(x, norm="twice")
    with pytest.raises(ts.InvalidArgumentError, match="^fft: a length of 0"):
        ts.fft.fft(x, n=0)
    with pytest.raises(ts.IndexOutOfRangeError, match="^ifft: axis 2"):
        ts.fft.ifft(x, axis=2)
    with pytest.raises(ts.InvalidArgumentError, match="^fftn: s is"):
        ts.fft.fftn(x, s=(1, 2, 3))
    close(ts.fft.fft(ts.asarray(np.arange(4))), np.fft.fft(np.arange(4)))


def test_frequencies_lie_on_the_device_that_is_asked_for(session, mesh4):
    pair = session.init_device_mesh((2,))
    for name in ("fftfreq", "rfftfreq"):
        y = getattr(ts.fft, name)(6, d=0.5, device=pair)
        assert y.device == pair
        np.testing.assert_allclose(y.full_tensor(), getattr(np.fft, name)(6, d=0.5))
