"""Elementwise ops: those whose names agree with the catalog's by themselves, others by hand."""

from __future__ import annotations

import warnings

import _tessera_ops as made
import torch

import _tessera
from .._errors import InvalidArgumentError
from .._catalog import OPS
from . import _ranges
from ._dtypes import BOOL, FLOATS, INT64, INTEGERS, U8, code
from ._one_call import ALL, REAL_FLOATS, one_call
from ._moving import default_place, download, upload
from ._operands import cast, filled, floating, number_as, operand, promoted, within
from ._table import aten, put, row, run
from ._tensor import Tensor, handle_of, wrap

_call = _tessera.call
ADD, SUB, MUL, DIV, NEG, WHERE, EXPAND, REL = (
    OPS[name] for name in ("add", "subtract", "multiply", "divide", "negative", "where", "broadcast_to", "redistribute"))

# These give integers (or bools) for integers; the others give floats of torch's default dtype.
_KEEP = frozenset("abs sign floor ceil trunc round relu relu6 square positive isnan isinf isfinite signbit logical_not neg "
                  "bitwise_not sgn conj_physical".split())
_OTHER_NAMES = {"neg": "negative", "bitwise_not": "bitwise_invert", "sgn": "sign", "conj_physical": "conj"}


def _unary(name: str, op: int):
    if name in _KEEP:
        def function(x):
            h = handle_of(x)
            return wrap(h if h._dtype == BOOL and name in ("sign", "sgn") else _call(op, (h,)))
    else:
        def function(x):
            return wrap(_call(op, (floating(handle_of(x)),)))
    return function


def _make_unary() -> None:
    """A row for each overload `name(Tensor self) -> Tensor` of ATen whose name the catalog has for one operand."""
    by_name = {r[1]: r for r in _tessera.catalog()}
    families = by_name["exp"][2], by_name["silu"][2]        # of elements, and composites
    names = [r[1] for r in by_name.values() if r[3] == 1 and r[2] in families] + list(_OTHER_NAMES)
    for name in names:
        packet = getattr(aten, name, None)
        func = getattr(packet, "default", None)
        if func is None:
            continue
        arguments = func._schema.arguments
        if len(arguments) == 1 and str(arguments[0].type) == "Tensor" and len(func._schema.returns) == 1:
            of_catalog = _OTHER_NAMES.get(name, name)
            dtypes = FLOATS if name not in _KEEP else ALL - {BOOL} if of_catalog == "sign" else ALL
            row(f"{name}.default", one_call=one_call(of_catalog, dtypes))(_unary(name, by_name[of_catalog][0]))


_make_unary()


# ---- sums and products -----------------------------------------------------------------------------------

def _scaled(h, alpha):
    if alpha == 1:
        return h
    return _call(MUL, (h, number_as(alpha, h._dtype) if h._dtype in INTEGERS else alpha)) if isinstance(h, _tessera.Tensor) else h * alpha


def add(a, b, alpha=1):
    x, y = promoted("add", a, b)
    if a.dtype is torch.bool and (isinstance(b, bool) or getattr(b, "dtype", None) is torch.bool):
        return wrap(_call(OPS["logical_or"], (x, y)))
    return wrap(_call(ADD, (x, y if alpha == 1 else _scaled(y, alpha))))


def sub(a, b, alpha=1):
    if any(isinstance(one, bool) or getattr(one, "dtype", None) is torch.bool for one in (a, b)):
        raise InvalidArgumentError(f"sub: {a!r} and {b!r}: bools are not subtracted; a ^ b or torch.logical_xor says where they differ, ~a inverts a mask")
    x, y = promoted("sub", a, b)
    return wrap(_call(SUB, (x, y if alpha == 1 else _scaled(y, alpha))))


@row("rsub.Tensor", "rsub.Scalar")
def rsub(a, b, alpha=1):
    return sub(b, a, alpha)


def mul(a, b):
    x, y = promoted("mul", a, b)
    if all(one._dtype == BOOL if isinstance(one, _tessera.Tensor) else isinstance(one, bool) for one in (x, y)):
        return wrap(_call(OPS["logical_and"], (x, y)))
    return wrap(_call(MUL, (x, y)))


def div(a, b):
    return wrap(_call(DIV, promoted("div", a, b, is_true_divide=True)))


for _name, _of_catalog, _function in (("add", "add", add), ("sub", "subtract", sub), ("mul", "multiply", mul), ("div", "divide", div)):
    row(f"{_name}.Tensor", f"{_name}.Scalar", one_call=one_call(_of_catalog, FLOATS))(_function)


