"""The collectives of torch.distributed, on LocalTensors. Each one relabels the values as the parts of a tensor, redistributes
that, and relabels what came out as values."""

from __future__ import annotations

import functools
import inspect

from _tessera import Tensor
from _tessera_ops import concat

from .. import _context
from .._errors import ArgumentError, DTypeError, InvalidArgumentError
from .._ops import relabel
from .._placements import Partial, Replicate, Shard
from . import _rank_calls
from ._groups import Lines, ProcessGroup, check_members, lines_of, members, put_members, rank_in, sliced
from ._local_tensor import LocalTensor
from ._reduce_op import ReduceOp, reduce_op_of
from ._work import Work, ended
from ._world import GroupMember, RankGroup, is_initialized


def _checked(op: str, name: str, value, mesh=None) -> LocalTensor:
    if not isinstance(value, LocalTensor):
        raise ArgumentError(f"{op}: {name} is {type(value).__name__}; it must be a LocalTensor, which has a value for each position")
    if mesh is not None and value.device_mesh != mesh:
        raise InvalidArgumentError(f"{op}: {name} is on {value.device_mesh}, the other values are on {mesh}")
    return value


def _list_of(op: str, name: str, values, mesh, count: int | None) -> list[LocalTensor]:
    if not isinstance(values, (list, tuple)):
        raise ArgumentError(f"{op}: {name} is {type(values).__name__}; it must be a list with a LocalTensor for each rank of the group")
    if count is not None and len(values) != count:
        raise InvalidArgumentError(f"{op}: {name} has {len(values)} LocalTensors for a group of {count}")
    return [_checked(op, f"{name}[{i}]", value, mesh) for i, value in enumerate(values)]


def _each(function, values):
    """The same list or value with a function of each LocalTensor."""
    if isinstance(values, LocalTensor):
        return function(values)
    return [function(one) for one in values] if isinstance(values, (list, tuple)) else values


def is_ranks(group, values) -> bool:
    """Whether a call is one rank's: its group, or its values, are; LocalTensors are one program's."""
    if isinstance(group, RankGroup) or group == GroupMember.NON_GROUP_MEMBER:
        return True
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return is_initialized() and not any(isinstance(one, LocalTensor) for one in flat)


def _collective(results: str, inputs: tuple[str, ...]):
    """Makes a function of the whole group one that takes `group`: of some positions it runs on a mesh of their workers alone.
    `inputs` names the arguments with LocalTensors, `results` the one of them that is written."""
    def decorate(function):
        signature = inspect.signature(function)
        op, names = function.__name__, list(signature.parameters)
        required = sum(one.default is inspect.Parameter.empty for one in signature.parameters.values())

        @functools.wraps(function)
        def run(*args, **kwargs):
            # A rank makes many small calls: to bind their arguments takes as long as the rest.
            if is_initialized() and required <= len(args) <= len(names) and all(name in names[len(args):] for name in kwargs) and \
                    is_ranks(None, (*args, *kwargs.values())):
                return getattr(_rank_calls, op)(*args, **kwargs)
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise ArgumentError(f"{op}: {error}; it is {op}{signature}") from None
            bound.apply_defaults()
            given = bound.arguments
            group = given["group"]
            if is_ranks(group, [given[name] for name in inputs]):
                return getattr(_rank_calls, op)(*bound.args, **bound.kwargs)
            first = given[inputs[0]] if given[inputs[0]] is not None else given[results]
            first = first[0] if isinstance(first, (list, tuple)) and first else first
            mesh = _checked(op, inputs[0], first).device_mesh
            if not isinstance(group, ProcessGroup):
                return function(*bound.args, **bound.kwargs)
            check_members(op, group, mesh)
            own = {name: given[name] for name in inputs}
            for name, value in own.items():
                _each(lambda x: _checked(op, name, x, mesh), value)
            for name, value in own.items():
                given[name] = _each(lambda x: members(x, group), value)
            work = function(*bound.args, **bound.kwargs)
            whole, parts = own[results], given[results]
            pairs = [(whole, parts)] if isinstance(whole, LocalTensor) else zip(whole or [], parts or [])
            for one, part in pairs:
                put_members(one, group, part)
            return None if work is None else Work(whole if isinstance(whole, (list, tuple)) else [whole])

        return run
    return decorate


