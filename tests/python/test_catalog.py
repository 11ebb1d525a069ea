"""Every row of the op catalog on every kind of placement, against NumPy: a row without an oracle fails here."""

import inspect
import json
import math
import os
import re
import subprocess
import warnings

import numpy as np
import pytest

import _tessera
import tessera as ts

S, R, P = ts.Shard, ts.Replicate, ts.Partial
ROWS = {row[1]: row for row in _tessera.catalog()}
SHAPE = (5, 6)
PLACEMENTS = [[R(), R()], [S(0), R()], [R(), S(1)], [S(0), S(1)], [S(1), S(0)], [S(0), S(0)],
              [S(0, sizes=[4, 1]), S(1)], [R(), S(0, sizes=[0, 5])]]

# Rows that other tests hold: creation, products, moves, indexing; test_linalg.py, test_fft.py, test_windows.py,
# test_numpy_names.py, test_rows_stay.py.
ELSEWHERE = {"graph", "full", "arange", "rand", "eye", "matmul", "einsum", "slice", "place", "redistribute", "astype", "permute_dims",
             "attention", "attention_gradients", "attention_gradients_of_result", "attention_logarithms", "relabel", "filter", "shard_counts",
             "reshape", "where", "argmin", "argmax", "assign", "unstack", "matrix_function", "cholesky", "qr", "solve",
             "solve_triangular", "inv", "det", "slogdet", "svd", "svdvals", "eigh", "eigvalsh", "lstsq", "pinv", "matrix_rank",
             "eig", "eigvals", "lu_factor", "lu_unpack", "lu_solve", "matrix_exp",
             "matrix_power", "matrix_norm", "fft", "ifft", "rfft", "irfft", "hfft", "ihfft", "fftn", "ifftn",
             "rfftn", "irfftn", "conv", "max_pool", "avg_pool", "conv_windows", "max_pool_windows", "avg_pool_windows",
             "conv_backward_x", "conv_backward_weight", "conv_backward_x_windows", "conv_backward_weight_windows",
             "cov"}

erf = np.vectorize(math.erf, otypes=[np.float64])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x):
    return np.log(softmax(x))


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


UNARY = {
    "negative": np.negative, "exp": np.exp, "sqrt": lambda x: np.sqrt(np.abs(x)), "relu": lambda x: np.maximum(x, 0),
    "log": lambda x: np.log(np.abs(x) + 1), "sigmoid": sigmoid, "erf": erf, "abs": np.abs, "sign": np.sign,
    "square": np.square, "reciprocal": lambda x: 1 / (np.abs(x) + 1), "positive": np.positive,
    "rsqrt": lambda x: 1 / np.sqrt(np.abs(x) + 1), "exp2": np.exp2, "logit": lambda x: np.log(sigmoid(x) / (1 - sigmoid(x))),
    "relu6": lambda x: np.clip(x, 0, 6), "leaky_relu": lambda x: np.where(x > 0, x, x * 0.01),
    "elu": lambda x: np.where(x > 0, x, np.expm1(x)), "silu": lambda x: x * sigmoid(x),
    "selu": lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(x)),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), "softplus": lambda x: np.logaddexp(x, 0),
    "mish": lambda x: x * np.tanh(np.logaddexp(x, 0)), "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6, "softmax": softmax, "log_softmax": log_softmax,
    "logsumexp": lambda x: np.log(np.exp(x).sum()), "layer_norm": layer_norm,
    "rms_norm": lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6),
    "normalize": lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True), "vector_norm": lambda x: np.linalg.norm(x.ravel()),
    "trace": np.trace, "diagonal": np.diagonal, "tril": np.tril, "triu": np.triu, "flip": np.flip, "diff": np.diff,
    "count_nonzero": np.count_nonzero, "logical_not": np.logical_not, "bitwise_invert": np.invert,
    "real": np.real, "imag": np.imag, "conj": np.conj, "angle": np.angle,
    "sinc": np.sinc, "deg2rad": lambda x: np.deg2rad(x), "rad2deg": lambda x: np.rad2deg(x), "cbrt": lambda x: np.cbrt(x),
    "nan_to_num": np.nan_to_num, "ptp": np.ptp, "nansum": np.nansum, "nanprod": np.nanprod, "nanmax": np.nanmax,
    "nanmin": np.nanmin, "nanmean": np.nanmean, "nanvar": np.nanvar, "nanstd": np.nanstd,
}
# The op's arguments, where they differ from the oracle's.
GIVEN = {"sqrt": np.abs, "log": lambda x: np.abs(x) + 1, "reciprocal": lambda x: np.abs(x) + 1,
         "rsqrt": lambda x: np.abs(x) + 1, "logit": sigmoid}
NUMPY = {"log1p": "log1p", "log2": "log2", "log10": "log10", "expm1": "expm1", "sin": "sin", "cos": "cos", "tan": "tan",
         "asin": "arcsin", "acos": "arccos", "atan": "arctan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
         "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
         "round": "round", "isnan": "isnan", "isinf": "isinf", "isfinite": "isfinite", "signbit": "signbit",
         "sum": "sum", "mean": "mean", "max": "max", "min": "min", "prod": "prod", "any": "any", "all": "all", "var": "var",
         "std": "std"}
BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": lambda a, b: a / (np.abs(b) + 1),
    "maximum": np.maximum, "minimum": np.minimum, "equal": np.equal, "not_equal": np.not_equal, "less": np.less,
    "less_equal": np.less_equal, "greater": np.greater, "greater_equal": np.greater_equal, "atan2": np.arctan2,
    "hypot": np.hypot, "logaddexp": np.logaddexp, "copysign": np.copysign, "nextafter": np.nextafter,
    "floor_divide": lambda a, b: np.floor_divide(a, np.abs(b) + 1), "remainder": lambda a, b: np.remainder(a, np.abs(b) + 1),
    "pow": lambda a, b: np.power(np.abs(a) + 1, np.abs(b)), "logical_and": np.logical_and, "logical_or": np.logical_or,
    "logical_xor": np.logical_xor, "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "bitwise_left_shift": lambda a, b: np.left_shift(a, np.abs(b)),
    "bitwise_right_shift": lambda a, b: np.right_shift(a, np.abs(b)),
    "isclose": np.isclose, "allclose": lambda a, b: np.asarray(np.allclose(a, b)),
    "complex": lambda a, b: a + b * np.asarray(1j, np.complex64 if a.dtype == np.float32 else np.complex128),
    "mse_loss": lambda a, b: ((a - b) ** 2).mean(), "average": lambda a, b: np.average(a, weights=np.abs(b) + 1),
    "heaviside": lambda a, b: np.heaviside(a, b), "fmod": lambda a, b: np.fmod(a, np.abs(b) + 1), "fmax": np.fmax,
    "fmin": np.fmin, "float_power": lambda a, b: np.float_power(np.abs(a) + 1, b), "gcd": np.gcd, "lcm": np.lcm,
    "kron": np.kron,
}
GIVEN_SECOND = {name: lambda b: np.abs(b) + 1 for name in ("divide", "floor_divide", "remainder", "average", "fmod")}
GIVEN_SECOND |= {name: np.abs for name in ("pow", "bitwise_left_shift", "bitwise_right_shift")}
GIVEN_FIRST = {name: lambda a: np.abs(a) + 1 for name in ("pow", "float_power")}
INTEGERS_ONLY = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift", "bitwise_invert", "gcd", "lcm"}
FLOATS_ONLY = {"copysign", "nextafter", "hypot", "atan2", "mse_loss"}
# Ops without a meaning for complex numbers: an order, or a function of real numbers.
REAL_ONLY = {
    "relu", "sigmoid", "erf", "relu6", "leaky_relu", "elu", "selu", "silu", "gelu", "softplus", "mish", "hardswish", "hardsigmoid",
    "softmax", "log_softmax", "logsumexp", "layer_norm", "rms_norm", "normalize", "floor", "ceil", "trunc", "signbit", "max", "min",
    "maximum", "minimum", "less", "less_equal", "greater", "greater_equal", "atan2", "hypot", "logaddexp", "copysign",
    "nextafter", "floor_divide", "remainder", "complex", "deg2rad", "rad2deg", "cbrt", "heaviside", "fmod", "fmax", "fmin", "ptp",
    "nanmax", "nanmin"} | INTEGERS_ONLY
OTHERS = {"clip", "lerp", "cross", "one_hot", "cross_entropy", "linear", "scaled_dot_product_attention", "batch_norm",
          "group_norm", "concat", "stack", "roll", "tile", "repeat", "pad", "broadcast_to", "cumulative_sum",
          "cumulative_prod", "cumulative_max", "cumulative_min", "sort", "argsort", "argsort_first", "searchsorted", "take_along_axis", "scatter",
          "nll_loss", "masked_fill", "baddbmm", "diff", "addcmul", "addcdiv", "sgd_step", "adam_step",
          "silu_backward", "gelu_backward", "sigmoid_backward", "tanh_backward", "threshold_backward", "leaky_relu_backward",
          "layer_norm_backward", "rms_norm_backward", "softmax_backward", "log_softmax_backward", "nll_loss_and_weight",
          "nll_loss_backward", "embedding_backward", "scaled_dot_product_attention_backward",
          "scaled_dot_product_attention_and_logarithms", "scaled_dot_product_attention_backward_of_result", "check_range",
          "grouped_matmul"}
NUMPYS = {"trace", "diagonal",      # the rows are functions of linalg; ts has NumPy's
          "isclose", "allclose", "angle", "average"}       # with NumPy's keywords
DRAWN = {"normal", "uniform", "exponential", "dropout"}     # tests/python/test_random.py


def close(got, want, dtype):
    got = np.asarray(got.full_tensor())
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    if got.dtype.kind in "fc":
        single = (np.float32, np.complex64)
        tolerance = 2e-5 if got.dtype in single or dtype in single else 1e-9
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(got, want.astype(got.dtype))


def draw(rng, dtype, shape=SHAPE):
    if np.dtype(dtype).kind == "c":
        return (rng.uniform(-0.9, 0.9, shape) + 1j * rng.uniform(-0.9, 0.9, shape)).astype(dtype)
    if dtype == np.float32 or dtype == np.float64:
        return rng.uniform(-0.9, 0.9, shape).astype(dtype)
    return rng.integers(-3, 4, shape).astype(dtype)


def test_every_number_has_a_row():
    with open(os.path.join(os.path.dirname(__file__), "../../schemas/ops/op_ids.h"), encoding="utf-8") as header:
        numbers = re.findall(r"^  k\w+ = (\d+),", header.read(), re.MULTILINE)
    assert {int(number) for number in numbers} == {row[0] for row in ROWS.values()}


def test_every_row_has_an_oracle():
    known = ELSEWHERE | set(UNARY) | set(NUMPY) | set(BINARY) | OTHERS | DRAWN
    assert set(ROWS) - known == set()


def test_signatures_are_those_of_the_rows():
    for name, (_, _, _, _, signature, doc) in ROWS.items():
        function = getattr(ts, name, None)
        if function is None or not signature.startswith(name + "(") or name in OTHERS | ELSEWHERE | DRAWN | NUMPYS:
            continue
        assert f"{name}{inspect.signature(function)}" == signature.replace("arrays", "arrays")
        assert doc in function.__doc__


def test_the_page_of_ops_is_made_from_the_rows():
    tool = os.path.join(os.environ["TESSERA_BIN_DIR"], "client/python/generate_functions")
    made = subprocess.run([tool, "markdown"], capture_output=True, text=True, check=True).stdout
    with open(os.path.join(os.path.dirname(__file__), "../../docs/ops.md")) as page:
        assert page.read() == made


def test_the_catalog_is_shown_without_a_server():
    tool = os.path.join(os.environ["TESSERA_BIN_DIR"], "client/cli/tessera")
    shown = subprocess.run([tool, "ops", "softmax", "--json"], capture_output=True, text=True, check=True).stdout
    assert "softmax" in [row["name"] for row in json.loads(shown)]
    rows = json.loads(subprocess.run([tool, "ops", "--device", "cuda", "--json"], capture_output=True, text=True, check=True).stdout)
    places = {row["name"]: row["computed_by"] for row in rows}
    assert places["add"] == places["sort"] == places["isnan"] == "kernel"
    assert places["matmul"] == "kernel, floats by cuBLASLt where it is"
    assert places["attention"] == "kernel, f16 and bf16 by cuDNN where it is"
    assert places["sin"] == "kernel, complex numbers on the host"
    assert places["matrix_function"] == "f32 and f64 by cuSOLVER where it has them, else host" and places["fft"] == "cuFFT where it is, else host" and places["softmax"] == "as its rows"
    assert "COMPUTED BY" in subprocess.run([tool, "ops", "--device", "cuda"], capture_output=True, text=True, check=True).stdout
    nothing = subprocess.run([tool, "ops", "frobnicate"], capture_output=True, text=True)
    assert nothing.returncode == 1 and "frobnicate" in nothing.stderr


