"""flex_attention: scores and masks by functions, equal to torch's on the CPU, with gradients, wherever batches and heads lie."""

import pytest
import torch
from models import R, S
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention

import tessera as ts
import tessera.torch as tt

B, H, L, K, E = 2, 4, 6, 10, 8
PLACES = [[R, R], [S(0), S(1)], [S(1), R]]
BIAS, SLOPES, DOCUMENTS = torch.randn(H, L + K), torch.rand(H), torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2, 3])
SCORES = {
    "none": lambda bias, slopes: None,
    "alibi": lambda bias, slopes: lambda s, b, h, q, k: s + slopes[h] * (k - q),
    "relative": lambda bias, slopes: lambda s, b, h, q, k: s + bias[h, q - k + K],
    "soft cap": lambda bias, slopes: lambda s, b, h, q, k: 5 * torch.tanh(s / 5),
    "causal": lambda bias, slopes: lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")),
}
MASKS = {
    "none": lambda documents: None,
    "causal": lambda documents: lambda b, h, q, k: q >= k,
    "documents": lambda documents: lambda b, h, q, k: documents[q] == documents[k],
    "window": lambda documents: and_masks(lambda b, h, q, k: q >= k, lambda b, h, q, k: q - k < 3),
    "no key": lambda documents: lambda b, h, q, k: (q > 1) & (k < 4 + h + b),
}


def by_hand(q, k, v, score_mod, mask_mod, scale=None):
    """Each score by itself; torch's own has no gradient on the CPU."""
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1).expand(q.shape[0], -1, -1, -1) for one in (k, v))
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    rows = []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                for j in range(k.shape[2]):
                    at = [torch.tensor(n) for n in (b, h, i, j)]
                    score = scores[b, h, i, j] if score_mod is None else score_mod(scores[b, h, i, j], *at)
                    rows.append(score if mask_mod is None or mask_mod(*at) else torch.tensor(float("-inf")))
    scores = torch.stack(rows).reshape(scores.shape)
    sees_none = (scores == float("-inf")).all(-1, keepdim=True)
    weights = torch.where(sees_none, 0.0, torch.softmax(torch.where(sees_none, 0.0, scores), -1))
    return weights @ v, scores.detach().logsumexp(-1)


def operands(heads=H, batch=B):
    return torch.randn(B, H, L, E), torch.randn(batch, heads, K, E), torch.randn(batch, heads, K, 5)


@pytest.mark.parametrize("score, mask", [*((one, "none") for one in SCORES), *(("alibi", one) for one in MASKS)])
def test_scores_and_masks_are_torch_s(mesh22, score, mask):
    q, k, v = (one.requires_grad_() for one in operands())
    bias, slopes = BIAS.clone().requires_grad_(), SLOPES.clone().requires_grad_()
    mask_mod = MASKS[mask](DOCUMENTS)
    expected, lse = by_hand(q, k, v, SCORES[score](bias, slopes), mask_mod)
    with torch.no_grad():
        block = None if mask_mod is None else create_block_mask(mask_mod, B, H, L, K, device="cpu")
        torchs = flex_attention(*(one.detach() for one in (q, k, v)), score_mod=SCORES[score](bias.detach(), slopes.detach()), block_mask=block)
    torch.testing.assert_close(torchs, expected.detach(), rtol=1e-5, atol=1e-5)
    g = torch.randn_like(expected)
    expected.backward(g)
    for place in PLACES:
        there = [tt.distribute_tensor(one.detach(), mesh22, place).requires_grad_() for one in (q, k, v)]
        held = [one.detach().to("tessera").requires_grad_() for one in (bias, slopes)]
        mask_there = MASKS[mask](DOCUMENTS.to("tessera"))
        block = None if mask_there is None else create_block_mask(mask_there, B, H, L, K, device="tessera")
        out, found = flex_attention(*there, score_mod=SCORES[score](*held), block_mask=block, return_lse=True)
        assert out.placements == tuple(place)
        torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.detach().cpu(), lse, rtol=1e-5, atol=1e-5)
        out.backward(g.to("tessera"))
        for one, wanted in zip((*there, *held), (q, k, v, bias, slopes)):
            if wanted.grad is not None:
                torch.testing.assert_close(one.grad.cpu(), wanted.grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_heads_that_share_keys_and_a_batch_for_all(mesh22, place):
    q, k, v = operands(heads=2)
    mod = SCORES["alibi"](None, SLOPES)
    for keys, values in ((k, v), (k[:1], v[:1])):
        leaves = [one.clone().requires_grad_() for one in (q, keys, values)]
        expected, lse = by_hand(*leaves, mod, None, scale=0.3)
        expected.square().sum().backward()
        there = [tt.distribute_tensor(one, mesh22, place if one.shape[0] > 1 else [R, R]).requires_grad_() for one in (q, keys, values)]
        slopes = SLOPES.to("tessera")
        out, aux = flex_attention(*there, score_mod=SCORES["alibi"](None, slopes), scale=0.3, enable_gqa=True,
                                  return_aux=AuxRequest(lse=True, max_scores=True))
        out.square().sum().backward()
        torch.testing.assert_close(out.detach().cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(aux.lse.detach().cpu(), lse, rtol=1e-5, atol=1e-5)
        assert aux.max_scores.shape == lse.shape and bool((aux.max_scores <= aux.lse).all())
        for one, wanted in zip(there, leaves):
            torch.testing.assert_close(one.grad.cpu(), wanted.grad, rtol=1e-5, atol=1e-5)


def test_shards_of_batches_and_heads_move_nothing(session):
    mesh = session.init_device_mesh((2, 2))
    q, k, v = (tt.distribute_tensor(one, mesh, [S(0), S(1)]).requires_grad_() for one in operands())
    with tt.default_placement(mesh), session.comm_debug() as comm:
        out = flex_attention(q, k, v, score_mod=SCORES["soft cap"](None, None), block_mask=create_block_mask(MASKS["causal"](None), 1, 1, L, K, device="cpu"))
        out.backward(tt.distribute_tensor(torch.ones(B, H, L, 5), mesh, [S(0), S(1)]))
    assert comm.total_bytes == 0 and q.grad.placements == q.placements


def test_compiled_and_half_precision(mesh):
    q, k, v = (one.to("tessera") for one in operands())
    plain = flex_attention(q, k, v, score_mod=SCORES["soft cap"](None, None))
    compiled = torch.compile(flex_attention)
    for _ in range(3):
        assert torch.equal(compiled(q, k, v, score_mod=SCORES["soft cap"](None, None)).cpu(), plain.cpu())
    with torch.autocast("tessera", dtype=torch.bfloat16):
        half = flex_attention(q, k, v)
    assert half.dtype is torch.bfloat16
    torch.testing.assert_close(half.float().cpu(), flex_attention(q, k, v).cpu(), rtol=2e-2, atol=2e-2)


def test_what_does_not_fit_is_said(mesh):
    q, k, v = (one.to("tessera") for one in operands(heads=2))
    with pytest.raises(ts.InvalidArgumentError, match="flex_attention: 4 heads of queries beside 2: enable_gqa"):
        flex_attention(q, k, v)
    with pytest.raises(ts.InvalidArgumentError, match="flex_attention: the dtypes differ"):
        flex_attention(q, k.double(), v, enable_gqa=True)
    with pytest.raises(ts.InvalidArgumentError, match="flex_attention: query and key have other features"):
        flex_attention(q, k[..., :4], v, enable_gqa=True)
