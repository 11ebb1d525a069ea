"""Ops on lists of tensors: foreach, fused optimizers, loss scaling.

A list's gradients that are still pending are brought to their parameters' placements by one op (_gradients.py), and what a list
needs as a number is read on the workers: no step of an optimizer waits.
"""

from __future__ import annotations


import torch
from torch.optim.optimizer import _foreach_supported_types as _of_optimizers
from torch.utils._foreach_utils import _foreach_supported_types as _of_utils

import _tessera
from .._placements import kept, replicated
from .._catalog import OPS
from . import _composed
from ._dtypes import F32, F64
from ._gradients import bring
from ._operands import number_beside, operand
from ._placing import full_like, settled
from ._recorder import number, rate_of
from ._table import TABLE, aten, overload, row, run
from ._tensor import Tensor, handle_of, rebind, wrap

_call = _tessera.call
_SUM, _SQUARE, _SQRT, _ADAM, _SGD = OPS["sum"], OPS["square"], OPS["sqrt"], OPS["adam_step"], OPS["sgd_step"]

for _list in {id(one): one for one in (_of_utils, _of_optimizers)}.values():
    if Tensor not in _list:
        _list.append(Tensor)


# ---- foreach: the op of each item ----------------------------------------------------------------------------------

def _each(function):
    """Over lists, with what is no list beside each item."""
    def run_(*args, **kwargs):
        count = len(args[0]) if isinstance(args[0], (list, tuple)) else len(args[1])
        columns = [one if isinstance(one, (list, tuple)) else [one] * count for one in args]
        return [function(*items, **kwargs) for items in zip(*columns)]
    return run_


def _each_in_place(function, name: str):
    def run_(self, *args, **kwargs):
        columns = [one if isinstance(one, (list, tuple)) else [one] * len(self) for one in args]
        for items in zip(self, *columns):
            rebind(name, items[0], handle_of(function(*items, **kwargs)))
    return run_


def _make_foreach() -> None:
    bases = {"add": "add.Tensor", "sub": "sub.Tensor", "mul": "mul.Tensor", "div": "div.Tensor", "maximum": "maximum.default",
             "minimum": "minimum.default", "clamp_max": "minimum.default", "clamp_min": "maximum.default", "pow": "pow.Tensor_Scalar",
             "lerp": "lerp.Scalar"}
    for name in ("sqrt", "rsqrt", "neg", "reciprocal", "exp", "abs", "sign", "log", "tanh", "sigmoid", "floor", "ceil", "round",
                 "trunc", "erf", "expm1", "log1p", "sin", "cos"):
        bases[name] = f"{name}.default"
    for name, base in bases.items():
        function = TABLE[overload(base)]
        for suffix, wrapper in (("", _each), ("_", lambda f: _each_in_place(f, f"_foreach_{name}_"))):  # noqa: B023 - called here
            packet = getattr(aten, f"_foreach_{name}{suffix}", None)
            for which in packet.overloads() if packet is not None else ():
                if not which.endswith("out"):
                    row(f"_foreach_{name}{suffix}.{which}")(wrapper(function))


_make_foreach()


@row("_foreach_pow.ScalarAndTensor")
def foreach_power(base, exponents):
    return [run("pow.Scalar")(base, one) for one in exponents]


def _fused_product(name: str):
    function = TABLE[overload(f"{name}.default")]

    def values(value, count):
        if isinstance(value, torch.Tensor):
            value = value.tolist()
        return value if isinstance(value, (list, tuple)) else [value] * count

    def new(x, a, b, value=1):
        return [function(*items[:3], value=items[3]) for items in zip(x, a, b, values(value, len(x)))]

    def write(x, a, b, value=1):
        for items in zip(x, a, b, values(value, len(x))):
            rebind(f"_foreach_{name}_", items[0], handle_of(function(*items[:3], value=items[3])))

    row(*(f"_foreach_{name}.{which}" for which in ("Scalar", "ScalarList", "Tensor")), how="composed")(new)
    row(*(f"_foreach_{name}_.{which}" for which in ("Scalar", "ScalarList", "Tensor")), how="composed")(write)


_fused_product("addcmul")
_fused_product("addcdiv")


@row("_foreach_copy_.default")
def foreach_copy_(destinations, sources, non_blocking=False):
    for destination, source in zip(destinations, sources):
        run("copy_.default")(destination, source)


@row("_foreach_zero_.default")
def foreach_zero_(tensors):
    for one in tensors:
        run("zero_.default")(one)