def refused(session, mesh, rng, name, dtype, operands):
    """Whether complex numbers have no meaning there, which an error says that names both."""
    if np.dtype(dtype).kind != "c" or name not in REAL_ONLY:
        return False
    values = [session.distribute_tensor(draw(rng, dtype), mesh, [S(0), R()]) for _ in range(operands)]
    with pytest.raises(ts.DTypeError, match=f"^{name}: .*c(64|128)"):
        getattr(ts, name)(*values)
    return True


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.complex64, np.complex128])
@pytest.mark.parametrize("name", sorted((set(UNARY) | set(NUMPY)) - {"group_norm"}))
def test_unary_rows(session, mesh22, rng, name, dtype):
    if refused(session, mesh22, rng, name, dtype, 1):
        return
    if (name in INTEGERS_ONLY) != (dtype == np.int32) and name in INTEGERS_ONLY:
        return
    a = draw(rng, dtype)
    if name in ("logit", "atanh", "asin", "acos", "acosh", "log2", "log10", "log1p") and dtype == np.int32:
        a = np.abs(a) + 1 if name in ("acosh", "log2", "log10", "log1p") else np.zeros_like(a)
    elif name == "acosh" or name in ("log2", "log10"):
        a = np.abs(a) + 1
    given = GIVEN.get(name, lambda x: x)(a)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = UNARY[name](a) if name in UNARY else getattr(np, NUMPY[name])(a)
    for placements in PLACEMENTS:
        x = session.distribute_tensor(given.astype(given.dtype if given.dtype.kind in "fc" else dtype), mesh22, placements)
        close(getattr(ts, name)(x), want, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.complex64, np.complex128])
@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_rows(session, mesh22, rng, name, dtype):
    if refused(session, mesh22, rng, name, dtype, 2):
        return
    if (name in INTEGERS_ONLY and dtype != np.int64) or (name in FLOATS_ONLY and dtype == np.int64):
        return
    a, b = draw(rng, dtype), draw(rng, dtype)
    want = BINARY[name](a, b)
    given_a, given_b = GIVEN_FIRST.get(name, lambda x: x)(a), GIVEN_SECOND.get(name, lambda x: x)(b)
    for i, placements in enumerate(PLACEMENTS):
        x = session.distribute_tensor(given_a, mesh22, placements)
        y = session.distribute_tensor(given_b, mesh22, PLACEMENTS[(3 * i + 1) % len(PLACEMENTS)])
        close(getattr(ts, name)(x, y), want, dtype)


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min", "prod", "any", "all", "var", "std", "count_nonzero"])
def test_reductions_over_each_axis(session, mesh22, rng, name):
    a = draw(rng, np.float64, (4, 5, 6))
    for axis in (0, 1, -1, (0, 2), (0, 1, 2), None):
        for keepdims in (False, True):
            for placements in ([S(0), S(1)], [S(2), S(2)], [S(1, sizes=[1, 4]), R()], [P(), R()]):
                if placements[0] == P():
                    x = ts.from_local([[a / 2, a / 2], [a / 2, a / 2]], mesh22, placements)
                else:
                    x = session.distribute_tensor(a, mesh22, placements)
                got = getattr(ts, name)(x, axis=axis, keepdims=keepdims)
                close(got, getattr(np, name)(a, axis=axis, keepdims=keepdims), np.float64)


def test_statistics_take_a_correction(session, mesh22, rng):
    a = draw(rng, np.float64)
    x = session.distribute_tensor(a, mesh22, [S(0), S(1)])
    close(ts.var(x, axis=1, correction=1), a.var(axis=1, ddof=1), np.float64)
    close(x.std(correction=1.5), a.std(ddof=1.5), np.float64)


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_arrangements(session, mesh22, rng, placements):
    a, b = draw(rng, np.float32), draw(rng, np.float32, (2, 6))
    x, y = session.distribute_tensor(a, mesh22, placements), session.distribute_tensor(b, mesh22, [R(), S(1)])
    close(ts.concat([x, y, x], axis=0), np.concatenate([a, b, a]), np.float32)
    close(ts.concat([x, x], axis=1), np.concatenate([a, a], axis=1), np.float32)
    close(ts.concat([x, y], axis=None), np.concatenate([a, b], axis=None), np.float32)
    for axis in (0, 1, -1):
        close(ts.stack([x, x], axis=axis), np.stack([a, a], axis=axis), np.float32)
    close(ts.roll(x, 2), np.roll(a, 2), np.float32)
    close(ts.roll(x, (1, -2), axis=(0, 1)), np.roll(a, (1, -2), axis=(0, 1)), np.float32)
    close(ts.tile(x, (2, 3)), np.tile(a, (2, 3)), np.float32)
    close(ts.tile(x, (2, 1, 1)), np.tile(a, (2, 1, 1)), np.float32)
    close(ts.repeat(x, 3, axis=0), np.repeat(a, 3, axis=0), np.float32)
    close(ts.repeat(x, 2), np.repeat(a, 2), np.float32)
    close(ts.pad(x, ((1, 2), (0, 3)), constant_values=7), np.pad(a, ((1, 2), (0, 3)), constant_values=7), np.float32)
    for mode in ("edge", "wrap", "reflect"):
        close(ts.pad(x, 2, mode), np.pad(a, 2, mode), np.float32)
    close(ts.broadcast_to(x, (3, 5, 6)), np.broadcast_to(a, (3, 5, 6)), np.float32)
    for got, want in zip(ts.unstack(x), a):
        close(got, want, np.float32)
    close(ts.moveaxis(x, 0, 1), np.moveaxis(a, 0, 1), np.float32)
    for shape in ((30,), (6, 5), (3, 10), (2, 15), (5, 2, 3), (1, 30, 1), (10, 3)):
        close(ts.reshape(x, shape), a.reshape(shape), np.float32)


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_assignment(session, mesh22, rng, placements):
    for index, value in [(0, 5.0), ((slice(None), 1), 2), ((slice(1, 4), slice(None, None, 2)), "v"),
                         ((slice(None, None, -1), slice(4, 1, -1)), "v"), ((Ellipsis, None, slice(0, 3)), "v"),
                         ((slice(3, 3), 0), 1), ((-1, -1), 9)]:
        a = draw(rng, np.float32)
        x = session.distribute_tensor(a, mesh22, placements)
        kept = x[1:3]
        v = value if value != "v" else draw(rng, np.float32, a[index].shape)
        copy, before = x[1:3].copy(), a[1:3].copy()
        x[index] = v
        a[index] = v
        close(x, a, np.float32)
        close(kept, a[1:3], np.float32)     # a view
        close(copy, before, np.float32)
        assert x.placements == tuple(placements)
    mask = a > 0.1
    x[session.distribute_tensor(mask, mesh22, [S(1), R()])] = -1
    a[mask] = -1
    close(x, a, np.float32)
    x[mask[:, 0]] = 3
    a[mask[:, 0]] = 3
    close(x, a, np.float32)