@row("div.Tensor_mode", "div.Scalar_mode")
def div_mode(a, b, *, rounding_mode=None):
    if rounding_mode is None:
        return div(a, b)
    x, y = promoted("div", a, b)
    y = _ranges.divisor("div", x, y)
    if rounding_mode == "floor":
        return wrap(_call(OPS["floor_divide"], (x, y)))
    out = _call(OPS["trunc"], (_call(DIV, (x, y)),))
    return wrap(cast(out, x._dtype if isinstance(x, _tessera.Tensor) else y._dtype))


def _binary(name: str, op: int, is_float: bool = False):
    def function(a, b):
        x, y = promoted(name, a, b, is_float)
        return wrap(_call(op, (x, y)))
    return function


def _division(name: str, op: int):
    def function(a, b):
        x, y = promoted(name, a, b)
        return wrap(_call(op, (x, _ranges.divisor(name, x, y))))
    return function


def _extreme(name: str, op: int, of_bools: int):
    slow = _binary(name, op)

    def function(a, b):
        if a.dtype is torch.bool and getattr(b, "dtype", None) is torch.bool:
            return wrap(_call(of_bools, (handle_of(a), handle_of(b))))
        return slow(a, b)
    return function


for _name, _op in (("maximum", "logical_or"), ("minimum", "logical_and")):
    row(f"{_name}.default", one_call=one_call(_name, ALL - {BOOL}))(_extreme(_name, OPS[_name], OPS[_op]))
for _name, _op in (("eq", "equal"), ("ne", "not_equal"), ("lt", "less"),
                   ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"), ("bitwise_and", "bitwise_and"),
                   ("bitwise_or", "bitwise_or"), ("bitwise_xor", "bitwise_xor"), ("bitwise_left_shift", "bitwise_left_shift"), ("gcd", "gcd"), ("lcm", "lcm"),
                   ("bitwise_right_shift", "bitwise_right_shift"), ("__lshift__", "bitwise_left_shift"), ("__rshift__", "bitwise_right_shift")):
    row(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.default", f"{_name}.Tensor_Scalar", f"{_name}.Scalar_Tensor",
        one_call=one_call(_op))(_binary(_name, OPS[_op]))
