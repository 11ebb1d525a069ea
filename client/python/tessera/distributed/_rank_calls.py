"""The collectives of a rank, on its Tensors or arrays; _collectives.py has those of one program on LocalTensors."""

from __future__ import annotations

import threading

import numpy as np

from _tessera import Tensor

from .._dtypes import code_of
from .._errors import ArgumentError, DTypeError, InvalidArgumentError
from ._rank_values import Value, check_alike, check_apart, check_dtype
from ._reduce_op import ReduceOp, reduce_op_of
from ._world import RankGroup, group_of, rank_of, seconds_of

# The numbers of collective_kind.h.
ALL_REDUCE, REDUCE, BROADCAST, ALL_GATHER, GATHER, SCATTER, REDUCE_SCATTER, ALL_TO_ALL, BARRIER, SEND, RECV = range(11)
ANY_SOURCE = -1
EXCHANGE_TAG = -7       # of the messages of an uneven exchange; tags of a program are from 0 on
_REDUCE_CODES = {"sum": 0, "avg": 1, "min": 2, "max": 3, "product": 4, "band": 5, "bor": 6, "bxor": 7}


class RankWork:
    """A call of this rank under way. Results that are Tensors may be used at once, arrays have theirs after wait()."""

    __slots__ = ("_works", "_copies", "_results", "_lock", "_group", "_is_over")

    def __init__(self, works, copies, results, group: RankGroup):
        self._works, self._copies, self._results, self._group = list(works), [copy for copy in copies if copy], list(results), group
        self._lock, self._is_over = threading.Lock(), False

    def wait(self, timeout=None) -> bool:
        """Blocks until it is done, for so many seconds (or a timedelta) at most; raises what it failed with."""
        limit = None if timeout is None else seconds_of("Work.wait", timeout)
        with self._lock:
            for work in self._works:
                # A copy tells of a failure itself: no question comes before it.
                if limit is not None or not self._copies or work.is_late or work.result is None:
                    work.wait(limit)
            while self._copies:
                self._copies[-1]()
                self._copies.pop()
            self._is_over = True
        self._group._joined.tell()      # of earlier messages
        return True

    def is_completed(self) -> bool:
        return self._is_over or all(work.is_done for work in self._works)

    def source_rank(self) -> int:
        """The rank of the world that sent, after a recv."""
        return self._group.ranks[self._works[0].source]

    _source_rank = source_rank

    def result(self) -> list:
        return list(self._results)


def _ended(work: RankWork, async_op: bool):
    """Waits, unless the results are Tensors alone, which tell a failure where they are used."""
    if async_op:
        return work
    if work._copies or any(one.result is None for one in work._works):
        work.wait()
    return None


def _run(op: str, kind: int, group: RankGroup, operand=None, result=None, *, reduce="sum", peer=0, tag=0, timeout=None):
    return group._joined.run(kind, _REDUCE_CODES[reduce], peer, tag, operand, result,
                             group.timeout_s if timeout is None else seconds_of(op, timeout))


def _array_of(values: list[Value]) -> np.ndarray:
    """The elements of arrays, one after another; of one contiguous array itself."""
    if len(values) == 1:
        return np.ascontiguousarray(values[0].x).reshape(-1)
    return np.concatenate([value.x.reshape(-1) for value in values])


def _on_memory(op: str, kind: int, group: RankGroup, given: list[Value], taken: list[Value], results, async_op: bool, *, reduction=None,
               peer=0) -> RankWork | None:
    """A call on arrays alone, which goes from memory to memory. None: a value is a Tensor, or has to be converted first."""
    values, reduce = given + taken, "sum"
    if not all(one.is_own_memory and one.dtype.isnative for one in values):
        return None
    if reduction is not None:
        known = reduce_op_of(op, reduction, given[0].dtype)
        if known.factor is not None:
            return None
        reduce = known.partial
    source = _array_of(given) if given else None
    target, copies = None, []
    if taken:
        whole = taken[0].x
        if len(taken) == 1 and whole.flags.c_contiguous:
            target = whole.reshape(-1)
        else:
            target, at = np.empty(sum(one.size for one in taken), taken[0].dtype), 0
            for one in taken:
                copies.append(_copy_of(target[at:at + one.size], one.x))
                at += one.size
    work = group._joined.run_on_memory(kind, _REDUCE_CODES[reduce], peer, 0, code_of(values[0].dtype, op),
                                       None if source is None else source.view(np.uint8),
                                       None if target is None else target.view(np.uint8), group.timeout_s, not async_op)
    return RankWork([work], copies, results, group)