@pytest.mark.parametrize("placements", [[R(), R()], [S(0), S(1)]], ids=str)
def test_what_changes_nothing_has_a_result_of_its_own(session, mesh22, rng, placements):
    a = draw(rng, np.float64, (6, 6))
    x = session.distribute_tensor(a, mesh22, placements)
    for same in (ts.pad(x, 0, mode="edge"), ts.roll(x, 0), ts.tile(x, 1), ts.linalg.matrix_power(x, 1)):
        close(same, a, np.float64)
    assert (ts.roll(x > 0, 0, axis=1).full_tensor() == (a > 0)).all()


def test_one_plan_is_for_all_numbers(session, mesh22, rng):
    a, b, c = (draw(rng, np.float64, shape) for shape in ((2, 3, 5), (2, 3, 4), (2, 4, 5)))
    x, y, z = (session.distribute_tensor(one, mesh22, [S(0), R()]) for one in (a, b, c))
    for beta, alpha in ((1, 1), (2, 1), (0, 3), (0.5, 0), (1, 1)):
        close(ts.baddbmm(x, y, z, beta=beta, alpha=alpha), beta * a + alpha * b @ c, np.float64)
    close(ts.baddbmm(x * ts.nan, y, z, beta=0), b @ c, np.float64)
    numbers = ts.ones((1, 2, 2), dtype=ts.int64)
    assert (ts.baddbmm(numbers, numbers, numbers, beta=3, alpha=2) == 7).all()
    with pytest.raises(ts.InvalidArgumentError, match="beta is 0.5"):
        ts.baddbmm(numbers, numbers, numbers, beta=0.5).wait()


@pytest.mark.parametrize("placements", [[R(), R()], [S(0), S(1)], [S(1), R()], [S(0), S(0)]], ids=str)
def test_what_models_need(session, mesh22, rng, placements):
    a = draw(rng, np.float64, (6, 8))
    x = session.distribute_tensor(a, mesh22, placements)
    w, b = draw(rng, np.float64, (8,)), draw(rng, np.float64, (8,))
    close(ts.layer_norm(x, session.asarray(w) if hasattr(session, "asarray") else ts.asarray(w), ts.asarray(b)),
          layer_norm(a) * w + b, np.float64)
    close(ts.clip(x, -0.1, 0.2), np.clip(a, -0.1, 0.2), np.float64)
    close(ts.clip(x, max=0.2), np.minimum(a, 0.2), np.float64)
    close(ts.lerp(x, x * 2, 0.25), a + 0.25 * a, np.float64)
    labels = rng.integers(0, 8, 6)
    want = -log_softmax(a)[np.arange(6), labels]
    close(ts.cross_entropy(x, ts.asarray(labels)), want.mean(), np.float64)
    close(ts.cross_entropy(x, ts.asarray(labels), reduction="none"), want, np.float64)
    labels[2] = -100
    close(ts.cross_entropy(x, ts.asarray(labels)), np.delete(want, 2).mean(), np.float64)
    log_p = log_softmax(a)
    class_weight = np.abs(w) + 1
    picked, weights = -log_p[np.arange(6), labels % 8], class_weight[labels % 8] * (labels >= 0)
    close(ts.nll_loss(ts.log_softmax(x), ts.asarray(labels)), np.delete(picked, 2).mean(), np.float64)
    close(ts.nll_loss(ts.log_softmax(x), ts.asarray(labels), ts.asarray(class_weight)),
          (picked * weights).sum() / weights.sum(), np.float64)
    close(ts.masked_fill(x, x > 0, -1), np.where(a > 0, -1, a), np.float64)
    stacks = [draw(rng, np.float64, shape) for shape in ((2, 3, 5), (2, 3, 4), (2, 4, 5))]
    close(ts.baddbmm(*(ts.asarray(stack) for stack in stacks), beta=0.5, alpha=2), 0.5 * stacks[0] + 2 * stacks[1] @ stacks[2],
          np.float64)
    close(ts.one_hot(ts.asarray(np.array([1, 0, 3])), 4), np.eye(4)[[1, 0, 3]], np.float64)
    weight = draw(rng, np.float64, (3, 8))
    close(ts.linear(x, ts.asarray(weight)), a @ weight.T, np.float64)
    q, k, v = (draw(rng, np.float64, (2, 6, 4)) for _ in range(3))
    scores = np.where(np.tri(6, dtype=bool), q @ k.swapaxes(1, 2) / 2, -np.inf)
    tq, tk, tv = (session.distribute_tensor(t, mesh22, [S(0), R()]) for t in (q, k, v))
    close(ts.scaled_dot_product_attention(tq, tk, tv, is_causal=True), softmax(scores) @ v, np.float64)
    c = draw(rng, np.float64, (4, 6, 5))
    split = c.reshape(4, 2, 3, 5)
    mean, var = split.mean((2, 3), keepdims=True), split.var((2, 3), keepdims=True)
    tc = session.distribute_tensor(c, mesh22, [S(0), R()])
    close(ts.group_norm(tc, groups=2), ((split - mean) / np.sqrt(var + 1e-5)).reshape(c.shape), np.float64)
    m, s = draw(rng, np.float64, (6,)), np.abs(draw(rng, np.float64, (6,))) + 1
    close(ts.batch_norm(tc, ts.asarray(m), ts.asarray(s)), (c - m[:, None]) / np.sqrt(s[:, None] + 1e-5), np.float64)
    p, q = draw(rng, np.float64, (4, 3)), draw(rng, np.float64, (4, 3))
    close(ts.cross(session.distribute_tensor(p, mesh22, [S(0), S(1)]), ts.asarray(q)), np.cross(p, q), np.float64)


def adam_oracle(p, g, m, v, t, rate, mode, beta1, beta2, eps, decay, highest=None):
    if mode == "adamw":
        p = p * (1 - rate * decay)
    else:
        g = g + p * decay
    m, v = m * beta1 + g * (1 - beta1), v * beta2 + g * g * (1 - beta2)
    base = v if highest is None else np.maximum(highest, v)
    return p - rate / (1 - beta1**t) * m / (np.sqrt(base) / np.sqrt(1 - beta2**t) + eps), m, v, base


