"""Random programs of ranks in three groups, a fifth of them wrong on purpose: python rank_random.py RANKS FIRST COUNT.

A program is some calls, each of one group, async or not, whose works are waited for in any order at the end. All ranks draw the same
program from its number. In a wrong one a rank calls another thing in one place: the ranks of that call are told, by name, and all other calls
give the dense answer. The sender of a wrong message is told by one of its later calls in that group, which is done all the same.
"""

import functools
import random
import sys

import torch
import torch.distributed as dist

import rank_programs
from rank_programs import BITS, COMBINE, reduced, same, value

SIZES = (0, 1, 5, 300, 20_000, 70_000)
OPS = [op for op in COMBINE if op != dist.ReduceOp.AVG]
DTYPES = (torch.float32, torch.int64, torch.int32)


wrongly_sent = {}       # by group: the texts of this rank's messages that their receivers can't take


def is_told_late(group, error):
    """Whether a call that is done tells of an earlier message."""
    text = str(error)
    if "which is done" not in text:
        return False
    assert any(words in text for words in wrongly_sent.get(group, ())), f"{text} beside {wrongly_sent}"
    return True


class Call:
    """A call as one rank makes it. `check` compares its results, `words` are those of the error where it is to fail."""

    def __init__(self, begin, check=None, words=()):
        self.begin, self.check, self.words, self.group = begin, check, words, None

    def end(self, work):
        try:
            if work is not None:
                work.wait()
        except dist.DistBackendError as error:
            if not is_told_late(self.group, error):
                missing = [word for word in self.words if word not in str(error)]
                assert self.words and not missing, f"{missing or 'an error'} in: {error}"
                return
        assert not self.words, f"no error with {self.words}"
        if self.check is not None:
            self.check()


def collective(draw, rank, members, group, is_wrong):
    """A call of all members; `is_wrong`: the last of them calls another one."""
    me, count = members.index(rank), len(members)
    size, dtype, root = draw.choice(SIZES), draw.choice(DTYPES), draw.randrange(count)
    op = draw.choice([op for op in OPS if op not in BITS or dtype != torch.float32])
    kind, asynchronous, fault = draw.choice(("reduce", "broadcast", "gather", "scatter", "exchange")), draw.random() < 0.5, draw.randrange(3)
    words = ("differs",) if is_wrong else ()
    if is_wrong and me == count - 1:
        if fault == 0:
            return Call(lambda: dist.all_reduce(torch.ones(size + 1, dtype=torch.float64), group=group, async_op=asynchronous), words=words)
        if fault == 1:
            return Call(lambda: dist.all_gather_into_tensor(torch.empty(count * (size + 2), dtype=dtype), torch.ones(size + 2, dtype=dtype),
                                                            group=group, async_op=asynchronous), words=words)
        return Call(lambda: dist.barrier(group=group, async_op=asynchronous), words=words)
    if is_wrong and kind == "exchange":
        kind = "reduce"     # messages have faults of their own
    terms = [value(member, size, dtype) + 1 for member in range(count)]
    if kind == "reduce":
        x = terms[me].clone()
        return Call(lambda: dist.all_reduce(x, op, group=group, async_op=asynchronous), lambda: same(x, reduced(op, terms)), words)
    if kind == "broadcast":
        x = terms[me].clone()
        return Call(lambda: dist.broadcast(x, members[root], group=group, async_op=asynchronous), lambda: same(x, terms[root]), words)
    if kind == "gather":
        out = torch.empty(count * size, dtype=dtype)
        return Call(lambda: dist.all_gather_into_tensor(out, terms[me], group=group, async_op=asynchronous),
                    lambda: same(out, torch.cat(terms)), words)
    if kind == "scatter":
        out, whole = torch.empty(size, dtype=dtype), [torch.cat([one] * count) for one in terms]
        return Call(lambda: dist.reduce_scatter_tensor(out, whole[me], op, group=group, async_op=asynchronous),
                    lambda: same(out, reduced(op, terms)), words)
    sizes = [[(size + 3 * a + b) % (size + 2) for b in range(count)] for a in range(count)]
    given = torch.cat([value(10 * me + b, sizes[me][b], dtype) for b in range(count)])
    out = torch.empty(sum(row[me] for row in sizes), dtype=dtype)
    return Call(lambda: dist.all_to_all_single(out, given, [row[me] for row in sizes], sizes[me], group=group, async_op=asynchronous),
                lambda: same(out, torch.cat([value(10 * a + me, sizes[a][me], dtype) for a in range(count)])))


def message(draw, rank, members, group, is_wrong, tag):
    """A message of one member to another; `is_wrong`: the receiver wants another size. None for a rank that has no part in it."""
    source, to = draw.sample(members, 2)
    size, dtype = draw.choice(SIZES), draw.choice(DTYPES)
    given = value(source, size, dtype)
    if rank == source:
        if is_wrong:
            kind = "f32" if dtype == torch.float32 else "i64" if dtype == torch.int64 else "i32"
            wrongly_sent.setdefault(group, []).append(
                f"called send {kind}[{size}] to rank {members.index(to)} with tag {tag}; rank {members.index(to)} called recv {kind}[{size + 1}]")
        return Call(lambda: dist.isend(given, to, group=group, tag=tag))
    if rank == to:
        out = torch.empty(size + 1 if is_wrong else size, dtype=dtype)
        words = ("differs", f"called send {'f32' if dtype == torch.float32 else 'i64' if dtype == torch.int64 else 'i32'}[{size}]") if is_wrong else ()
        return Call(lambda: dist.irecv(out, source, group=group, tag=tag), lambda: same(out, given), words)
    return None


def run_program(seed, rank, groups):
    draw = random.Random(seed)
    length = draw.randrange(2, 7)
    wrong = draw.randrange(length) if draw.random() < 0.2 else -1
    begun = []
    for number in range(length):
        members, group = draw.choice(groups)
        inner = random.Random(draw.random())
        is_message = draw.random() < 0.4
        if rank not in members:
            continue
        make = functools.partial(message, tag=number) if is_message else collective
        call = make(inner, rank, members, group, number == wrong)
        if call is None:
            continue
        call.group = group
        try:
            work = call.begin()
        except dist.DistBackendError as error:
            if is_told_late(group, error):
                call.end(None)
            else:
                assert call.words and all(word in str(error) for word in call.words), str(error)
            continue
        if work is None:
            call.end(None)
        else:
            begun.append((call, work))
    random.Random(seed + rank).shuffle(begun)
    for call, work in begun:
        call.end(work)
    return wrong >= 0


def main(rank, ranks, first, count):
    members = [list(range(ranks)), list(range(ranks - 1)), list(range(1, ranks))]
    groups = [(ranks_of, dist.new_group(ranks_of)) for ranks_of in members]
    wrong = 0
    for seed in range(first, first + count):
        try:
            wrong += run_program(seed, rank, groups)
        except BaseException:
            print(f"rank {rank}: program {seed} failed", file=sys.stderr, flush=True)
            raise
    dist.barrier()
    if rank == 0:
        print(f"{count} programs, {wrong} of them wrong")


if __name__ == "__main__":
    rank_count, first_seed, seeds = map(int, sys.argv[1:])
    rank_programs.main(functools.partial(main, first=first_seed, count=seeds), rank_count)