for _name in ("floor_divide", "remainder"):
    row(f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.default", f"{_name}.Scalar_Tensor")(_division(_name, OPS[_name]))
for _name in ("atan2", "hypot", "logaddexp", "copysign", "nextafter"):
    row(f"{_name}.default", f"{_name}.Tensor", f"{_name}.Scalar", one_call=one_call(_name, REAL_FLOATS))(_binary(_name, OPS[_name], True))


def _logical_of(op: int):
    def function(a, b):
        x, y = handle_of(a), handle_of(b)
        return wrap(_call(op, (x if x._dtype == BOOL else _call(OPS["not_equal"], (x, 0)),
                               y if y._dtype == BOOL else _call(OPS["not_equal"], (y, 0)))))
    return function


for _name in ("logical_and", "logical_or", "logical_xor"):
    row(f"{_name}.default", one_call=one_call(_name, {BOOL}))(_logical_of(OPS[_name]))


@row("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(a, b):
    x, y = promoted("pow", a, b)
    if y == 2 if isinstance(y, (int, float)) else False:
        return wrap(_call(OPS["square"], (x,)))
    return wrap(_call(OPS["pow"], (x, y)))


@row("clamp.default", "clamp.Tensor")
def clamp(x, min=None, max=None):  # noqa: A002 - ATen's names
    h = handle_of(x)
    bounds = [operand("clamp", bound, x) for bound in (min, max) if bound is not None]
    if h._dtype not in FLOATS and any(isinstance(bound, float) for bound in bounds):
        h = floating(h)
    mode, kind = "max" if min is None else "min" if max is None else "", h._dtype
    if kind == BOOL:
        is_number = any(isinstance(bound, int) and not isinstance(bound, bool) for bound in bounds)
        h = cast(h, INT64 if is_number else U8)
        kind = INT64 if is_number else BOOL
    bounds = [within(int(bound), h._dtype) if isinstance(bound, int) and h._dtype in INTEGERS else number_as(bound, h._dtype)
              if isinstance(bound, (int, float)) else cast(bound, h._dtype) for bound in bounds]
    return wrap(cast(_call(OPS["clip"], (h, *bounds), mode=mode), kind if kind == BOOL else h._dtype))


@row("clamp_min.default", "clamp_min.Tensor")
def clamp_min(x, min):  # noqa: A002
    return clamp(x, min, None)


@row("clamp_max.default", "clamp_max.Tensor")
def clamp_max(x, max):  # noqa: A002
    return clamp(x, None, max)


@row("polar.default", how="composed")
def polar(absolute, angle):
    """torch 2.11 would take it apart to other numbers."""
    r, t = promoted("polar", absolute, angle)
    return wrap(_call(OPS["complex"], (r * made.cos(t), r * made.sin(t))))


@row("complex.default")
def complex_(real, imag):
    x, y = promoted("complex", real, imag)
    return wrap(_call(OPS["complex"], (x, y)))


@row("fmod.Tensor", "fmod.Scalar", how="composed")
def fmod(a, b):
    """The remainder with the sign of a."""
    x, y = promoted("fmod", a, b)
    y = _ranges.divisor("fmod", x, y)
    rest = _call(OPS["remainder"], (_call(OPS["abs"], (x,)), _call(OPS["abs"], (y,)) if isinstance(y, _tessera.Tensor) else abs(y)))
    return wrap(_call(WHERE, (_call(OPS["less"], (x, 0)), _call(NEG, (rest,)), rest)))


def _without_nan(op: int):
    """The one of each two that is a number."""
    def function(a, b):
        x, y = promoted("fmax", a, b)
        if x._dtype == BOOL:
            return wrap(_call(OPS["logical_or" if op == OPS["maximum"] else "logical_and"], (x, y)))
        if x._dtype not in FLOATS:
            return wrap(_call(op, (x, y)))
        nan_x, nan_y = _call(OPS["isnan"], (x,)), _call(OPS["isnan"], (y,))
        return wrap(_call(op, (_call(WHERE, (nan_x, y, x)), _call(WHERE, (nan_y, x, y)))))
    return function


row("fmax.default", how="composed")(_without_nan(OPS["maximum"]))
row("fmin.default", how="composed")(_without_nan(OPS["minimum"]))


@row("isclose.default")
def isclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    x, y = promoted("isclose", a, b)
    out = _call(OPS["isclose"], (x, y), scalars=[float(rtol), float(atol)])
    if equal_nan and x._dtype in FLOATS:
        out = _call(OPS["logical_or"], (out, _call(OPS["logical_and"], (_call(OPS["isnan"], (x,)), _call(OPS["isnan"], (y,))))))
    return wrap(out)


@row("allclose.default")
def allclose(a, b, rtol=1e-05, atol=1e-08, equal_nan=False):
    """Whether all elements are close: a Python bool, which is waited for."""
    close = handle_of(isclose(a, b, rtol, atol, equal_nan))
    return bool(_call(OPS["all"], (close,), dims=list(range(close.ndim))).item())


@row("lerp.Scalar", "lerp.Tensor", how="composed")
def lerp(a, b, weight):
    x, y = promoted("lerp", a, b)
    w = operand("lerp", weight, a)
    return wrap(_call(ADD, (x, _call(MUL, (_call(SUB, (y, x)), cast(w, x._dtype))))))


@row("addcmul.default", how="composed")
def addcmul(x, a, b, *, value=1):
    product = handle_of(mul(a, b))
    return add(x, wrap(_scaled(product, value)))


@row("addcdiv.default", how="composed")
def addcdiv(x, a, b, *, value=1):
    return add(x, wrap(_scaled(handle_of(div(a, b)), value)))


@row("where.self", "where.ScalarSelf", "where.ScalarOther", one_call=one_call("where", first_alike=1))
def where(condition, a, b):
    x, y = promoted("where", a, b)
    beside = a if isinstance(a, Tensor) else b
    mask = operand("where", condition, beside)
    return wrap(_call(WHERE, (mask, x, y)))


@row("where.Scalar", how="composed")
def where_scalars(condition, a, b):
    kind = torch.result_type(a, b) if not isinstance(a, float) or not isinstance(b, float) else torch.get_default_dtype()
    wanted = code(kind)
    return wrap(cast(_call(WHERE, (handle_of(condition), a, b)), wanted))


@row("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(x, mask, value):
    h = handle_of(x)
    value = operand("masked_fill", value, x)
    if isinstance(value, _tessera.Tensor):
        value = cast(value, h._dtype)
    else:
        value = filled(int(value), h._dtype) if isinstance(value, int) and h._dtype in INTEGERS else number_as(value, h._dtype)
    out = _call(WHERE, (operand("masked_fill", mask, x), value, h))
    return wrap(out)


@row("_to_copy.default")
def to_copy(x, *, dtype=None, layout=None, device=None, pin_memory=None, non_blocking=False, memory_format=None):
    if device is not None and device.type == "meta":
        return torch.empty_strided(x.shape, x.stride(), dtype=dtype or x.dtype, device="meta")
    if device is not None and device.type != "tessera":
        if device.type != "cpu":
            raise NotImplementedError(f"to: {x!r} goes to the CPU alone, not to {device}; x.cpu().to({str(device)!r})")
        out = download(x)
        return out if dtype is None else out.to(dtype)
    if not isinstance(x, Tensor):
        return wrap(upload(x if dtype is None else x.to(dtype), *default_place(x.shape)))
    return convert_element_type(x, dtype or x.dtype)


def convert_element_type(x, dtype):
    """A conversion, which torch's own decompositions ask for, too. Complex numbers give their real parts, with torch's warning, but for bools."""
    h = handle_of(x)
    if x.dtype.is_complex and not dtype.is_complex:
        if dtype == torch.bool:
            return wrap(_call(OPS["not_equal"], (handle_of(x), 0)))
        warnings.warn("Casting complex values to real discards the imaginary part", UserWarning, stacklevel=2)
        h = _call(OPS["real"], (h,))
    return wrap(cast(h, code(dtype)))


put(torch.ops.prims.convert_element_type.default, convert_element_type, "catalog")
row("clone.default", "contiguous.default", "lift_fresh_copy.default", how="client", one_call=one_call(None))(
    lambda x, memory_format=None: wrap(handle_of(x)))     # a write makes another value: a copy is another name


# ---- activations --------------------------------------------------------------------------------------------

@row("gelu.default", one_call=one_call("gelu", REAL_FLOATS, approximate="approximate"))
def gelu(x, *, approximate="none"):
    return wrap(_call(OPS["gelu"], (handle_of(x),), approximate=approximate))


@row("leaky_relu.default")
def leaky_relu(x, negative_slope=0.01):
    h = handle_of(x)
    return wrap(_call(WHERE, (_call(OPS["greater"], (h, 0)), h, _call(MUL, (h, float(negative_slope))))))


@row("softplus.default", how="composed")
def softplus(x, beta=1, threshold=20):
    h = handle_of(x)
    scaled = _scaled(h, float(beta))
    soft = _scaled(_call(OPS["softplus"], (scaled,)), 1.0 / beta)
    return wrap(_call(WHERE, (_call(OPS["greater"], (scaled, float(threshold))), h, soft)))


def _backward(name: str):
    """The row of a gradient and what was saved, both of one shape."""
    op = OPS[name]

    def function(grad, saved, *numbers, **attributes):
        s = handle_of(saved)
        if numbers:
            return wrap(_call(op, (handle_of(grad), s), scalars=[float(numbers[0])]))
        return wrap(_call(op, (handle_of(grad), s), **attributes))
    return function


for _name, _takes in (("silu_backward", {}), ("gelu_backward", {"approximate": "approximate"}), ("sigmoid_backward", {}), ("tanh_backward", {}),
                      ("threshold_backward", {"threshold": "scalars"})):
    row(f"{_name}.default", one_call=one_call(_name, REAL_FLOATS, **_takes))(_backward(_name))
row("leaky_relu_backward.default")(_backward("leaky_relu_backward"))


# ---- of complex numbers, by their formulas --------------------------------------------------------------------------------

def _also_complex(name: str, of_complex) -> None:
    """The row takes complex numbers, too: of them this is done."""
    real, of_real = run(f"{name}.default"), one_call(name, REAL_FLOATS)

    def function(x, *rest):
        return wrap(of_complex(handle_of(x), *map(handle_of, rest))) if x.dtype.is_complex else real(x, *rest)
    row(f"{name}.default", one_call=of_real)(function)


def _sigmoid(h):
    return _call(DIV, (1.0, _call(ADD, (1.0, _call(OPS["exp"], (_call(NEG, (h,)),))))))


_also_complex("sigmoid", _sigmoid)
_also_complex("silu", lambda h: _call(MUL, (h, _sigmoid(h))))
_also_complex("sigmoid_backward", lambda g, y: _call(MUL, (g, _call(OPS["conj"], (_call(MUL, (_call(SUB, (1.0, y)), y)),)))))
