"""The program of each rank of test_ranks_two_hosts.py: python rank_hosts_program.py RANK RANKS. Prints "ok" when all it got is right."""

import sys

import numpy as np

import tessera as ts
import tessera.distributed as dist
from tessera.distributed import ReduceOp

COMBINE = {ReduceOp.SUM: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum, ReduceOp.MAX: np.maximum, ReduceOp.BXOR: np.bitwise_xor}


def value(rank, size, dtype):
    return np.random.default_rng(100 + rank).integers(1, 4, size).astype(dtype)


def reduced(op, terms):
    total = terms[0]
    for term in terms[1:]:
        total = COMBINE[op](total, term)
    return total


def collectives(rank, ranks, made):
    """`made`: makes a rank's value of an array, an array or a Tensor of its worker."""
    for dtype, op in (("float32", ReduceOp.SUM), ("float64", ReduceOp.MAX), ("int32", ReduceOp.BXOR), ("int64", ReduceOp.PRODUCT), ("uint8", ReduceOp.MIN)):
        for size in (1, 7, 40_000):
            terms = [value(r, size, dtype) for r in range(ranks)]
            x = made(terms[rank])
            dist.all_reduce(x, op)
            np.testing.assert_array_equal(np.asarray(x), reduced(op, terms))
            whole = made(np.zeros(size * ranks, dtype))
            dist.all_gather_into_tensor(whole, made(terms[rank]))
            np.testing.assert_array_equal(np.asarray(whole), np.concatenate(terms))
            given = [value(10 + r, size * ranks, dtype) for r in range(ranks)]
            part = made(np.zeros(size, dtype))
            dist.reduce_scatter_tensor(part, made(given[rank]), op)
            np.testing.assert_array_equal(np.asarray(part), reduced(op, given)[rank * size:(rank + 1) * size])
            out = made(np.zeros(size * ranks, dtype))
            dist.all_to_all_single(out, made(given[rank]))
            np.testing.assert_array_equal(np.asarray(out), np.concatenate([one.reshape(ranks, size)[rank] for one in given]))
            root = (size + 1) % ranks
            x = made(terms[rank])
            dist.broadcast(x, src=root)
            np.testing.assert_array_equal(np.asarray(x), terms[root])


def floats_have_the_same_bits(rank, ranks):
    """In the order of the ranks, whatever their hosts."""
    terms = [np.random.default_rng(r).standard_normal(5000).astype("float32") for r in range(ranks)]
    x = terms[rank].copy()
    dist.all_reduce(x)
    everybodys = np.zeros(5000 * ranks, "float32")
    dist.all_gather_into_tensor(everybodys, x)
    assert all(np.array_equal(one, x) for one in everybodys.reshape(ranks, 5000))


def groups_and_messages(rank, ranks):
    across, first, second = dist.new_group([0, ranks - 1]), dist.new_group([0, 1]), dist.new_group([2, 3])
    x, y = np.full(3, rank + 1.0), np.full(3, rank + 1.0)
    works = []
    if rank in (0, ranks - 1):
        works.append(dist.all_reduce(x, group=across, async_op=True))
    works.append(dist.all_reduce(y, group=first if rank < 2 else second, async_op=True))
    for work in works:
        work.wait()
    if rank in (0, ranks - 1):
        assert x.tolist() == [1.0 + ranks] * 3
    assert y.tolist() == [3.0 if rank < 2 else 7.0] * 3
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    sent, got = dist.isend(np.arange(1000.0) + rank, right), np.zeros(1000)
    assert dist.recv(got, src=left) == left
    sent.wait()
    np.testing.assert_array_equal(got, np.arange(1000.0) + left)


def a_call_that_differs(rank, ranks):
    x = np.ones(5 if rank == 3 else 4, dtype="float32")
    try:
        dist.all_reduce(x)
    except ts.InvalidArgumentError as error:
        assert "ranks 0, 1 and 2 called all_reduce f32[4]" in str(error) and "rank 3 called all_reduce f32[5]" in str(error), error
    else:
        raise AssertionError("no error")


def main():
    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group(rank=rank, world_size=ranks, timeout=60)
    collectives(rank, ranks, lambda array: array.copy())
    collectives(rank, ranks, lambda array: ts.asarray(array))
    floats_have_the_same_bits(rank, ranks)
    groups_and_messages(rank, ranks)
    a_call_that_differs(rank, ranks)
    collectives(rank, ranks, lambda array: array.copy())
    dist.destroy_process_group()
    print("ok")


if __name__ == "__main__":
    main()
