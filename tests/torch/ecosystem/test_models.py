"""Models of transformers, torchvision, timm and diffusers: losses, gradients and tokens are those of the CPU."""

import copy
import warnings

import pytest

transformers = pytest.importorskip("transformers", reason="transformers isn't installed; tools/setup_ecosystem installs it")
import torch
from kinds_of_models import GENERATING, KINDS, PLANS, WITHOUT_LINEAR_LAYERS, inputs_of, make

import tessera as ts
import tessera.torch as tt
from tessera.torch.parallel import parallelize_module, tp_plan


def on_mesh(value, mesh, placements):
    return tt.distribute_tensor(value, mesh, placements) if isinstance(value, torch.Tensor) else value


def assert_same_gradients(model, other, tolerance):
    """Each gradient within the tolerance of the largest element, of all gradients where its own are close to zero."""
    largest = max(p.grad.abs().max().item() for p in other.parameters() if p.grad is not None)
    for (name, mine), its in zip(model.named_parameters(), other.parameters()):
        assert (mine.grad is None) == (its.grad is None), name
        if mine.grad is not None:
            off = (mine.grad.cpu() - its.grad).abs().max().item()
            assert off <= tolerance * max(its.grad.abs().max().item(), 1e-3 * largest), f"{name}: off by {off}"


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_of_a_batch_in_shards(kind, mesh):
    model = make(kind)
    other, inputs = copy.deepcopy(model), inputs_of(kind)
    expected = other(**inputs).loss
    expected.backward()
    loss = model.to("tessera")(**{name: on_mesh(value, mesh, [ts.Shard(0)]) for name, value in inputs.items()}).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(model, other, 1e-3 if kind == "CLIP" else 1e-5)      # CLIP's terms cancel each other


def assert_same_tokens(model, other, kind, **options):
    inputs = {name: value for name, value in inputs_of(kind, 2).items() if name != "labels"}
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, **options}
    expected = other.generate(**inputs, **options)
    assert expected.shape[1] >= 4
    assert torch.equal(model.generate(**{name: value.to("tessera") for name, value in inputs.items()}, **options).cpu(), expected)


@pytest.mark.parametrize("beams", [1, 2], ids=["greedy", "beams"])
@pytest.mark.parametrize("kind", GENERATING)
def test_tokens(kind, beams, mesh):
    model = make(kind)
    other = copy.deepcopy(model)
    assert_same_tokens(model.to("tessera"), other, kind, num_beams=beams)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in WITHOUT_LINEAR_LAYERS])
def test_tensor_parallel_by_a_plan(kind, mesh):
    """The model's own plan, or one for its kind: losses, gradients and tokens of the whole model."""
    model = make(kind)
    other, inputs = copy.deepcopy(model), inputs_of(kind)
    with warnings.catch_warnings():
        if kind in PLANS:       # a model's own plan also names layers that other configurations have
            warnings.simplefilter("error")
        plan = tp_plan(model, PLANS.get(kind))
    parallelize_module(model, mesh, plan)
    assert any(p.placements[0].is_shard() for p in model.parameters())
    expected = other(**inputs).loss
    expected.backward()
    loss = model(**{name: on_mesh(value, mesh, [ts.Replicate()]) for name, value in inputs.items()}).loss
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(model, other, 1e-3 if kind == "CLIP" else 2e-5)
    if kind in GENERATING:
        assert_same_tokens(model, other, kind)


def compare(model, mesh, *inputs, tolerance=1e-9):
    """In f64, where batch norms over few numbers are exact enough to compare."""
    model = model.double()
    other = copy.deepcopy(model)
    said = other(*inputs)
    said = said if isinstance(said, torch.Tensor) else said.sample
    said.square().mean().backward()
    here = model.to("tessera")(*(on_mesh(one, mesh, [ts.Shard(0)] if one.ndim else [ts.Replicate()]) for one in inputs))
    here = here if isinstance(here, torch.Tensor) else here.sample
    here.square().mean().backward()
    torch.testing.assert_close(here.cpu(), said, rtol=tolerance, atol=tolerance)
    assert_same_gradients(model, other, 1e-6)


def images(size):
    return torch.randn(4, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "shufflenet_v2_x0_5"])
def test_torchvision(name, mesh):
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    model = getattr(models, name)(num_classes=10)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    compare(model, mesh, images(64))


@pytest.mark.parametrize("name, options", [("vit_tiny_patch16_224", {"img_size": 32, "depth": 2}), ("resnet10t", {}), ("convnext_atto", {"depths": (1, 1, 1, 1)})])
def test_timm(name, options, mesh):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    compare(timm.create_model(name, num_classes=10, **options), mesh, images(32))


def test_diffusers(mesh):
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    unet = diffusers.UNet2DModel(sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
                                 down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4)
    compare(unet, mesh, images(16), torch.tensor(10), tolerance=1e-7)
