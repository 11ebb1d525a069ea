"""torch.distributed's scripts under `tessera run`, as they are."""

import os
import pathlib
import subprocess
import sys

TESSERA = pathlib.Path(os.environ.get("TESSERA_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "bazel-bin")) / "client/cli/tessera"

SCRIPT = """
import os
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    x = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    dist.barrier()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    os.write(1, f"{attempt} {dist.get_rank()} {x.tolist()} {dist.is_torchelastic_launched()}\\n".encode())
    if attempt == "0" and dist.get_rank() == 1:
        raise ValueError("a bad batch")
    dist.barrier()
    dist.destroy_process_group()

main()
"""


def test_a_script_of_torch_meets_its_peers_and_again_after_a_restart(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = subprocess.run([TESSERA, "run", "--nproc", "2", "--address", "unix:/nowhere#token=00", "--max-restarts", "1", script],
                         capture_output=True, text=True, timeout=300, env={**os.environ, "TESSERA_PYTHON": sys.executable})
    assert out.returncode == 0, out.stderr
    for rank in range(2):
        assert f"[rank {rank}] 1 {rank} [3.0, 3.0, 3.0, 3.0] True" in out.stdout.splitlines()
    _, first, summary = out.stderr.partition("tessera run: rank 1 failed: exit code 1\n")
    assert first, out.stderr
    # @record wrote this text; torch's own lines on stderr begin with [rank1].
    assert "\n  ValueError: a bad batch\ntessera run: restart 1 of 1\n" in summary and "[rank1]" not in summary.partition("restart")[0]
