"""Detection of torchvision, and what diffusers makes images with: losses, gradients, boxes and images are those of the CPU."""

import copy

import pytest

torchvision = pytest.importorskip("torchvision", reason="torchvision isn't installed; tools/setup_ecosystem installs it")
diffusers = pytest.importorskip("diffusers", reason="diffusers isn't installed; tools/setup_ecosystem installs it")
import torch
from torchvision.models.detection import FasterRCNN, RetinaNet
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.ops import MultiScaleRoIAlign, batched_nms, box_iou, nms, roi_align

import tessera as ts
import tessera.torch as tt


def drawn(*shape, seed=1):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def boxes_of(count, size=20.0, seed=1):
    boxes = drawn(count, 4, seed=seed) * size
    return torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], 1)


class Backbone(torch.nn.Module):
    out_channels = 8

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, 2, 1))

    def forward(self, x):
        return self.layers(x)


SIZE = {"min_size": 32, "max_size": 32}
ANCHORS = AnchorGenerator(((8, 16),), ((1.0,),))


def retina():
    model = RetinaNet(Backbone(), 3, anchor_generator=ANCHORS, score_thresh=0.2, **SIZE)
    with torch.no_grad():       # scores that differ, as those of a model that has learned
        for own in model.head.parameters():
            own.copy_(torch.randn(own.shape) * 0.2)
    return model


def faster():
    return FasterRCNN(Backbone(), 3, rpn_anchor_generator=ANCHORS, box_roi_pool=MultiScaleRoIAlign(["0"], 3, 2), box_score_thresh=0.01, **SIZE)


def assert_same_gradients(model, other, tolerance=1e-5):
    largest = max(p.grad.abs().max().item() for p in other.parameters() if p.grad is not None)
    for (name, mine), its in zip(model.named_parameters(), other.parameters()):
        assert (mine.grad is None) == (its.grad is None), name
        if mine.grad is not None:
            assert (mine.grad.cpu() - its.grad).abs().max().item() <= tolerance * largest, name


@pytest.mark.parametrize("make", [retina, faster], ids=lambda make: make.__name__)
def test_a_detector_trains_and_finds_boxes(mesh, make):
    torch.manual_seed(0)
    other = make()
    model = copy.deepcopy(other).to("tessera")
    images = [drawn(3, 32, 32, seed=seed) for seed in range(2)]
    targets = [{"boxes": torch.tensor([[2.0, 3.0, 14.0, 20.0], [10.0, 8.0, 30.0, 28.0]]), "labels": torch.tensor([1, 2])} for _ in images]
    expected = other(images, targets)
    said = model([one.to("tessera") for one in images], [{name: value.to("tessera") for name, value in one.items()} for one in targets])
    for name, value in expected.items():
        assert said[name].item() == pytest.approx(value.item(), rel=1e-5), name
    sum(expected.values()).backward()
    sum(said.values()).backward()
    assert_same_gradients(model, other)
    with torch.no_grad():
        theirs = other.eval()(images)
        for mine, its in zip(model.eval()([one.to("tessera") for one in images]), theirs):
            assert len(its["boxes"]) and torch.equal(mine["labels"].cpu(), its["labels"])
            torch.testing.assert_close(mine["boxes"].cpu(), its["boxes"], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(mine["scores"].cpu(), its["scores"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 60])
@pytest.mark.parametrize("place", [ts.Replicate(), ts.Shard(0)], ids=str)
def test_boxes_that_overlap_are_left_out(mesh, count, place):
    boxes, scores, classes = boxes_of(count), drawn(count, seed=2), (drawn(count, seed=3) * 3).long()
    here = [tt.distribute_tensor(one, mesh, [place]) for one in (boxes, scores, classes)]
    assert torch.equal(nms(*here[:2], 0.3).cpu(), nms(boxes, scores, 0.3))
    assert torch.equal(batched_nms(*here, 0.3).cpu(), batched_nms(boxes, scores, classes, 0.3))
    torch.testing.assert_close(box_iou(here[0], here[0]).cpu(), box_iou(boxes, boxes))


@pytest.mark.parametrize("options", [{"sampling_ratio": 2}, {}, {"aligned": True, "spatial_scale": 0.5}], ids=str)
def test_features_of_boxes(mesh, options):
    x, boxes = drawn(2, 3, 12, 12), [boxes_of(3, 6.0), boxes_of(2, 6.0, seed=4)]
    leaves = [x.clone().requires_grad_(), x.to("tessera").requires_grad_()]
    here, there = (roi_align(leaf, [one.to(leaf.device) for one in boxes], (2, 3), **options) for leaf in leaves)
    torch.testing.assert_close(there.cpu(), here, rtol=1e-5, atol=1e-5)
    here.square().sum().backward()
    there.square().sum().backward()
    torch.testing.assert_close(leaves[1].grad.cpu(), leaves[0].grad, rtol=1e-5, atol=1e-5)
    with torch.inference_mode():
        torch.testing.assert_close(roi_align(leaves[1].detach(), [one.to("tessera") for one in boxes], (2, 3), **options).cpu(), here.detach(), rtol=1e-5, atol=1e-5)


def test_a_vision_transformer_of_torchvision(mesh):
    torch.manual_seed(0)
    other = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=64, num_classes=10)
    torch.nn.init.normal_(other.heads.head.weight)
    model, images, labels = copy.deepcopy(other).to("tessera"), drawn(4, 3, 32, 32), torch.arange(4)
    expected = torch.nn.functional.cross_entropy(other(images), labels)
    said = torch.nn.functional.cross_entropy(model(*[tt.distribute_tensor(images, mesh, [ts.Shard(0)])]), labels.to("tessera"))
    expected.backward()
    said.backward()
    assert said.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(model, other)


