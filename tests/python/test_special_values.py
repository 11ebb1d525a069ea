"""Infinities, NaN, zeros and large numbers beside pending values give what NumPy gives of the whole."""

import itertools

import numpy as np
import pytest

import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
SPECIALS = np.array([0.0, -0.0, 1.0, -3.0, np.inf, -np.inf, np.nan])


@pytest.fixture(autouse=True)
def quiet():
    with np.errstate(all="ignore"):
        yield


def pending_values(session, mesh):
    """(pending tensor, its value): extremes and sums of few rows, so that some workers have none, and given terms."""
    for rows in ([1.0, 5.0, 3.0], [-2.0], [np.inf, -1.0], [-np.inf, 2.0, 0.0], [3.0, -1.0], [1.0, -1.0]):
        a = np.array(rows)
        x = session.distribute_tensor(a, mesh, [S(0)])
        for reduced, value in ((x.max(), a.max()), (x.min(), a.min()), (x.sum(), a.sum())):
            assert reduced.placements[0].is_partial()
            yield reduced, value
    for kind, value in (("sum", 2.0), ("avg", 0.5)):
        terms = [np.array(3.0), np.array(-1.0), np.array(-0.0), np.array(0.0)]
        yield session.from_local(terms, mesh, [P(kind)], shape=()), np.array(value)


def test_no_identity_and_no_term_shows_beside_a_tensor(session, mesh4):
    for placement in (R(), S(0)):
        other = session.distribute_tensor(SPECIALS, mesh4, [placement])
        for x, value in pending_values(session, mesh4):
            for name in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
                for op in (lambda f, a, b: f(a, b), lambda f, a, b: f(b, a)):
                    if name == "divide" and value == 0 and op(lambda a, b: b, 0, 1) == 0:
                        continue  # the sign of a sum that is 0 is nobody's
                    got, want = op(getattr(ts, name), x, other).full_tensor(), op(getattr(np, name), value, SPECIALS)
                    np.testing.assert_array_equal(got, want, err_msg=f"{name} of {x!r} = {value} and {other!r}")


def test_no_identity_and_no_term_shows_beside_a_number(session, mesh4):
    for x, value in pending_values(session, mesh4):
        for number, name in itertools.product(SPECIALS.tolist() + [2.0, -0.5], ("add", "subtract", "multiply", "divide", "maximum")):
            got = getattr(ts, name)(x, number).full_tensor()
            np.testing.assert_allclose(got, getattr(np, name)(value, number), rtol=1e-15, err_msg=f"{name} of {x!r} = {value} and {number}")
        for name in ("exp", "sqrt", "negative"):
            np.testing.assert_allclose(getattr(ts, name)(x).full_tensor(), getattr(np, name)(value), rtol=1e-15)


@pytest.mark.parametrize("special", [np.inf, -np.inf, np.nan, 0.0])
def test_a_pending_sum_is_reduced_before_it_is_multiplied_by_a_matrix(session, mesh4, special):
    terms = [np.array([[3.0, 1.0]]), np.array([[-1.0, 1.0]]), np.zeros((1, 2)), np.zeros((1, 2))]
    x = session.from_local(terms, mesh4, [P("sum")])
    matrix = np.array([[special, 1.0], [2.0, 0.5]])
    y = session.distribute_tensor(matrix, mesh4, [R()])
    np.testing.assert_array_equal((x @ y).full_tensor(), sum(terms) @ matrix)
    np.testing.assert_array_equal(ts.einsum("ij,kj->ki", x, y).full_tensor(), matrix @ sum(terms).T)


def test_no_grid_multiplies_the_terms_of_a_pending_sum_beside_an_infinity(session, mesh22):
    """The product stays pending on the mesh dim, by the letter that is cut; the cheapest grid would take the terms."""
    terms = np.array([[[2.0, -3.0, 1.0, 1.0]], [[1.0, -1.0, -2.0, 0.0]]], np.float32)
    locals_ = {position: terms[position[1]] if position[0] == 0 else np.zeros((0, 4), np.float32) for position in np.ndindex(2, 2)}
    x = session.from_local(locals_, mesh22, [S(0), P("sum")], shape=(1, 4))
    column = np.array([[0.0], [-np.inf], [1.0], [1.0]], np.float32)
    y = session.distribute_tensor(column, mesh22, [S(0), S(0)])
    np.testing.assert_array_equal((x @ y).full_tensor(), terms.sum(0) @ column)
    y = session.distribute_tensor(-column, mesh22, [S(0), S(0)])
    np.testing.assert_array_equal((x @ y).full_tensor(), terms.sum(0) @ -column)


def test_large_terms_that_cancel_are_scaled_by_a_tensor_after_they_are_summed(session, mesh4):
    x = session.distribute_tensor(np.array([1e308, -1e308, 0, 0]), mesh4, [S(0)]).sum()
    hundred = session.distribute_tensor(np.array([100.0]), mesh4, [R()])
    np.testing.assert_array_equal((x * hundred).full_tensor(), [0.0])
    np.testing.assert_array_equal((x / (1 / hundred)).full_tensor(), [0.0])


def test_a_number_of_either_sign_scales_a_pending_extreme_where_it_lies(session, mesh4):
    """One plan serves a shape: the sign says whether the terms' greatest or least is wanted."""
    terms = [np.array([1.0, -4.0]), np.array([3.0, -2.0]), np.array([-5.0, -9.0]), np.array([2.0, -3.0])]
    for kind, other, fold in (("max", "min", np.maximum), ("min", "max", np.minimum)):
        value = fold.reduce(terms)
        x = session.from_local(terms, mesh4, [P(kind)])
        for number in (2.0, -2.0, 0.5, -0.5, -3, 3):
            for y, want in ((x * number, value * number), (number * x, value * number), (x / number, value / number)):
                assert y.placements == (P(kind if number > 0 else other),)
                np.testing.assert_array_equal(y.full_tensor(), want)
            chain = -(x * number + 1.0) * 2.0        # a segment of several
            np.testing.assert_array_equal(chain.full_tensor(), -(value * number + 1.0) * 2.0)
        y = session.distribute_tensor(np.array([[4.0, -7.0]]), mesh4, [S(0)])
        for number in (-1.5, 1.5):
            np.testing.assert_array_equal((y.max(axis=0) * number).full_tensor(), np.array([4.0, -7.0]) * number)
