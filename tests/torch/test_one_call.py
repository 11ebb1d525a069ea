"""Rows that are one call of the catalog: the compiled device makes it without a function of Python's, and it is what the row says."""

import contextlib
import pathlib
import sys

import pytest
import torch

import tessera as ts
import tessera.torch as tt
from tessera.torch._dtypes import CODES
from tessera.torch._table import ONE_CALLS

PACKAGE = str(pathlib.Path(ts.__file__).parent)
DTYPES = (torch.float32, torch.bool, torch.int64)


@contextlib.contextmanager
def entered():
    """The functions of this package that the thread enters."""
    frames: list = []
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code) if event == "call" and frame.f_code.co_filename.startswith(PACKAGE) else None)
    try:
        yield frames
    finally:
        sys.setprofile(None)


def of_shape(*shape) -> torch.Tensor:
    return torch.arange(1, 1 + torch.Size(shape).numel()).reshape(shape) / 8


def factors(notation: str) -> list:
    """Operands of a product."""
    return [of_shape(*({"o": 5, "n": 5, "b": 2}.get(letter, 4) for letter in term)) for term in notation.split("->")[0].split(",")]


def sample(func):
    """CPU arguments of an overload, by its schema: those without a default."""
    call = ONE_CALLS[func]
    if call.notations:
        return factors(call.notations[min(1, len(call.notations) - 1)])
    dtype = torch.int64 if is_for_integers(func) else next(one for one in DTYPES if call.dtypes >> CODES[one] & 1)
    made = {"Tensor": lambda: of_shape(4, 4).mul(1 if dtype.is_floating_point else 8).to(dtype), "Optional[Tensor]": lambda: of_shape(4),
            "List[Tensor]": lambda: [of_shape(3, 4), of_shape(2, 4)], "number": lambda: 0.5, "int": lambda: 1, "float": lambda: 1e-5,
            "Optional[float]": lambda: 1e-5, "bool": lambda: True}
    out = []
    for argument in func._schema.arguments:
        if argument.has_default_value():
            break
        if argument.name == "condition":
            out.append(torch.tensor([True, False, True, False]))
        elif str(argument.type).endswith(("List[int]", "Optional[List[int]]")):
            out.append([4] if argument.name == "normalized_shape" else [1])
        else:
            out.append(made[str(argument.type)]())
    return out


def there(value, mesh):
    if isinstance(value, list) and isinstance(value[0], torch.Tensor):
        return [there(one, mesh) for one in value]
    return tt.distribute_tensor(value, mesh, [ts.Replicate()]) if isinstance(value, torch.Tensor) else value


def first(result):
    return result[0] if isinstance(result, tuple) else result


def is_for_integers(func) -> bool:
    return str(func).removeprefix("aten.").startswith(("bitwise", "gcd", "lcm", "__lshift__", "__rshift__"))


# Overloads that take a tensor and that torch doesn't take apart before; a number beside integers is the row's.
KERNELS = [func for func in sorted(ONE_CALLS, key=str) if any("Tensor" in str(one.type) for one in func._schema.arguments)
           and not torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
           and not (is_for_integers(func) and "Scalar" in func._overloadname)]


@pytest.mark.parametrize("func", KERNELS, ids=str)
def test_a_row_that_is_one_call_enters_no_function_of_the_package(func, mesh):
    values = sample(func)
    own = [there(one, mesh) for one in values]
    with entered() as frames:
        got = func(*own)
    assert not frames, [code.co_qualname for code in frames]
    torch.testing.assert_close(first(got).cpu(), first(func(*values)), equal_nan=True)


VIEWS = {
    "view": lambda x: x.view(2, 6), "view with an inferred extent": lambda x: x.view(-1, 2), "view of a view": lambda x: x.t().view(2, 2, 3),
    "t": lambda x: x.t(), "transpose": lambda x: x.transpose(0, -1), "permute": lambda x: x.permute(-1, 0), "unsqueeze": lambda x: x.unsqueeze(-1),
    "squeeze": lambda x: x[None].squeeze(0), "squeeze of nothing": lambda x: x.squeeze(), "expand": lambda x: x.expand(2, -1, 4), "select": lambda x: x[-1],
    "slice": lambda x: x[1:, ::2], "slice of a slice": lambda x: x[1:][:, 1:3], "slice of nothing": lambda x: x[2:1], "row of a column": lambda x: x[:, 1][2]}


