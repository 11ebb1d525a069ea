"""A classifier of handwritten digits, whose parameters, gradients and optimizer state are in shards on four workers.

    tools/python --torch examples/digits_fsdp.py [--epochs 8]

The data are the UCI digits (tools/digits): 1,797 images of 8x8. Prints the loss and how many images of the test part are read
right, by epoch; then saves a checkpoint and reads it into a module of torch alone, which must read the same.
"""

import argparse
import pathlib
import tempfile

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tessera as ts
import tessera.torch as tt
from tessera.demo import load_digits

BATCH, TEST = 96, 357


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def classifier(width=64):
    return nn.Sequential(nn.Linear(64, width), Residual(width), Residual(width), nn.Linear(width, 10))


def shard(model, mesh):
    """Each layer is a unit, gathered before its use and let go after it."""
    for layer in model:
        tt.fully_shard(layer, mesh=mesh)
    return tt.fully_shard(model, mesh=mesh)


def read_right(model, images, labels) -> int:
    model.eval()
    with torch.no_grad():
        out = int((model(images).argmax(1) == labels).sum().item())
    model.train()
    return out


def main(epochs: int) -> float:
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(one) for one in load_digits())
    images = images / 16
    order = torch.randperm(len(images))
    train, test = order[TEST:], order[:TEST]
    loader = DataLoader(TensorDataset(images[train], labels[train]), batch_size=BATCH, shuffle=True)
    with ts.local_cluster(workers=4, memory="256MiB") as cluster, cluster.connect() as session:
        mesh = session.init_device_mesh((4,), mesh_dim_names=("dp",))
        model = shard(classifier(), mesh)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=epochs * len(loader))
        on_mesh = [tt.distribute_tensor(one[test], mesh, [ts.Shard(0)]) for one in (images, labels)]
        for epoch in range(epochs):
            losses = []
            for batch in loader:
                x, y = (tt.distribute_tensor(one, mesh, [ts.Shard(0)]) for one in batch)
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                losses.append(loss.detach())        # nothing waits for it before the epoch's end
            mean = sum(one.item() for one in losses) / len(losses)
            right = read_right(model, *on_mesh)
            print(f"epoch {epoch + 1}: loss {mean:.3f}, {right} of {TEST} read right", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "digits"
            tt.save(path, {"model": model, "optimizer": optimizer, "epoch": epochs})
            alone = classifier()
            tt.load(path, {"model": alone, "optimizer": torch.optim.AdamW(alone.parameters()), "epoch": 0})
            print(f"a checkpoint of {len(list(path.glob('*.safetensors')))} files; torch alone reads "
                  f"{read_right(alone, images[test], labels[test])} of {TEST} right")
    return right / TEST


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=8)
    main(parser.parse_args().epochs)
