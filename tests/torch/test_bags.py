"""Bags of rows, samples of images and biases of attention: on every placement of their operands, and what moves for them."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from kinds import KINDS
from models import same_start

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
NUMBERS = torch.tensor([1, 4, 4, 0, 2, 2, 2, 6, 1, 0, 3, 5])
STARTS = torch.tensor([0, 2, 2, 7])     # the second bag is empty


def drawn(*shape, seed=1):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compared(function, arrays, mesh, placements):
    """The result and the gradients of all that have some, here and there."""
    here = [x.clone().requires_grad_(x.is_floating_point()) for x in arrays]
    there = [tt.distribute_tensor(x, mesh, [place]).requires_grad_(x.is_floating_point()) for x, place in zip(arrays, placements)]
    expected, got = function(*here), function(*there)
    torch.testing.assert_close(got.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-5)
    weights = drawn(*expected.shape, seed=2)
    (expected * weights).sum().backward()
    (got * tt.distribute_tensor(weights, mesh)).sum().backward()
    for one, other in zip(there, here):
        if other.grad is not None:
            torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-3, atol=1e-4)


OPTIONS = [{}, {"padding_idx": 2}, {"include_last_offset": True}, {"scale_grad_by_freq": True}]


@pytest.mark.parametrize("mode, options", [(mode, options) for mode in ("sum", "mean", "max") for options in OPTIONS[:3 if mode == "max" else 4]], ids=str)
def test_bags_on_every_placement(mesh, mode, options):
    starts = torch.tensor([0, 2, 2, 7, 12]) if "include_last_offset" in options else STARTS
    for places in itertools.product([R, S(0), S(1)], [R, S(0)], [R, S(0)]):
        compared(lambda w, x, o: F.embedding_bag(x, w, o, mode=mode, **options), [drawn(7, 5), NUMBERS, starts], mesh, places)


def test_bags_with_weights_of_their_own(mesh):
    for places in itertools.product([R, S(0), S(1)], [R, S(0)], [R, S(0)]):
        compared(lambda w, x, p: F.embedding_bag(x, w, STARTS.to(x.device), mode="sum", per_sample_weights=p, padding_idx=2),
                 [drawn(7, 5), NUMBERS, drawn(12, seed=3)], mesh, places)


def test_bags_without_numbers(mesh):
    weight = tt.distribute_tensor(drawn(7, 5), mesh, [S(0)]).requires_grad_()
    none, starts = (tt.distribute_tensor(torch.zeros(n, dtype=torch.int64), mesh) for n in (0, 2))
    for mode in ("sum", "mean", "max"):
        out = F.embedding_bag(none, weight, starts, mode=mode)
        assert torch.equal(out.detach().cpu(), torch.zeros(2, 5))


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"max_norm": 1.5, "norm_type": 1.0}, {"scale_grad_by_freq": True}], ids=str)
def test_embeddings_that_change_their_weight_or_count(mesh, options):
    for place in (R, S(0), S(1)):
        here, there = (torch.nn.Embedding(7, 5, _weight=drawn(7, 5), **options) for _ in range(2))
        tt.distribute_module(there, mesh, lambda name, module, on: module.register_parameter(
            "weight", torch.nn.Parameter(tt.distribute_tensor(module.weight.detach(), on, [place]))))
        expected, got = here(NUMBERS), there(tt.distribute_tensor(NUMBERS, mesh, [S(0)]))
        torch.testing.assert_close(got.detach().cpu(), expected.detach())
        torch.testing.assert_close(there.weight.detach().cpu(), here.weight.detach())
        expected.square().sum().backward()
        got.square().sum().backward()
        torch.testing.assert_close(there.weight.grad.cpu(), here.weight.grad)


@pytest.mark.parametrize("mode, padding, align", [*itertools.product(["bilinear", "bicubic"], ["zeros", "border", "reflection"], [False, True]),
                                                  ("nearest", "reflection", False)])
def test_samples_of_images_on_every_placement(mesh, mode, padding, align):
    grid = 1.4 * torch.rand(4, 3, 5, 2, generator=torch.Generator().manual_seed(4)) - 0.2
    for places in ([R, R], [S(0), S(0)], [S(1), R], [S(2), S(1)], [S(3), S(3)]):
        compared(lambda x, g: F.grid_sample(x, 2.0 * g - 1.0, mode=mode, padding_mode=padding, align_corners=align), [drawn(4, 4, 5, 6), grid], mesh, places)


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_samples_of_volumes(mesh, mode):
    grid = 2.4 * torch.rand(4, 2, 3, 2, 3, generator=torch.Generator().manual_seed(4)) - 1.2
    for places in ([R, R], [S(0), S(0)], [S(1), R]):
        compared(lambda x, g: F.grid_sample(x, g, mode=mode, align_corners=False), [drawn(4, 4, 3, 4, 5), grid], mesh, places)


def test_samples_move_nothing_where_the_batch_is_in_shards(mesh, session):
    x = tt.distribute_tensor(drawn(4, 2, 5, 6), mesh, [S(0)]).requires_grad_()
    grid = tt.distribute_tensor(torch.rand(4, 3, 5, 2), mesh, [S(0)]).requires_grad_()
    with session.comm_debug() as comm:
        out = F.grid_sample(x, grid, align_corners=False)
        out.backward(torch.ones_like(out))
        ts.wait(tt.to_handle(x.grad), tt.to_handle(grid.grad))
    assert sum(comm.bytes_received) == 0 and x.grad.placements == (S(0),)


def test_samples_that_fit_nothing_are_refused(mesh):
    x, grid = (tt.distribute_tensor(torch.ones(shape), mesh) for shape in ((2, 1, 4, 4), (2, 3, 3, 3)))
    with pytest.raises((ts.InvalidArgumentError, RuntimeError), match="grid"):
        F.grid_sample(x, grid, align_corners=False)


@pytest.mark.parametrize("shape", [(4, 4, 6, 5), (1, 4, 6, 5), (4, 1, 1, 5), (6, 5), (4, 1, 5)], ids=str)
@pytest.mark.parametrize("shared", [1, 2])
def test_the_gradient_of_a_bias_of_attention(mesh, shape, shared):
    q, k, v = drawn(4, 4, 6, 8), drawn(4, 4 // shared, 5, 8, seed=2), drawn(4, 4 // shared, 5, 8, seed=3)
    for places in ([R, R, R, R], [S(0), S(0), S(0), R], [S(1), S(1), S(1), R], [S(0), S(0), S(0), S(0)]):
        if shared == 2 and places[0] == S(1):
            continue
        compared(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=shared > 1), [q, k, v, drawn(*shape, seed=4)],
                 mesh, places)


@pytest.mark.parametrize("sizes", [(3, 2), (5, 7), (1, 4)])
def test_maxima_of_as_many_windows_as_are_wanted(mesh, sizes):
    for place in (R, S(0), S(1), S(2)):
        compared(lambda x: F.adaptive_max_pool2d(x, sizes), [drawn(4, 3, 5, 7)], mesh, [place])
    indices = F.adaptive_max_pool2d(tt.distribute_tensor(drawn(4, 3, 5, 7), mesh, [S(0)]), sizes, return_indices=True)[1]
    assert torch.equal(indices.cpu(), F.adaptive_max_pool2d(drawn(4, 3, 5, 7), sizes, return_indices=True)[1])


@pytest.mark.parametrize("reduce", ["sum", "mean", "amax", "amin", "prod"])
@pytest.mark.parametrize("include_self", [True, False])
def test_reductions_by_indices(mesh, reduce, include_self):
    at = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(3))
    for places in itertools.product([R, S(0), S(1)], repeat=2):
        compared(lambda x, y: x.scatter_reduce(1, at.to(x.device), y, reduce, include_self=include_self), [drawn(4, 5), drawn(4, 6, seed=5)], mesh, places)


@pytest.mark.parametrize("include_self", [True, False])
def test_products_by_indices_with_zeros_and_of_integers(mesh, include_self):
    at = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(3))
    source, x = drawn(4, 6, seed=5), drawn(4, 5)
    source[1, 2], source[2], x[1] = 0, 0, 0
    for places in itertools.product([R, S(0), S(1)], repeat=2):
        compared(lambda x, y: x.scatter_reduce(1, at.to(x.device), y, "prod", include_self=include_self), [x, source], mesh, places)
        compared(lambda x, y: x.index_reduce(1, at[0].to(x.device), y, "prod", include_self=include_self), [x, source], mesh, places)
        whole, updates = (tt.distribute_tensor((3 * one).long(), mesh, [place]) for one, place in zip((x, source), places))
        got = whole.scatter_reduce(0, at.to(x.device)[:3, :4].to(whole.device) % 4, updates, "prod", include_self=include_self)
        assert torch.equal(got.cpu(), (3 * x).long().scatter_reduce(0, at[:3, :4] % 4, (3 * source).long(), "prod", include_self=include_self))


@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_the_value_that_is_there_most_often(mesh, place):
    values = torch.randint(0, 3, (4, 9), generator=torch.Generator().manual_seed(1)).float()
    for dim, keepdim, kind in itertools.product([0, 1], [False, True], [torch.float32, torch.int64]):
        x = values.to(kind)
        for got, expected in zip(tt.distribute_tensor(x, mesh, [place]).mode(dim, keepdim), x.mode(dim, keepdim)):
            assert torch.equal(got.cpu(), expected)
    compared(lambda x: x.mode(1).values, [values], mesh, [place])


@pytest.mark.parametrize("dims", [2, 3])
def test_maxima_of_windows_at_random_places(mesh, dims):
    shape, kernel, counts = (4, 4, 7, 9, 6)[:dims + 2], (2, 3, 2)[:dims], (3, 4, 1)[:dims]
    pool, samples = getattr(F, f"fractional_max_pool{dims}d"), torch.rand(4, 4, dims, generator=torch.Generator().manual_seed(2))
    for place in (R, S(0), S(1), S(2)):
        compared(lambda x, u: pool(x, kernel, counts, _random_samples=u.detach()), [drawn(*shape), samples], mesh, [place, R])
        compared(lambda x: pool(x, 2, counts, _random_samples=samples[:1].to(x.device)), [drawn(*shape[1:])], mesh, [place])
    x = tt.distribute_tensor(drawn(*shape), mesh, [S(0)])
    indices = pool(x, kernel, counts, _random_samples=tt.distribute_tensor(samples, mesh), return_indices=True)[1]
    assert torch.equal(indices.cpu(), pool(drawn(*shape), kernel, counts, _random_samples=samples, return_indices=True)[1])
    assert pool(x, kernel, counts).shape == (4, 4, *counts)      # at places of its own
    with pytest.raises((ts.InvalidArgumentError, RuntimeError), match="fractional_max_pool"):
        pool(x, kernel, shape[2:])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("starts", [[1, 2], [0, 5, 2], [0, 3, 2], [0, 2, 13], [0, -1]], ids=str)
def test_offsets_that_are_none_are_refused(mesh, mode, starts):
    weight, numbers = tt.distribute_tensor(drawn(7, 5), mesh, [S(0)]), tt.distribute_tensor(NUMBERS, mesh, [S(0)])
    with pytest.raises((ts.IndexOutOfRangeError, RuntimeError), match="out of range|offsets"):
        F.embedding_bag(numbers, weight, tt.distribute_tensor(torch.tensor(starts), mesh), mode=mode).cpu()


def test_maxima_of_bags_gather_no_table(mesh, session):
    """A worker receives what it lacks of its columns: of a table of 64 x 16 in four shards 12 of 16 rows' worth, once."""
    rows, columns, workers = 64, 16, 4
    weight = tt.distribute_tensor(drawn(rows, columns), mesh, [S(0)]).requires_grad_()
    numbers, starts = torch.randint(0, rows, (200,), generator=torch.Generator().manual_seed(1)), torch.arange(0, 200, 10)
    there = [tt.distribute_tensor(one, mesh) for one in (numbers, starts)]
    with session.comm_debug() as comm:
        out = F.embedding_bag(there[0], weight, there[1], mode="max").wait()
    assert max(comm.bytes_received) == 4 * rows * columns // workers * (workers - 1) // workers
    assert torch.equal(out.detach().cpu(), F.embedding_bag(numbers, drawn(rows, columns), starts, mode="max"))