def _pending(op: str, x: LocalTensor, reduction, lines: Lines, shape) -> Tensor:
    """The values as the terms of what they reduce to, of this shape behind the lines' coordinates."""
    known = reduce_op_of(op, reduction, x.dtype)
    rows = x.rows
    if known.factor is not None:
        rows = rows * known.factor
        if rows.shape != x.rows.shape or rows.dtype != x.dtype:
            raise DTypeError(f"{op}: {known!r} times {x.dtype} values of shape {x.shape} is {rows.dtype} of another shape or dtype")
        if list(rows.placements) != list(x.rows.placements):
            rows = rows.redistribute(x.device_mesh, list(x.rows.placements))
    return relabel(rows, [*lines.lead, *shape], lines.placements(Partial(known.partial)))


def _as_rows(moved: Tensor, like: LocalTensor) -> Tensor:
    return relabel(moved, like.rows.shape, list(like.rows.placements))


def _same_dtype(op: str, a: LocalTensor, b: LocalTensor) -> None:
    if a.dtype != b.dtype:
        raise DTypeError(f"{op}: the output is {b.dtype}, the input {a.dtype}")


@_collective("tensor", ("tensor",))
def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    """Every position of the group gets the reduction of all its values. The order of a sum is that of the positions, so all get the
    same bits, in every run."""
    x = tensor
    x._check_alike("all_reduce")
    lines = lines_of("all_reduce", group, x.device_mesh)
    pending = _pending("all_reduce", x, op, lines, x._value_shape())
    x._put(_as_rows(pending.redistribute(x.device_mesh, lines.placements(Replicate())), x))
    return ended([x], async_op)


def _by_rank(x: LocalTensor, lines: Lines) -> Tensor:
    """The values as one tensor [lead, the group's extents, shape]: _key says where a rank's are."""
    n = len(lines.lead)
    return relabel(x.rows, [*lines.lead, *lines.extents, *x._value_shape()],
                   lines.placements([Shard(n + j) for j in range(len(lines.extents))]))


def _key(lines: Lines, rank: int) -> tuple:
    return (slice(None),) * len(lines.lead) + tuple(lines.coordinates(rank))


def _put_at(x: LocalTensor, lines: Lines, rank: int, value: Tensor) -> None:
    """Writes a value of [lead, shape] to one rank of each line; the others keep theirs."""
    whole = _by_rank(x, lines).copy()
    if value.size:
        whole[_key(lines, rank)] = value
    x._put(_as_rows(whole, x))


def _value_of(x: LocalTensor, lines: Lines, rank: int, along) -> Tensor:
    """[lead, shape]: the value of one rank of each line, where it is wanted (`along` on the group's mesh dims)."""
    return sliced(_by_rank(x, lines), _key(lines, rank), lines.mesh, along)


def _joined(op: str, lines: Lines, whole: LocalTensor, part: LocalTensor, names: tuple[str, str]) -> tuple[int, ...]:
    """[size * first extent, ...]: the shape of a part of every rank, side by side. `whole` has it, or [size, *shape]; `names` says
    in an error what whole and part are."""
    shape = part._value_shape()
    joined, stacked = (lines.size * shape[0], *shape[1:]), (lines.size, *part.shape)
    if whole.shape not in (joined, stacked):
        raise InvalidArgumentError(f"{op}: {names[0]} is {whole.shape}; for {names[1]} of {part.shape} in a group of {lines.size} it is "
                                   f"{joined} or {stacked}")
    return joined


@_collective("tensor", ("tensor",))
def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    """The position `dst` gets the reduction of the group's values; the others keep theirs. group_dst: its rank in the group."""
    x = tensor
    x._check_alike("reduce")
    lines = lines_of("reduce", group, x.device_mesh)
    root = rank_in("reduce", "dst", dst, group_dst, group, lines)
    shape = x._value_shape()
    pending = _pending("reduce", x, op, lines, shape)
    here = lines.only_at(root, len(lines.lead), shape[0])
    _put_at(x, lines, root, pending.redistribute(x.device_mesh, here))
    return ended([x], async_op)