@pytest.mark.parametrize("placements", PLACEMENTS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_optimizers_step_in_one_op_where_the_parameter_lies(session, mesh22, rng, placements, dtype):
    p, g, m = (draw(rng, dtype) for _ in range(3))
    v, highest = np.abs(draw(rng, dtype)), np.abs(draw(rng, dtype))
    put = lambda a: session.distribute_tensor(a, mesh22, placements)  # noqa: E731
    count = session.distribute_tensor(np.array(3, np.float32), mesh22, [R(), R()])
    rate = session.distribute_tensor(np.array(0.1), mesh22, [R(), R()])
    options = {"beta1": 0.8, "beta2": 0.95, "weight_decay": 0.1, "eps": 1e-6}
    tensors = [put(a) for a in (p, g, m, v, highest)]
    with session.comm_debug() as comm:
        for mode in ("adam", "adamw"):
            want = adam_oracle(*(a.astype(np.float64) for a in (p, g, m, v)), 3, 0.1, mode, 0.8, 0.95, 1e-6, 0.1)
            for one in (0.1, rate):
                got = ts.adam_step(*tensors[:4], count, one, mode=mode, **options)
                assert len(got) == 3 and all(list(t.placements) == placements for t in got)
                for a, b in zip(got, want):
                    close(a, b, dtype)
        want = adam_oracle(*(a.astype(np.float64) for a in (p, g, m, v)), 3, 0.1, "adam", 0.9, 0.999, 1e-8, 0, highest.astype(np.float64))
        for a, b in zip(ts.adam_step(*tensors[:4], count, 0.1, tensors[4]), want):
            close(a, b, dtype)
        close(ts.sgd_step(tensors[0], tensors[1], rate, weight_decay=0.5), p - 0.1 * (g + 0.5 * p), dtype)
        b = 0.9 * m + 0.8 * g
        for one, moved in (("momentum", b), ("nesterov", g + 0.9 * b)):
            for a, want in zip(ts.sgd_step(tensors[0], tensors[1], 0.1, tensors[2], momentum=0.9, dampening=0.2, mode=one), (p - 0.1 * moved, b)):
                close(a, want, dtype)
        x, first = ts.sgd_step(tensors[0], tensors[1], 0.1, momentum=0.9, mode="momentum")
        close(first, g, dtype)
    for decay in (0.0, 0.1, 0.2):       # a number is no part of a plan
        for mode in ("adam", "adamw"):
            want = adam_oracle(*(a.astype(np.float64) for a in (p, g, m, v)), 3, 0.1, mode, 0.9, 0.999, 1e-8, decay)
            close(ts.adam_step(*tensors[:4], count, rate, mode=mode, weight_decay=decay)[0], want[0], dtype)
        close(ts.sgd_step(tensors[0], tensors[1], rate, weight_decay=decay), p - 0.1 * (g + decay * p), dtype)
    with pytest.raises(ts.InvalidArgumentError, match="sgd_step: mode 'plain' takes no buffer"):
        ts.sgd_step(tensors[0], tensors[1], 0.1, tensors[2])
    with pytest.raises(ts.InvalidArgumentError, match="adam_step: mode is 'adamax'"):
        ts.adam_step(*tensors[:4], count, 0.1, mode="adamax")
    with pytest.raises(ts.InvalidArgumentError, match="count is a tensor without dims"):
        ts.adam_step(*tensors[:4], 3, 0.1)


def slopes(function, gradient, x):
    """The gradient of sum(gradient * function(x)) by central differences, in f64."""
    out = np.zeros(x.shape)
    for at in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[at] = 1e-5
        out[at] = (gradient * (function(x + step) - function(x - step))).sum() / 2e-5
    return out


def near(got, want):
    np.testing.assert_allclose(np.asarray(got.full_tensor()), want, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("placements", PLACEMENTS)
def test_gradients_of_elements_are_the_slopes(session, mesh22, rng, placements):
    x, g = draw(rng, np.float64), draw(rng, np.float64)
    x[np.abs(x) < 1e-3] = 0.5
    put = lambda a: session.distribute_tensor(a, mesh22, placements)  # noqa: E731
    tanh_form = lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))  # noqa: E731
    exact = lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2)))  # noqa: E731
    with session.comm_debug() as comm:
        got = [ts.silu_backward(put(g), put(x)), ts.gelu_backward(put(g), put(x)), ts.gelu_backward(put(g), put(x), approximate="tanh"),
               ts.sigmoid_backward(put(g), put(sigmoid(x))), ts.tanh_backward(put(g), put(np.tanh(x))),
               ts.threshold_backward(put(g), put(x), threshold=0.25), ts.leaky_relu_backward(put(g), put(x), negative_slope=0.2)]
    assert comm.total_bytes == 0 and all(list(one.placements) == placements for one in got)
    for one, function in zip(got, [lambda x: x * sigmoid(x), exact, tanh_form, sigmoid, np.tanh]):
        near(one, slopes(function, g, x))
    near(got[5], np.where(x > 0.25, g, 0))
    near(got[6], np.where(x > 0, g, 0.2 * g))


@pytest.mark.parametrize("placements", PLACEMENTS)
def test_gradients_of_rows_are_the_slopes(session, mesh22, rng, placements):
    x, g, w = draw(rng, np.float64), draw(rng, np.float64), draw(rng, np.float64, SHAPE[-1:])
    put = lambda a: session.distribute_tensor(a, mesh22, placements)  # noqa: E731
    norm = lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)  # noqa: E731
    rms = lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-3)  # noqa: E731
    weight = session.distribute_tensor(w, mesh22, [R(), R()])
    rows = tuple(range(x.ndim - 1))
    for row, function in ((ts.layer_norm_backward, norm), (ts.rms_norm_backward, rms)):
        near(row(put(g), put(x), eps=1e-3), slopes(function, g, x))
        dx, dw, *db = row(put(g), put(x), weight, eps=1e-3)
        near(dx, slopes(lambda x: function(x) * w, g, x))  # noqa: B023 - called here
        near(dw, (g * function(x)).sum(rows))
        for one in db:
            near(one, g.sum(rows))
    whole = session.distribute_tensor(np.ones(x.shape), mesh22, [R(), R()])
    _, dw, db = ts.layer_norm_backward(put(g), put(x), whole, axis=tuple(range(x.ndim)))     # all dims are normalised: no row is left
    near(dw, g * (x - x.mean()) / np.sqrt(x.var() + 1e-5))
    near(db, g)
    last = lambda a: np.exp(a) / np.exp(a).sum(-1, keepdims=True)  # noqa: E731
    near(ts.softmax_backward(put(g), put(last(x))), slopes(last, g, x))
    near(ts.log_softmax_backward(put(g), put(np.log(last(x)))), slopes(lambda a: np.log(last(a)), g, x))
    near(ts.log_softmax_backward(put(g), put(np.log(last(x))), put(g.sum(-1, keepdims=True))), slopes(lambda a: np.log(last(a)), g, x))
    with pytest.raises(ts.InvalidArgumentError, match="layer_norm_backward: with a weight the normalised dims are the last"):
        ts.layer_norm_backward(put(g), put(x), weight, axis=0)


