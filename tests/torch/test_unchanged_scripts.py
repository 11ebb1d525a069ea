"""python -m tessera.torch runs scripts of torch as they are."""

import os
import subprocess
import sys

import pytest
import torch

import tessera as ts
import tessera.torch as tt

SCRIPT = '''
import sys
import torch
from helper import width
device = torch.accelerator.current_accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.ReLU(), torch.nn.Linear(width, 4)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[1]))
data = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
for _ in range(3):
    optimizer.zero_grad()
    loss = model(data.to(device)).square().mean()
    loss.backward()
    optimizer.step()
if __name__ == "__main__":
    print(device.type, f"{loss.item():.6f}")
'''


@pytest.fixture
def script(tmp_path):
    (tmp_path / "helper.py").write_text("width = 16\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path / "train.py"


def run(*arguments, **environment):
    own = {name: value for name, value in os.environ.items() if name not in ("TESSERA_ADDRESS", "HOME")}
    return subprocess.run([sys.executable, "-m", "tessera.torch", *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env={**own, "HOME": "/nonexistent", **environment})


def test_a_script_that_asks_for_the_accelerator_runs_on_a_cluster_of_its_own_and_on_one_that_runs(script, cluster, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", [str(script), "0.1"])
    monkeypatch.syspath_prepend(script.parent)
    exec(SCRIPT.replace("torch.accelerator.current_accelerator()", "torch.device('cpu')"), {"__name__": "__main__"})
    expected = capsys.readouterr().out.split()[1]
    for done in (run("--workers", 2, "--memory", "64MiB", script, 0.1), run("--address", cluster.address, script, 0.1),
                 run(script, 0.1, TESSERA_ADDRESS=cluster.address)):
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["tessera", expected], done.stderr


def test_what_it_can_not_run_is_said_in_a_line(script, tmp_path, cluster):
    for arguments, said in ((("--address", cluster.address, tmp_path / "absent.py"), "there is no file"),
                            (("--address", "tls://", script), "address"),
                            (("--address", cluster.address, "--workers", 2, script), "--workers, --memory and --device are for one that is started")):
        done = run(*arguments)
        assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_an_error_of_the_script_is_its_own_traceback_and_status(tmp_path, cluster):
    (tmp_path / "fails.py").write_text("import torch\ntorch.ones(3, device='tessera').reshape(2)\n")
    done = run("--address", cluster.address, tmp_path / "fails.py")
    assert done.returncode == 1 and 'fails.py", line 2' in done.stderr and "reshape" in done.stderr
    (tmp_path / "ends.py").write_text("raise SystemExit(7)\n")
    assert run("--address", cluster.address, tmp_path / "ends.py").returncode == 7


def test_torchs_names_for_meshes(session):
    mesh = tt.init_device_mesh("tessera", (2, 2), mesh_dim_names=("dp", "tp"))
    assert isinstance(mesh, tt.DeviceMesh) and isinstance(mesh, ts.DeviceMesh) and mesh["tp"].size() == 2
    assert tt.init_device_mesh().size() == 4 and tt.init_device_mesh(torch.device("tessera"), (4,)).size() == 4
    with pytest.raises(ts.InvalidArgumentError, match="device type is 'xla', workers are cpu or cuda"):
        tt.init_device_mesh("xla", (4,))
