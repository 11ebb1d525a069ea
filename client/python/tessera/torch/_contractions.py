"""Products: linear, matmul and their backward passes, mm, bmm, addmm."""

from __future__ import annotations

import _tessera
from _tessera_ops import conj
from .._errors import InvalidArgumentError
from .._catalog import OPS
from ._cell import moved
from . import _composed
from ._composed import einsum
from ._dtypes import CODES, F32, FLOATS, FLOATS8, INTEGERS
from ._one_call import one_call
from ._operands import cast, operand
from ._placing import is_small, settled
from ._table import row
from ._tensor import handle_of, wrap

_call = _tessera.call
_ADD, _SUM = OPS["add"], OPS["sum"]
_LEAD = "abcdefgh"
# By the number of dims of x: the forward, the gradient of x, the gradient of the weight.
_LINEAR = [(f"{_LEAD[:n]}i,oi->{_LEAD[:n]}o", f"{_LEAD[:n]}o,oi->{_LEAD[:n]}i", f"{_LEAD[:n]}o,{_LEAD[:n]}i->oi") for n in range(8)]


def _check_dtypes(op: str, x, w):
    if x._dtype != w._dtype:
        raise InvalidArgumentError(f"{op}: expected both operands to have the same dtype, but got {wrap(x)!r} and {wrap(w)!r}")
    if x._dtype in FLOATS8:
        raise NotImplementedError(f"{op}: not implemented for {wrap(x).dtype}, as in torch; torch._scaled_mm multiplies floats of 8 bits")


@row("linear.default", one_call=one_call("einsum", FLOATS, is_product=True, notations=tuple(one for one, *_ in _LINEAR), bias="added"))
def linear(x, weight, bias=None):
    h, w = handle_of(x), handle_of(weight)
    _check_dtypes("linear", h, w)
    notation = _LINEAR[h.ndim - 1][0]
    out = einsum(notation if w.ndim > 1 else notation.replace("o", ""), h, w)
    return wrap(out if bias is None else _call(_ADD, (out, handle_of(bias))))


def _cut_as_output(g, x, w):
    """A gradient that is whole where x's rows and the weight's are cut is cut as x is, for nothing, where the weight is small: its
    gradients are then made where they go. Else less is moved in more messages, of parts of x and the weight."""
    wanted = list(g._placements)
    if not (w._mesh.same(g._mesh) and x._mesh.same(g._mesh) and is_small(w)):
        return g
    taken = [one.dim for one in wanted if one.is_shard()]
    for i, (own, of_x, of_w) in enumerate(zip(g._placements, x._placements, w._placements)):
        if own.is_replicate() and of_x.is_shard() and of_x.dim < g.ndim - 1 and of_x.dim not in taken and of_w.is_shard(0):
            wanted[i] = of_x
    return moved(g, wanted)


@row("linear_backward.default", how="composed")
def linear_backward(x, grad, weight, wanted):
    _, to_x, to_w = _LINEAR[x.ndim - 1]
    if weight.ndim == 1:        # one output, without a dim
        g = handle_of(grad)
        return (wrap(einsum(to_x.replace("o", ""), g, handle_of(weight))) if wanted[0] else None,
                wrap(einsum(to_w.replace("o", ""), g, handle_of(x))) if wanted[1] else None, wrap(_call(_SUM, (g,))) if wanted[2] else None)
    g = _cut_as_output(settled(handle_of(grad)), handle_of(x), handle_of(weight))
    dx = wrap(einsum(to_x, g, handle_of(weight))) if wanted[0] else None
    dw = wrap(einsum(to_w, g, handle_of(x))) if wanted[1] else None
    db = wrap(_call(_SUM, (g,), dims=list(range(x.ndim - 1)))) if wanted[2] else None
    return dx, dw, db


def _plain(op: str, notation: str):
    def function(a, b):
        x, y = handle_of(a), handle_of(b)
        _check_dtypes(op, x, y)
        return wrap(cast(einsum(notation, x, y), x._dtype))      # of small integers the catalog's are wider
    return function


for _name, _notation in (("mm", "mk,kn->mn"), ("bmm", "bmk,bkn->bmn"), ("dot", "i,i->"), ("mv", "mk,k->m")):
    row(f"{_name}.default", one_call=one_call("einsum", FLOATS, is_product=True, notations=(_notation,)))(_plain(_name, _notation))


@row("vdot.default")
def vdot(a, b):
    x = handle_of(a)
    return _plain("vdot", "i,i->")(wrap(conj(x)) if x.dtype.kind == "c" else a, b)


