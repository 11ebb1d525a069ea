"""Functions that people call on tensors, beside the CPU's: those of a matrix of small integers, whole and in shards."""

import pytest
import torch
import torch.nn.functional as F

import tessera as ts
import tessera.torch as tt

R, S = ts.Replicate(), ts.Shard
NUMBERS = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(1))


def written(x, key, value):
    x = x.clone()
    x[key] = value
    return x


CALLS = {
    "one_hot": lambda x: F.one_hot(x, 5),
    "one_hot auto": lambda x: F.one_hot(x),
    "cosine": lambda x: torch.cosine_similarity(x.float(), x.float() + 1),
    "cov": lambda x: torch.cov(x.float()),
    "corrcoef": lambda x: torch.corrcoef(x.float()),
    "unravel": lambda x: list(torch.unravel_index(x, (2, 3))),
    "isin": lambda x: torch.isin(x, torch.tensor([1, 2], device=x.device)),
    "bitwise": lambda x: x & 3 | x << 1 ^ 1,
    "gcd": lambda x: torch.gcd(x, x + 6),
    "lcm": lambda x: torch.lcm(x, x + 6),
    "bincount": lambda x: x.flatten().bincount(),
    "unique dim": lambda x: list(torch.unique(x, dim=0, return_inverse=True, return_counts=True)),
    "unique": lambda x: list(torch.unique(x, return_inverse=True, return_counts=True)),
    "diff": lambda x: x.diff(dim=1),
    "tensordot": lambda x: torch.tensordot(x.float(), x.float(), dims=([1], [1])),
    "cartesian": lambda x: torch.cartesian_prod(x[0], x[1]),
    "meshgrid": lambda x: list(torch.meshgrid(x[0], x[1], indexing="ij")),
    "block_diag": lambda x: torch.block_diag(x, x),
    "vander": lambda x: torch.vander(x[0].float()),
    "copysign": lambda x: torch.copysign(x.float(), -2),
    "masked_scatter of a row": lambda x: x[0].masked_scatter(x > 2, x + 10),
    "gather of nothing": lambda x: x.gather(0, x[:0, :0]),
    "gather of a number": lambda x: [x[0, 0].gather(0, x[0, 0] * 0), x[0, 0].gather(0, x[0, :1] * 0)],
    "addbmm": lambda x: torch.addbmm(x, x[None], (x.float().mT[None, :, :4] @ x.float()).long(), beta=2, alpha=3),
    "rot90": lambda x: x.rot90(),
    "flipud": lambda x: x.flipud(),
    "kron": lambda x: torch.kron(x, x),
    "repeat_interleave t": lambda x: torch.repeat_interleave(x[0], x[1]),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([1, 2], device=x.device), 7),
    "index_copy": lambda x: x.index_copy(1, torch.tensor([1, 2], device=x.device), x[:, :2]),
    "masked_select": lambda x: x.masked_select(x > 2),
    "nonzero tuple": lambda x: list(x.nonzero(as_tuple=True)),
    "argwhere": lambda x: torch.argwhere(x),
    "take_along": lambda x: torch.take_along_dim(x, x.argsort(1), 1),
    "quantile": lambda x: x.float().quantile(torch.tensor([0.1, 0.5], device=x.device), dim=1),
    "nanquantile": lambda x: x.float().nanquantile(0.3),
    "aminmax": lambda x: list(x.aminmax()),
    "std_mean": lambda x: list(torch.std_mean(x.float(), 1)),
    "trapezoid": lambda x: torch.trapezoid(x.float()),
    "cumtrapz": lambda x: torch.cumulative_trapezoid(x.float()),
    "gradient": lambda x: list(torch.gradient(x.float())),
    "stft": lambda x: torch.view_as_real(torch.stft(x.float().repeat(1, 4), 8, return_complex=True, window=torch.hann_window(8, device=x.device))),
    "istft": lambda x: torch.istft(torch.stft(x.float().repeat(1, 4), 8, return_complex=True, window=torch.hann_window(8, device=x.device)), 8,
                                   window=torch.hann_window(8, device=x.device)),
    "hann": lambda x: torch.hann_window(6, device=x.device),
    "kaiser": lambda x: torch.kaiser_window(6, device=x.device),
    "hamming": lambda x: torch.hamming_window(6, device=x.device),
    "blackman": lambda x: torch.blackman_window(6, device=x.device),
    "bartlett": lambda x: torch.bartlett_window(6, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, 7, device=x.device),
    "logspace": lambda x: torch.logspace(0, 1, 7, device=x.device),
    "scatter_": lambda x: torch.zeros(4, 6, device=x.device, dtype=x.dtype).scatter_(1, x, 1),
    "clone strided": lambda x: x.t().contiguous().view(-1),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
    "unfold": lambda x: x.unfold(1, 3, 2),
    "movedim": lambda x: x.movedim(0, 1),
    "hstack": lambda x: torch.hstack([x, x]),
    "dstack": lambda x: torch.dstack([x, x]),
    "column_stack": lambda x: torch.column_stack([x, x]),
    "chunk": lambda x: list(x.chunk(3, 1)),
    "tensor_split": lambda x: list(x.tensor_split(3, 1)),
    "hsplit": lambda x: list(x.hsplit(2)),
    "searchsorted": lambda x: torch.searchsorted(x.sort(1)[0], x),
    "renorm": lambda x: x.float().renorm(2, 0, 1.0),
    "logit": lambda x: torch.logit(x.float() / 5, eps=0.1),
    "polar": lambda x: torch.view_as_real(torch.polar(x.float(), x.float())),
    "angle": lambda x: x.float().angle(),
    "cdist": lambda x: torch.cdist(x.float(), x.float()),
    "dist": lambda x: torch.dist(x.float(), x.float() + 1),
    "lerp": lambda x: torch.lerp(x.float(), x.float() + 1, 0.3),
    "baddbmm": lambda x: torch.baddbmm(x.float()[None], x.float()[None], torch.eye(6, device=x.device)[None]),
    "chain_matmul": lambda x: torch.linalg.multi_dot([x.float(), x.float().t(), x.float()]),
    "einsum3": lambda x: torch.einsum("ij,kj,kl->il", x.float(), x.float(), x.float()),
    "cross": lambda x: torch.cross(x.float()[:3, :3], x.float()[1:, :3], dim=1),
    "matrix_rank": lambda x: torch.linalg.matrix_rank(x.float()),
    "slogdet": lambda x: list(torch.slogdet(x.float()[:, :4] + 5 * torch.eye(4, device=x.device))),
    "allclose": lambda x: torch.tensor(torch.allclose(x, x)),
    "triu_indices": lambda x: x.float()[torch.triu_indices(4, 4, device=x.device).unbind()],
    "bool idx assign": lambda x: written(x, x > 2, 0),
    "slice assign": lambda x: written(x, (slice(None), slice(1, 4, 2)), 7),
    "idx assign": lambda x: written(x, (torch.tensor([0, 2], device=x.device), torch.tensor([1, 1], device=x.device)),
                                        torch.tensor([5, 6], device=x.device)),
    "to half": lambda x: x.half(),
    "bf16 mm": lambda x: (x.bfloat16() @ x.bfloat16().t()).float(),
    "complex": lambda x: torch.view_as_real(torch.complex(x.float(), x.float()) @ torch.complex(x.float().t(), x.float().t())),
    "frac": lambda x: (x / 3).frac(),
    "xlogy": lambda x: torch.xlogy(x.float(), x.float()),
    "sinc": lambda x: torch.sinc(x.float()),
    "float_power": lambda x: torch.float_power(x, 2),
    "nan_to_num": lambda x: (x / 0.0).nan_to_num(),
    "heaviside": lambda x: torch.heaviside(x.float(), x.float()),
    "ldexp": lambda x: torch.ldexp(x.float(), x),
    "copysign": lambda x: torch.copysign(x.float(), -x.float()),
    "signbit": lambda x: x.float().signbit(),
    "addr": lambda x: torch.addr(x[:, :4].float(), x[:, 0].float(), x[:, 1].float()),
    "sum_to_size": lambda x: x.sum_to_size(1, 6),
    "clamp t": lambda x: torch.clamp(x, min=x - 1, max=x),
    "pad reflect": lambda x: F.pad(x.float()[None], (2, 2), mode="reflect"),
    "affine_grid": lambda x: F.affine_grid(x.float()[:2, :3][None], (1, 1, 3, 3), align_corners=False),
    "normalize": lambda x: F.normalize(x.float()),
    "ceil_div": lambda x: torch.div(x, 2, rounding_mode="floor"),
    "local_response": lambda x: F.local_response_norm(x.float()[None], 2),
    "embedding_bag 2d": lambda x: F.embedding_bag(x, torch.arange(15.0, device=x.device).reshape(5, 3)),
    "native dropout": lambda x: F.dropout(x.float(), 0.0),
    "put_": lambda x: x.clone().put_(torch.tensor([1, 2], device=x.device), torch.tensor([9, 9], device=x.device)),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: list(x.cummax(0)),
    "logcumsumexp": lambda x: x.float().logcumsumexp(0),
    "kthvalue": lambda x: x.float().kthvalue(2, 1)[0],
    "msort": lambda x: x.msort(),
    "argsort": lambda x: x.argsort(stable=True),
    "combinations": lambda x: torch.combinations(x[0]),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([1, 3], device=x.device)),
    "digitize": lambda x: torch.histc(x.float(), 5),
    "randperm": lambda x: torch.randperm(6, device=x.device).sort()[0],
    "trace": lambda x: x.trace(),
    "count_nonzero": lambda x: x.count_nonzero(1),
    "vsplit": lambda x: list(x.vsplit(2)),
    "fliplr": lambda x: x.fliplr(),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "broadcast": lambda x: list(torch.broadcast_tensors(x, x[:1])),
    "expand_as": lambda x: x[:1].expand_as(x),
    "where1": lambda x: list(torch.where(x > 2)),
    "select_scatter": lambda x: x.select_scatter(x[0], 0, 1),
    "slice_scatter": lambda x: x.slice_scatter(x[:, :2], 1, 1, 3),
    "max2": lambda x: torch.max(x, x.flip(0)),
    "inner": lambda x: torch.inner(x, x),
    "outer": lambda x: torch.outer(x[0], x[1]),
    "mv": lambda x: torch.mv(x.float(), x[0].float()),
    "vdot": lambda x: torch.vdot(x[0], x[1]),
    "addmv": lambda x: torch.addmv(x[:, 0].float(), x.float(), x[0].float()),
    "int mm": lambda x: x @ x.t(),
    "nansum": lambda x: x.float().nansum(),
    "nanmean": lambda x: x.float().nanmean(),
    "tril": lambda x: x.tril(),
    "diag_embed": lambda x: x.diag_embed(),
    "diagflat": lambda x: x.diagflat(),
    "round dec": lambda x: (x / 3).round(decimals=1),
    "isclose": lambda x: x.isclose(x + 0),
    "erfinv": lambda x: torch.erfinv(x / 6),
    "hypot": lambda x: torch.hypot(x.float(), x.float()),
    "i0": lambda x: torch.i0(x.float()),
    "mvlgamma": lambda x: torch.mvlgamma(x.float() + 2, 2),
    "softmax dtype": lambda x: x.float().softmax(1, dtype=torch.float64),
    "sum dtype": lambda x: x.sum(dtype=torch.float32),
    "mean dtype": lambda x: x.mean(dtype=torch.float32),
    "prod": lambda x: (x + 1).prod(1),
    "all dim": lambda x: (x >= 0).all(1),
    "any": lambda x: (x > 4).any(),
    "type_as": lambda x: x.type_as(x.float()),
    "tile": lambda x: x.tile(2, 1),
    "ravel": lambda x: x.ravel(),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "pinverse": lambda x: x.float().pinverse(),
    "lstsq": lambda x: torch.linalg.lstsq(x.float().t() + torch.eye(6, 4, device=x.device) * 3, x.float().t()[:, :1]).solution,
    "svdvals": lambda x: torch.linalg.svdvals(x.float()),
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x.float(), "nuc"),
    "vecdot": lambda x: torch.linalg.vecdot(x.float(), x.float()),
    "fftshift": lambda x: torch.fft.fftshift(x),
    "rfft": lambda x: torch.fft.rfft(x.float()).abs(),
    "fftfreq": lambda x: torch.fft.fftfreq(6, device=x.device),
}