def test_functions_of_distributions(mesh):
    x = torch.cat([torch.linspace(-5.3, 30, 101), torch.tensor([0.0, -1.0, -2.0, 1.0, 2.0, float("inf"), float("nan"), 1e30])])
    y = tt.distribute_tensor(x, mesh, [S(0)])
    for function in (torch.lgamma, torch.digamma):
        for dtype in (torch.float32, torch.float64):
            torch.testing.assert_close(function(y.to(dtype)).cpu(), function(x.to(dtype)), rtol=1e-5 if dtype == torch.float32 else 1e-10,
                                       atol=1e-5 if dtype == torch.float32 else 1e-11, equal_nan=True)
    z = torch.cat([torch.linspace(-1.1, 1.1, 45), torch.tensor([1.0, -1.0, 0.0, 1 - 1e-7, -0.9999])]).double()
    torch.testing.assert_close(torch.erfinv(tt.distribute_tensor(z, mesh, [S(0)])).cpu(), torch.erfinv(z), rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("sizes", [(3, 9), (7, 2), (1, 6)])
def test_images_of_other_sizes_without_aliases(mesh, mode, sizes):
    for place, align in itertools.product([R, S(0), S(1), S(2)], [False, True]):
        compared(lambda x: F.interpolate(x, size=sizes, mode=mode, antialias=True, align_corners=align), [drawn(4, 4, 5, 6)], mesh, [place])
    compared(lambda x: F.interpolate(x, scale_factor=0.4, mode=mode, antialias=True), [drawn(4, 4, 5, 6)], mesh, [S(0)])


def test_distances_of_pairs_and_running_sums(mesh):
    for place, p in itertools.product([R, S(0), S(1)], [1.0, 2.0, 3.0, float("inf")]):
        compared(lambda x: F.pdist(x, p), [drawn(5, 4)], mesh, [place])
    for place, dim in itertools.product([R, S(0), S(1)], [0, 1]):
        compared(lambda x: torch.logcumsumexp(x * 30, dim), [drawn(5, 4)], mesh, [place])
    values = drawn(4, 5)
    values[1], values[2, 3], values[0, 0] = float("nan"), float("nan"), float("nan")
    for place in (R, S(0), S(1)):
        got = tt.distribute_tensor(values, mesh, [place]).nanmedian(1)
        expected = values.nanmedian(1)
        torch.testing.assert_close(got.values.cpu(), expected.values, equal_nan=True)
        assert torch.equal(values.gather(1, got.indices.cpu()[:, None])[:, 0].nan_to_num(9), expected.values.nan_to_num(9))
    drawn_ones = torch.randint_like(tt.distribute_tensor(values, mesh, [S(0)]), 3, 9)
    assert drawn_ones.placements == (S(0),) and 3 <= drawn_ones.cpu().min() and drawn_ones.cpu().max() < 9


@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_samples_with_replacement_are_as_frequent_as_they_are_probable(mesh, place):
    weights = torch.tensor([[0.0, 3, 1, 0, 4, 0], [1.0, 0, 0, 0, 0, 0], [0.0, 0, 0, 0, 0, 2], [1.0, 1, 1, 1, 1, 1]])
    x = tt.distribute_tensor(weights, mesh, [place])
    torch.manual_seed(3)
    drawn_ones = torch.multinomial(x, 4000, replacement=True).cpu()
    frequencies = torch.stack([torch.bincount(one, minlength=6) for one in drawn_ones]) / 4000
    expected = weights / weights.sum(1, keepdim=True)
    assert (frequencies[expected == 0] == 0).all()
    torch.testing.assert_close(frequencies, expected, rtol=0, atol=5 * 0.5 / 4000 ** 0.5)
    torch.manual_seed(3)
    assert torch.equal(torch.multinomial(tt.distribute_tensor(weights, mesh, [R]), 4000, replacement=True).cpu(), drawn_ones)
    assert torch.distributions.Categorical(tt.distribute_tensor(weights[0], mesh)).sample((3, 2)).shape == (3, 2)


class Resized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 3, 3, padding=1, padding_mode="replicate")

    def forward(self, x):
        return F.adaptive_max_pool2d(F.interpolate(self.conv(self.conv(x)), size=(5, 7), mode="bilinear", antialias=True), 3)