@pytest.mark.parametrize("placements", [[R(), R()], [S(0), R()], [S(0), S(1)], [R(), S(1)]])
def test_gradients_by_labels_and_indices(session, mesh22, rng, placements):
    x, w = draw(rng, np.float64, (8, 6)), np.abs(draw(rng, np.float64, (6,))) + 0.1
    labels = np.array([0, 5, 2, 2, -100, 1, 3, 0])
    there = session.distribute_tensor(x, mesh22, placements)
    at = session.distribute_tensor(labels, mesh22, [p if p == S(0) else R() for p in placements])
    weight = session.distribute_tensor(w, mesh22, [R(), R()])
    one = session.distribute_tensor(np.array(1.5), mesh22, [R(), R()])
    counts, hit = labels != -100, np.eye(6)[np.where(labels < 0, 0, labels)] * (labels != -100)[:, None]
    for extra, factors in (((), np.ones(6)), ((weight,), w)):
        loss, total = ts.nll_loss_and_weight(there, at, *extra)
        number = (hit * factors).sum()
        near(total, number)
        near(loss, -(hit * factors * x).sum() / number)
        near(ts.nll_loss_and_weight(there, at, *extra, reduction="none")[0], -(hit * factors * x).sum(1))
        found = ts.nll_loss_backward(there, one, at, total, *extra)
        gradient = found if extra else found[0]
        assert list(gradient.placements) == placements
        near(gradient, -1.5 * hit * factors / number)
        if not extra:
            near(found[1], -1.5 * counts[:, None] / number)
    g = draw(rng, np.float64, (8, 6))
    rows = np.array([0, 3, 3, 1, 0, 2, 0, 3])
    want = np.zeros((4, 6))
    np.add.at(want, rows, g)
    want[1] = 0
    spread = session.distribute_tensor(g, mesh22, placements)
    near(ts.embedding_backward(spread, session.distribute_tensor(rows, mesh22, [R(), R()]), num_classes=4, ignore_index=1), want)


