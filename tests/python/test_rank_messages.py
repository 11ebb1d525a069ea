"""Messages of ranks of one host: arrays through rings, Tensors through the workers, and each to the other, in one order."""

import random
import threading
import time

import numpy as np
import pytest

import tessera as ts
import tessera.distributed as dist
from rank_processes import Failure, Ranks
from test_ranks import value_of

SIZE = 3
ROUNDS = 12


@pytest.fixture(scope="module")
def ranks(cluster):
    ranks = Ranks(cluster, SIZE, "test_rank_messages")
    yield ranks
    ranks.stop()


def mixed(seed):
    """Each pair's messages of two tags, with each side an array or a Tensor as it pleases; those of one tag keep their order."""
    rank = dist.get_rank()
    draw, own = random.Random(seed), random.Random(seed * SIZE + rank)
    works, taken = [], []
    for number in range(ROUNDS):
        source, to = draw.sample(range(SIZE), 2)
        tag, size = draw.randrange(2), draw.choice([0, 1, 300, 100_000])
        kind = own.choice(["array", "tensor"])
        if rank == source:
            given = value_of(kind, np.full(size, 100.0 * source + number))
            works.append((dist.isend(given, to, tag=tag), given))
        if rank == to:
            out = value_of(kind, np.zeros(size))
            works.append((dist.irecv(out, source, tag=tag), out))
            taken.append((out, np.full(size, 100.0 * source + number)))
    own.shuffle(works)
    for work, _ in works:
        work.wait()
    dist.barrier()
    return [np.array_equal(np.asarray(out), wanted) for out, wanted in taken]


@pytest.mark.parametrize("seed", range(8))
def test_arrays_and_tensors_meet_in_the_order_of_their_tag(ranks, seed):
    for found in ranks.run(mixed, seed):
        assert all(found), found


def from_any(kinds):
    rank, sources = dist.get_rank(), []
    if rank == 0:
        for kind in kinds:
            out = value_of(kind, np.zeros(2))
            sources.append((dist.recv(out), np.asarray(out).tolist()))
    else:
        dist.send(value_of(kinds[rank - 1], np.full(2, float(rank))), 0)
    return sorted(sources)


@pytest.mark.parametrize("kinds", [["array", "tensor"], ["tensor", "array"]])
def test_a_receive_of_any_rank_takes_arrays_and_tensors(ranks, kinds):
    assert ranks.run(from_any, kinds)[0] == [(1, [1.0, 1.0]), (2, [2.0, 2.0])]


def used_before_its_wait():
    """A Tensor that is being received has its value where it is used, and so have its views and what it is a view of."""
    rank = dist.get_rank()
    if rank == 1:
        for value in (1.0, 2.0, 3.0):
            dist.send(ts.asarray(np.full((2, 2), value)), 0)
    if rank != 0:
        dist.barrier()
        return None
    whole, turned, written = ts.zeros((2, 2)), ts.zeros((2, 2)), ts.zeros((2, 2))
    view = whole[0]
    work, other, last = dist.irecv(whole, 1), dist.irecv(turned.T, 1), dist.irecv(written, 1)
    written += 10
    found = [np.asarray(view).tolist(), np.asarray(turned).tolist(), np.asarray(written).tolist()]
    whole *= 2
    for one in (work, other, last):
        one.wait()
        one.wait()
    found += [np.asarray(whole).tolist(), np.asarray(view).tolist(), np.asarray(written).tolist()]
    dist.barrier()
    return found


def test_a_tensor_that_is_received_is_there_where_it_is_used(ranks):
    assert ranks.run(used_before_its_wait)[0] == [
        [1, 1], [[2, 2], [2, 2]], [[13, 13], [13, 13]], [[2, 2], [2, 2]], [2, 2], [[13, 13], [13, 13]]]


def kinds_of_arrays():
    rank = dist.get_rank()
    x = np.arange(12, dtype=">f4").reshape(3, 4)
    outs = [np.zeros((3, 4), ">f4"), np.zeros((3, 8), "f4")[:, ::2], np.array(0.0), np.zeros((0, 2)), np.zeros(2, ts.bfloat16)]
    given = [x, x.astype("f4").T.copy().T, np.array(7.0), np.zeros((0, 2)), np.ones(2, ts.bfloat16)]
    for one, out in zip(given, outs):
        if rank == 0:
            dist.send(one, 1)
        elif rank == 1:
            dist.recv(out, 0)
    return [np.array_equal(one, out) for one, out in zip(given, outs)] if rank == 1 else [True]


