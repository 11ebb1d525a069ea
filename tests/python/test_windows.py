"""Convolutions and pooling against loops over windows, on every kind of placement."""

import itertools

import numpy as np
import pytest

import tessera as ts

S, R = ts.Shard, ts.Replicate
PLACEMENTS = [[R(), R()], [S(0), R()], [S(0), S(1)], [S(1), R()], [R(), S(2)], [S(0), S(0)], [S(2), S(1)]]


def each(value, dims):
    return (value,) * dims if isinstance(value, int) else tuple(value)


def conv(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
    dims = x.ndim - 2
    stride, padding, dilation = (each(v, dims) for v in (stride, padding, dilation))
    x = np.pad(x, [(0, 0)] * 2 + [(p, p) for p in padding])
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    extents = [(n - r) // s + 1 for n, r, s in zip(x.shape[2:], reach, stride)]
    out = np.zeros((x.shape[0], w.shape[0], *extents), np.result_type(x, w))
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    for at in itertools.product(*map(range, extents)):
        window = x[(slice(None), slice(None), *(slice(i * s, i * s + r, d) for i, s, r, d in zip(at, stride, reach, dilation)))]
        for g in range(groups):
            part = window[:, g * inputs:(g + 1) * inputs].reshape(x.shape[0], -1)
            weights = w[g * outputs:(g + 1) * outputs].reshape(outputs, -1)
            out[(slice(None), slice(g * outputs, (g + 1) * outputs), *at)] = part @ weights.T
    return out if bias is None else out + bias.reshape(-1, *(1,) * dims)


def conv_gradients(g, x, w, stride=1, padding=0, dilation=1, groups=1):
    """The gradients of x and of w, by each window's products."""
    dims = x.ndim - 2
    stride, padding, dilation = (each(v, dims) for v in (stride, padding, dilation))
    image = np.pad(x, [(0, 0)] * 2 + [(p, p) for p in padding])
    of_x, of_w = np.zeros_like(image), np.zeros_like(w)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:])]
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    for at in itertools.product(*map(range, g.shape[2:])):
        window = tuple(slice(i * s, i * s + r, d) for i, s, r, d in zip(at, stride, reach, dilation))
        for j in range(groups):
            ins, outs = slice(j * inputs, (j + 1) * inputs), slice(j * outputs, (j + 1) * outputs)
            part = g[(slice(None), outs, *at)]
            of_x[(slice(None), ins, *window)] += np.tensordot(part, w[outs], (1, 0))
            of_w[outs] += np.tensordot(part, image[(slice(None), ins, *window)], (0, 0))
    return of_x[(..., *(slice(p, p + n) for p, n in zip(padding, x.shape[2:])))], of_w


def pool(x, kernel, reduce, stride=None, padding=0, dilation=1, ceil_mode=False, pad_counts=False):
    dims = x.ndim - 2
    kernel = each(kernel, dims)
    stride = kernel if stride is None else each(stride, dims)
    padding, dilation = each(padding, dims), each(dilation, dims)
    extents = []
    for n, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation):
        rest = n + 2 * p - d * (k - 1) - 1
        count = (-(-rest // s) if ceil_mode else rest // s) + 1
        extents.append(count - 1 if ceil_mode and (count - 1) * s >= n + p else count)
    out = np.zeros((*x.shape[:2], *extents), x.dtype)
    for at in itertools.product(*map(range, extents)):
        places = [[i * s - p + j * d for j in range(k)] for i, k, s, p, d in zip(at, kernel, stride, padding, dilation)]
        inside = [[j for j in js if 0 <= j < n] for js, n in zip(places, x.shape[2:])]
        counted = [[j for j in js if j < n + p] for js, n, p in zip(places, x.shape[2:], padding)]
        window = x[np.ix_(range(x.shape[0]), range(x.shape[1]), *inside)].reshape(*x.shape[:2], -1)
        value = reduce(window, -1)
        out[(..., *at)] = value * window.shape[-1] / np.prod([len(c) for c in counted]) if pad_counts else value
    return out


def close(got, want, tolerance=1e-9):
    got = np.asarray(got.full_tensor())
    assert got.shape == want.shape and got.dtype == want.dtype, (got.shape, want.shape, got.dtype, want.dtype)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 0)}, {"groups": 2},
                                     {"stride": (1, 3), "groups": 4}], ids=str)