@pytest.mark.parametrize("heads", [4, 2])
def test_gradients_of_attention_are_the_slopes(session, mesh22, rng, heads):
    q, g = (draw(rng, np.float64, (2, 4, 3, 2)) for _ in range(2))
    k, v = (draw(rng, np.float64, (2, heads, 3, 2)) for _ in range(2))

    def attention(q, k, v):
        k, v = (np.repeat(one, 4 // heads, 1) for one in (k, v))
        scores = np.where(np.tri(3, dtype=bool), q @ k.swapaxes(2, 3) * 0.7, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True) @ v

    put = lambda a: session.distribute_tensor(a, mesh22, [S(0), S(1)])  # noqa: E731
    with session.comm_debug() as comm:
        dq, dk, dv = ts.scaled_dot_product_attention_backward(put(g), put(q), put(k), put(v), is_causal=True, scale=0.7)
    assert comm.total_bytes == 0 and all(list(one.placements) == [S(0), S(1)] for one in (dq, dk, dv))
    near(dq, slopes(lambda a: attention(a, k, v), g, q))
    near(dk, slopes(lambda a: attention(q, a, v), g, k))
    near(dv, slopes(lambda a: attention(q, k, a), g, v))
    if heads == 4:
        out, logarithms = ts.scaled_dot_product_attention_and_logarithms(put(q), put(k), put(v), is_causal=True, scale=0.7)
        near(out, attention(q, k, v))
        scores = np.where(np.tri(3, dtype=bool), q @ k.swapaxes(2, 3) * 0.7, -np.inf)
        near(logarithms, np.log(np.exp(scores).sum(-1)))
    else:
        out, logarithms = put(attention(q, k, v)), ts.zeros((2, 4, 3), dtype="f64")
    again = ts.scaled_dot_product_attention_backward_of_result(put(g), put(q), put(k), put(v), out, logarithms, is_causal=True, scale=0.7)
    for one, other in zip(again, (dq, dk, dv)):
        near(one, np.asarray(other.full_tensor()))


def test_a_result_that_is_not_of_the_attention_is_refused(session, mesh22, rng):
    q, rows = ts.ones((1, 2, 3, 4)), ts.ones((1, 2, 3))
    call = ts.scaled_dot_product_attention_backward_of_result
    with pytest.raises(ts.InvalidArgumentError, match="the result has another shape than its gradient"):
        call(q, q, q, q, ts.ones((1, 2, 3, 5)), rows)
    with pytest.raises(ts.InvalidArgumentError, match="not one of each of the result's rows"):
        call(q, q, q, q, q, ts.ones((1, 2, 4)))
    with pytest.raises(ts.TesseraError, match="must be of the dtype that is added up in"):
        call(q, q, q, q, q, ts.ones((1, 2, 3), dtype="f16"))
    with pytest.raises(ts.InvalidArgumentError, match="takes a result"):
        call(q, q, q, q, rows, rows)


def test_sharded_classes_stay_where_they_are(session, mesh4, rng):
    """A cross-entropy reduces rows: the largest, the sum and what the labels pick."""
    x = session.distribute_tensor(draw(rng, np.float32, (64, 64)), mesh4, [S(1)])
    labels = ts.asarray(rng.integers(0, 64, 64))
    with session.comm_debug() as comm:
        ts.cross_entropy(x, labels).wait()
    assert sum(comm.bytes_received) < 4 * 64 * 64 * 4 / 4, comm.bytes_received


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_a_label_that_is_no_class_is_an_error(session, mesh22, rng, placements):
    x = session.distribute_tensor(draw(rng, np.float32, (5, 8)), mesh22, placements)
    stack = session.distribute_tensor(draw(rng, np.float32, (2, 5, 8)), mesh22, [S(0), S(2)])
    for bad in (8, -1, -101, 1000):
        labels = np.array([0, 7, -100, bad, 1])
        for loss in (ts.cross_entropy, ts.nll_loss):
            with pytest.raises(IndexError, match=f"^{loss.__name__}: .*out of range.* of extent 8"):
                loss(x, ts.asarray(labels)).item()
            with pytest.raises(IndexError, match=f"^{loss.__name__}: .*out of range.* of extent 8"):
                loss(stack, ts.asarray(np.stack([labels * 0, labels]))).item()
        labels[3] = -100
        assert np.isfinite(ts.cross_entropy(x, ts.asarray(labels)).item())


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_numbers_are_checked_where_they_lie(session, mesh22, rng, placements):
    """And what is computed of them fails; nothing moves for it."""
    for dtype in (np.int64, np.float32, np.float64):
        a = rng.integers(0, 8, (5, 8)).astype(dtype)
        for number, other in ((8, ()), (-1, ()), (-100, (-99,)), *(((math.nan, ()), (math.inf, ())) if dtype != np.int64 else ())):
            x = session.distribute_tensor(a, mesh22, placements)
            with session.comm_debug() as comm:
                np.testing.assert_array_equal((ts.check_range(x, 0, 7) + 1).full_tensor(), a + 1)
            assert comm.total_bytes == 0 or any(p.is_partial() for p in placements)
            bad = a.copy()
            bad[3, 5] = number
            y = ts.check_range(session.distribute_tensor(bad, mesh22, placements), 0, 7, *other, mode="class_of_a_row") * 2
            shown = f"{number}" if dtype == np.int64 else re.escape(str(dtype(number)))
            with pytest.raises(ts.NumberOutOfRangeError, match=f"check_range: class of a row {shown} is not from 0 to 7") as error:
                y.wait()
            assert isinstance(error.value, (IndexError, RuntimeError, ValueError))
            if other:
                bad[3, 5] = other[0]
                kept = ts.check_range(session.distribute_tensor(bad, mesh22, placements), 0, 7, *other)
                np.testing.assert_array_equal(kept.full_tensor(), bad)
    with pytest.raises(ts.DTypeError, match="check_range: needs i64, f32 or f64"):
        ts.check_range(ts.asarray([1], dtype=ts.int32), 0, 7)
    with pytest.raises(ts.InvalidArgumentError, match="check_range: what is checked is a word"):
        ts.check_range(ts.asarray([1]), 0, 7, mode="A label")


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_products_by_groups(session, mesh22, rng, placements):
    """Wherever rows and experts lie: NumPy's product of each group; what lies behind the last one is 0, or is left out."""
    x, w, y = (rng.standard_normal(shape) for shape in ((5, 6), (4, 6, 3), (6, 7)))
    for ends, columns in (([0, 3, 3, 5], [2, 2, 3, 6]), ([1, 2, 2, 4], [0, 0, 0, 4])):
        rows, inner = np.zeros((5, 3)), np.zeros((4, 5, 7))
        for g in range(4):
            own = slice(ends[g - 1] if g else 0, ends[g])
            rows[own] = x[own] @ w[g]
            own = slice(columns[g - 1] if g else 0, columns[g])
            inner[g] = x[:, own] @ y[own]
        a = session.distribute_tensor(x, mesh22, placements)
        for of_w in ([R(), R()], [S(0), R()], [R(), S(0)], [S(0), S(0)], [S(2), S(1)]):
            b = session.distribute_tensor(w, mesh22, of_w)
            for dtype in (ts.int32, ts.int64):
                close(ts.grouped_matmul(a, b, ts.asarray(ends, dtype=dtype)), rows, np.float64)
        for of_y in ([R(), R()], [S(0), R()], [S(0), S(1)]):
            close(ts.grouped_matmul(a, session.distribute_tensor(y, mesh22, of_y), ts.asarray(columns)), inner, np.float64)
    with pytest.raises(ts.IndexOutOfRangeError, match="grouped_matmul: offset 7 of group 3 is not from 2 to 5"):
        ts.grouped_matmul(a, b, ts.asarray([0, 1, 2, 7])).wait()
    for wrong, text in (((a, ts.ones((4, 5, 3)), ts.asarray([1] * 4)), "inner dims differ"), ((a, b, ts.asarray([1])), "a number for each group"),
                        ((a, b, ts.asarray([1.0] * 4)), "offsets must be i32 or i64"), ((a, b.astype(ts.float32), ts.asarray([1] * 4)), "dtypes differ"),
                        ((b, b, ts.asarray([1] * 4)), "x1 must be a matrix")):
        with pytest.raises(ts.InvalidArgumentError, match=f"grouped_matmul: .*{text}"):
            ts.grouped_matmul(*wrong)


def test_bad_input_is_said_by_the_function(session, mesh22, rng):
    x = session.distribute_tensor(draw(rng, np.float32), mesh22, [S(0), R()])
    with pytest.raises(ts.InvalidArgumentError, match="softmax: .*axis"):
        ts.softmax(x, dim=1)
    with pytest.raises(ts.IndexOutOfRangeError, match="softmax: axis 2"):
        ts.softmax(x, axis=2)
    with pytest.raises(ts.InvalidArgumentError, match="concat: shapes differ"):
        ts.concat([x, x[:, :2]], axis=0)
    with pytest.raises(ts.InvalidArgumentError, match=r"x\[i\] = v|assign: .*broadcast"):
        x[0] = np.zeros(5, np.float32)
    with pytest.raises(ts.DTypeError, match="bitwise_and"):
        x & x
    with pytest.raises(ts.InvalidArgumentError, match="sizes of S"):
        x.redistribute([S(0, sizes=[1, 1]), R()])
    with pytest.raises(ts.InvalidArgumentError, match="tile"):
        ts.tile(x, (-1,))


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_scans_and_sorts(session, mesh22, rng, placements, dtype):
    a = np.abs(draw(rng, dtype)).astype(dtype)
    x = session.distribute_tensor(a, mesh22, placements)
    for axis in (0, 1):
        close(ts.cumulative_sum(x, axis=axis), np.cumulative_sum(a, axis=axis), dtype)
        close(ts.cumulative_sum(x, axis=axis, include_initial=True), np.cumulative_sum(a, axis=axis, include_initial=True), dtype)
        close(ts.cumulative_prod(x, axis=axis), np.cumulative_prod(a, axis=axis), dtype)
        close(ts.cumulative_max(x, axis=axis), np.maximum.accumulate(a, axis=axis), dtype)
        close(ts.cumulative_min(x, axis=axis), np.minimum.accumulate(a, axis=axis), dtype)
        close(ts.sort(x, axis=axis), np.sort(a, axis=axis), dtype)
        close(ts.sort(x, axis=axis, descending=True), np.flip(np.sort(a, axis=axis), axis), dtype)
        close(ts.argsort(x, axis=axis), np.argsort(a, axis=axis, stable=True), dtype)
        close(ts.argsort_first(x, 2, axis=axis), np.argsort(a, axis=axis, stable=True).take(range(2), axis), dtype)
    close(ts.cumsum(x), np.cumsum(a), dtype)
    flat = ts.reshape(x, -1)
    close(ts.sort(flat), np.sort(a, axis=None), dtype)
    close(ts.argsort(flat, descending=True), np.argsort(-a.astype(np.float64), axis=None, stable=True), dtype)
    values, indices = ts.topk(x, 2, axis=1)
    close(values, -np.sort(-a.astype(np.float64), axis=1)[:, :2], dtype)
    close(ts.take_along_axis(x, indices, axis=1), values.full_tensor(), dtype)
    close(ts.diff(x, axis=0, prepend=x[:1], append=ts.asarray(a[:1])), np.diff(a, axis=0, prepend=a[:1], append=a[:1]), dtype)
    close(ts.gather(x, ts.asarray(np.array([[0, 1], [2, 2]])), axis=1), np.take_along_axis(a[:2], np.array([[0, 1], [2, 2]]), 1), dtype)
    close(ts.isin(x, a[0]), np.isin(a, a[0]), dtype)
    close(ts.isin(x, [], invert=True), np.isin(a, [], invert=True), dtype)
    added = a.copy()
    np.add.at(added, (slice(None), [1, 1, 0]), a[:, :3])
    close(ts.index_add(x, [1, 1, 0], ts.asarray(a[:, :3]), axis=1), added, dtype)
    close(ts.scatter_add(x, ts.asarray(np.array([1, 1, 0])), ts.asarray(a[:, :3]), axis=1), added, dtype)
    row = np.sort(a.ravel())
    order = np.array([2, 0, 1])
    for side in ("left", "right"):
        for number in (5, 5.5):
            few = np.array([1, 5, 5, 9], dtype)
            close(ts.searchsorted(ts.asarray(few), number, side=side), np.searchsorted(few, number, side=side), np.int64)
            close(ts.asarray(few).searchsorted(number, side=side), np.searchsorted(few, number, side=side), np.int64)
    close(ts.searchsorted(ts.asarray(np.array([5, 9, 1], dtype)), x, sorter=ts.asarray(order)),
          np.searchsorted(np.array([5, 9, 1], dtype), a, sorter=order), np.int64)
    for side in ("left", "right"):
        close(ts.searchsorted(ts.asarray(row), x, side=side), np.searchsorted(row, a, side), np.int64)
    if dtype == np.float32:
        close(ts.median(x, axis=1), np.median(a, axis=1), dtype)


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
def test_indexing_with_arrays_and_masks(session, mesh22, rng, placements):
    a = draw(rng, np.float32)
    x = session.distribute_tensor(a, mesh22, placements)
    i, j = np.array([3, -1, 0, 3]), np.array([0, 5, -2, 1])
    mask, rows = a > 0.2, a[:, 0] > 0
    for key in (i, (i, j), (slice(None), j), (slice(1, 4), j), (i, slice(None, None, 2)), (i[:, None], j), (None, i), (0, j),
                mask, rows, (rows, slice(2)), (slice(None), np.array([True, False] * 3)), [1, 2], np.zeros(0, np.int64),
                np.zeros_like(mask), (Ellipsis, j), i.reshape(2, 2)):
        close(x[key], a[key], np.float32)
    close(x[session.distribute_tensor(mask, mesh22, [S(0), R()])], a[mask], np.float32)
    close(ts.take(x, ts.asarray(i), axis=1 if False else 0), a[i], np.float32)
    close(ts.embedding(ts.asarray(np.array([[1, 2], [4, 0]])), x), a[[[1, 2], [4, 0]]], np.float32)
    for got, want in zip(ts.nonzero(x), np.nonzero(a)):
        close(got, want, np.int64)
    close(ts.masked_select(x, x > 0.2), a[mask], np.float32)
    for key, value in ((i[:3], 5.0), ((i, j), np.arange(4.0)), ((slice(None), np.array([1, 4])), -1), (rows, 9)):
        b, y = a.copy(), session.distribute_tensor(a, mesh22, placements)
        b[key] = value
        y[key] = value
        close(y, b, np.float32)
        assert y.placements == tuple(placements)
    with pytest.raises(ts.IndexOutOfRangeError):
        x[np.array([5])].wait()
    with pytest.raises(ts.IndexOutOfRangeError):
        x[np.array([True, False])]
    with pytest.raises(ts.IndexOutOfRangeError):
        x[np.array([0.5])]
    close(x + 0, a, np.float32)


@pytest.mark.parametrize("placements", [[R()], [S(0)], [S(0, sizes=[1, 0, 9, 2])]], ids=str)
def test_sets(session, mesh4, rng, placements):
    a = rng.integers(0, 5, 12)
    x = session.distribute_tensor(a, mesh4, placements)
    for got, want in zip(ts.unique_all(x), np.unique_all(a)):
        close(got, want, np.int64)
    close(ts.unique_values(x), np.unique_values(a), np.int64)
    for got, want in zip(ts.unique_counts(x), np.unique_counts(a)):
        close(got, want, np.int64)
    for got, want in zip(ts.unique_inverse(x), np.unique_inverse(a)):
        close(got, want, np.int64)


def test_scatter_adds_in_order(session, mesh22, rng):
    a, u = draw(rng, np.float64, (6, 4)), draw(rng, np.float64, (5, 4))
    where = np.array([0, 3, 3, 5, -1])
    x, updates = session.distribute_tensor(a, mesh22, [S(1), R()]), session.distribute_tensor(u, mesh22, [R(), S(1)])
    want = a.copy()
    np.add.at(want, where, u)
    close(ts.scatter(x, ts.asarray(where), updates, axis=0, mode="add"), want, np.float64)
    with pytest.raises(ts.InvalidArgumentError, match="scatter: mode is mean"):
        ts.scatter(x, ts.asarray(where), updates, axis=0, mode="mean")


def test_what_the_array_api_asks_of_dtypes(session):
    assert ts.finfo(ts.float32).eps == np.finfo(np.float32).eps and ts.iinfo("int8").min == -128
    assert ts.result_type(ts.int32, ts.float32) == np.float64 or ts.result_type(ts.int32, ts.int64) == np.int64
    assert ts.result_type(ts.int32, 2) == np.int32 and ts.can_cast(ts.int32, ts.int64) and not ts.can_cast(ts.int64, ts.int32)
    assert ts.isdtype(ts.int32, "integral") and ts.isdtype(ts.float32, ("bool", "real floating"))
    assert ts.result_type(ts.int64, ts.uint64) == np.float64     # as NumPy has it; the array API leaves it open
    info = ts.__array_namespace_info__()
    assert info.default_dtypes()["real floating"] == np.float64 and "int64" in info.dtypes(kind="integral")