def outs(x):
    return [one for part in x for one in outs(part)] if isinstance(x, (tuple, list)) else [x]


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_it_gives_on_the_cpu(mesh, name):
    expected = outs(CALLS[name](NUMBERS.clone()))
    for place in (R, S(0), S(1)):
        got = outs(CALLS[name](tt.distribute_tensor(NUMBERS, mesh, [place])))
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_a_bit_pattern_has_no_row(mesh):
    with pytest.raises(NotImplementedError, match="aten.view.dtype"):
        tt.distribute_tensor(NUMBERS.float(), mesh).view(torch.int32)


def test_a_view_grows_in_the_memory_that_it_is_of(mesh):
    here, there = torch.arange(6.0), tt.distribute_tensor(torch.arange(6.0), mesh, [S(0)])
    for x in (here, there):
        view = x[3:3]
        view.resize_(3)
        view.sub_(6)
    assert torch.equal(there.cpu(), here)


@pytest.mark.parametrize("place", [R, S(0), S(1)])
@pytest.mark.parametrize("function", [lambda x: x.sign(), lambda x: x.max(), lambda x: x.amin(0), lambda x: x.amax(), lambda x: x.max(1).values,
                                      lambda x: x.trace() if x.dtype != torch.bool else x.any(), lambda x: x.cumsum(0), lambda x: x.sum(),
                                      lambda x: x.prod(1), lambda x: x.cumprod(1)])