def test_conv2d(session, mesh22, rng, options, dtype):
    a = rng.integers(-4, 5, (4, 4, 8, 7)).astype(dtype)
    w = rng.integers(-4, 5, (8, 4 // options.get("groups", 1), 3, 2)).astype(dtype)
    b = rng.integers(-4, 5, 8).astype(dtype)
    want = conv(a, w, b, **options)
    for i, placements in enumerate(PLACEMENTS):
        x = session.distribute_tensor(a, mesh22, placements)
        weight = session.distribute_tensor(w, mesh22, PLACEMENTS[(2 * i + 1) % len(PLACEMENTS)])
        close(ts.conv2d(x, weight, ts.asarray(b), **options), want, 1e-5)
    close(ts.conv2d(x[0], weight, **options), conv(a[:1], w, **options)[0], 1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": (2, 0)}, {"groups": 2},
                                     {"stride": (1, 3), "groups": 4}, {"stride": (2, 3), "dilation": (3, 2), "padding": 4}], ids=str)
def test_gradients_of_conv2d(session, mesh22, rng, options, dtype):
    a = rng.integers(-4, 5, (4, 4, 8, 7)).astype(dtype)
    w = rng.integers(-4, 5, (8, 4 // options.get("groups", 1), 3, 2)).astype(dtype)
    g = rng.integers(-4, 5, conv(a, w, **options).shape).astype(dtype)
    of_x, of_w = conv_gradients(g, a, w, **options)
    given = {key: each(options.get(key, 1 - (key == "padding")), 2) for key in ("stride", "padding", "dilation")} | {"groups": options.get("groups", 1)}
    for i, placements in enumerate(PLACEMENTS):
        gradient = session.distribute_tensor(g, mesh22, placements)
        for shift in (0, 3):
            others = PLACEMENTS[(2 * i + 1 + shift) % len(PLACEMENTS)]
            close(ts.conv_backward_x(gradient, session.distribute_tensor(w, mesh22, others), shape=a.shape, **given), of_x, 1e-5)
            close(ts.conv_backward_weight(gradient, session.distribute_tensor(a, mesh22, others), shape=w.shape, **given), of_w, 1e-5)


def test_gradients_of_a_batch_in_shards_move_nothing(session, mesh22, rng):
    a, w = rng.standard_normal((4, 3, 9, 8)), rng.standard_normal((6, 3, 3, 3))
    g = rng.standard_normal((4, 6, 9, 8))
    of_x, of_w = conv_gradients(g, a, w, padding=1)
    gradient, x = (session.distribute_tensor(v, mesh22, [S(0), R()]) for v in (g, a))
    weight = session.distribute_tensor(w, mesh22, [R(), R()])
    options = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1)}
    with session.comm_debug() as comm:
        first = ts.conv_backward_x(gradient, weight, shape=a.shape, **options).wait()
        second = ts.conv_backward_weight(gradient, x, shape=w.shape, **options).wait()
    assert sum(comm.bytes_received) == 0
    assert first.placements == (S(0), R()) and second.placements == (ts.Partial("sum"), R())
    close(first, of_x)
    close(second, of_w)


def test_gradients_that_do_not_fit_are_refused(session, mesh22):
    g, w, options = ts.ones((2, 4, 6, 6)), ts.ones((4, 3, 3, 3)), {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    for call, words in ((lambda: ts.conv_backward_x(g, w, shape=(2, 3, 7, 8), **options), r"conv_backward_x.*the gradient is \[2,4,6,6\].*\[2,4,5,6\]"),
                        (lambda: ts.conv_backward_x(g, w, shape=(2, 3, 8), **options), "conv_backward_x.*need 4 dims"),
                        (lambda: ts.conv_backward_weight(g, ts.ones((2, 3, 8, 8)), shape=(4, 2, 3, 3), **options), "conv_backward_weight.*input channels"),
                        (lambda: ts.conv_backward_x(g, w, shape=(2, 3, 8, 8), **(options | {"stride": (1, 0)})), "conv_backward_x.*stride")):
        with pytest.raises(ts.InvalidArgumentError, match=words):
            call()


def test_convolutions_of_other_ranks(session, mesh22, rng):
    a, w = rng.standard_normal((4, 2, 9)), rng.standard_normal((4, 2, 3))
    x, weight = session.distribute_tensor(a, mesh22, [S(0), S(1)]), session.distribute_tensor(w, mesh22, [R(), S(1)])
    close(ts.conv1d(x, weight, stride=2, padding=1), conv(a, w, stride=2, padding=1))
    close(ts.conv1d(x, weight, padding="same"), conv(a, w, padding=1))
    assert ts.conv1d(x, weight).placements == (S(0), ts.Partial("sum"))
    a, w = rng.standard_normal((2, 2, 4, 5, 3)), rng.standard_normal((2, 2, 2, 3, 1))
    close(ts.conv3d(session.distribute_tensor(a, mesh22, [S(0), R()]), ts.asarray(w)), conv(a, w))


def test_batches_and_output_channels_stay(session, mesh22, rng):
    x = session.distribute_tensor(rng.standard_normal((4, 3, 16, 16)), mesh22, [S(0), R()])
    weight = session.distribute_tensor(rng.standard_normal((8, 3, 3, 3)), mesh22, [R(), S(0)])
    with session.comm_debug() as comm:
        out = ts.conv2d(x, weight, padding=1).wait()
        ts.max_pool2d(out, 2).wait()
    assert sum(comm.bytes_received) == 0 and out.placements == (S(0), S(1))


@pytest.mark.parametrize("placements", [[S(2), R()], [S(2), S(3)], [S(0), S(2)], [S(3), S(2)], [S(2), S(2)], [S(1), S(3)]], ids=str)
@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"stride": 2, "padding": (1, 2)}, {"stride": (1, 3), "dilation": (2, 1)}], ids=str)
def test_shards_of_images_take_halos(session, mesh22, rng, options, placements):
    a = rng.standard_normal((2, 4, 32, 29))
    w, b = rng.standard_normal((6, 4, 3, 4)), rng.standard_normal(6)
    x = session.distribute_tensor(a, mesh22, placements)
    out = ts.conv2d(x, session.distribute_tensor(w, mesh22, [R(), R()]), ts.asarray(b), **options)
    close(out, conv(a, w, b, **options))
    if S(1) not in placements:
        assert out.placements == tuple(placements)
    options = {key: value for key, value in options.items() if key != "padding"} | {"padding": 1}
    if "dilation" not in options:
        close(ts.avg_pool2d(x, 3, **options), pool(a, 3, np.mean, pad_counts=True, **options))
    close(ts.max_pool2d(x, 3, **options), pool(a, 3, np.max, **options))


