"""Lightning's Trainer and Fabric on the device: by name, by "auto", in shards, in half precision, with checkpoints."""

import pytest

L = pytest.importorskip("lightning", reason="lightning isn't installed; tools/setup_ecosystem installs it")
import torch

import tessera as ts
from tiny import assert_equal_states

QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}


class Classifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        self.losses, self.seen, self.places = [], [], []

    def training_step(self, batch, number):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.layers(x), y)
        self.log("train_loss", loss)
        self.losses.append(loss.detach())
        self.seen.append(x)
        self.places.append(str(getattr(self.layers[0].weight, "placements", None)))
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("accuracy", (self.layers(x).argmax(-1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}


def batches():
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8, generator=generator), torch.randint(0, 4, (32,), generator=generator))
    return torch.utils.data.DataLoader(data, batch_size=8)


def fit(**options):
    model, trainer = Classifier(), L.Trainer(max_epochs=2, **{**QUIET, "enable_checkpointing": False, **options})
    trainer.fit(model, batches(), batches())
    return model, trainer, [loss.item() for loss in model.losses]


@pytest.mark.parametrize("options", [{}, {"accelerator": "tessera"}, {"accelerator": "tessera", "strategy": "tessera"}, {"devices": 1}])
def test_a_trainer_trains_on_the_device_as_on_the_cpu(mesh, options):
    model, trainer, losses = fit(**options)
    assert trainer.strategy.root_device.type == "tessera" and model.seen[0].device.type == "tessera"
    assert str(model.seen[0].placements) == "(Shard(0),)" and set(model.places) == {"(Replicate(),)"}
    assert model.layers[0].weight.device.type == "cpu"      # where Lightning leaves a model after fit
    on_cpu, there, expected = fit(accelerator="cpu")
    assert losses == pytest.approx(expected, rel=1e-5)
    for name in ("train_loss", "accuracy"):
        assert float(trainer.callback_metrics[name]) == pytest.approx(float(there.callback_metrics[name]), rel=1e-5)
    assert_equal_states(model, on_cpu, 1e-4)


def test_parameters_in_shards(mesh22):
    from lightning.pytorch.strategies import StrategyRegistry
    strategy = StrategyRegistry["tessera"]["strategy"](mesh=mesh22, batch_dims="dp", shard_parameters=True)
    model, trainer, losses = fit(strategy=strategy, accelerator="tessera")
    _, _, expected = fit(accelerator="cpu")
    assert set(model.places) == {"(Shard(0), Replicate())"} and str(model.seen[0].placements) == "(Shard(0), Replicate())"
    assert str(model.layers[0].weight.placements) == "(Shard(0), Replicate())"
    assert losses == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed", "bf16-true"])
def test_half_precision(mesh, precision):
    _, trainer, losses = fit(precision=precision)
    assert getattr(trainer.precision_plugin, "device", "tessera") == "tessera"
    _, _, expected = fit(accelerator="cpu", precision="32-true")
    assert losses == pytest.approx(expected, rel=5e-2)


def test_a_checkpoint_is_read_by_lightning_on_the_cpu_and_goes_on(mesh, tmp_path):
    model, trainer, _ = fit()
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    on_cpu = Classifier.load_from_checkpoint(tmp_path / "last.ckpt", map_location="cpu")
    assert next(on_cpu.parameters()).device.type == "cpu"
    assert_equal_states(on_cpu, model, 0)
    again = Classifier()
    trainer = L.Trainer(max_epochs=3, enable_checkpointing=False, **QUIET)
    trainer.fit(again, batches(), batches(), ckpt_path=tmp_path / "last.ckpt")
    assert trainer.current_epoch == 3 and set(again.places) == {"(Replicate(),)"} and len(again.losses) == 4


def test_fabric_runs_a_loop_on_the_device(mesh):
    def run(**options):
        fabric = L.Fabric(**options)
        model = Classifier().layers
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        losses = []
        for x, y in fabric.setup_dataloaders(batches()):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return fabric.device.type, losses

    (device, losses), (on_cpu, expected) = run(), run(accelerator="cpu")
    assert (device, on_cpu) == ("tessera", "cpu") and losses == pytest.approx(expected, rel=1e-5)


def test_more_than_one_device_is_refused_by_name(mesh):
    with pytest.raises(Exception, match="devices=4: a pool is one device, whatever workers it has"):
        L.Trainer(accelerator="tessera", devices=4, **QUIET)


def test_without_a_session_the_cpu_is_taken_and_said(monkeypatch):
    from tessera import _context
    monkeypatch.setattr(_context, "open_sessions", list)
    with pytest.warns(UserWarning, match="Lightning takes the CPU: no session is open"):
        assert L.Trainer(**QUIET).strategy.root_device.type == "cpu"
    with pytest.raises(Exception, match="the accelerator is not available"):
        L.Trainer(accelerator="tessera", **QUIET)