def dit():
    torch.manual_seed(0)
    model = diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=8,
                                            patch_size=2, norm_num_groups=4, num_embeds_ada_norm=10)
    for own in model.parameters():      # what starts at zero hides what is before it
        torch.nn.init.normal_(own, std=0.1)
    for module in model.modules():
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    return model


def test_a_step_of_a_diffusion_transformer(mesh):
    other = dit()
    model = copy.deepcopy(other).to("tessera")
    steps = diffusers.DDPMScheduler(num_train_timesteps=50)
    images, noise, times, classes = drawn(4, 4, 8, 8), drawn(4, 4, 8, 8, seed=2), torch.tensor([3, 10, 20, 40]), torch.tensor([1, 2, 3, 4])
    losses = []
    for one, device in ((other, "cpu"), (model, "tessera")):
        optimizer = torch.optim.AdamW(one.parameters(), lr=1e-3, fused=device == "tessera")
        x, e, t, c = (tensor.to(device) for tensor in (images, noise, times, classes))
        for _ in range(3):
            loss = torch.nn.functional.mse_loss(one(steps.add_noise(x, e, t), timestep=t, class_labels=c).sample, e)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    assert losses[3:] == pytest.approx(losses[:3], rel=1e-5)


@pytest.mark.parametrize("scheduler", ["DDIMScheduler", "EulerDiscreteScheduler", "DPMSolverMultistepScheduler"])
def test_a_scheduler_brings_noise_to_an_image(mesh, scheduler):
    model = dit().eval()
    said = []
    for device in ("cpu", "tessera"):
        steps, one = getattr(diffusers, scheduler)(num_train_timesteps=50), model.to(device)
        steps.set_timesteps(4, device=device)
        x = (drawn(2, 4, 8, 8, seed=5) * 2 - 1).to(device) * steps.init_noise_sigma
        with torch.no_grad():
            for t in steps.timesteps:
                out = one(steps.scale_model_input(x, t), timestep=t.expand(2), class_labels=torch.tensor([1, 2], device=device)).sample
                x = steps.step(out, t, x).prev_sample
        said.append(x.cpu())
    torch.testing.assert_close(*said, rtol=1e-4, atol=1e-4)