def test_arrays_of_any_layout(ranks):
    assert all(all(found) for found in ranks.run(kinds_of_arrays))


def sent_wrong(how, tells):
    rank = dist.get_rank()
    texts = []
    if rank == 0:
        try:
            dist.send(np.ones(4, dtype="float32"), 1, tag=3)
        except ts.InvalidArgumentError as error:    # its receiver has been so quick
            texts.append(str(error))
    if rank == 1:
        try:
            dist.recv(np.ones(5, dtype="float32") if how == "size" else np.ones(4, dtype="int32"), 0, tag=3)
        except ts.InvalidArgumentError as error:
            texts.append(str(error))
    x = np.ones(4)[::2] if tells == "a sum of what lies apart" else np.ones(2)
    if rank != 0:
        dist.all_reduce(x)      # rank 1 has looked at the message when all have come to this
    else:
        calls = {"a sum": lambda: dist.all_reduce(x), "an async sum": lambda: dist.all_reduce(x, async_op=True).wait(),
                 "a sum of what lies apart": lambda: dist.all_reduce(x)}
        try:
            calls[tells]()
        except ts.InvalidArgumentError as error:
            texts.append(str(error))
    dist.barrier()      # it is told once
    return texts, x.tolist()


@pytest.mark.parametrize("how, wanted", [("size", "f32[5]"), ("dtype", "i32[4]")])
@pytest.mark.parametrize("tells", ["a sum", "an async sum", "a sum of what lies apart"])
def test_the_sender_of_what_its_receiver_cannot_take_is_told_by_its_next_call(ranks, how, wanted, tells):
    (sender, x), (receiver, _), (other, _) = ranks.run(sent_wrong, how, tells)
    assert len(receiver) == 1 and receiver[0].endswith(
        f"differs: rank 0 called send f32[4] to rank 1 with tag 3; rank 1 called recv {wanted} from rank 0 with tag 3")
    assert sender == [f"{receiver[0]}; rank 0 is told by a call of its own, which is done"] and x == [3.0, 3.0] and other == []


def told_at_the_end():
    rank = dist.get_rank()
    group, other = dist.new_group([0, 1]), dist.new_group([0, 1])
    if rank == 0:
        dist.isend(np.ones(4), 1, group=group)
    if rank == 1:
        try:
            dist.recv(np.ones(5), 0, group=group)
        except ts.InvalidArgumentError:
            pass
    if rank != 2:
        dist.barrier(other)
    if rank == 0:
        try:
            dist.destroy_process_group(group)
        except ts.InvalidArgumentError as error:
            try:
                dist.barrier(group)
            except ts.FailedPreconditionError as gone:
                return str(error), str(gone)
    return None


def test_the_sender_is_told_at_the_latest_when_it_leaves_the_group(ranks):
    text, gone = ranks.run(told_at_the_end)[0]
    assert "rank 1 called recv f64[5] from rank 0" in text and "rank 0 is told by a call of its own, which is done" in text
    assert "was destroyed" in gone


def tensors_that_differ():
    rank = dist.get_rank()
    if rank == 0:
        dist.send(ts.ones(4), 1)
    if rank == 1:
        dist.recv(ts.ones(5), 0)


def test_tensors_that_differ_are_told_to_both(own_ranks):
    failures = own_ranks().run(tensors_that_differ, allow=True)[:2]
    for failure in failures:
        assert isinstance(failure, Failure) and "rank 0 called send" in failure.text and "rank 1 called recv" in failure.text, failures


def noted():
    """A ring's messages in the record that another rank reads: one that is received, one that waits, one that is wanted."""
    rank = dist.get_rank()
    if rank == 0:
        dist.send(np.ones(4), 1, tag=1)
        dist.send(ts.ones(6, dtype="float64"), 1, tag=1)
        dist.send(np.ones(3), 1, tag=2)
    work = None
    if rank == 1:
        dist.recv(np.ones(4), 0, tag=1)
        dist.recv(np.ones(6), 0, tag=1)
        work = dist.irecv(np.ones(2), 2, tag=5)
    dist.barrier()
    record = dist.flight_record() if rank == 2 else None
    dist.barrier()
    if rank == 2:
        dist.send(np.ones(2), 1, tag=5)
    if rank == 1:
        work.wait()
        dist.recv(np.ones(3), 0, tag=2)
    return record


