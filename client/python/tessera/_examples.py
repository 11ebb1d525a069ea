"""Examples of the functions: `expression => what it shows`. help() has them, and a test runs each; in them there is a
session on four workers, with `mesh = session.init_device_mesh((4,))`. A function that is a row of the catalog has its example
there, the others have theirs here.
"""

from _tessera_ops import EXAMPLES as OF_ROWS

_TEXT = r"""
absolute: ts.absolute(ts.asarray([-1.5, 2.0])).tolist() => [1.5, 2.0]
adaptive_avg_pool2d: ts.adaptive_avg_pool2d(ts.ones((1, 3, 8, 6)), (4, 2)).shape => (1, 3, 4, 2)
addmm: ts.addmm(ts.asarray([1.0, 1.0]), ts.asarray([[1.0, 2.0]]), ts.asarray([[1.0, 0.0], [0.0, 1.0]])).tolist() => [[2.0, 3.0]]
append: ts.append(ts.asarray([1, 2]), [3]).tolist() => [1, 2, 3]
apply_along_axis: ts.apply_along_axis(lambda row: row[::-1], 1, ts.asarray([[1, 2], [3, 4]])).tolist() => [[2, 1], [4, 3]]
apply_over_axes: ts.apply_over_axes(ts.sum, ts.ones((2, 3, 4)), [0, 2]).tolist() => [[[8.0], [8.0], [8.0]]]
argpartition: ts.argpartition(ts.asarray([3, 1, 2]), 1).tolist() => [1, 2, 0]
argwhere: ts.argwhere(ts.asarray([[0, 3], [4, 0]])).tolist() => [[0, 1], [1, 0]]
array: ts.array([[1, 2], [3, 4]], dtype=ts.float32).tolist() => [[1.0, 2.0], [3.0, 4.0]]
array_equal: ts.array_equal(ts.asarray([1, 2]), [1, 2]).item() => True
array_equiv: ts.array_equiv(ts.asarray([1, 2]), ts.asarray([[1, 2], [1, 2]])).item() => True
array_split: [x.tolist() for x in ts.array_split(ts.asarray([1, 2, 3]), 2)] => [[1, 2], [3]]
asarray: ts.asarray([[1, 2], [3, 4]], dtype=ts.float32).tolist() => [[1.0, 2.0], [3.0, 4.0]]
asarray_chkfinite: ts.asarray_chkfinite([1.0, 2.0]).tolist() => [1.0, 2.0]
atleast_1d: ts.atleast_1d(ts.asarray(5)).tolist() => [5]
atleast_2d: ts.atleast_2d(ts.asarray([1, 2])).tolist() => [[1, 2]]
atleast_3d: ts.atleast_3d(ts.asarray([1, 2])).shape => (1, 2, 1)
avg_pool1d: ts.avg_pool1d(ts.asarray([[[1.0, 3.0, 5.0, 7.0]]]), 2).tolist() => [[[2.0, 6.0]]]
avg_pool2d: ts.avg_pool2d(ts.ones((1, 1, 4, 4)), 2).shape => (1, 1, 2, 2)
bartlett: ts.bartlett(5).tolist() => [0.0, 0.5, 1.0, 0.5, 0.0]
bernoulli: ts.bernoulli(1.0, (3,)).tolist() => [True, True, True]
bincount: ts.bincount(ts.asarray([0, 2, 2])).tolist() => [1, 0, 2]
bitwise_count: ts.bitwise_count(ts.asarray([3, 8, -7])).tolist() => [2, 1, 3]
blackman: ts.round(ts.blackman(3) * 10).tolist() => [-0.0, 10.0, -0.0]
block: ts.block([[ts.ones((1, 1)), ts.zeros((1, 1))]]).tolist() => [[1.0, 0.0]]
bmm: ts.bmm(ts.ones((2, 2, 3)), ts.ones((2, 3, 1))).shape => (2, 2, 1)
broadcast_arrays: [x.shape for x in ts.broadcast_arrays(ts.ones((2, 1)), ts.ones((3,)))] => [(2, 3), (2, 3)]
broadcast_shapes: ts.broadcast_shapes((2, 1), (3,)) => (2, 3)
can_cast: ts.can_cast(ts.int32, ts.float64) => True
choice: ts.choice(ts.asarray([7, 7, 7]), (2,)).tolist() => [7, 7]
choose: ts.choose(ts.asarray([0, 1, 0]), [ts.asarray([1, 2, 3]), -1]).tolist() => [1, -1, 3]
column_stack: ts.column_stack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[1, 3], [2, 4]]
compress: ts.compress([True, False, True], ts.asarray([5, 6, 7])).tolist() => [5, 7]
concatenate: ts.concatenate([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
conv1d: ts.conv1d(ts.asarray([[[1.0, 2.0, 3.0]]]), ts.asarray([[[1.0, 1.0]]])).tolist() => [[[3.0, 5.0]]]
conv2d: ts.conv2d(ts.ones((1, 3, 8, 8)), ts.ones((16, 3, 3, 3)), padding=1).shape => (1, 16, 8, 8)
conv3d: ts.conv3d(ts.ones((1, 1, 4, 4, 4)), ts.ones((2, 1, 3, 3, 3))).shape => (1, 2, 2, 2, 2)
convolve: ts.convolve(ts.asarray([1, 2, 3]), [1, 1]).tolist() => [1, 3, 5, 3]
copy: ts.copy(ts.asarray([1, 2])).tolist() => [1, 2]
copyto: [x := ts.arange(3), ts.copyto(x, 9, where=ts.asarray([True, False, True]))][0].tolist() => [9, 1, 9]
corrcoef: ts.corrcoef(ts.asarray([[1.0, 2.0], [4.0, 2.0]])).tolist() => [[0.9999999999999999, -0.9999999999999999], [-0.9999999999999999, 0.9999999999999999]]
correlate: ts.correlate(ts.asarray([1, 2, 3]), [0, 1]).tolist() => [2, 3]
cummax: [x.tolist() for x in ts.cummax(ts.asarray([1, 3, 2]), 0)] => [[1, 3, 3], [0, 1, 1]]
cummin: [x.tolist() for x in ts.cummin(ts.asarray([3, 1, 2]), 0)] => [[3, 1, 1], [0, 1, 1]]
cumprod: ts.cumprod(ts.asarray([1, 2, 3])).tolist() => [1, 2, 6]
cumsum: ts.cumsum(ts.asarray([1, 2, 3])).tolist() => [1, 3, 6]
delete: ts.delete(ts.asarray([5, 6, 7]), 1).tolist() => [5, 7]
diag: ts.diag(ts.asarray([1, 2])).tolist() => [[1, 0], [0, 2]]
diag_indices: [one.tolist() for one in ts.diag_indices(3)] => [[0, 1, 2], [0, 1, 2]]
diag_indices_from: [one.tolist() for one in ts.diag_indices_from(ts.ones((2, 2)))] => [[0, 1], [0, 1]]
diagflat: ts.diagflat(ts.asarray([[1, 2]]), 1).tolist() => [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
digitize: ts.digitize(ts.asarray([0.5, 2.0, 9.0]), [0, 1, 5]).tolist() => [1, 2, 3]
distribute_tensor: ts.distribute_tensor(np.arange(4), mesh, [ts.Shard(0)]).placements => (Shard(0),)
div: ts.div(ts.asarray([1, 2]), 4).tolist() => [0.25, 0.5]
divmod: [x.tolist() for x in ts.divmod(ts.asarray([7, -7]), 2)] => [[3, -4], [1, 1]]
dot: ts.dot(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
dsplit: [x.shape for x in ts.dsplit(ts.ones((2, 2, 4)), 2)] => [(2, 2, 2), (2, 2, 2)]
dstack: ts.dstack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[[1, 3], [2, 4]]]
ediff1d: ts.ediff1d(ts.asarray([1, 4, 9]), to_end=[0]).tolist() => [3, 5, 0]
einsum_path: ts.einsum_path("ij,jk,kl->il", ts.ones((2, 3)), ts.ones((3, 4)), ts.ones((4, 5)))[0] => ['einsum_path', (1, 2), (0, 1)]
embedding: ts.embedding(ts.asarray([1, 0]), ts.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() => [[3.0, 4.0], [1.0, 2.0]]
empty: ts.empty((2, 3)).shape => (2, 3)
empty_like: ts.empty_like(ts.asarray([1, 2])).dtype => dtype('int64')
expand_dims: ts.expand_dims(ts.asarray([1, 2]), 0).shape => (1, 2)
extract: ts.extract(ts.asarray([True, False, True]), ts.asarray([1, 2, 3])).tolist() => [1, 3]
fft.fft2: ts.fft.fft2(ts.ones((2, 2))).tolist() => [[(4+0j), 0j], [0j, 0j]]
fft.fftfreq: ts.fft.fftfreq(4).tolist() => [0.0, 0.25, -0.5, -0.25]
fft.fftshift: ts.fft.fftshift(ts.asarray([0, 1, 2, 3])).tolist() => [2, 3, 0, 1]
fft.ifft2: ts.fft.ifft2(ts.ones((2, 2))).shape => (2, 2)
fft.ifftshift: ts.fft.ifftshift(ts.asarray([2, 3, 0, 1])).tolist() => [0, 1, 2, 3]
fft.irfft2: ts.fft.irfft2(ts.ones((2, 2))).shape => (2, 2)
fft.rfft2: ts.fft.rfft2(ts.ones((2, 2))).shape => (2, 2)
fft.rfftfreq: ts.fft.rfftfreq(4).tolist() => [0.0, 0.25, 0.5]
fill_diagonal: [x := ts.zeros((2, 2)), ts.fill_diagonal(x, 5)][0].tolist() => [[5.0, 0.0], [0.0, 5.0]]
finfo: ts.finfo(ts.float32).bits => 32
flatnonzero: ts.flatnonzero(ts.asarray([[0, 3], [4, 0]])).tolist() => [1, 2]
fliplr: ts.fliplr(ts.asarray([[1, 2], [3, 4]])).tolist() => [[2, 1], [4, 3]]
flipud: ts.flipud(ts.asarray([[1, 2], [3, 4]])).tolist() => [[3, 4], [1, 2]]
frexp: [part.tolist() for part in ts.frexp(ts.asarray([1.0, 6.0]))] => [[0.5, 0.75], [1, 3]]
from_dlpack: ts.from_dlpack(np.arange(3)).tolist() => [0, 1, 2]
from_local: ts.from_local(lambda position: np.full((1,), position[0]), mesh, [ts.Shard(0)]).shape => (4,)
frombuffer: ts.frombuffer(bytes([1, 2, 3]), dtype=ts.uint8).tolist() => [1, 2, 3]
fromfunction: ts.fromfunction(lambda i, j: 10 * i + j, (2, 2)).tolist() => [[0.0, 1.0], [10.0, 11.0]]
fromiter: ts.fromiter((n * n for n in range(3)), float).tolist() => [0.0, 1.0, 4.0]
fromstring: ts.fromstring("1 2 3", sep=" ").tolist() => [1.0, 2.0, 3.0]
full_like: ts.full_like(ts.asarray([1, 2]), 9).tolist() => [9, 9]
gather: ts.gather(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[0], [1]])).tolist() => [[1], [4]]
geomspace: [round(x, 9) for x in ts.geomspace(1, 8, 4).tolist()] => [1.0, 2.0, 4.0, 8.0]
gradient: ts.gradient(ts.asarray([1.0, 4.0, 9.0])).tolist() => [3.0, 4.0, 5.0]
hamming: ts.round(ts.hamming(3) * 100).tolist() => [8.0, 100.0, 8.0]
hanning: ts.hanning(3).tolist() => [0.0, 1.0, 0.0]
histogram: [x.tolist() for x in ts.histogram(ts.asarray([1, 2, 4]), bins=3)] => [[1, 1, 1], [1.0, 2.0, 3.0, 4.0]]
histogram2d: ts.histogram2d(ts.asarray([0.0, 1.0, 1.0]), ts.asarray([0.0, 0.0, 1.0]), bins=2)[0].tolist() => [[1.0, 0.0], [1.0, 1.0]]
histogram_bin_edges: ts.histogram_bin_edges(ts.asarray([0.0, 4.0]), bins=2).tolist() => [0.0, 2.0, 4.0]
histogramdd: ts.histogramdd(ts.asarray([[0.0, 0.0], [1.0, 1.0]]), bins=2)[0].tolist() => [[1.0, 0.0], [0.0, 1.0]]
hsplit: [x.tolist() for x in ts.hsplit(ts.asarray([[1, 2], [3, 4]]), 2)] => [[[1], [3]], [[2], [4]]]
hstack: ts.hstack([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
i0: ts.round(ts.i0(ts.asarray([0.0, 1.0])) * 1000).tolist() => [1000.0, 1266.0]
identity: ts.identity(2).tolist() => [[1.0, 0.0], [0.0, 1.0]]
iinfo: ts.iinfo(ts.int8).max => 127
in1d: ts.in1d(ts.asarray([1, 2, 3]), [3, 1]).tolist() => [True, False, True]
index_add: ts.index_add(ts.asarray([1, 2, 3]), ts.asarray([0, 0]), ts.asarray([10, 20])).tolist() => [31, 2, 3]
indices: ts.indices((2, 2)).tolist() => [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
init_device_mesh: ts.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp")) => mesh(dp:2,tp:2)
inner: ts.inner(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
insert: ts.insert(ts.asarray([5, 6]), 1, 9).tolist() => [5, 9, 6]
interp: ts.interp(ts.asarray([0.5, 9.0]), [0, 1], [10, 20]).tolist() => [15.0, 20.0]
intersect1d: ts.intersect1d(ts.asarray([3, 1, 2]), [2, 3, 5]).tolist() => [2, 3]
iscomplex: ts.iscomplex(ts.asarray([1 + 1j, 2])).tolist() => [True, False]
iscomplexobj: ts.iscomplexobj(ts.asarray([1 + 1j])) => True
isdtype: ts.isdtype(ts.float32, "real floating") => True
isin: ts.isin(ts.asarray([1, 2, 3]), ts.asarray([3, 1])).tolist() => [True, False, True]
isneginf: ts.isneginf(ts.asarray([1.0, -ts.inf])).tolist() => [False, True]
isposinf: ts.isposinf(ts.asarray([1.0, ts.inf])).tolist() => [False, True]
isreal: ts.isreal(ts.asarray([1 + 1j, 2])).tolist() => [False, True]
isrealobj: ts.isrealobj(ts.asarray([1.0])) => True
ix_: ts.arange(9).reshape(3, 3)[ts.ix_([0, 2], [1])].tolist() => [[1], [7]]
kaiser: ts.round(ts.kaiser(3, 5.0) * 1000).tolist() => [37.0, 1000.0, 37.0]
ldexp: ts.ldexp(ts.asarray([1.0, 3.0]), 2).tolist() => [4.0, 12.0]
lexsort: ts.lexsort((ts.asarray([2, 1, 1]), ts.asarray([5, 7, 5]))).tolist() => [2, 0, 1]
linalg.cho_factor: ts.linalg.cho_factor(ts.asarray([[4.0]]), lower=True)[0].tolist() => [[2.0]]
linalg.cho_solve: ts.linalg.cho_solve(ts.linalg.cho_factor(ts.asarray([[4.0]])), ts.asarray([8.0])).tolist() => [2.0]
linalg.cond: ts.linalg.cond(ts.asarray([[4.0, 0.0], [0.0, 2.0]])).item() => 2.0
linalg.diagonal: ts.linalg.diagonal(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 4]
linalg.lu: ts.linalg.lu(ts.asarray([[0.0, 2.0], [4.0, 0.0]])).U.tolist() => [[4.0, 0.0], [0.0, 2.0]]
linalg.multi_dot: ts.linalg.multi_dot([ts.ones((2, 3)), ts.ones((3, 4)), ts.ones((4, 1))]).tolist() => [[12.0], [12.0]]
linalg.norm: ts.linalg.norm(ts.asarray([3.0, 4.0])).item() => 5.0
linalg.tensorinv: ts.linalg.tensorinv(ts.ones((1, 1))).tolist() => [[1.0]]
linalg.tensorsolve: ts.linalg.tensorsolve(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([2.0, 2.0])).tolist() => [1.0, 0.5]
linalg.trace: ts.linalg.trace(ts.asarray([[1, 2], [3, 4]])).item() => 5
linspace: ts.linspace(0, 1, 5).tolist() => [0.0, 0.25, 0.5, 0.75, 1.0]
logaddexp2: ts.logaddexp2(ts.asarray([1.0]), 1.0).tolist() => [2.0]
logspace: [round(x, 9) for x in ts.logspace(0, 2, 3).tolist()] => [1.0, 10.0, 100.0]
manual_seed: ts.manual_seed(7)
mask_indices: [one.tolist() for one in ts.mask_indices(2, ts.triu)] => [[0, 0, 1], [0, 1, 1]]
masked_select: ts.masked_select(ts.asarray([1, 2, 3]), ts.asarray([True, False, True])).tolist() => [1, 3]
matrix_transpose: ts.matrix_transpose(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 3], [2, 4]]
matvec: ts.matvec(ts.asarray([[1.0, 2.0], [3.0, 4.0]]), ts.asarray([1.0, 1.0])).tolist() => [3.0, 7.0]
max_pool1d: ts.max_pool1d(ts.asarray([[[1.0, 3.0, 5.0, 2.0]]]), 2).tolist() => [[[3.0, 5.0]]]
max_pool2d: ts.max_pool2d(ts.ones((1, 1, 4, 4)), 2).shape => (1, 1, 2, 2)
median: ts.median(ts.asarray([5.0, 1.0, 3.0])).item() => 3.0
meshgrid: [x.shape for x in ts.meshgrid(ts.asarray([1, 2]), ts.asarray([1, 2, 3]))] => [(3, 2), (3, 2)]
mm: ts.mm(ts.asarray([[1, 2]]), ts.asarray([[3], [4]])).tolist() => [[11]]
mod: ts.mod(ts.asarray([7, -7]), 3).tolist() => [1, 2]
modf: [one.tolist() for one in ts.modf(ts.asarray([1.5, -2.25]))] => [[0.5, -0.25], [1.0, -2.0]]
moveaxis: ts.moveaxis(ts.ones((2, 3, 4)), 0, 2).shape => (3, 4, 2)
mul: ts.mul(ts.asarray([1, 2]), 3).tolist() => [3, 6]
nanargmax: ts.nanargmax(ts.asarray([1.0, float("nan"), 3.0])).item() => 2
nanargmin: ts.nanargmin(ts.asarray([1.0, float("nan"), 3.0])).item() => 0
nancumprod: ts.nancumprod(ts.asarray([2.0, ts.nan, 3.0])).tolist() => [2.0, 2.0, 6.0]
nancumsum: ts.nancumsum(ts.asarray([2.0, ts.nan, 3.0])).tolist() => [2.0, 2.0, 5.0]
nanmedian: ts.nanmedian(ts.asarray([1.0, ts.nan, 3.0])).item() => 2.0
nanpercentile: ts.nanpercentile(ts.asarray([1.0, float("nan"), 3.0]), 50).item() => 2.0
nanquantile: ts.nanquantile(ts.asarray([1.0, float("nan"), 3.0]), 0.5).item() => 2.0
ndim: ts.ndim(ts.ones((2, 3))) => 2
neg: ts.neg(ts.asarray([1, -2])).tolist() => [-1, 2]
nonzero: [x.tolist() for x in ts.nonzero(ts.asarray([0, 3, 0, 4]))] => [[1, 3]]
ones: ts.ones((2,), placements=[ts.Shard(0)]).tolist() => [1.0, 1.0]
ones_like: ts.ones_like(ts.asarray([5, 6])).tolist() => [1, 1]
outer: ts.outer(ts.asarray([1, 2]), ts.asarray([3, 4])).tolist() => [[3, 4], [6, 8]]
packbits: ts.packbits(ts.asarray([True, False, True])).tolist() => [160]
partition: ts.partition(ts.asarray([3, 1, 2]), 1).tolist() => [1, 2, 3]
percentile: ts.percentile(ts.asarray([1.0, 2.0, 4.0]), [50, 100]).tolist() => [2.0, 4.0]
permutation: ts.sort(ts.permutation(4)).tolist() => [0, 1, 2, 3]
piecewise: ts.piecewise(ts.asarray([-1.0, 2.0]), [ts.asarray([True, False])], [0, lambda x: x * x]).tolist() => [0.0, 4.0]
poly: ts.poly(ts.asarray([1.0, 2.0])).tolist() => [1.0, -3.0, 2.0]
polyadd: ts.polyadd([1, 2], [3, 4, 5]).tolist() => [3, 5, 7]
polyder: ts.polyder([3, 2, 1]).tolist() => [6, 2]
polydiv: [one.tolist() for one in ts.polydiv([1.0, 3.0, 2.0], [1.0, 1.0])] => [[1.0, 2.0], [0.0]]
polyfit: ts.round(ts.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1)).tolist() => [2.0, 1.0]
polyint: ts.polyint([6.0, 2.0]).tolist() => [3.0, 2.0, 0.0]
polymul: ts.polymul([1, 2], [1, 3]).tolist() => [1, 5, 6]
polysub: ts.polysub([1, 2], [3, 4, 5]).tolist() => [-3, -3, -3]
polyval: ts.polyval([1, 2], ts.asarray([3.0])).tolist() => [5.0]
power: ts.power(ts.asarray([2, 3]), 2).tolist() => [4, 9]
put: [x := ts.arange(3), ts.put(x, [0, 2], [9, 8])][0].tolist() => [9, 1, 8]
put_along_axis: ts.put_along_axis(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[1], [0]]), 9, axis=1)
putmask: [x := ts.arange(3), ts.putmask(x, x > 0, x * 10)][0].tolist() => [0, 10, 20]
quantile: ts.quantile(ts.asarray([1.0, 2.0, 4.0]), 0.25).item() => 1.5
randint: ts.randint(5, 6, (3,)).tolist() => [5, 5, 5]
randn: ts.randn(2, 3).shape => (2, 3)
ravel: ts.ravel(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 2, 3, 4]
ravel_multi_index: ts.ravel_multi_index((ts.asarray([1, 0]), ts.asarray([2, 1])), (2, 3)).tolist() => [5, 1]
real_if_close: ts.real_if_close(ts.asarray([1 + 1e-15j, 2])).tolist() => [1.0, 2.0]
require: ts.require([1, 2], dtype=ts.float32).tolist() => [1.0, 2.0]
resize: ts.resize(ts.asarray([1, 2, 3]), (2, 2)).tolist() => [[1, 2], [3, 1]]
result_type: ts.result_type(ts.int32, ts.float32) => dtype('float64')
rollaxis: ts.rollaxis(ts.ones((2, 3, 4)), 2).shape => (4, 2, 3)
roots: ts.sort(ts.round(ts.roots([1.0, -3.0, 2.0]).real)).tolist() => [1.0, 2.0]
rot90: ts.rot90(ts.asarray([[1, 2], [3, 4]])).tolist() => [[2, 4], [1, 3]]
scatter_add: ts.scatter_add(ts.asarray([0, 0, 0]), ts.asarray([1, 1]), ts.asarray([5, 7])).tolist() => [0, 12, 0]
select: ts.select([ts.asarray([True, False])], [ts.asarray([1, 2])], default=-1).tolist() => [1, -1]
setdiff1d: ts.setdiff1d(ts.asarray([3, 1, 2]), [2]).tolist() => [1, 3]
setxor1d: ts.setxor1d(ts.asarray([3, 1]), [2, 3]).tolist() => [1, 2]
shape: ts.shape(ts.ones((2, 3))) => (2, 3)
shuffle: ts.sort(ts.shuffle(ts.asarray([3, 1, 2]))).tolist() => [1, 2, 3]
size: ts.size(ts.ones((2, 3))) => 6
sort_complex: ts.sort_complex(ts.asarray([2 + 1j, 1, 2])).tolist() => [(1+0j), (2+0j), (2+1j)]
spacing: (ts.spacing(ts.asarray([1.0, -4.0])) * 2.0**52).tolist() => [1.0, -4.0]
split: [x.tolist() for x in ts.split(ts.asarray([1, 2, 3, 4]), 2)] => [[1, 2], [3, 4]]
squeeze: ts.squeeze(ts.ones((1, 3, 1))).shape => (3,)
sub: ts.sub(ts.asarray([5, 6]), 1).tolist() => [4, 5]
swapaxes: ts.swapaxes(ts.ones((2, 3)), 0, 1).shape => (3, 2)
take: ts.take(ts.asarray([10, 20, 30]), ts.asarray([2, 0]), axis=0).tolist() => [30, 10]
tensordot: ts.tensordot(ts.asarray([[1, 2]]), ts.asarray([[3], [4]]), axes=1).tolist() => [[11]]
topk: [x.tolist() for x in ts.topk(ts.asarray([1, 9, 5]), 2)] => [[9, 5], [1, 2]]
transpose: ts.transpose(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 3], [2, 4]]
trapezoid: ts.trapezoid(ts.asarray([1.0, 2.0, 3.0])).item() => 4.0
tri: ts.tri(2).tolist() => [[1.0, 0.0], [1.0, 1.0]]
tril_indices: [one.tolist() for one in ts.tril_indices(2)] => [[0, 1, 1], [0, 0, 1]]
tril_indices_from: [one.tolist() for one in ts.tril_indices_from(ts.ones((2, 2)), k=-1)] => [[1], [0]]
trim_zeros: ts.trim_zeros(ts.asarray([0, 1, 2, 0])).tolist() => [1, 2]
triu_indices: [one.tolist() for one in ts.triu_indices(2)] => [[0, 0, 1], [0, 1, 1]]
triu_indices_from: [one.tolist() for one in ts.triu_indices_from(ts.ones((2, 2)), k=1)] => [[0], [1]]
union1d: ts.union1d(ts.asarray([3, 1]), [2, 3]).tolist() => [1, 2, 3]
unique: [one.tolist() for one in ts.unique(ts.asarray([3, 1, 3]), return_counts=True)] => [[1, 3], [1, 2]]
unique_all: ts.unique_all(ts.asarray([2, 1, 2])).values.tolist() => [1, 2]
unique_counts: [x.tolist() for x in ts.unique_counts(ts.asarray([2, 1, 2]))] => [[1, 2], [1, 2]]
unique_inverse: [x.tolist() for x in ts.unique_inverse(ts.asarray([2, 1, 2]))] => [[1, 2], [1, 0, 1]]
unique_values: ts.unique_values(ts.asarray([2, 1, 2])).tolist() => [1, 2]
unpackbits: ts.unpackbits(ts.asarray([5], dtype=ts.uint8)).tolist() => [0, 0, 0, 0, 0, 1, 0, 1]
unravel_index: [x.tolist() for x in ts.unravel_index(ts.asarray([5, 1]), (2, 3))] => [[1, 0], [2, 1]]
unwrap: ts.unwrap(ts.asarray([0, 1, 2, -1, 0]), period=4).tolist() => [0, 1, 2, 3, 4]
vander: ts.vander(ts.asarray([1, 2, 3]), 2).tolist() => [[1, 1], [2, 1], [3, 1]]
vdot: ts.vdot(ts.asarray([1j, 2]), ts.asarray([1j, 3])).item() => (7+0j)
vecdot: ts.vecdot(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
vecmat: ts.vecmat(ts.asarray([1.0, 1.0]), ts.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() => [4.0, 6.0]
vsplit: [x.tolist() for x in ts.vsplit(ts.asarray([[1, 2], [3, 4]]), 2)] => [[[1, 2]], [[3, 4]]]
vstack: ts.vstack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[1, 2], [3, 4]]
wait: ts.wait(ts.asarray([1, 2]), ts.asarray([3]))
zeros: ts.zeros((2,)).tolist() => [0.0, 0.0]
zeros_like: ts.zeros_like(ts.asarray([5, 6])).tolist() => [0, 0]
"""

OF_FUNCTIONS = {name: example for name, _, example in (line.partition(": ") for line in _TEXT.strip().split("\n"))}
# By the function's name: "add", "linalg.inv".
EXAMPLES = OF_ROWS | OF_FUNCTIONS