@_collective("tensor", ("tensor",))
def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    """Every position of the group gets the value of `src`. group_src: its rank in the group."""
    x = tensor
    x._check_alike("broadcast")
    lines = lines_of("broadcast", group, x.device_mesh)
    root = rank_in("broadcast", "src", src, group_src, group, lines)
    x._put(_as_rows(_value_of(x, lines, root, lines.placements(Replicate())), x))
    return ended([x], async_op)


@_collective("output_tensor", ("input_tensor", "output_tensor"))
def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    """Every position gets the values of all ranks, side by side along dim 0, or stacked along a new one: output_tensor's shape says."""
    op = "all_gather_into_tensor"
    x, out = input_tensor, _checked(op, "output_tensor", output_tensor, input_tensor.device_mesh)
    _same_dtype(op, x, out)
    x._check_alike(op)
    out._check_alike(op)
    lines = lines_of(op, group, x.device_mesh)
    joined = _joined(op, lines, out, x, ("output_tensor", "values"))
    whole = relabel(x.rows, [*lines.lead, *joined], lines.placements(Shard(len(lines.lead))))
    out._put(_as_rows(whole.redistribute(x.device_mesh, lines.placements(Replicate())), out))
    return ended([out], async_op)


@_collective("tensor_list", ("tensor", "tensor_list"))
def all_gather(tensor_list, tensor, group=None, async_op=False):
    """tensor_list[i] becomes the value of rank i, everywhere. Values may have different extents in dim 0."""
    op, x = "all_gather", tensor
    lines = lines_of(op, group, x.device_mesh)
    outputs = _list_of(op, "tensor_list", tensor_list, x.device_mesh, lines.size)
    if lines.others:
        x._check_alike(op)
    for rank, out in enumerate(outputs):
        _same_dtype(op, x, out)
        out._check_alike(op)
        own = x._shape_at(rank)
        if out.shape != own:
            raise InvalidArgumentError(f"{op}: tensor_list[{rank}] is {out.shape}, and the value of rank {rank} is {own}")
    n = len(lines.lead)
    if lines.others:
        shape = x._value_shape()
        whole = relabel(x.rows, [*lines.lead, lines.size * shape[0], *shape[1:]], lines.placements(Shard(n)))
    else:
        whole = x.rows
    everywhere = whole.redistribute(x.device_mesh, lines.placements(Replicate()))
    start = 0
    for rank, out in enumerate(outputs):
        extent = x._extents[rank]
        out._put(_as_rows(everywhere[(slice(None),) * n + (slice(start, start + extent),)], out))
        start += extent
    return ended(outputs, async_op)


@_collective("gather_list", ("tensor", "gather_list"))
def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    """At `dst` gather_list[i] becomes the value of rank i; elsewhere nothing changes."""
    op, x = "gather", tensor
    x._check_alike(op)
    lines = lines_of(op, group, x.device_mesh)
    root = rank_in(op, "dst", dst, group_dst, group, lines)
    outputs = _list_of(op, "gather_list", gather_list, x.device_mesh, lines.size)
    _check_shapes(op, "gather_list", outputs, x)
    here = lines.only_at(root, len(lines.lead), x._value_shape()[0])
    values = [_value_of(x, lines, rank, here) for rank in range(lines.size)]
    for out, value in zip(outputs, values):
        _put_at(out, lines, root, value)
    return ended(outputs, async_op)


def _check_shapes(op: str, name: str, many, like: LocalTensor) -> None:
    for i, one in enumerate(many):
        _same_dtype(op, like, one)
        one._check_alike(op)
        if one.shape != like.shape:
            raise InvalidArgumentError(f"{op}: {name}[{i}] is {one.shape}, and tensor is {like.shape}")


