"""Processes that are ranks: each runs functions of a test module, as the test asks, and gives back what they return or raise."""

import multiprocessing
import os
import signal
import traceback

CONTEXT = multiprocessing.get_context("spawn")


class Failure:
    """An exception that a function raised in a rank."""

    def __init__(self, error):
        self.kind, self.text, self.trace = type(error).__name__, str(error), traceback.format_exc()

    def __repr__(self):
        return f"{self.kind}: {self.text}"


def serve(pipe, rank, size, address, key):
    import tessera.distributed as dist
    try:
        dist.init_process_group(init_method=f"tessera://{address}", rank=rank, world_size=size, group_name=key, timeout=60)
        pipe.send("joined")
    except Exception as error:  # noqa: BLE001: the test is told
        pipe.send(Failure(error))
        return
    while True:
        asked = pipe.recv()
        if asked is None:
            break
        function, args = asked
        try:
            pipe.send(function(*args))
        except Exception as error:  # noqa: BLE001: the test is told
            pipe.send(Failure(error))
    if dist.is_initialized():
        dist.destroy_process_group()


class Ranks:
    """N processes; run(function, *args) gives a list of what function(*args) gave in each."""

    def __init__(self, cluster, size, key):
        self.size = size
        self.is_broken = False      # some rank has done less than the others
        self.pipes, self.processes = [], []
        for rank in range(size):
            here, there = CONTEXT.Pipe()
            process = CONTEXT.Process(target=serve, args=(there, rank, size, cluster.address, key), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)
        self.answers()

    def begin(self, function, *args, ranks=None):
        for rank in range(self.size) if ranks is None else ranks:
            self.pipes[rank].send((function, args))

    def answers(self, ranks=None, allow=False):
        out = []
        assert not self.is_broken, "the ranks are out of step since an earlier test"
        self.is_broken = not allow
        for rank in range(self.size) if ranks is None else ranks:
            assert self.pipes[rank].poll(100), f"rank {rank} did not answer"
            answer = self.pipes[rank].recv()
            assert allow or not isinstance(answer, Failure), f"rank {rank}: {answer!r}\n{answer.trace}"
            out.append(answer)
        self.is_broken = False
        return out

    def run(self, function, *args, ranks=None, allow=False):
        self.begin(function, *args, ranks=ranks)
        return self.answers(ranks, allow)

    def failures(self, function, *args, ranks=None):
        """The exceptions that all of them raised."""
        answers = self.run(function, *args, ranks=ranks, allow=True)
        assert all(isinstance(answer, Failure) for answer in answers), answers
        return answers

    def kill(self, rank, signal_number=signal.SIGKILL):
        os.kill(self.processes[rank].pid, signal_number)
        self.processes[rank].join(20)

    def stop(self):
        for pipe, process in zip(self.pipes, self.processes):
            if process.is_alive():
                try:
                    pipe.send(None)
                except OSError:
                    pass
        for process in self.processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()
