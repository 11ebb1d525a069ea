"""torch.distributed's backend `tessera`: ranks in processes of their own, whose collectives give the dense answer.
rank_programs.py has the programs that the ranks run."""

import inspect
import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
import torch
import torch.distributed

from forked import run_script

HERE = pathlib.Path(__file__).parent
PROGRAMS = ("all_reductions", "all_moves", "uneven", "sizes_that_differ", "memory_of_all_kinds", "groups", "messages", "objects", "coalesced",
            "works", "mismatch", "killed", "timed_out", "refusals", "data_parallel", "fully_sharded", "many_at_once",
            "split", "aborted", "reconfigured", "hooks", "allocated", "sparse", "fully_sharded_in_the_arena",
            "messages_of_any_size", "messages_that_fail", "messages_told_at_the_end", "a_failure_that_nobody_waits_for", "killed_in_a_message")
IS_OLDER = torch.__version__ < "2.15"       # such a torch may lack functions
# Programs about functions that torch 2.11 lacks -> whether this torch has them, and what it lacks else.
NEEDS = {
    "split": ("_device_types" in inspect.getsource(torch.distributed.split_group), "split_group without a GPU"),
    "reconfigured": (hasattr(torch.distributed.distributed_c10d, "_reconfigure"), "groups whose members change"),
}
# torch 2.11 finds a backend by its name once something has imported it.
FINDS_BY_NAME = not IS_OLDER or hasattr(torch.distributed.Backend, "_ensure_backend_registered")


def run(cluster, *command, timeout=240):
    environment = {**os.environ, "TESSERA_ADDRESS": cluster.address, "GLOO_SOCKET_IFNAME": "lo"}
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        environment.pop(name, None)
    if str(command[0]).startswith(str(HERE / "rank_")):
        done = run_script(command, timeout, environment)
    else:
        done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=timeout, env=environment)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


@pytest.mark.parametrize("program", PROGRAMS)
def test_three_ranks(cluster, program):
    has_it, lack = NEEDS.get(program, (True, None))
    if IS_OLDER and not has_it:
        pytest.skip(f"torch {torch.__version__} lacks {lack}")
    run(cluster, HERE / "rank_programs.py", program, 3)


@pytest.mark.parametrize("program", ["all_moves", "uneven", "messages", "messages_of_any_size", "messages_that_fail"])
def test_two_ranks(cluster, program):
    run(cluster, HERE / "rank_programs.py", program, 2)


def test_random_programs_of_four_ranks(cluster):
    """A fifth is wrong on purpose: none hangs, and what is wrong is told to its ranks alone."""
    said = run(cluster, HERE / "rank_random.py", 4, 1, 1000)
    programs, wrong = (int(word) for word in said.split() if word.isdigit())
    assert programs == 1000 and wrong > 150


def test_one_rank(cluster):
    run(cluster, HERE / "rank_programs.py", "all_moves", 1)


@pytest.mark.skipif(not FINDS_BY_NAME, reason=f"torch {torch.__version__} lacks the entry points of backends")
def test_the_backend_is_found_by_its_name(cluster, tmp_path):
    script = f"""
import torch, torch.distributed as dist
dist.init_process_group("tessera", init_method="file://{tmp_path}/store", rank=0, world_size=1)
x = torch.ones(3)
dist.all_reduce(x)
print(dist.get_backend(), x.tolist())
dist.destroy_process_group()
"""
    assert "tessera [1.0, 1.0, 1.0]" in run(cluster, "-c", script)


def test_a_script_under_torchrun_starts_a_cluster_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(("" if FINDS_BY_NAME else "import tessera.torch_ranks") + """
import os, torch, torch.distributed as dist
dist.init_process_group("tessera")
x = torch.full((3,), dist.get_rank() + 1.0)
dist.all_reduce(x)
os.write(1, f"rank {dist.get_rank()} has {x.tolist()}\\n".encode())
dist.destroy_process_group()
""")
    environment = {name: text for name, text in os.environ.items() if name != "TESSERA_ADDRESS"}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 has [3.0, 3.0, 3.0]", "rank 1 has [3.0, 3.0, 3.0]"]


def test_some_of_torchs_own_tests(cluster):
    said = json.loads(run(cluster, HERE / "dist_suite.py", "--fast").strip().split("\n")[-1])
    assert said["failed"] == said["skipped"] == 0 and said["passed"] >= 15


@pytest.mark.parametrize("program", ["tensor_parallel", "sequence_parallel", "fsdp2"])
def test_a_program_of_two_ranks_has_the_losses_that_it_has_on_gloo(cluster, program):
    losses = {backend: json.loads(run(cluster, HERE / "rank_examples.py", backend, program, 2).splitlines()[-1]) for backend in ("gloo", "tessera")}
    assert len(losses["gloo"]) == 6 and len(set(losses["gloo"])) == 6
    assert losses["tessera"] == pytest.approx(losses["gloo"], rel=0, abs=1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_examples_of_torchs_documentation_run(cluster, ranks):
    run(cluster, HERE / "rank_snippets.py", ranks)


def test_every_function_with_an_example_has_it_in_the_tests():
    import rank_snippets
    functions = {name for name, one in vars(torch.distributed.distributed_c10d).items() if type(one) is types.FunctionType and
                 one.__module__ == "torch.distributed.distributed_c10d" and ">>> " in (inspect.getdoc(one) or "")}
    assert functions - {"_time_estimator"} <= {*rank_snippets.NAMES, *rank_snippets.OLDER_NAMES}     # which NCCL alone has
