"""Questions that programs around a model ask of a device: pinned memory, storages to save by, streams, properties, a generator of the CPU."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import tessera as ts
import tessera.torch as tt  # noqa: F401


def test_loaders_pin_memory(session):
    data = torch.utils.data.TensorDataset(torch.arange(12.0).reshape(6, 2), torch.arange(6))
    sums = [(x.to("tessera", non_blocking=True).sum().item(), int(y.sum())) for x, y in torch.utils.data.DataLoader(data, batch_size=4, pin_memory=True)]
    assert sums == [(28.0, 6), (38.0, 9)]


def test_pinned_memory_is_known_as_long_as_it_is_there():
    x = torch.arange(1000.0).pin_memory()
    assert x.is_pinned() and x[10:20].is_pinned() and not torch.arange(1000.0).is_pinned() and x.device.type == "cpu"
    assert x.tolist() == list(range(1000))
    assert x.pin_memory() is x and x.clone().is_pinned() is False
    empty = torch.empty(0).pin_memory()
    assert empty.numel() == 0
    for _ in range(200):        # what is given up is known no more
        torch.empty(1000).pin_memory()
    assert x.is_pinned()


def test_a_storage_says_who_shares_it(session):
    x = torch.arange(12.0).reshape(3, 4).to("tessera")
    y, other = x[1], x.clone()
    assert x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() == x.data_ptr() != other.untyped_storage().data_ptr()
    assert y.data_ptr() == x.data_ptr() + 4 * 4 and x.untyped_storage().nbytes() == y.untyped_storage().nbytes() == 48
    assert x.untyped_storage() == y.untyped_storage() and x.untyped_storage().device == x.device
    with pytest.raises(ts.FailedPreconditionError, match=r"untyped_storage\(\).tolist: .* lives on workers"):
        x.untyped_storage().tolist()


def test_safetensors_saves_models_with_tied_parameters(session, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    model, path = Tied().to("tessera"), tmp_path / "model.safetensors"
    safetensors.save_model(model, path)
    assert len(safetensors.load_file(path)) == 1
    other = Tied().to("tessera")
    safetensors.load_model(other, path)
    assert torch.equal(other.head.weight.cpu(), model.embed.weight.cpu())
    plain = nn.Linear(3, 2).to("tessera")
    safetensors.save_file(plain.state_dict(), tmp_path / "plain.safetensors")
    assert torch.equal(safetensors.load_file(tmp_path / "plain.safetensors")["weight"], plain.weight.detach().cpu())
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors.save_file({"a": model.embed.weight, "b": model.head.weight}, tmp_path / "twice.safetensors")


def test_streams_and_properties(session):
    stream = torch.Stream("tessera")
    assert stream.device.type == "tessera"
    with stream:
        x = torch.ones(3, device="tessera") + 1
    stream.synchronize()
    assert x.tolist() == [2, 2, 2]
    properties = torch.tessera.get_device_properties(0)
    assert torch.tessera.get_device_name(0) == properties.name == "tessera"
    assert properties.multi_processor_count == len(session.status()["workers"]) and properties.total_memory > 0


def test_a_generator_of_the_cpu_decides_what_is_drawn(session):
    def draw(seed):
        generator = torch.Generator().manual_seed(seed)
        return [torch.randn(4, generator=generator, device="tessera").tolist() for _ in range(2)]
    assert draw(3) == draw(3) != draw(4) and draw(3)[0] != draw(3)[1]


@pytest.mark.parametrize("made_for", ["torch 2.12.0+cu130, Python 3.11", None])
def test_a_device_of_another_torch_says_that_it_is_compiled_again(tmp_path, made_for):
    """Before it is loaded: it would be a missing symbol, or worse."""
    from tessera.torch_device import stamp, stamp_path
    device = tmp_path / "libtessera_torch.so"
    device.write_bytes(b"is never loaded")
    if made_for is not None:
        stamp_path(device).write_text(made_for)
    done = subprocess.run([sys.executable, "-c", "import tessera.torch"], capture_output=True, text=True,
                          env={**os.environ, "TESSERA_TORCH_DEVICE": str(device)})
    assert done.returncode == 1
    assert (f"{device} was compiled for {made_for or 'an unknown torch'}, and this is {stamp(torch.__version__)}; compile it again: "
            f"{sys.executable} -m tessera.torch_device") in done.stderr