@_collective("tensor", ("tensor", "scatter_list"))
def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    """Rank i gets what `src` has as its value of scatter_list[i]."""
    op, out = "scatter", tensor
    out._check_alike(op)
    lines = lines_of(op, group, out.device_mesh)
    root = rank_in(op, "src", src, group_src, group, lines)
    given = _list_of(op, "scatter_list", scatter_list, out.device_mesh, lines.size)
    _check_shapes(op, "scatter_list", given, out)
    n, extent = len(lines.lead), out._value_shape()[0]
    parts = [_value_of(one, lines, root, lines.only_at(rank, n, extent)) for rank, one in enumerate(given)]
    out._put(_as_rows(_beside(parts, n, lines), out))
    return ended([out], async_op)


def _beside(parts, dim: int, lines: Lines) -> Tensor:
    """One part of each rank of the lines, which lies there, side by side along the dim and each where it is."""
    whole = concat(parts, axis=dim) if len(parts) > 1 else parts[0]
    extents = [part.shape[dim] for part in parts]
    sizes, count, along = [], 1, []
    for extent in lines.extents:
        count *= extent
        each = lines.size // count
        sizes = [sum(extents[i * each:(i + 1) * each]) for i in range(count)]
        along.append(Shard(dim, sizes=sizes))
    return whole.redistribute(lines.mesh, lines.placements(along))


@_collective("output", ("input", "output"))
def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):  # noqa: A002 - torch's name
    """Rank i gets its part, along dim 0, of the reduction of the group's inputs: output has the extent of one part, or input has a
    dim of the group's size in front of the output's."""
    name, x = "reduce_scatter_tensor", input
    out = _checked(name, "output", output, x.device_mesh)
    _same_dtype(name, x, out)
    x._check_alike(name)
    out._check_alike(name)
    lines = lines_of(name, group, x.device_mesh)
    joined = _joined(name, lines, x, out, ("input", "an output"))
    pending = _pending(name, x, op, lines, joined)
    out._put(_as_rows(pending.redistribute(x.device_mesh, lines.placements(Shard(len(lines.lead)))), out))
    return ended([out], async_op)


@_collective("output", ("input_list", "output"))
def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    """Rank i gets the reduction of the values of input_list[i]. Their shapes may differ in dim 0, as output's do."""
    name = "reduce_scatter"
    out = _checked(name, "output", output)
    lines = lines_of(name, group, out.device_mesh)
    given = _list_of(name, "input_list", input_list, out.device_mesh, lines.size)
    if lines.others:
        out._check_alike(name)
    parts = []
    for rank, one in enumerate(given):
        _same_dtype(name, one, out)
        one._check_alike(name)
        own = out._shape_at(rank)
        if one.shape != own:
            raise InvalidArgumentError(f"{name}: input_list[{rank}] is {one.shape}, and the output of rank {rank} is {own}")
        pending = _pending(name, one, op, lines, one._value_shape())
        parts.append(pending.redistribute(out.device_mesh, lines.only_at(rank, len(lines.lead), one._value_shape()[0])))
    out._put(_as_rows(_beside(parts, len(lines.lead), lines), out))
    return ended([out], async_op)