def _copy_of(part: np.ndarray, target: np.ndarray):
    return lambda: np.copyto(target, part.reshape(target.shape))


def _list(op: str, name: str, values, group: RankGroup, count=None) -> list[Value]:
    if not isinstance(values, (list, tuple)):
        raise ArgumentError(f"{op}: {name} is {type(values).__name__}; it is a list with a value for each rank of the group")
    if count is not None and len(values) != count:
        raise InvalidArgumentError(f"{op}: {name} has {len(values)} values for a group of {count}")
    return [Value(op, f"{name}[{i}]", x, group) for i, x in enumerate(values)]


def _written(op: str, values) -> None:
    for value in values:
        value.check_writable()
    check_apart(op, values)


def _terms(op: str, values: list[Value], reduction) -> tuple[Tensor, str]:
    """The tensor that is reduced, of the values one after another, and how it is."""
    dtype = values[0].dtype
    known = reduce_op_of(op, reduction, dtype)
    flat = _joined(values)
    if known.factor is not None:
        factor = known.factor
        flat = flat * (factor if isinstance(factor, (int, float, Tensor)) else np.asarray(factor, dtype=dtype))
        if flat.dtype != dtype:
            raise DTypeError(f"{op}: {known!r} times {dtype} values is {flat.dtype}")
    return flat, known.partial


def _joined(values: list[Value]) -> Tensor:
    from _tessera_ops import concat
    flat = [value.flat() for value in values]
    return flat[0] if len(flat) == 1 else concat(flat, axis=0)


def _check_whole(op: str, whole: Value, part: Value, group: RankGroup) -> None:
    """One value that has a part for each rank of the group."""
    check_dtype(op, [whole], part)
    if whole.size != part.size * group.size():
        raise InvalidArgumentError(f"{op}: {whole.name} is {whole.shape}; for {part.name} of {part.shape} in a group of {group.size()} it "
                                   f"has {part.size * group.size()} elements")


def _spread(result: Tensor, values: list[Value]) -> list:
    """Writes the parts of a flat result to the values."""
    copies, at = [], 0
    for value in values:
        copies.append(value.put(result[at:at + value.size].reshape(value.shape)))
        at += value.size
    return copies


def all_reduce(tensor, op=ReduceOp.SUM, group=None, async_op=False):
    name, group = "all_reduce", group_of("all_reduce", group)
    x = Value(name, "tensor", tensor, group)
    x.check_writable()
    work = _on_memory(name, ALL_REDUCE, group, [x], [x], [tensor], async_op, reduction=op)
    if work is not None:
        return _ended(work, async_op)
    flat, kind = _terms(name, [x], op)
    work = _run(name, ALL_REDUCE, group, flat, x.wanted(), reduce=kind)
    return _ended(RankWork([work], [x.put(work.result)], [tensor], group), async_op)


def all_reduce_coalesced(tensors, op=ReduceOp.SUM, group=None, async_op=False):
    """all_reduce of many values of one dtype, as one call."""
    name, group = "all_reduce_coalesced", group_of("all_reduce_coalesced", group)
    values = _list(name, "tensors", tensors, group)
    if not values:
        raise InvalidArgumentError(f"{name}: tensors is empty")
    _written(name, values)
    check_dtype(name, values, values[0])
    work = _on_memory(name, ALL_REDUCE, group, values, values, tensors, async_op, reduction=op)
    if work is not None:
        return _ended(work, async_op)
    flat, kind = _terms(name, values, op)
    work = _run(name, ALL_REDUCE, group, flat, values[0].wanted((sum(one.size for one in values),)), reduce=kind)
    return _ended(RankWork([work], _spread(work.result, values), tensors, group), async_op)


def reduce(tensor, dst=None, op=ReduceOp.SUM, group=None, async_op=False, group_dst=None):
    name, group = "reduce", group_of("reduce", group)
    root = rank_of(name, "dst", dst, group_dst, group)
    x = Value(name, "tensor", tensor, group)
    is_root = group.rank() == root
    if is_root:
        x.check_writable()
    work = _on_memory(name, REDUCE, group, [x], [x] if is_root else [], [tensor], async_op, reduction=op, peer=root)
    if work is not None:
        return _ended(work, async_op)
    flat, kind = _terms(name, [x], op)
    work = _run(name, REDUCE, group, flat, x.wanted() if is_root else None, reduce=kind, peer=root)
    return _ended(RankWork([work], [x.put(work.result)] if is_root else [], [tensor], group), async_op)


