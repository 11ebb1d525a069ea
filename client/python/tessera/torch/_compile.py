"""torch.compile: Dynamo's graphs of ops, forward and backward, run by the rows of this device.

Dynamo takes a tensor of tessera for a plain tensor of the device, so it records ops and doesn't look into how they are done. AOTAutograd
makes the graphs of forward and backward. _compiled.py runs them.
"""

from __future__ import annotations

import functools
import sys

import torch

from . import _table  # noqa: F401 - the rows
from ._tensor import Tensor
from ._compiled import compile_graph

_aten = torch.ops.aten
_AUTOGRAD = torch._C.DispatchKey.AutogradPrivateUse1
_NAME = "tessera"
_is_installed = False


# ---- products stay whole where fake tensors are recorded, as they do where tensors are computed (device.cc) -----------------

class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        with torch._C._AutoDispatchBelowAutograd():
            return _aten.linear.default(x, weight, bias)

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad)
        found = _aten.linear_backward.default(x, grad, weight, wanted)
        return tuple(one if is_wanted else None for one, is_wanted in zip(found, wanted))


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        with torch._C._AutoDispatchBelowAutograd():
            return _aten.matmul.default(a, b)

    @staticmethod
    def backward(ctx, grad):
        a, b = ctx.saved_tensors
        wanted = list(ctx.needs_input_grad)
        found = _aten.matmul_backward.default(grad, a, b, wanted)
        return tuple(one if is_wanted else None for one, is_wanted in zip(found, wanted))


def _record_products_whole() -> None:
    @_aten.linear.default.py_impl(_AUTOGRAD)
    def linear(x, weight, bias=None):
        return _Linear.apply(x, weight, bias)

    @_aten.matmul.default.py_impl(_AUTOGRAD)
    def matmul(a, b):
        return _Matmul.apply(a, b)

    @_aten.matmul_backward.default.py_impl(_AUTOGRAD)
    def matmul_backward(grad, a, b, wanted):
        with torch._C._AutoDispatchBelowAutograd():
            return _aten.matmul_backward.default(grad, a, b, wanted)

    @torch.library.register_fake("aten::linear_backward", allow_override=True)
    def _(x, grad, weight, wanted):
        return torch.empty_like(x), torch.empty_like(weight), weight.new_empty(weight.shape[:1] if weight.ndim > 1 else ())

    @torch.library.register_fake("aten::matmul_backward", allow_override=True)
    def _(grad, a, b, wanted):
        return torch.empty_like(a), torch.empty_like(b)


def _know_gradients_of_attention() -> None:
    """The shapes of attention's gradients, which torch 2.11 doesn't know of fakes: it would run the op on tensors of this device."""
    name = "aten::_scaled_dot_product_fused_attention_overrideable_backward"
    if torch._C._dispatch_has_kernel_for_dispatch_key(name, "Meta"):
        return

    @torch.library.register_fake(name)
    def _(grad, query, key, value, bias, wanted, *others, scale=None):
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None if bias is None else torch.empty_like(bias)


# ---- what Dynamo and AOTAutograd are told ------------------------------------------------------------------------------------

def _see_plain_tensors() -> None:
    """Tensors of tessera are plain ones to Dynamo: it guards on shape, dtype, strides and requires_grad, and records ops. Code of this
    package isn't recorded."""
    from torch._dynamo import trace_rules
    from torch._dynamo.variables.builder import VariableBuilder
    for kinds in (VariableBuilder._type_dispatch_impl(True), VariableBuilder._type_dispatch_impl(False)):
        kinds[Tensor] = VariableBuilder.wrap_tensor
    trace_rules.add("tessera")


def _keep_strides_of_gradients() -> None:
    """A gradient may have other strides than the fake of what it is the gradient of: none of them is memory."""
    from torch._functorch._aot_autograd import runtime_wrappers
    coerce = runtime_wrappers.coerce_to_expected_memory_format

    def kept(x, memory_format):
        return x if isinstance(x, Tensor) else coerce(x, memory_format)
    runtime_wrappers.coerce_to_expected_memory_format = kept


def _take_over_from_inductor() -> None:
    """Inductor, torch.compile's default, makes code for devices that it knows; graphs of tessera go to its own backend."""
    wrapper = torch._TorchCompileInductorWrapper
    call = wrapper.__call__

    @functools.wraps(call)
    def compiled(self, graph, inputs, **options):
        return backend(graph, inputs) if is_here(graph, inputs) else call(self, graph, inputs, **options)
    wrapper.__call__ = compiled


def is_here(graph, inputs) -> bool:
    """Whether a graph has a tensor of tessera: an input, an attribute, or one that is made in it."""
    held = [*graph.parameters(), *graph.buffers()] if isinstance(graph, torch.nn.Module) else []
    made = [node.meta.get("example_value", node.meta.get("val")) for node in graph.graph.nodes]
    return any(isinstance(one, torch.Tensor) and one.device.type == _NAME for one in (*inputs, *held, *made))


def backend(graph_module, example_inputs, **options):
    """The backend "tessera" of torch.compile."""
    install()
    if not is_here(graph_module, example_inputs):
        return graph_module.forward
    from functorch.compile import default_partition
    from torch._dynamo.backends.common import aot_autograd
    return aot_autograd(fw_compiler=compile_graph, bw_compiler=compile_graph, inference_compiler=compile_graph,
                        partition_fn=default_partition)(graph_module, example_inputs)


def install() -> None:
    """Once, when Dynamo is there."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    from torch._dynamo.backends import registry
    _see_plain_tensors()
    _keep_strides_of_gradients()
    _take_over_from_inductor()
    _record_products_whole()
    _know_gradients_of_attention()
    if _NAME not in registry._BACKENDS:     # else by its entry point, which Dynamo loads
        registry.register_backend(compiler_fn=backend, name=_NAME)


def hook() -> None:
    """Has torch.compile install this; Dynamo takes seconds to import, which programs without it don't spend."""
    if "torch._dynamo.eval_frame" in sys.modules:
        install()
        return
    compile_ = torch.compile

    @functools.wraps(compile_)
    def compile(*args, **options):      # noqa: A001 - torch's name
        install()
        return compile_(*args, **options)
    torch.compile = compile