@row("_foreach_norm.Scalar", how="composed")
def foreach_norm(tensors, ord=2, dtype=None):  # noqa: A002 - ATen's name
    """Norms of tensors; the sums of squares of all are reduced by one op. A gradient that is still pending is reduced with the
    others before, and keeps that value. The norms are numbers to be put together: all are on the first tensor's mesh."""
    settle(tensors)
    if ord != 2:
        return [run("linalg_vector_norm.default")(one, ord, dtype=dtype) for one in tensors]
    sums = [_call(_SUM, (_call(_SQUARE, (_composed.wide(handle_of(one)),)),), dims=list(range(one.ndim))) for one in tensors]
    places = [i for i, one in enumerate(sums) if one._has_partial]
    for i, whole in zip(places, bring([sums[i] for i in places], [replicated(sums[i]._mesh_ndim) for i in places])):
        sums[i] = whole
    sums = [number_beside(one, sums[0]) for one in sums]
    return [wrap(_composed.as_dtype(_call(_SQRT, (one,)), handle_of(x)._dtype if dtype is None else one._dtype))
            for one, x in zip(sums, tensors)]


def settle(tensors) -> None:
    """Reduces the pending ones of a list by one op; they are bound to their reduced values."""
    pending = [one for one in tensors if handle_of(one)._has_partial]
    handles = [handle_of(one) for one in pending]
    wanted = [kept(h._placements) for h in handles]
    for one, handle in zip(pending, bring(handles, wanted) if pending else ()):
        if one._view is None:
            one._cell.bind(handle)


# ---- fused optimizers ---------------------------------------------------------------------------------------------------

def _gradients(parameters, gradients, grad_scale) -> list:
    """The gradients where their parameters are: those that aren't yet by one op; divided by the scale, where there is one."""
    handles = [handle_of(one) for one in gradients]
    wanted = [kept(handle_of(one)._placements) for one in parameters]
    moving = [i for i, h in enumerate(handles) if list(h._placements) != wanted[i]]
    if moving:
        for i, handle in zip(moving, bring([handles[i] for i in moving], [wanted[i] for i in moving])):
            handles[i] = handle
    if grad_scale is not None:
        scale = handle_of(grad_scale)
        handles = [_composed.div(handle, number_beside(scale, handle)) for handle in handles]
    return handles


def _write(tensor: Tensor, new, found_inf) -> None:
    """Binds the new value; where an infinity was found, the old one stays."""
    old = handle_of(tensor)
    if found_inf is not None:
        found_inf = number_beside(found_inf, old)
        new = _call(OPS["where"], (_call(OPS["equal"], (found_inf, 0)), new, old))
    rebind("optimizer step", tensor, new)


class _Rate:
    """The learning rate of a call, as a tensor without dims on the mesh of each parameter: a schedule changes no plan."""

    def __init__(self, op: str, lr):
        self.op, self.lr = op, lr
        self.made: list = []

    def beside(self, parameter: Tensor, handle):
        rate = operand(self.op, self.lr, parameter)
        if isinstance(rate, _tessera.Tensor):
            return rate
        for one in self.made:
            if one._mesh.same(handle._mesh) and one._session_key == handle._session_key:
                return one
        self.made.append(full_like(handle, (), F64, number(rate_of(parameter, float(rate)), float, "rate")))
        return self.made[-1]


def _fused_adam(mode: str):
    def step_all(parameters, gradients, moments, squares, highest, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize,
                 grad_scale=None, found_inf=None):
        handles = _gradients(parameters, gradients, grad_scale)
        found = None if found_inf is None else _call(OPS["reshape"], (handle_of(found_inf),), shape=[])
        rate = _Rate("adam", lr)
        for i, (p, g) in enumerate(zip(parameters, handles)):
            h, step = handle_of(p), handle_of(steps[i])
            if not step._mesh.same(h._mesh):     # made on the default mesh; from now on it is where its parameter is
                step = number_beside(step, h)
                steps[i]._cell.bind(step)
            written = [p, moments[i], squares[i], *([highest[i]] if amsgrad else [])]
            operands = (h, _composed.mul(g, -1) if maximize else g, handle_of(moments[i]), handle_of(squares[i]), step,
                        rate.beside(p, h), *([handle_of(highest[i])] if amsgrad else []))
            out = _call(_ADAM, operands, scalars=[beta1, beta2, weight_decay], eps=eps, mode=mode)
            del operands, h         # what is written takes the memory of what was there
            for tensor, new in zip(written, out):
                _write(tensor, new, found)
    return step_all