@_collective("output", ("input", "output"))
def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):  # noqa: A002
    """Rank i gets the i-th part, along dim 0, of every rank's input, in the order of the ranks.

    input_split_sizes: the parts' extents of every rank's input, or a list of them by rank; equal ones where it isn't given.
    output_split_sizes: what each rank expects of the others; compared with what they send."""
    op, x = "all_to_all_single", input
    out = _checked(op, "output", output, x.device_mesh)
    _same_dtype(op, x, out)
    lines = lines_of(op, group, x.device_mesh)
    sent = _splits(op, "input_split_sizes", input_split_sizes, x, lines)
    wanted = _splits(op, "output_split_sizes", output_split_sizes, out, lines)
    for source in range(lines.size):
        for destination in range(lines.size):
            if sent[source][destination] != wanted[destination][source]:
                raise InvalidArgumentError(f"{op}: rank {source} sends {sent[source][destination]} rows to rank {destination}, which "
                                           f"expects {wanted[destination][source]}")
    if input_split_sizes is None and output_split_sizes is None:
        n, count = len(lines.lead), len(lines.extents)
        shape = x._value_shape()
        cut = [*lines.lead, *lines.extents, *lines.extents, shape[0] // lines.size, *shape[1:]]
        whole = relabel(x.rows, cut, lines.placements([Shard(n + j) for j in range(count)]))
        moved = whole.redistribute(x.device_mesh, lines.placements([Shard(n + count + j) for j in range(count)]))
        out._put(_as_rows(moved, out))
        return ended([out], async_op)
    if lines.others:
        raise InvalidArgumentError(f"{op}: split sizes are for a group of positions; {group!r} has several lines")
    _exchange(out, [[(x, source, sum(sent[source][:destination]), sent[source][destination]) for source in range(lines.size)]
                    for destination in range(lines.size)], lines)
    return ended([out], async_op)


def _splits(op: str, name: str, sizes, x: LocalTensor, lines: Lines) -> list[list[int]]:
    """By rank, the extents of the parts of its value."""
    n = lines.size
    if sizes is None:
        x._check_alike(op)
        extent = x._value_shape()[0]
        if extent % n:
            raise InvalidArgumentError(f"{op}: dim 0 of {x.shape} is no multiple of the group's {n} ranks; write {name}")
        return [[extent // n] * n] * n
    by_rank = [list(one) for one in sizes] if sizes and isinstance(sizes[0], (list, tuple)) else [list(sizes)] * n
    if len(by_rank) != n or any(len(one) != n for one in by_rank):
        raise InvalidArgumentError(f"{op}: {name} is {sizes}; it has an extent for each of {n} ranks, or a list of them for each rank")
    for rank, one in enumerate(by_rank):
        extent = x._extents[rank if len(x._extents) == n else 0]
        if sum(one) != extent or min(one) < 0:
            raise InvalidArgumentError(f"{op}: {name} {one} of rank {rank} doesn't add up to the {extent} rows of its value")
    return by_rank


def _exchange(out: LocalTensor, parts, lines: Lines) -> None:
    """`parts`: by destination, (LocalTensor, rank that has it, first row, rows) in order. Each goes straight to where it is wanted."""
    joined = []
    for destination, pieces in enumerate(parts):
        moved = []
        for x, source, start, count in pieces:
            first = sum(x._extents[:source]) + start
            moved.append(sliced(x.rows, slice(first, first + count), lines.mesh, lines.only_at(destination, 0, count)))
        joined.append(concat(moved, axis=0) if len(moved) > 1 else moved[0])
    out._put(_as_rows(_beside(joined, 0, lines), out))


@_collective("output_tensor_list", ("input_tensor_list", "output_tensor_list"))
def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    """output_tensor_list[i] becomes, at rank j, what rank i has as its value of input_tensor_list[j]."""
    op = "all_to_all"
    mesh = _checked(op, "input_tensor_list[0]", (input_tensor_list or [None])[0]).device_mesh
    lines = lines_of(op, group, mesh)
    if lines.others:
        raise InvalidArgumentError(f"{op}: {group!r} has several lines; write all_to_all_single, or a group of positions")
    given = _list_of(op, "input_tensor_list", input_tensor_list, mesh, lines.size)
    outputs = _list_of(op, "output_tensor_list", output_tensor_list, mesh, lines.size)
    for i, out in enumerate(outputs):
        for j, one in enumerate(given):
            _same_dtype(op, one, out)
            sent, wanted = one._shape_at(i), out._shape_at(j)
            if sent != wanted:
                raise InvalidArgumentError(f"{op}: rank {i} sends {sent} to rank {j}, which expects {wanted}")
    before = [LocalTensor._of(one.rows, one._extents, one._shape) for one in given]
    for i, out in enumerate(outputs):
        _exchange(out, [[(before[j], i, 0, before[j]._extents[i])] for j in range(lines.size)], lines)
    return ended(outputs, async_op)


def barrier(group=None, async_op=False, device_ids=None, timeout=None):
    """Blocks until all that this program asked of its session before has run; of a rank, until all ranks of the group have come."""
    if is_ranks(group, []):
        return _rank_calls.barrier(group, async_op, device_ids, timeout)
    _context.current_session().sync()
    return ended([], async_op)