def _plus(op: str, notation: str):
    def function(x, a, b, *, beta=1, alpha=1):
        out = handle_of(_plain(op, notation)(a, b))
        if out._dtype in INTEGERS:
            alpha, beta = int(alpha), int(beta)
        out = out if alpha == 1 else _call(OPS["multiply"], (out, alpha))
        h = cast(operand(op, x, a), out._dtype)
        return wrap(out if beta == 0 else _call(_ADD, (out, h if beta == 1 else _call(OPS["multiply"], (h, beta)))))
    return function


for _name, _notation in (("addmm", "mk,kn->mn"), ("baddbmm", "bmk,bkn->bmn"), ("addmv", "mk,k->m")):
    row(f"{_name}.default")(_plus(_name, _notation))


def _scale(name: str, scale, like, rows: tuple):
    """A scale as an operand: one number, or one for each row of the first matrix, or each column of the second."""
    h = operand("_scaled_mm", scale, like)
    if isinstance(h, float):        # of a CPU tensor without dims
        return h
    if h._dtype != F32 or (h.size != 1 and tuple(h.shape) != rows):
        raise InvalidArgumentError(f"_scaled_mm: {name} is {scale!r}; it is float32, of 1 element or of shape {rows}")
    return h if h.ndim == 2 else _call(OPS["reshape"], (h,), shape=[1, 1])


@row("_scaled_mm.default")
def scaled_mm(a, b, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False):
    """Sums are in f32, whatever use_fast_accum permits; they are scaled and rounded once, to out_dtype (or a's dtype)."""
    x, y = handle_of(a), handle_of(b)
    if x._dtype not in FLOATS8 or y._dtype not in FLOATS8:
        raise InvalidArgumentError(f"_scaled_mm: takes two matrices of float8_e4m3fn or float8_e5m2, not {a!r} and {b!r}")
    out = einsum("mk,kn->mn", x, y)
    for name, scale, rows in (("scale_a", scale_a, (x.shape[0], 1)), ("scale_b", scale_b, (1, y.shape[1]))):
        out = _call(OPS["multiply"], (out, _scale(name, scale, a, rows)))
    if bias is not None:
        out = _call(_ADD, (out, cast(operand("_scaled_mm", bias, a), F32)))
    if scale_result is not None:
        out = _call(OPS["multiply"], (out, _scale("scale_result", scale_result, a, (1, 1))))
    return wrap(cast(out, x._dtype if out_dtype is None else CODES[out_dtype]))


def _letters(a: int, b: int) -> tuple[str, str, str]:
    """The letters of a matmul of operands with so many dims: theirs and the result's."""
    n = max(a, b) - 2
    lead = _LEAD[:max(n, 0)]
    left = lead[n - (a - 2):] if a > 2 else ""
    right = lead[n - (b - 2):] if b > 2 else ""
    m, last = "m" if a > 1 else "", "n" if b > 1 else ""
    return f"{left}{m}k", f"{right}k{last}", f"{lead}{m}{last}"


@row("matmul.default", one_call=one_call("matmul", FLOATS, is_product=True))
def matmul(a, b):
    x, y = handle_of(a), handle_of(b)
    _check_dtypes("matmul", x, y)
    return wrap(cast(_composed.matmul(x, y), x._dtype))


def _unbroadcast(handle, shape):
    """Summed over the dims along which an operand of the shape was broadcast."""
    extra = handle.ndim - len(shape)
    dims = [*range(extra), *(d + extra for d, n in enumerate(shape) if n == 1 and handle.shape[d + extra] != 1)]
    if dims:
        handle = _call(_SUM, (handle,), dims=dims, keepdims=True)
    return handle if tuple(handle.shape) == tuple(shape) else _call(OPS["reshape"], (handle,), shape=list(shape))


def _gradient(notation_out: str, own: str, other: str, grad, factor, shape):
    """The gradient of one operand, by the letters that the other and the result have; those that are broadcast are summed over."""
    letters = "".join(one for one in notation_out if one in own or one in other)
    lead = "".join(one for one in notation_out if one in _LEAD)
    target = lead + "".join(one for one in own if one not in _LEAD)
    out = einsum(f"{letters},{other}->{target}", grad, factor)
    return _unbroadcast(out, shape)


@row("matmul_backward.default", how="composed")
def matmul_backward(grad, a, b, wanted):
    g = handle_of(grad)
    left, right, out = _letters(a.ndim, b.ndim)
    da = wrap(_gradient(out, left, right, g, handle_of(b), a.shape)) if wanted[0] else None
    db = wrap(_gradient(out, right, left, g, handle_of(a), b.shape)) if wanted[1] else None
    return da, db