def broadcast(tensor, src=None, group=None, async_op=False, group_src=None):
    name, group = "broadcast", group_of("broadcast", group)
    root = rank_of(name, "src", src, group_src, group)
    x = Value(name, "tensor", tensor, group)
    is_root = group.rank() == root
    if not is_root:
        x.check_writable()
    work = _on_memory(name, BROADCAST, group, [x] if is_root else [], [] if is_root else [x], [tensor], async_op, peer=root)
    if work is not None:
        return _ended(work, async_op)
    if is_root:
        work = _run(name, BROADCAST, group, x.flat(), peer=root)
        return _ended(RankWork([work], [], [tensor], group), async_op)
    work = _run(name, BROADCAST, group, None, x.wanted(), peer=root)
    return _ended(RankWork([work], [x.put(work.result)], [tensor], group), async_op)


def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
    name, group = "all_gather_into_tensor", group_of("all_gather_into_tensor", group)
    x, out = Value(name, "input_tensor", input_tensor, group), Value(name, "output_tensor", output_tensor, group)
    out.check_writable()
    _check_whole(name, out, x, group)
    work = _on_memory(name, ALL_GATHER, group, [x], [out], [output_tensor], async_op)
    if work is not None:
        return _ended(work, async_op)
    work = _run(name, ALL_GATHER, group, x.flat(), out.wanted())
    return _ended(RankWork([work], [out.put(work.result)], [output_tensor], group), async_op)


def all_gather(tensor_list, tensor, group=None, async_op=False):
    name, group = "all_gather", group_of("all_gather", group)
    x, outputs = Value(name, "tensor", tensor, group), _list(name, "tensor_list", tensor_list, group, group.size())
    _written(name, outputs)
    check_dtype(name, outputs, x)
    own = outputs[group.rank()]
    if own.size != x.size:
        raise InvalidArgumentError(f"{name}: {own.name} is {own.shape}, and tensor is {x.shape}")
    if all(one.size == x.size for one in outputs):
        work = _on_memory(name, ALL_GATHER, group, [x], outputs, tensor_list, async_op)
        if work is not None:
            return _ended(work, async_op)
        work = _run(name, ALL_GATHER, group, x.flat(), x.wanted((x.size * group.size(),)))
        return _ended(RankWork([work], _spread(work.result, outputs), tensor_list, group), async_op)
    works, copies = [], []
    for root, out in enumerate(outputs):        # of different sizes: each rank's value in its turn
        if root == group.rank():
            works.append(_run(name, BROADCAST, group, x.flat(), peer=root))
            copies.append(out.put(x.flat().reshape(out.shape)))
        else:
            works.append(_run(name, BROADCAST, group, None, out.wanted(), peer=root))
            copies.append(out.put(works[-1].result))
    return _ended(RankWork(works, copies, tensor_list, group), async_op)


def gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None):
    name, group = "gather", group_of("gather", group)
    root = rank_of(name, "dst", dst, group_dst, group)
    x = Value(name, "tensor", tensor, group)
    if group.rank() != root:
        if gather_list:
            raise InvalidArgumentError(f"{name}: gather_list is for the rank that gathers, {root}")
        work = _on_memory(name, GATHER, group, [x], [], [], async_op, peer=root)
        return _ended(work or RankWork([_run(name, GATHER, group, x.flat(), peer=root)], [], [], group), async_op)
    outputs = _list(name, "gather_list", gather_list, group, group.size())
    _written(name, outputs)
    check_alike(name, outputs, x)
    work = _on_memory(name, GATHER, group, [x], outputs, gather_list, async_op, peer=root)
    if work is not None:
        return _ended(work, async_op)
    work = _run(name, GATHER, group, x.flat(), x.wanted((x.size * group.size(),)), peer=root)
    return _ended(RankWork([work], _spread(work.result, outputs), gather_list, group), async_op)


def scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None):
    name, group = "scatter", group_of("scatter", group)
    root = rank_of(name, "src", src, group_src, group)
    out = Value(name, "tensor", tensor, group)
    out.check_writable()
    given = []
    if group.rank() == root:
        given = _list(name, "scatter_list", scatter_list, group, group.size())
        check_alike(name, given, out)
    elif scatter_list:
        raise InvalidArgumentError(f"{name}: scatter_list is for the rank that scatters, {root}")
    work = _on_memory(name, SCATTER, group, given, [out], [tensor], async_op, peer=root)
    if work is not None:
        return _ended(work, async_op)
    operand = _joined(given) if given else None
    work = _run(name, SCATTER, group, operand, out.wanted(), peer=root)
    return _ended(RankWork([work], [out.put(work.result)], [tensor], group), async_op)


def reduce_scatter_tensor(output, input, op=ReduceOp.SUM, group=None, async_op=False):  # noqa: A002 - torch's name
    name, group = "reduce_scatter_tensor", group_of("reduce_scatter_tensor", group)
    x, out = Value(name, "input", input, group), Value(name, "output", output, group)
    out.check_writable()
    _check_whole(name, x, out, group)
    work = _on_memory(name, REDUCE_SCATTER, group, [x], [out], [output], async_op, reduction=op)
    if work is not None:
        return _ended(work, async_op)
    flat, kind = _terms(name, [x], op)
    work = _run(name, REDUCE_SCATTER, group, flat, out.wanted(), reduce=kind)
    return _ended(RankWork([work], [out.put(work.result)], [output], group), async_op)


def reduce_scatter(output, input_list, op=ReduceOp.SUM, group=None, async_op=False):
    name, group = "reduce_scatter", group_of("reduce_scatter", group)
    out, given = Value(name, "output", output, group), _list(name, "input_list", input_list, group, group.size())
    out.check_writable()
    check_dtype(name, given, out)
    own = given[group.rank()]
    if own.size != out.size:
        raise InvalidArgumentError(f"{name}: {own.name} is {own.shape}, and output is {out.shape}")
    if all(one.size == out.size for one in given):
        work = _on_memory(name, REDUCE_SCATTER, group, given, [out], [output], async_op, reduction=op)
        if work is not None:
            return _ended(work, async_op)
        flat, kind = _terms(name, given, op)
        work = _run(name, REDUCE_SCATTER, group, flat, out.wanted(), reduce=kind)
        return _ended(RankWork([work], [out.put(work.result)], [output], group), async_op)
    works, copies = [], []
    for root, one in enumerate(given):          # of different sizes: each rank's part in its turn
        flat, kind = _terms(name, [one], op)
        works.append(_run(name, REDUCE, group, flat, out.wanted() if root == group.rank() else None, reduce=kind, peer=root))
    copies.append(out.put(works[group.rank()].result))
    return _ended(RankWork(works, copies, [output], group), async_op)


def all_to_all_single(output, input, output_split_sizes=None, input_split_sizes=None, group=None, async_op=False):  # noqa: A002
    name, group = "all_to_all_single", group_of("all_to_all_single", group)
    x, out = Value(name, "input", input, group), Value(name, "output", output, group)
    out.check_writable()
    check_dtype(name, [out], x)
    if not output_split_sizes and not input_split_sizes:
        if x.size != out.size or (x.shape[0] if x.shape else 1) % group.size():
            raise InvalidArgumentError(f"{name}: input is {x.shape} and output {out.shape}; they have equal sizes, and a dim 0 that "
                                       f"{group.size()} ranks divide; write the split sizes")
        work = _on_memory(name, ALL_TO_ALL, group, [x], [out], [output], async_op)
        if work is not None:
            return _ended(work, async_op)
        work = _run(name, ALL_TO_ALL, group, x.flat(), out.wanted())
        return _ended(RankWork([work], [out.put(work.result)], [output], group), async_op)
    sent = _cuts(name, "input_split_sizes", input_split_sizes, x, group)
    wanted = _cuts(name, "output_split_sizes", output_split_sizes, out, group)
    row = x.size // x.shape[0] if x.shape and x.shape[0] else 1
    own_row = out.size // out.shape[0] if out.shape and out.shape[0] else 1
    if out.size and x.size and row != own_row:
        raise InvalidArgumentError(f"{name}: rows of input have {row} elements, rows of output {own_row}")
    row = max(row, own_row)
    if _is_in_memory([x], [out]):
        whole, copies = out.x.reshape(-1), []
        if not out.x.flags.c_contiguous:
            copies = [_copy_of(whole, out.x)]
        given, taken = (_slices(of, [count * row for count in counts]) for of, counts in ((_array_of([x]), sent), (whole, wanted)))
        work = _exchange_in_memory(name, given, taken, group)
        return _ended(RankWork(work._works, [*work._copies, *copies], [output], group), async_op)
    parts = _slices(x.flat(), [count * row for count in sent])
    received, works = _exchange(name, parts, [count * row for count in wanted], out, group)
    from _tessera_ops import concat
    return _ended(RankWork(works, [out.put(concat(received, axis=0).reshape(out.shape))], [output], group), async_op)