def test_messages_of_other_ranks_are_in_the_flight_record(own_ranks):
    record = own_ranks().run(noted)[2]
    calls = {call["what"]: call for call in record["calls"]}
    received = calls["send f64[4] to rank 1 with tag 1 of rank 0"]
    assert received["call"] == 0 and received["matched"] is not None and not received["failure"]
    assert received["arrived"][0] > 0 and received["arrived"][1] > 0 and received["arrived"][2] is None
    by_workers = calls["send f64[6] to rank 1 with tag 1 of rank 0"]
    assert by_workers["matched"] is not None and by_workers["arrived"][1] > 0
    lies_there = calls["send f64[3] to rank 1 with tag 2 of rank 0"]
    assert lies_there["matched"] is None and lies_there["arrived"][1] is None
    wanted = calls["recv f64[2] from rank 2 with tag 5 of rank 1"]
    assert wanted["matched"] is None and wanted["arrived"][0] is None and wanted["arrived"][1] > 0
    ages = [max(age for age in call["arrived"] if age is not None) for call in record["calls"]]
    assert ages == sorted(ages, reverse=True) and sum(call["call"] == 0 for call in record["calls"]) == 4


def with_threads():
    """Threads of a rank that send and receive at once, each by its own tag."""
    rank, found = dist.get_rank(), []
    if rank == 2:
        return True

    def pair(tag):
        x = np.zeros(2000)
        for number in range(50):
            if (rank + number) % 2:
                dist.send(np.full(2000, float(number)), 1 - rank, tag=tag)
            else:
                dist.recv(x, 1 - rank, tag=tag)
                found.append((x == number).all())

    threads = [threading.Thread(target=pair, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(found) == 75 and all(found)


def test_threads_of_one_rank(ranks):
    assert all(ranks.run(with_threads))


def polled(sender_kind, receiver_kind):
    rank = dist.get_rank()
    if rank == 2:
        return True
    value = value_of(sender_kind if rank == 0 else receiver_kind, np.full(2000, float(rank)))
    work = dist.isend(value, 1) if rank == 0 else dist.irecv(value, 0)
    deadline = time.monotonic() + 60
    while not work.is_completed():
        assert time.monotonic() < deadline
    work.wait()
    return rank == 0 or (work.source_rank() == 0 and not np.asarray(value).any())


@pytest.mark.parametrize("sender_kind", ["array", "tensor"])
@pytest.mark.parametrize("receiver_kind", ["array", "tensor"])
def test_a_work_that_is_polled_ends(ranks, sender_kind, receiver_kind):
    assert all(ranks.run(polled, sender_kind, receiver_kind))


def in_vain(kind):
    """The first wait's time is over and the receive goes on; then its own time is."""
    rank = dist.get_rank()
    group = dist.new_group([0, 1], timeout=1.5)
    if rank != 0:
        return None
    texts, value = [], value_of(kind, np.zeros(2))
    work = dist.irecv(value, 1, group=group, tag=4)
    for limit in (0.1, None, None):
        try:
            work.wait(limit)
        except ts.DeadlineExceededError as error:
            texts.append(str(error))
    return texts


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_receive_in_vain_ends_by_name(ranks, kind):
    first, *others = ranks.run(in_vain, kind)[0]
    assert "its wait is over" in first
    assert len(others) == 2 and others[0] == others[1], others
    assert "recv f64[2] from rank 1 with tag 4 of group" in others[0] and "timed out after 1.5 s: rank 1 (pid " in others[0]


def receive_until_it_fails(kind):
    value = value_of(kind, np.zeros(2))
    began = time.monotonic()
    try:
        dist.recv(value, 1)
    except ts.UnavailableError as error:
        return str(error), time.monotonic() - began
    return "no error"


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_a_sender_that_is_killed_is_named(own_ranks, kind):
    ranks = own_ranks(2)
    ranks.begin(receive_until_it_fails, kind, ranks=[0])
    ranks.begin(time.sleep, 60, ranks=[1])
    time.sleep(0.5)
    ranks.kill(1)
    text, seconds = ranks.answers([0])[0]
    assert "recv f64[2] from rank 1" in text and "rank 1 (pid " in text and "is gone" in text and seconds < 20