def test_a_halo_is_all_that_moves(session, mesh4, rng):
    x = session.distribute_tensor(rng.standard_normal((2, 3, 64, 16)), mesh4, [S(2)])
    weight = session.distribute_tensor(rng.standard_normal((5, 3, 5, 3)), mesh4, [R()])
    with session.comm_debug() as comm:
        out = ts.conv2d(x, weight, padding=(2, 1)).wait()
        ts.max_pool2d(out, 2).wait()
        ts.conv2d(out, session.distribute_tensor(rng.standard_normal((7, 5, 1, 1)), mesh4, [R()])).wait()
    # Two rows of 3 channels of 2 images over each of three borders, in both directions; windows side by side see no other shard.
    assert sum(comm.bytes_received) == 3 * 2 * 2 * (2 * 3 * 16 * 8)
    assert out.placements == (S(2),)


@pytest.mark.parametrize("options", [{}, {"stride": 1}, {"stride": (3, 2), "padding": 1}, {"padding": (1, 0), "ceil_mode": True}], ids=str)
def test_pooling(session, mesh22, rng, options):
    a = rng.standard_normal((4, 3, 9, 8))
    for placements in PLACEMENTS:
        x = session.distribute_tensor(a, mesh22, placements)
        for kernel in (2, (3, 2)):
            close(ts.max_pool2d(x, kernel, **options), pool(a, kernel, np.max, **options))
            close(ts.max_pool2d(x, kernel, dilation=2, **options), pool(a, kernel, np.max, dilation=2, **options))
            close(ts.avg_pool2d(x, kernel, **options), pool(a, kernel, np.mean, pad_counts=True, **options))
            close(ts.avg_pool2d(x, kernel, count_include_pad=False, **options), pool(a, kernel, np.mean, **options))
    a = a[:, :, 0]
    x = session.distribute_tensor(a, mesh22, [S(2), S(0)])
    close(ts.max_pool1d(x, 3, stride=2), pool(a, 3, np.max, stride=2))
    close(ts.avg_pool1d(x, 3, padding=1), pool(a, 3, np.mean, padding=1, pad_counts=True))
    close(ts.max_pool1d(x[0], 2), pool(a[:1], 2, np.max)[0])


