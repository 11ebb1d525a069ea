"""NumPy's functions on tensors: tessera's of the same name, or NumPy's on downloaded values, which is said."""

import io
import warnings

import numpy as np
import pytest
import tessera as ts


@pytest.fixture
def pair(session, mesh22):
    values = np.random.default_rng(5).standard_normal((6, 4))
    return values, session.distribute_tensor(values, mesh22, [ts.Shard(0), ts.Replicate()])


@pytest.mark.parametrize("call", [
    lambda a: np.concatenate([a, a]), lambda a: np.concatenate([a, a], axis=1), lambda a: np.percentile(a, 30),
    lambda a: np.median(a, axis=0), lambda a: np.sort(a, axis=1), lambda a: np.stack([a, a], axis=1), lambda a: np.std(a),
    lambda a: np.std(a, axis=1, ddof=1), lambda a: np.var(a, 0, ddof=2), lambda a: np.sum(a, axis=0), lambda a: np.where(a > 0, a, 2 * a),
    lambda a: np.cumsum(a), lambda a: np.linalg.norm(a[0]), lambda a: np.nanstd(a, ddof=1), lambda a: np.einsum("ij,ij->i", a, a),
    lambda a: np.reshape(a, (4, -1)), lambda a: np.diff(a, axis=0), lambda a: np.argmax(a, axis=1), lambda a: np.clip(a, -1, 1),
    # A tensor is the list of its slices.
    np.concatenate, np.stack, np.hstack, np.vstack, np.dstack, np.column_stack, lambda a: np.stack(a, axis=1),
    # Diagonals of the first two dims, however many dims a has.
    lambda a: np.diagonal(np.stack([a, a, 2 * a])), lambda a: np.trace(np.stack([a, a, 2 * a])), lambda a: np.diagonal(a, 1),
    lambda a: np.diagonal(np.stack([a, a, 2 * a]), -1, 2, 0), lambda a: np.trace(np.stack([a, a, 2 * a]), 1, axis1=1, axis2=2)])
def test_there_is_one_of_tensors(pair, call):
    values, x = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = call(x)
    assert isinstance(got, ts.Tensor)
    np.testing.assert_allclose(got.full_tensor(), call(values), rtol=1e-12)


def _written(a) -> str:
    text = io.StringIO()
    np.savetxt(text, a)
    return text.getvalue()


@pytest.mark.parametrize("name, call", [
    ("savetxt", lambda a: _written(a)), ("array2string", lambda a: np.array_str(a))])
def test_what_there_is_none_for_says_that_it_downloads(pair, name, call):
    values, x = pair
    with pytest.warns(ts.ImplicitDownloadWarning, match=rf"np.{name}: f64\[6,4\].* is downloaded, 192 bytes") as told:
        got = call(x)
    assert told[0].filename == __file__
    np.testing.assert_array_equal(got, call(values))


def test_what_needs_no_values_downloads_none(pair):
    values, x = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (np.shape(x), np.ndim(x), np.size(x)) == ((6, 4), 2, 24)
        assert not np.iscomplexobj(x)
        np.testing.assert_array_equal(np.asarray(x), values)    # asked for


def test_a_download_that_is_too_large_is_refused(pair, monkeypatch):
    monkeypatch.setattr("tessera._tensor.MAX_IMPLICIT_DOWNLOAD", 191)
    with pytest.warns(ts.ImplicitDownloadWarning), pytest.raises(ts.ResourceExhaustedError, match="192 bytes, the limit .* is 191"):
        np.array_repr(pair[1])


def test_ddof_is_a_correction(pair):
    values, x = pair
    for name in ("std", "var", "nanstd", "nanvar"):
        ours, numpys = getattr(ts, name), getattr(np, name)
        np.testing.assert_allclose(ours(x, axis=1, ddof=1).full_tensor(), numpys(values, axis=1, ddof=1))
        np.testing.assert_allclose(ours(x, correction=1, keepdims=True).full_tensor(), numpys(values, ddof=1, keepdims=True))
    np.testing.assert_allclose(x.std(ddof=2).item(), values.std(ddof=2))
    with pytest.raises(TypeError, match="ddof=1 and correction=2"):
        ts.std(x, ddof=1, correction=2)
    with pytest.raises(TypeError, match=r"var: takes no dtype=; write ts.var\(ts.astype\(x, dtype\)\)"):
        ts.var(x, dtype=np.float32)
    with pytest.raises(TypeError, match="calls it axis"):
        ts.std(x, dim=0)
