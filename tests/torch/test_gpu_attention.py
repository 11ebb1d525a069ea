"""Attention on GPU workers of the emulated driver: a training step computes each attention once, and its gradients by what that kept."""

import contextlib
import os
import pathlib

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

EMULATED_DRIVER = pathlib.Path(__file__).resolve().parents[2] / "bazel-bin/tests/emulator/cuda"


@contextlib.contextmanager
def emulated_gpus(workers, **settings):
    if not (EMULATED_DRIVER / "libcuda.so.1").exists():
        pytest.skip("no emulated driver: the CUDA toolkit (nvcc) was not there when this was built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_LIBRARY_PATH", f"{EMULATED_DRIVER}:{os.environ.get('LD_LIBRARY_PATH', '')}")
        patch.setenv("TESSERA_CUDNN_LEAST", "0")
        for name, value in settings.items():
            patch.setenv(name, value)
        with ts.local_cluster(workers=workers, device="cuda", memory="64MiB") as cluster:
            yield cluster


@pytest.fixture(scope="module")
def gpus():
    with emulated_gpus(2) as cluster:
        yield cluster


def operands(heads):
    torch.manual_seed(3)
    shapes = [(2, 4, 16, 8), (2, heads, 24, 8), (2, heads, 24, 8)]
    return [torch.randn(shape).bfloat16() for shape in shapes], torch.randn(2, 4, 16, 8).bfloat16(), torch.randn(16, 24)


def gradients(given, g, mask, move, **options):
    own = [move(one).requires_grad_() for one in given]
    mask = None if mask is None else move(mask)
    out = F.scaled_dot_product_attention(*own, attn_mask=mask, enable_gqa=True, **options)
    out.backward(move(g))
    return [out.detach(), *(one.grad for one in own)]


@pytest.mark.parametrize("placement", [ts.Replicate(), ts.Shard(1)], ids=str)
@pytest.mark.parametrize("heads, masked", [(4, False), (2, False), (4, True), (2, True)])
def test_gradients_go_by_the_logarithms_that_the_forward_pass_kept(gpus, heads, masked, placement):
    given, g, mask = operands(heads)
    mask = mask if masked else None
    wanted = gradients([one.float() for one in given], g.float(), mask, lambda one: one.clone(), is_causal=not masked)
    with gpus.connect() as session, tt.default_placement(session.default_mesh):
        def move(one):
            return tt.distribute_tensor(one, session.default_mesh, [placement if one.ndim == 4 else ts.Replicate()])

        with session.profile() as profile:
            got = gradients(given, g, mask, move, is_causal=not masked)
            got = [one.cpu().float() for one in got]
        names = {op.name for op in profile.ops}
        assert "scaled_dot_product_attention_and_logarithms" in names and "scaled_dot_product_attention_backward_of_result" in names, names
    for one, other in zip(got, wanted):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.04)


def test_one_plan_gives_the_result_and_the_logarithms():
    """The first launch of a kernel would fail, and there is none."""
    given, _, _ = operands(4)
    with emulated_gpus(1, TESSERA_EMULATOR_FAIL="cuLaunchKernel:1:1") as cluster, cluster.connect() as session:
        with tt.default_placement(session.default_mesh):
            own = [one.to("tessera").requires_grad_() for one in given]
            out = F.scaled_dot_product_attention(*own)
            assert out.requires_grad and out.cpu().isfinite().all()


def test_a_compiled_step_keeps_them_too(gpus):
    given, g, _ = operands(4)
    wanted = gradients([one.float() for one in given], g.float(), None, lambda one: one.clone(), is_causal=True)
    attention = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    with gpus.connect() as session, tt.default_placement(session.default_mesh):
        own = [one.to("tessera").requires_grad_() for one in given]
        with session.profile() as profile:
            out = attention(*own)
            out.backward(g.to("tessera"))
            got = [one.cpu().float() for one in (out.detach(), *(one.grad for one in own))]
        names = {op.name for op in profile.ops}
        assert "scaled_dot_product_attention_backward_of_result" in names, names
    for one, other in zip(got, wanted):
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.04)


def test_without_gradients_nothing_is_kept(gpus):
    given, _, _ = operands(4)
    with gpus.connect() as session, tt.default_placement(session.default_mesh):
        moved = [one.to("tessera") for one in given]
        with session.profile() as profile:
            F.scaled_dot_product_attention(*moved).cpu()
        names = {op.name for op in profile.ops}
        assert "scaled_dot_product_attention" in names and "scaled_dot_product_attention_and_logarithms" not in names, names