def _cuts(op: str, name: str, sizes, x: Value, group: RankGroup) -> list[int]:
    rows, n = (x.shape[0] if x.shape else 1), group.size()
    if not sizes:
        if rows % n:
            raise InvalidArgumentError(f"{op}: dim 0 of {x.shape} is no multiple of the group's {n} ranks; write {name}")
        return [rows // n] * n
    if len(sizes) != n or sum(sizes) != rows or min(sizes) < 0:
        raise InvalidArgumentError(f"{op}: {name} is {list(sizes)}; it has an extent for each of {n} ranks, {rows} rows in all")
    return list(sizes)


def _slices(flat, sizes) -> list:
    at, parts = 0, []
    for size in sizes:
        parts.append(flat[at:at + size])
        at += size
    return parts


def _is_in_memory(given: list[Value], taken: list[Value]) -> bool:
    """Whether an exchange may write its outputs while inputs are still read: all of them arrays, and apart."""
    return (all(one.is_own_memory and one.dtype.isnative for one in given + taken)
            and not any(np.may_share_memory(one.x, other.x) for one in taken for other in given))


def _check_own(op: str, rank: int, sent: int, wanted: int) -> None:
    if sent != wanted:
        raise InvalidArgumentError(f"{op}: rank {rank} sends {sent} elements to itself, and expects {wanted}")


def _exchange_in_memory(op: str, given: list[np.ndarray], taken: list[np.ndarray], group: RankGroup) -> RankWork:
    """Each rank's part to that rank, from memory to memory. The other side of a message may have a Tensor."""
    own, works = group.rank(), []
    _check_own(op, own, given[own].size, taken[own].size)
    for kind, name, arrays in ((RECV, "output", taken), (SEND, "input", given)):
        works += [_message_of_array(op, kind, group, Value(op, name, array, group), peer, EXCHANGE_TAG)
                  for peer, array in enumerate(arrays) if peer != own]
    np.copyto(taken[own], given[own].reshape(taken[own].shape))
    return RankWork([work for one in works for work in one._works], [copy for one in works for copy in one._copies], [], group)


def _exchange(op: str, parts: list[Tensor], wanted: list[int], out: Value, group: RankGroup):
    """Each rank's part to that rank; what each sends of these sizes, in order, and the messages' works."""
    own, works, received = group.rank(), [], []
    _check_own(op, own, parts[own].size, wanted[own])
    for peer in range(group.size()):
        if peer != own:
            works.append(_run(op, SEND, group, parts[peer], peer=peer, tag=EXCHANGE_TAG))
    for peer, size in enumerate(wanted):
        if peer == own:
            received.append(parts[own])
            continue
        works.append(_run(op, RECV, group, None, out.wanted((size,)), peer=peer, tag=EXCHANGE_TAG))
        received.append(works[-1].result)
    return received, works


def all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False):
    name, group = "all_to_all", group_of("all_to_all", group)
    given = _list(name, "input_tensor_list", input_tensor_list, group, group.size())
    outputs = _list(name, "output_tensor_list", output_tensor_list, group, group.size())
    _written(name, outputs)
    check_dtype(name, outputs + given, outputs[0])
    if _is_in_memory(given, outputs):
        work = _exchange_in_memory(name, [one.x for one in given], [one.x for one in outputs], group)
        return _ended(RankWork(work._works, work._copies, output_tensor_list, group), async_op)
    received, works = _exchange(name, [one.flat() for one in given], [one.size for one in outputs], outputs[0], group)
    copies = [out.put(part.reshape(out.shape)) for out, part in zip(outputs, received)]
    return _ended(RankWork(works, copies, output_tensor_list, group), async_op)


def barrier(group=None, async_op=False, device_ids=None, timeout=None):
    group = group_of("barrier", group)
    limit = group.timeout_s if timeout is None else seconds_of("barrier", timeout)
    work = group._joined.run_on_memory(BARRIER, 0, 0, 0, code_of("uint8", "barrier"), None, None, limit, not async_op)
    return _ended(RankWork([work], [], [], group), async_op)