row("_fused_adam_.default", "_fused_adam_.tensor_lr")(_fused_adam("adam"))
row("_fused_adamw_.default", "_fused_adamw_.tensor_lr")(_fused_adam("adamw"))


@row("_fused_sgd_.default", "_fused_sgd_.tensor_lr")
def fused_sgd(parameters, gradients, buffers, *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step,
              grad_scale=None, found_inf=None):
    handles = _gradients(parameters, gradients, grad_scale)
    found = None if found_inf is None else _call(OPS["reshape"], (handle_of(found_inf),), shape=[])
    rate = _Rate("sgd", lr)
    mode = "plain" if not momentum else "nesterov" if nesterov else "momentum"
    for i, (p, g) in enumerate(zip(parameters, handles)):
        h = handle_of(p)
        operands = (h, _composed.mul(g, -1) if maximize else g, rate.beside(p, h),
                    *([handle_of(buffers[i])] if momentum and not is_first_step else []))
        out = _call(_SGD, operands, scalars=[momentum, dampening, weight_decay], mode=mode)
        del operands, h         # what is written takes the memory of what was there
        for tensor, new in zip([p, buffers[i]], out) if momentum else [(p, out)]:
            _write(tensor, new, found)


@row("_fused_adagrad_.default", "_fused_adagrad_.tensor_lr", how="composed")
def fused_adagrad(parameters, gradients, sums, steps, *, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None, found_inf=None):
    """sum += g^2; p -= lr / (1 + (step - 1) lr_decay) g / (sqrt(sum) + eps), with g of the weights' decay."""
    handles = _gradients(parameters, gradients, grad_scale)
    found = None if found_inf is None else _call(OPS["reshape"], (handle_of(found_inf),), shape=[])
    rate = _Rate("adagrad", lr)
    for i, (p, g) in enumerate(zip(parameters, handles)):
        h = handle_of(p)
        g = -g if maximize else g
        if weight_decay:
            g = g + h * weight_decay
        step = _composed.as_dtype(number_beside(handle_of(steps[i]), h), F64)
        pace = _composed.as_dtype(rate.beside(p, h) / ((step - 1.0) * lr_decay + 1.0), h._dtype)
        total = handle_of(sums[i]) + g * g
        _write(sums[i], total, found)
        _write(p, h - pace * g / (_call(_SQRT, (total,)) + eps), found)


# ---- loss scaling -----------------------------------------------------------------------------------------------------------

@row("_amp_foreach_non_finite_check_and_unscale_.default", how="composed")
def check_and_unscale(tensors, found_inf, inverse_scale):
    """Multiplies by the inverse scale; found_inf becomes 1 where an element is infinite or NaN."""
    settle(tensors)
    scale = _call(OPS["reshape"], (handle_of(inverse_scale),), shape=[])
    found = handle_of(found_inf)
    for one in tensors:
        h = handle_of(one)
        bad = _call(OPS["logical_not"], (_call(OPS["isfinite"], (h,)),))
        bad = settled(_call(OPS["any"], (bad,), dims=list(range(h.ndim))))
        found = _call(OPS["maximum"], (found, number_beside(_composed.as_dtype(bad, F32), found)))
        rebind("unscale", one, _composed.mul(h, number_beside(_composed.as_dtype(scale, h._dtype), h)))
    rebind("unscale", found_inf, found)


@row("_amp_update_scale_.default", how="composed")
def update_scale(scale, growth, found_inf, growth_factor, backoff_factor, growth_interval):
    """Times backoff_factor where an infinity was found, times growth_factor after so many steps without one."""
    s, found = handle_of(scale), _call(OPS["reshape"], (handle_of(found_inf),), shape=list(scale.shape))
    n, found = number_beside(handle_of(growth), s), number_beside(found, s)
    bad = _call(OPS["greater"], (found, 0))
    next_n = _composed.add(n, 1)
    grows = _call(OPS["equal"], (next_n, growth_interval))
    grown = _composed.mul(s, growth_factor)
    larger = _call(OPS["where"], (_call(OPS["logical_and"], (grows, _call(OPS["isfinite"], (grown,)))), grown, s))
    rebind("update_scale", scale, _call(OPS["where"], (bad, _composed.mul(s, backoff_factor), larger)))
    rebind("update_scale", growth, _call(OPS["where"], (_call(OPS["logical_or"], (bad, grows)), 0, next_n)))
    return scale