@pytest.mark.parametrize("kind", [torch.bool, torch.int32, torch.uint8, torch.float64])
def test_a_result_has_the_dtype_that_it_has_on_the_cpu(mesh, function, kind, place):
    x = (NUMBERS > 2).to(kind) if kind == torch.bool else NUMBERS.to(kind)
    expected, got = function(x), function(tt.distribute_tensor(x, mesh, [place]))
    assert got.dtype == expected.dtype and torch.equal(got.cpu(), expected)


SMALL = [torch.bool, torch.uint8, torch.int32]


@pytest.mark.parametrize("name, kinds, function", [
    ("mm", SMALL[1:], lambda x: x @ x.t()), ("einsum", SMALL[1:], lambda x: torch.einsum("ij,kj->ik", x, x)), ("dot", SMALL[1:], lambda x: torch.dot(x[0], x[1])),
    ("addmv", SMALL[1:], lambda x: torch.addmv(x[:, 0], x, x[0], beta=2, alpha=3)), ("any", SMALL, lambda x: x.any(1)), ("all", SMALL, lambda x: x.all()),
    ("clamp", SMALL[:1], lambda x: x.clamp_max(x[0])), ("fmax", SMALL, lambda x: torch.fmax(x, x.flip(0))), ("fmin", SMALL, lambda x: torch.fmin(x, x.flip(0))),
    ("cummax", SMALL, lambda x: x.cummax(1)), ("sgn", SMALL, lambda x: x.sgn()), ("masked_fill", SMALL, lambda x: x.masked_fill(x > 0, 1)),
    ("scatter_reduce sum", SMALL, lambda x: x.scatter_reduce(1, x.long(), x, "sum", include_self=False)),
    ("scatter_reduce prod", SMALL, lambda x: x.scatter_reduce(1, x.long(), x, "prod")), ("erfc", SMALL, lambda x: torch.erfc(x)),
    ("lgamma", SMALL, lambda x: torch.lgamma(x)), ("shift", SMALL[1:], lambda x: 1 << x), ("tensordot", SMALL[1:], lambda x: torch.tensordot(x, x, dims=([1], [1])))],
    ids=lambda one: one if isinstance(one, str) else "")