@pytest.mark.parametrize("name", ["ranking", "spatial transformer", "relative places", "resized"])
def test_steps_with_these_are_captured(mesh, name):
    """Their helper tensors are made on the workers, and not brought."""
    make, make_inputs = {**KINDS, "resized": (Resized, lambda: [drawn(4, 3, 8, 8)])}[name]
    model, other = same_start(make)
    for one in (model, other):
        tt.distribute_module(one, mesh)
    inputs = [tt.distribute_tensor(x, mesh, [S(0)]) for x in make_inputs()]
    steps = []
    for one in (model, other):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1, fused=True)

        def step(*x, one=one, optimizer=optimizer):
            loss = one(*x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()
        steps.append(step)
    captured = tt.capture(steps[0])
    for _ in range(4):
        assert torch.equal(captured(*inputs).cpu(), steps[1](*inputs).cpu())
    assert captured.replays == 2


@pytest.mark.parametrize("place", [R, S(0)])
def test_samples_of_gamma_and_beta_distributions_have_their_moments(mesh, place):
    alpha = torch.tensor([0.3, 1.0, 2.5, 30.0]).repeat_interleave(20000)
    x = tt.distribute_tensor(alpha, mesh, [place])
    torch.manual_seed(4)
    samples = torch.distributions.Gamma(x, torch.ones_like(x)).sample().cpu()
    assert (samples > 0).all() and samples.isfinite().all()
    for values, shape in zip(samples.double().view(4, -1), (0.3, 1.0, 2.5, 30.0)):
        assert abs(values.mean() - shape) < 5 * (shape / 20000) ** 0.5
        assert abs(values.var() / shape - 1) < 5 * ((2 + 6 / shape) / 20000) ** 0.5      # by the fourth moment
    torch.manual_seed(4)
    assert torch.equal(torch.distributions.Gamma(tt.distribute_tensor(alpha, mesh, [R]), torch.ones_like(x)).sample().cpu(), samples)
    two = tt.distribute_tensor(torch.tensor([[2.0, 3.0]]).expand(20000, 2).contiguous(), mesh, [place])
    beta = torch.distributions.Dirichlet(two).sample().cpu()
    torch.testing.assert_close(beta.sum(1), torch.ones(20000))
    assert abs(beta[:, 0].mean() - 0.4) < 5 * (0.04 / 20000) ** 0.5


def far(samples, probabilities):
    """Pearson's statistic of whole numbers, over its deviation: about normal."""
    expected = probabilities * len(samples)
    counts = torch.bincount(samples.long(), minlength=len(expected))[:len(expected)]
    usual = expected > 5
    degrees = int(usual.sum())
    return float((((counts - expected) ** 2 / expected)[usual].sum() - degrees) / (2 * degrees) ** 0.5)


@pytest.mark.parametrize("place", [R, S(0)])
def test_samples_of_poisson_and_binomial_distributions_are_as_frequent_as_they_are_probable(mesh, place):
    count, k = 8000, torch.arange(0, 101).double()
    means = torch.tensor([0.0, 0.3, 4.0, 9.9, 10.0, 30.0, 1e4])
    torch.manual_seed(3)
    samples = torch.poisson(tt.distribute_tensor(means.repeat_interleave(count), mesh, [place])).cpu().view(-1, count)
    assert (samples[0] == 0).all()
    for one, mean in zip(samples[1:].double(), means[1:].double()):
        assert abs(one.mean() - mean) < 5 * (mean / count) ** 0.5
        assert mean > 50 or far(one, (k * mean.log() - mean - torch.lgamma(k + 1)).exp()) < 5
    torch.manual_seed(3)
    assert torch.equal(torch.poisson(tt.distribute_tensor(means.repeat_interleave(count), mesh, [R])).cpu().view(-1, count), samples)
    trials, chances = torch.tensor([0, 5, 7, 5, 40, 100, 100.0, 1e6]), torch.tensor([0.5, 0.0, 1.0, 0.3, 0.25, 0.5, 0.9, 1e-6])
    samples = torch.binomial(*(tt.distribute_tensor(one.repeat_interleave(count), mesh, [place]) for one in (trials, chances))).cpu().view(-1, count)
    assert [one.unique().tolist() for one in samples[:3]] == [[0], [0], [7]]
    for one, n, p in zip(samples[3:].double(), trials[3:].double(), chances[3:].double()):
        assert one.max() <= n and abs(one.mean() - n * p) < 5 * (n * p / count) ** 0.5
        j = k[:int(min(n, 100)) + 1]
        log_p = torch.lgamma(n + 1) - torch.lgamma(j + 1) - torch.lgamma(n - j + 1) + j * p.log() + (n - j) * torch.log1p(-p)
        assert far(one, log_p.exp()) < 5
    assert torch.distributions.Poisson(tt.distribute_tensor(means[1:], mesh)).sample((2,)).shape == (2, 6)