@pytest.mark.parametrize("call", VIEWS.values(), ids=VIEWS)
def test_a_view_enters_no_function_of_the_package_and_has_torchs_strides(call, mesh):
    values = of_shape(3, 4)
    x = tt.distribute_tensor(values, mesh, [ts.Replicate()])
    with entered() as frames:
        got = call(x)
    assert not frames, [code.co_qualname for code in frames]
    wanted = call(values)
    assert got.stride() == wanted.stride() and got.storage_offset() == wanted.storage_offset()
    torch.testing.assert_close(got.cpu(), wanted)
    with torch.inference_mode():
        assert not call(x).is_inference()
    if 0 not in got.stride():       # else several elements are one, which nobody writes
        call(x).add_(1)
        call(values).add_(1)
    torch.testing.assert_close(x.cpu(), values)


@pytest.mark.parametrize("kind, text, call", [
    (RuntimeError, r"^view: shape '\[5, -1\]' is invalid for input of size 12: ", lambda x: x.view(5, -1)),
    (RuntimeError, "^view size is not compatible with input tensor's size and stride", lambda x: x.t().view(12)),
    (IndexError, r"^transpose: Dimension out of range \(expected to be in range of \[-2, 1\], but got 2\)", lambda x: x.transpose(0, 2)),
    (IndexError, r"^select\(\): index 3 out of range for dim 0 of ", lambda x: torch.select(x, 0, 3)),
    (RuntimeError, "^expand: size 5 at dim 1 doesn't fit extent 4 of ", lambda x: x.expand(3, 5)),
    (RuntimeError, r"^expand: the number of sizes provided \(1\)", lambda x: x.expand(4)),
    (ValueError, r"^permute: \[0, 0\] is no permutation of the dims of ", lambda x: x.permute(0, 0)),
    (RuntimeError, "^t\\(\\) expects a tensor with <= 2 dimensions", lambda x: x[None].t())])
def test_a_view_that_torch_refuses_says_which_tensor(kind, text, call, mesh):
    x = tt.distribute_tensor(of_shape(3, 4), mesh, [ts.Replicate()])
    with pytest.raises(kind, match=text):
        call(x)


def test_what_loops_and_norms_are_made_of_is_declared():
    names = {str(one).removeprefix("aten.") for one in ONE_CALLS}
    assert {"add.Tensor", "mul.Tensor", "add_.Tensor", "sum.default", "sum.dim_IntList", "mean.dim", "cat.default", "relu.default",
            "gelu.default", "native_layer_norm.default", "clone.default", "where.self", "eq.Scalar"} <= names


@pytest.mark.parametrize("call", [
    lambda x: torch.cat([x, x.float() @ torch.ones(4, 4, device=x.device)]),        # of a pending sum
    lambda x: torch.nn.functional.layer_norm(x, (4,)),
    lambda x: x.add(x, alpha=2), lambda x: x.sum(dtype=torch.float64), lambda x: x.add(torch.arange(4, device=x.device)),
    lambda x: x.clone().add_(torch.ones(3, 4, device=x.device)), lambda x: x.sum(dim=(0, -1), keepdim=True)])
def test_other_placements_and_arguments_go_to_the_row_and_are_the_same(mesh, call):
    values = torch.arange(12.0).reshape(3, 4)
    x = tt.distribute_tensor(values, mesh, [ts.Shard(1)])
    torch.testing.assert_close(call(x).cpu(), call(values))


def test_a_tensor_that_an_op_writes_changes_for_all_that_share_it(mesh):
    x = tt.distribute_tensor(torch.zeros(3), mesh)
    same, version = x.detach(), x._cell.version
    with entered() as frames:
        x.add_(1.0)
    assert not frames and same.tolist() == [1.0] * 3 and x._cell.version == version + 1


def test_a_view_that_an_op_writes_changes_its_base(mesh):
    x = tt.distribute_tensor(torch.zeros(2, 3), mesh)
    x[0].add_(1.0)
    assert x.tolist() == [[1.0] * 3, [0.0] * 3]


def test_statistics_of_a_norm_are_there_when_they_are_read(mesh):
    values = torch.randn(3, 4)
    x = tt.distribute_tensor(values, mesh)
    got, of_torch = (torch.native_layer_norm(one, (4,), None, None, 1e-5) for one in (x, values))
    for own, other in zip(got, of_torch):
        torch.testing.assert_close(own.cpu(), other)
    assert got[1].shape == (3, 1)


def test_an_error_names_torchs_op_and_the_numbers_of_both(mesh):
    x = tt.distribute_tensor(torch.zeros(3), mesh)
    with pytest.raises(ts.InvalidArgumentError, match=r"^add: .*f32\[3\].*f32\[4\]"):
        x + tt.distribute_tensor(torch.zeros(4), mesh)


def test_a_call_has_the_line_that_asked_for_it(session, mesh):
    x = tt.distribute_tensor(torch.ones(3), mesh)
    line = sys._getframe().f_lineno + 1
    (x + x).cpu()
    assert [op[-1].split(":")[-1] for op in session._profile(0, 2**62)["ops"] if op[1] == "add"] == [str(line)]