def test_a_call_on_small_integers_gives_their_dtype(mesh, name, kinds, function):
    for kind in kinds:
        x = (NUMBERS > 2 if kind == torch.bool else NUMBERS).to(kind)
        for place in (R, S(0), S(1)):
            for one, other in zip(outs(function(tt.distribute_tensor(x, mesh, [place]))), outs(function(x)), strict=True):
                torch.testing.assert_close(one.cpu(), other)


@pytest.mark.parametrize("place", [R, S(0), S(1)])
def test_a_linear_layer_of_one_output_without_a_dim(mesh, place):
    x, weight, bias = torch.randn(4, 6), torch.randn(6), torch.randn(())
    here = [one.requires_grad_() for one in (x, weight, bias)]
    there = [tt.distribute_tensor(one, mesh, [p]).requires_grad_() for one, p in zip(here, (place, R, R))]
    (here[0] @ here[1] + here[2]).square().sum().backward()
    F.linear(*there).square().sum().backward()
    for one, other in zip(there, here):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_calls_on_complex_numbers_and_halves(mesh):
    x = torch.complex(NUMBERS.float(), NUMBERS.flip(1).float())
    there = tt.distribute_tensor(x, mesh, [S(0)])
    assert torch.vdot(there[0], there[1]).item() == torch.vdot(x[0], x[1]).item()
    a, b = torch.randn(6, 4, dtype=torch.complex64), torch.randn(6, 2, dtype=torch.complex64)
    for got, expected in zip(torch.linalg.lstsq(tt.distribute_tensor(a, mesh), tt.distribute_tensor(b, mesh), driver="gelsd"),
                             torch.linalg.lstsq(a, b, driver="gelsd")):
        assert got.dtype == expected.dtype
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-4, atol=1e-4)
    half = NUMBERS.bfloat16()
    assert torch.equal(tt.distribute_tensor(half, mesh, [S(0)]).renorm(2, 0, 100.0).cpu(), half.renorm(2, 0, 100.0))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_images_of_bytes_of_other_sizes(mesh, mode):
    """To the nearest byte; torch's own, in fixed point, is up to one beside."""
    x = torch.randint(0, 256, (2, 3, 8, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    got = F.interpolate(tt.distribute_tensor(x, mesh, [S(0)]), size=(5, 6), mode=mode, antialias=True).cpu()
    assert got.dtype == torch.uint8
    wanted = F.interpolate(x.double(), size=(5, 6), mode=mode, antialias=True).round().clamp(0, 255)
    assert (got.double() - wanted).abs().max() <= 1