def monitored_barrier(group=None, timeout=None, wait_all_ranks=False) -> None:
    """A barrier whose error names the ranks that did not come."""
    barrier(group, timeout=timeout)


# ---- messages

def _tag(op: str, tag) -> int:
    if isinstance(tag, bool) or not isinstance(tag, int) or not 0 <= tag < 2**31:
        raise InvalidArgumentError(f"{op}: tag is {tag!r}; it is a number from 0 on")
    return tag


def _other(op: str, name: str, world_rank, group_rank, group: RankGroup) -> int:
    if world_rank is None and group_rank is None:
        raise InvalidArgumentError(f"{op}: say {name}, or group_{name}")
    other = rank_of(op, name, world_rank, group_rank, group)
    if other == group.rank():
        raise InvalidArgumentError(f"{op}: {name} is this rank itself")
    return other


def _message_of_array(op: str, kind: int, group: RankGroup, x: Value, peer: int, tag: int) -> RankWork:
    """A message from memory, or to it."""
    native, copies, source, target = x.dtype.newbyteorder("="), [], None, None
    if kind == SEND:
        source = np.ascontiguousarray(x.x, dtype=native).reshape(-1).view(np.uint8)
    elif x.dtype == native and x.x.flags.c_contiguous:
        target = x.x.reshape(-1).view(np.uint8)
    else:
        whole = np.empty(x.size, native)
        target = whole.view(np.uint8)
        copies.append(_copy_of(whole, x.x))
    work = group._joined.run_on_memory(kind, 0, peer, tag, code_of(native, op), source, target, group.timeout_s, False)
    return RankWork([work], copies, [] if kind == SEND else [x.x], group)


def isend(tensor, dst=None, group=None, tag=0, group_dst=None) -> RankWork:
    """Sends a value to another rank. The work of an array is done when the array may be changed, that of a Tensor when it is received."""
    group = group_of("isend", group)
    x = Value("isend", "tensor", tensor, group)
    peer, tag = _other("isend", "dst", dst, group_dst, group), _tag("isend", tag)
    if x.is_own_memory:
        return _message_of_array("isend", SEND, group, x, peer, tag)
    return RankWork([_run("isend", SEND, group, x.flat(), peer=peer, tag=tag)], [], [], group)


def irecv(tensor, src=None, group=None, tag=0, group_src=None) -> RankWork:
    """Receives a value of tensor's shape and dtype into it: from a rank, or from whichever sends first."""
    group = group_of("irecv", group)
    x = Value("irecv", "tensor", tensor, group)
    x.check_writable()
    any_source = src is None and group_src is None
    peer = ANY_SOURCE if any_source else _other("irecv", "src", src, group_src, group)
    tag = _tag("irecv", tag)
    if x.is_own_memory:
        return _message_of_array("irecv", RECV, group, x, peer, tag)
    work = _run("irecv", RECV, group, None, x.wanted(), peer=peer, tag=tag)
    return RankWork([work], [x.put_late(work) if work.is_late else x.put(work.result)], [tensor], group)


def send(tensor, dst=None, group=None, tag=0, group_dst=None) -> None:
    """Sends a value to another rank, and blocks until an array may be changed, or a Tensor is received."""
    isend(tensor, dst, group, tag, group_dst).wait()


def recv(tensor, src=None, group=None, tag=0, group_src=None) -> int:
    """Receives into tensor, and blocks until that is there; the rank that sent."""
    work = irecv(tensor, src, group, tag, group_src)
    work.wait()
    return work.source_rank()


class P2POp:
    """One of the messages of batch_isend_irecv: P2POp(isend or irecv, tensor, peer)."""

    def __init__(self, op, tensor, peer=None, group=None, tag=0, group_peer=None):
        if op not in (isend, irecv):
            raise ArgumentError(f"P2POp: op is {op!r}; it is isend or irecv")
        self.op, self.tensor, self.peer, self.group, self.tag, self.group_peer = op, tensor, peer, group, tag, group_peer


def batch_isend_irecv(p2p_op_list) -> list[RankWork]:
    """Begins all messages; their works."""
    if not isinstance(p2p_op_list, (list, tuple)) or not all(isinstance(one, P2POp) for one in p2p_op_list):
        raise ArgumentError("batch_isend_irecv: takes a list of P2POp")
    return [one.op(one.tensor, one.peer, one.group, one.tag, one.group_peer) for one in p2p_op_list]