def test_nan_propagates_and_integers_are_pooled(session, mesh22):
    a = np.array([[[1.0, np.nan, 3, 4]]])
    np.testing.assert_array_equal(ts.max_pool1d(ts.asarray(a), 2).full_tensor(), [[[np.nan, 4]]])
    a = np.array([[[-5, -7, -3, -4]]], np.int8)
    np.testing.assert_array_equal(ts.max_pool1d(ts.asarray(a), 2, padding=1).full_tensor(), [[[-5, -3, -4]]])


def test_bad_input_is_said_by_the_function(session, mesh22, rng):
    x, w = ts.ones((2, 3, 8, 8)), ts.ones((4, 3, 3, 3))
    for call, words in ((lambda: ts.conv2d(x, ts.ones((4, 2, 3, 3))), "conv.*input channels"),
                        (lambda: ts.conv2d(x, w, groups=2), "conv.*groups"),
                        (lambda: ts.conv2d(x, w, stride=0), "conv.*stride"),
                        (lambda: ts.conv2d(x, w, padding=(1, 2, 3)), "conv2d: padding"),
                        (lambda: ts.conv2d(x, ts.ones((4, 3, 9, 9))), "conv.*doesn't fit"),
                        (lambda: ts.conv2d(x[0, 0], w), "conv2d: takes 4 dims"),
                        (lambda: ts.conv2d(x, w, ts.ones(3)), "conv2d: the bias"),
                        (lambda: ts.conv2d(x, w, stride=2, padding="same"), "conv2d: padding 'same'"),
                        (lambda: ts.max_pool2d(x, 2, padding=2), "max_pool.*half"),
                        (lambda: ts.max_pool2d(x, 0), "max_pool.*kernel_size"),
                        (lambda: ts.max_pool2d(x, 9), "max_pool.*doesn't fit")):
        with pytest.raises(ts.InvalidArgumentError, match=words):
            call()
    with pytest.raises(ts.DTypeError, match="avg_pool"):
        ts.avg_pool2d(ts.ones((1, 1, 4, 4), dtype=ts.int32), 2)
    with pytest.raises(ts.DTypeError, match="conv"):
        ts.conv2d(x, ts.astype(w, ts.float64) if x.dtype == ts.float32 else ts.astype(w, ts.float32))
