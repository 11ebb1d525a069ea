"""Examples of the functions: `name: expression => what it shows`. help() has them, and a test runs each; in them there is
a session on four workers, with `mesh = session.init_device_mesh((4,))`."""

TEXT = r"""
abs: ts.abs(ts.asarray([-1.5, 2.0])).tolist() => [1.5, 2.0]
absolute: ts.absolute(ts.asarray([-1.5, 2.0])).tolist() => [1.5, 2.0]
acos: ts.acos(ts.asarray([1.0, 0.0])).tolist() => [0.0, 1.5707963267948966]
acosh: ts.acosh(ts.asarray([1.0])).tolist() => [0.0]
adam_step: ts.round(ts.adam_step(ts.asarray([1.0]), ts.asarray([2.0]), ts.asarray([0.0]), ts.asarray([0.0]), ts.asarray(1), 0.5)[0] * 10).tolist() => [5.0]
adaptive_avg_pool2d: ts.adaptive_avg_pool2d(ts.ones((1, 3, 8, 6)), (4, 2)).shape => (1, 3, 4, 2)
add: ts.add(ts.asarray([1, 2]), 10).tolist() => [11, 12]
addcdiv: ts.addcdiv(ts.asarray([1.0]), ts.asarray([4.0]), ts.asarray([2.0]), value=0.5).tolist() => [2.0]
addcmul: ts.addcmul(ts.asarray([1.0]), ts.asarray([4.0]), ts.asarray([2.0]), value=0.5).tolist() => [5.0]
addmm: ts.addmm(ts.asarray([1.0, 1.0]), ts.asarray([[1.0, 2.0]]), ts.asarray([[1.0, 0.0], [0.0, 1.0]])).tolist() => [[2.0, 3.0]]
all: ts.all(ts.asarray([[True, False], [True, True]]), axis=1).tolist() => [False, True]
allclose: ts.allclose(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 2.0 + 1e-9])).item() => True
angle: ts.angle(ts.asarray([1.0, -1.0])).tolist() => [0.0, 3.141592653589793]
any: ts.any(ts.asarray([[False, False], [True, False]]), axis=1).tolist() => [False, True]
append: ts.append(ts.asarray([1, 2]), [3]).tolist() => [1, 2, 3]
apply_along_axis: ts.apply_along_axis(lambda row: row[::-1], 1, ts.asarray([[1, 2], [3, 4]])).tolist() => [[2, 1], [4, 3]]
apply_over_axes: ts.apply_over_axes(ts.sum, ts.ones((2, 3, 4)), [0, 2]).tolist() => [[[8.0], [8.0], [8.0]]]
arange: ts.arange(2, 10, 3).tolist() => [2, 5, 8]
argmax: ts.argmax(ts.asarray([[1, 5, 2], [7, 0, 3]]), axis=1).tolist() => [1, 0]
argmin: ts.argmin(ts.asarray([[1, 5, 2], [7, 0, 3]]), axis=1).tolist() => [0, 1]
argpartition: ts.argpartition(ts.asarray([3, 1, 2]), 1).tolist() => [1, 2, 0]
argsort: ts.argsort(ts.asarray([30, 10, 20])).tolist() => [1, 2, 0]
argsort_first: ts.argsort_first(ts.asarray([30, 10, 20]), 2).tolist() => [1, 2]
argwhere: ts.argwhere(ts.asarray([[0, 3], [4, 0]])).tolist() => [[0, 1], [1, 0]]
array: ts.array([[1, 2], [3, 4]], dtype=ts.float32).tolist() => [[1.0, 2.0], [3.0, 4.0]]
array_equal: ts.array_equal(ts.asarray([1, 2]), [1, 2]).item() => True
array_equiv: ts.array_equiv(ts.asarray([1, 2]), ts.asarray([[1, 2], [1, 2]])).item() => True
array_split: [x.tolist() for x in ts.array_split(ts.asarray([1, 2, 3]), 2)] => [[1, 2], [3]]
asarray: ts.asarray([[1, 2], [3, 4]], dtype=ts.float32).tolist() => [[1.0, 2.0], [3.0, 4.0]]
asarray_chkfinite: ts.asarray_chkfinite([1.0, 2.0]).tolist() => [1.0, 2.0]
asin: ts.asin(ts.asarray([0.0])).tolist() => [0.0]
asinh: ts.asinh(ts.asarray([0.0])).tolist() => [0.0]
astype: ts.astype(ts.asarray([1.7, -1.7]), ts.int32).tolist() => [1, -1]
atan: ts.atan(ts.asarray([0.0])).tolist() => [0.0]
atan2: ts.atan2(ts.asarray([0.0]), ts.asarray([1.0])).tolist() => [0.0]
atanh: ts.atanh(ts.asarray([0.0])).tolist() => [0.0]
atleast_1d: ts.atleast_1d(ts.asarray(5)).tolist() => [5]
atleast_2d: ts.atleast_2d(ts.asarray([1, 2])).tolist() => [[1, 2]]
atleast_3d: ts.atleast_3d(ts.asarray([1, 2])).shape => (1, 2, 1)
average: ts.average(ts.asarray([1.0, 4.0]), ts.asarray([3.0, 1.0])).item() => 1.75
avg_pool1d: ts.avg_pool1d(ts.asarray([[[1.0, 3.0, 5.0, 7.0]]]), 2).tolist() => [[[2.0, 6.0]]]
avg_pool2d: ts.avg_pool2d(ts.ones((1, 1, 4, 4)), 2).shape => (1, 1, 2, 2)
baddbmm: ts.baddbmm(ts.ones((1, 2, 2)), ts.ones((1, 2, 3)), ts.ones((1, 3, 2))).tolist() => [[[4.0, 4.0], [4.0, 4.0]]]
bartlett: ts.bartlett(5).tolist() => [0.0, 0.5, 1.0, 0.5, 0.0]
batch_norm: ts.batch_norm(ts.ones((1, 2)), ts.zeros((2,)), ts.ones((2,)), eps=0.0).tolist() => [[1.0, 1.0]]
bernoulli: ts.bernoulli(1.0, (3,)).tolist() => [True, True, True]
bincount: ts.bincount(ts.asarray([0, 2, 2])).tolist() => [1, 0, 2]
bitwise_and: ts.bitwise_and(ts.asarray([6, 5]), 4).tolist() => [4, 4]
bitwise_count: ts.bitwise_count(ts.asarray([3, 8, -7])).tolist() => [2, 1, 3]
bitwise_invert: ts.bitwise_invert(ts.asarray([0, 1])).tolist() => [-1, -2]
bitwise_left_shift: ts.bitwise_left_shift(ts.asarray([1, 2]), 3).tolist() => [8, 16]
bitwise_or: ts.bitwise_or(ts.asarray([1, 2]), 4).tolist() => [5, 6]
bitwise_right_shift: ts.bitwise_right_shift(ts.asarray([8, -8]), 1).tolist() => [4, -4]
bitwise_xor: ts.bitwise_xor(ts.asarray([1, 3]), 1).tolist() => [0, 2]
blackman: ts.round(ts.blackman(3) * 10).tolist() => [-0.0, 10.0, -0.0]
block: ts.block([[ts.ones((1, 1)), ts.zeros((1, 1))]]).tolist() => [[1.0, 0.0]]
bmm: ts.bmm(ts.ones((2, 2, 3)), ts.ones((2, 3, 1))).shape => (2, 2, 1)
broadcast_arrays: [x.shape for x in ts.broadcast_arrays(ts.ones((2, 1)), ts.ones((3,)))] => [(2, 3), (2, 3)]
broadcast_shapes: ts.broadcast_shapes((2, 1), (3,)) => (2, 3)
broadcast_to: ts.broadcast_to(ts.asarray([1, 2]), (2, 2)).tolist() => [[1, 2], [1, 2]]
can_cast: ts.can_cast(ts.int32, ts.float64) => True
cbrt: ts.cbrt(ts.asarray([8.0, -27.0])).tolist() => [2.0, -3.0]
ceil: ts.ceil(ts.asarray([1.2, -1.2])).tolist() => [2.0, -1.0]
check_range: ts.check_range(ts.asarray([1, 2]), 0, 2, mode="label").tolist() => [1, 2]
choice: ts.choice(ts.asarray([7, 7, 7]), (2,)).tolist() => [7, 7]
choose: ts.choose(ts.asarray([0, 1, 0]), [ts.asarray([1, 2, 3]), -1]).tolist() => [1, -1, 3]
clip: ts.clip(ts.asarray([-3, 1, 9]), 0, 5).tolist() => [0, 1, 5]
column_stack: ts.column_stack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[1, 3], [2, 4]]
complex: ts.complex(ts.asarray([1.0]), ts.asarray([2.0])).tolist() => [(1+2j)]
compress: ts.compress([True, False, True], ts.asarray([5, 6, 7])).tolist() => [5, 7]
concat: ts.concat([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
concatenate: ts.concatenate([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
conj: ts.conj(ts.asarray([1 + 2j])).tolist() => [(1-2j)]
conv1d: ts.conv1d(ts.asarray([[[1.0, 2.0, 3.0]]]), ts.asarray([[[1.0, 1.0]]])).tolist() => [[[3.0, 5.0]]]
conv2d: ts.conv2d(ts.ones((1, 3, 8, 8)), ts.ones((16, 3, 3, 3)), padding=1).shape => (1, 16, 8, 8)
conv3d: ts.conv3d(ts.ones((1, 1, 4, 4, 4)), ts.ones((2, 1, 3, 3, 3))).shape => (1, 2, 2, 2, 2)
conv_backward_weight: ts.conv_backward_weight(ts.asarray([[[1.0, 1.0]]]), ts.asarray([[[1.0, 2.0, 3.0]]]), shape=(1, 1, 2), stride=1, padding=0, dilation=1).tolist() => [[[3.0, 5.0]]]
conv_backward_x: ts.conv_backward_x(ts.asarray([[[1.0, 1.0]]]), ts.asarray([[[1.0, 10.0]]]), shape=(1, 1, 3), stride=1, padding=0, dilation=1).tolist() => [[[1.0, 11.0, 10.0]]]
convolve: ts.convolve(ts.asarray([1, 2, 3]), [1, 1]).tolist() => [1, 3, 5, 3]
copy: ts.copy(ts.asarray([1, 2])).tolist() => [1, 2]
copysign: ts.copysign(ts.asarray([1.0, 2.0]), ts.asarray([-1.0, 1.0])).tolist() => [-1.0, 2.0]
copyto: [x := ts.arange(3), ts.copyto(x, 9, where=ts.asarray([True, False, True]))][0].tolist() => [9, 1, 9]
corrcoef: ts.corrcoef(ts.asarray([[1.0, 2.0], [4.0, 2.0]])).tolist() => [[0.9999999999999999, -0.9999999999999999], [-0.9999999999999999, 0.9999999999999999]]
correlate: ts.correlate(ts.asarray([1, 2, 3]), [0, 1]).tolist() => [2, 3]
cos: ts.cos(ts.asarray([0.0])).tolist() => [1.0]
cosh: ts.cosh(ts.asarray([0.0])).tolist() => [1.0]
count_nonzero: ts.count_nonzero(ts.asarray([0, 3, 0, 4])).item() => 2
cov: ts.cov(ts.asarray([[1.0, 3.0], [4.0, 0.0]])).tolist() => [[2.0, -4.0], [-4.0, 8.0]]
cross: ts.cross(ts.asarray([1.0, 0.0, 0.0]), ts.asarray([0.0, 1.0, 0.0])).tolist() => [0.0, 0.0, 1.0]
cross_entropy: round(ts.cross_entropy(ts.asarray([[0.0, 0.0]]), ts.asarray([1])).item(), 6) => 0.693147
cummax: [x.tolist() for x in ts.cummax(ts.asarray([1, 3, 2]), 0)] => [[1, 3, 3], [0, 1, 1]]
cummin: [x.tolist() for x in ts.cummin(ts.asarray([3, 1, 2]), 0)] => [[3, 1, 1], [0, 1, 1]]
cumprod: ts.cumprod(ts.asarray([1, 2, 3])).tolist() => [1, 2, 6]
cumsum: ts.cumsum(ts.asarray([1, 2, 3])).tolist() => [1, 3, 6]
cumulative_max: ts.cumulative_max(ts.asarray([1, 3, 2])).tolist() => [1, 3, 3]
cumulative_min: ts.cumulative_min(ts.asarray([3, 1, 2])).tolist() => [3, 1, 1]
cumulative_prod: ts.cumulative_prod(ts.asarray([1, 2, 3])).tolist() => [1, 2, 6]
cumulative_sum: ts.cumulative_sum(ts.asarray([1, 2, 3]), include_initial=True).tolist() => [0, 1, 3, 6]
deg2rad: ts.deg2rad(ts.asarray([180.0])).tolist() => [3.141592653589793]
delete: ts.delete(ts.asarray([5, 6, 7]), 1).tolist() => [5, 7]
diag: ts.diag(ts.asarray([1, 2])).tolist() => [[1, 0], [0, 2]]
diag_indices: [one.tolist() for one in ts.diag_indices(3)] => [[0, 1, 2], [0, 1, 2]]
diag_indices_from: [one.tolist() for one in ts.diag_indices_from(ts.ones((2, 2)))] => [[0, 1], [0, 1]]
diagflat: ts.diagflat(ts.asarray([[1, 2]]), 1).tolist() => [[0, 1, 0], [0, 0, 2], [0, 0, 0]]
diagonal: ts.diagonal(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 4]
diff: ts.diff(ts.asarray([1, 4, 9])).tolist() => [3, 5]
digitize: ts.digitize(ts.asarray([0.5, 2.0, 9.0]), [0, 1, 5]).tolist() => [1, 2, 3]
distribute_tensor: ts.distribute_tensor(np.arange(4), mesh, [ts.Shard(0)]).placements => (Shard(0),)
div: ts.div(ts.asarray([1, 2]), 4).tolist() => [0.25, 0.5]
divide: ts.divide(ts.asarray([1, 2]), 4).tolist() => [0.25, 0.5]
divmod: [x.tolist() for x in ts.divmod(ts.asarray([7, -7]), 2)] => [[3, -4], [1, 1]]
dot: ts.dot(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
dropout: ts.dropout(ts.asarray([1.0, 2.0]), 0.5, training=False).tolist() => [1.0, 2.0]
dsplit: [x.shape for x in ts.dsplit(ts.ones((2, 2, 4)), 2)] => [(2, 2, 2), (2, 2, 2)]
dstack: ts.dstack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[[1, 3], [2, 4]]]
ediff1d: ts.ediff1d(ts.asarray([1, 4, 9]), to_end=[0]).tolist() => [3, 5, 0]
einsum: ts.einsum("ij,j->i", ts.asarray([[1, 2], [3, 4]]), ts.asarray([1, 1])).tolist() => [3, 7]
einsum_path: ts.einsum_path("ij,jk,kl->il", ts.ones((2, 3)), ts.ones((3, 4)), ts.ones((4, 5)))[0] => ['einsum_path', (1, 2), (0, 1)]
elu: ts.elu(ts.asarray([0.0, 2.0])).tolist() => [0.0, 2.0]
embedding: ts.embedding(ts.asarray([1, 0]), ts.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() => [[3.0, 4.0], [1.0, 2.0]]
embedding_backward: ts.embedding_backward(ts.ones((3, 1)), ts.asarray([0, 2, 0]), num_classes=3).tolist() => [[2.0], [0.0], [1.0]]
empty: ts.empty((2, 3)).shape => (2, 3)
empty_like: ts.empty_like(ts.asarray([1, 2])).dtype => dtype('int64')
equal: ts.equal(ts.asarray([1, 2]), ts.asarray([1, 3])).tolist() => [True, False]
erf: ts.erf(ts.asarray([0.0])).tolist() => [0.0]
exp: ts.exp(ts.asarray([0.0, 1.0])).tolist() => [1.0, 2.7182818284590455]
exp2: ts.exp2(ts.asarray([3.0])).tolist() => [8.0]
expand_dims: ts.expand_dims(ts.asarray([1, 2]), 0).shape => (1, 2)
expm1: ts.expm1(ts.asarray([0.0])).tolist() => [0.0]
exponential: ts.exponential(2.0, (1000,)).shape => (1000,)
extract: ts.extract(ts.asarray([True, False, True]), ts.asarray([1, 2, 3])).tolist() => [1, 3]
eye: ts.eye(2).tolist() => [[1.0, 0.0], [0.0, 1.0]]
fft.fft: ts.fft.fft(ts.asarray([1.0, 0.0])).tolist() => [(1+0j), (1+0j)]
fft.fft2: ts.fft.fft2(ts.ones((2, 2))).tolist() => [[(4+0j), 0j], [0j, 0j]]
fft.fftfreq: ts.fft.fftfreq(4).tolist() => [0.0, 0.25, -0.5, -0.25]
fft.fftn: ts.fft.fftn(ts.ones((2, 2))).tolist() => [[(4+0j), 0j], [0j, 0j]]
fft.fftshift: ts.fft.fftshift(ts.asarray([0, 1, 2, 3])).tolist() => [2, 3, 0, 1]
fft.hfft: ts.fft.hfft(ts.asarray([1.0, 1.0])).tolist() => [2.0, 0.0]
fft.ifft: ts.fft.ifft(ts.asarray([1.0, 1.0])).tolist() => [(1-0j), 0j]
fft.ifft2: ts.fft.ifft2(ts.ones((2, 2))).shape => (2, 2)
fft.ifftn: ts.fft.ifftn(ts.ones((2, 2))).tolist() => [[(1-0j), -0j], [-0j, 0j]]
fft.ifftshift: ts.fft.ifftshift(ts.asarray([2, 3, 0, 1])).tolist() => [0, 1, 2, 3]
fft.ihfft: ts.fft.ihfft(ts.asarray([1.0, 1.0])).tolist() => [(1-0j), -0j]
fft.irfft: ts.fft.irfft(ts.asarray([1.0, 1.0])).tolist() => [1.0, 0.0]
fft.irfft2: ts.fft.irfft2(ts.ones((2, 2))).shape => (2, 2)
fft.irfftn: ts.fft.irfftn(ts.ones((2, 2))).shape => (2, 2)
fft.rfft: ts.fft.rfft(ts.asarray([1.0, 0.0])).tolist() => [(1+0j), (1+0j)]
fft.rfft2: ts.fft.rfft2(ts.ones((2, 2))).shape => (2, 2)
fft.rfftfreq: ts.fft.rfftfreq(4).tolist() => [0.0, 0.25, 0.5]
fft.rfftn: ts.fft.rfftn(ts.ones((2, 2))).shape => (2, 2)
fill_diagonal: [x := ts.zeros((2, 2)), ts.fill_diagonal(x, 5)][0].tolist() => [[5.0, 0.0], [0.0, 5.0]]
filter: ts.filter(ts.asarray([5, 6, 7]), ts.asarray([True, False, True]), lengths=[2]).tolist() => [5, 7]
finfo: ts.finfo(ts.float32).bits => 32
flatnonzero: ts.flatnonzero(ts.asarray([[0, 3], [4, 0]])).tolist() => [1, 2]
flip: ts.flip(ts.asarray([1, 2, 3])).tolist() => [3, 2, 1]
fliplr: ts.fliplr(ts.asarray([[1, 2], [3, 4]])).tolist() => [[2, 1], [4, 3]]
flipud: ts.flipud(ts.asarray([[1, 2], [3, 4]])).tolist() => [[3, 4], [1, 2]]
float_power: ts.float_power(ts.asarray([2, 3]), -1).tolist() => [0.5, 0.3333333333333333]
floor: ts.floor(ts.asarray([1.7, -1.2])).tolist() => [1.0, -2.0]
floor_divide: ts.floor_divide(ts.asarray([7, -7]), 2).tolist() => [3, -4]
fmax: ts.fmax(ts.asarray([1.0, float("nan")]), 0.5).tolist() => [1.0, 0.5]
fmin: ts.fmin(ts.asarray([1.0, float("nan")]), 0.5).tolist() => [0.5, 0.5]
fmod: ts.fmod(ts.asarray([7, -7]), 3).tolist() => [1, -1]
frexp: [part.tolist() for part in ts.frexp(ts.asarray([1.0, 6.0]))] => [[0.5, 0.75], [1, 3]]
from_dlpack: ts.from_dlpack(np.arange(3)).tolist() => [0, 1, 2]
from_local: ts.from_local(lambda position: np.full((1,), position[0]), mesh, [ts.Shard(0)]).shape => (4,)
frombuffer: ts.frombuffer(bytes([1, 2, 3]), dtype=ts.uint8).tolist() => [1, 2, 3]
fromfunction: ts.fromfunction(lambda i, j: 10 * i + j, (2, 2)).tolist() => [[0.0, 1.0], [10.0, 11.0]]
fromiter: ts.fromiter((n * n for n in range(3)), float).tolist() => [0.0, 1.0, 4.0]
fromstring: ts.fromstring("1 2 3", sep=" ").tolist() => [1.0, 2.0, 3.0]
full: ts.full((2,), 7).tolist() => [7, 7]
full_like: ts.full_like(ts.asarray([1, 2]), 9).tolist() => [9, 9]
gather: ts.gather(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[0], [1]])).tolist() => [[1], [4]]
gcd: ts.gcd(ts.asarray([12, 7]), 18).tolist() => [6, 1]
gelu: ts.gelu(ts.asarray([0.0])).tolist() => [0.0]
gelu_backward: ts.gelu_backward(ts.ones((2,)), ts.zeros((2,))).tolist() => [0.5, 0.5]
geomspace: [round(x, 9) for x in ts.geomspace(1, 8, 4).tolist()] => [1.0, 2.0, 4.0, 8.0]
gradient: ts.gradient(ts.asarray([1.0, 4.0, 9.0])).tolist() => [3.0, 4.0, 5.0]
greater: ts.greater(ts.asarray([1, 3]), 2).tolist() => [False, True]
greater_equal: ts.greater_equal(ts.asarray([1, 2]), 2).tolist() => [False, True]
group_norm: ts.group_norm(ts.ones((1, 4, 3)), groups=2).shape => (1, 4, 3)
grouped_matmul: ts.grouped_matmul(ts.ones((3, 2)), ts.asarray([[[1.0], [1.0]], [[5.0], [5.0]]]), ts.asarray([1, 3])).tolist() => [[2.0], [10.0], [10.0]]
hamming: ts.round(ts.hamming(3) * 100).tolist() => [8.0, 100.0, 8.0]
hanning: ts.hanning(3).tolist() => [0.0, 1.0, 0.0]
hardsigmoid: ts.hardsigmoid(ts.asarray([-4.0, 0.0, 4.0])).tolist() => [0.0, 0.5, 1.0]
hardswish: ts.hardswish(ts.asarray([-4.0, 3.0])).tolist() => [-0.0, 3.0]
heaviside: ts.heaviside(ts.asarray([-1.0, 0.0, 2.0]), 0.5).tolist() => [0.0, 0.5, 1.0]
histogram: [x.tolist() for x in ts.histogram(ts.asarray([1, 2, 4]), bins=3)] => [[1, 1, 1], [1.0, 2.0, 3.0, 4.0]]
histogram2d: ts.histogram2d(ts.asarray([0.0, 1.0, 1.0]), ts.asarray([0.0, 0.0, 1.0]), bins=2)[0].tolist() => [[1.0, 0.0], [1.0, 1.0]]
histogram_bin_edges: ts.histogram_bin_edges(ts.asarray([0.0, 4.0]), bins=2).tolist() => [0.0, 2.0, 4.0]
histogramdd: ts.histogramdd(ts.asarray([[0.0, 0.0], [1.0, 1.0]]), bins=2)[0].tolist() => [[1.0, 0.0], [0.0, 1.0]]
hsplit: [x.tolist() for x in ts.hsplit(ts.asarray([[1, 2], [3, 4]]), 2)] => [[[1], [3]], [[2], [4]]]
hstack: ts.hstack([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
hypot: ts.hypot(ts.asarray([3.0]), ts.asarray([4.0])).tolist() => [5.0]
i0: ts.round(ts.i0(ts.asarray([0.0, 1.0])) * 1000).tolist() => [1000.0, 1266.0]
identity: ts.identity(2).tolist() => [[1.0, 0.0], [0.0, 1.0]]
iinfo: ts.iinfo(ts.int8).max => 127
imag: ts.imag(ts.asarray([1 + 2j])).tolist() => [2.0]
in1d: ts.in1d(ts.asarray([1, 2, 3]), [3, 1]).tolist() => [True, False, True]
index_add: ts.index_add(ts.asarray([1, 2, 3]), ts.asarray([0, 0]), ts.asarray([10, 20])).tolist() => [31, 2, 3]
indices: ts.indices((2, 2)).tolist() => [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
init_device_mesh: ts.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp")) => mesh(dp:2,tp:2)
inner: ts.inner(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
insert: ts.insert(ts.asarray([5, 6]), 1, 9).tolist() => [5, 9, 6]
interp: ts.interp(ts.asarray([0.5, 9.0]), [0, 1], [10, 20]).tolist() => [15.0, 20.0]
intersect1d: ts.intersect1d(ts.asarray([3, 1, 2]), [2, 3, 5]).tolist() => [2, 3]
isclose: ts.isclose(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 2.1])).tolist() => [True, False]
iscomplex: ts.iscomplex(ts.asarray([1 + 1j, 2])).tolist() => [True, False]
iscomplexobj: ts.iscomplexobj(ts.asarray([1 + 1j])) => True
isdtype: ts.isdtype(ts.float32, "real floating") => True
isfinite: ts.isfinite(ts.asarray([1.0, float("inf")])).tolist() => [True, False]
isin: ts.isin(ts.asarray([1, 2, 3]), ts.asarray([3, 1])).tolist() => [True, False, True]
isinf: ts.isinf(ts.asarray([1.0, float("inf")])).tolist() => [False, True]
isnan: ts.isnan(ts.asarray([1.0, float("nan")])).tolist() => [False, True]
isneginf: ts.isneginf(ts.asarray([1.0, -ts.inf])).tolist() => [False, True]
isposinf: ts.isposinf(ts.asarray([1.0, ts.inf])).tolist() => [False, True]
isreal: ts.isreal(ts.asarray([1 + 1j, 2])).tolist() => [False, True]
isrealobj: ts.isrealobj(ts.asarray([1.0])) => True
ix_: ts.arange(9).reshape(3, 3)[ts.ix_([0, 2], [1])].tolist() => [[1], [7]]
kaiser: ts.round(ts.kaiser(3, 5.0) * 1000).tolist() => [37.0, 1000.0, 37.0]
kron: ts.kron(ts.asarray([1, 10]), ts.asarray([1, 2])).tolist() => [1, 2, 10, 20]
layer_norm: ts.layer_norm(ts.asarray([[1.0, 3.0]]), eps=0.0).tolist() => [[-1.0, 1.0]]
layer_norm_backward: [x.shape for x in ts.layer_norm_backward(ts.ones((3, 2)), ts.ones((3, 2)), ts.ones((2,)))] => [(3, 2), (2,), (2,)]
lcm: ts.lcm(ts.asarray([4, 5]), 6).tolist() => [12, 30]
ldexp: ts.ldexp(ts.asarray([1.0, 3.0]), 2).tolist() => [4.0, 12.0]
leaky_relu: ts.leaky_relu(ts.asarray([-2.0, 2.0]), negative_slope=0.5).tolist() => [-1.0, 2.0]
leaky_relu_backward: ts.leaky_relu_backward(ts.ones((2,)), ts.asarray([-1.0, 1.0]), negative_slope=0.5).tolist() => [0.5, 1.0]
lerp: ts.lerp(ts.asarray([0.0]), ts.asarray([10.0]), 0.25).tolist() => [2.5]
less: ts.less(ts.asarray([1, 3]), 2).tolist() => [True, False]
less_equal: ts.less_equal(ts.asarray([1, 2]), 1).tolist() => [True, False]
lexsort: ts.lexsort((ts.asarray([2, 1, 1]), ts.asarray([5, 7, 5]))).tolist() => [2, 0, 1]
linalg.cho_factor: ts.linalg.cho_factor(ts.asarray([[4.0]]), lower=True)[0].tolist() => [[2.0]]
linalg.cho_solve: ts.linalg.cho_solve(ts.linalg.cho_factor(ts.asarray([[4.0]])), ts.asarray([8.0])).tolist() => [2.0]
linalg.cholesky: ts.linalg.cholesky(ts.asarray([[4.0, 0.0], [0.0, 9.0]])).tolist() => [[2.0, 0.0], [0.0, 3.0]]
linalg.cond: ts.linalg.cond(ts.asarray([[4.0, 0.0], [0.0, 2.0]])).item() => 2.0
linalg.det: ts.linalg.det(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).item() => 6.0
linalg.diagonal: ts.linalg.diagonal(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 4]
linalg.eig: ts.linalg.eig(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues.tolist() => [(2+0j), (3+0j)]
linalg.eigh: ts.linalg.eigh(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues.tolist() => [2.0, 3.0]
linalg.eigvals: ts.linalg.eigvals(ts.asarray([[0.0, -1.0], [1.0, 0.0]])).tolist() => [1j, -1j]
linalg.eigvalsh: ts.linalg.eigvalsh(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).tolist() => [2.0, 3.0]
linalg.inv: ts.linalg.inv(ts.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist() => [[0.5, 0.0], [0.0, 0.25]]
linalg.lstsq: ts.linalg.lstsq(ts.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), ts.asarray([[1.0], [4.0], [0.0]])).x.shape => (2, 1)
linalg.lu: ts.linalg.lu(ts.asarray([[0.0, 2.0], [4.0, 0.0]])).U.tolist() => [[4.0, 0.0], [0.0, 2.0]]
linalg.lu_factor: ts.linalg.lu_factor(ts.asarray([[0.0, 2.0], [4.0, 0.0]])).pivots.tolist() => [1, 1]
linalg.lu_solve: ts.linalg.lu_solve(*ts.linalg.lu_factor(ts.asarray([[0.0, 2.0], [4.0, 0.0]])), ts.asarray([2.0, 8.0])).tolist() => [2.0, 1.0]
linalg.matrix_exp: ts.linalg.matrix_exp(ts.zeros((2, 2))).tolist() => [[1.0, 0.0], [0.0, 1.0]]
linalg.matrix_norm: ts.linalg.matrix_norm(ts.asarray([[3.0, 0.0], [0.0, 4.0]])).item() => 5.0
linalg.matrix_power: ts.linalg.matrix_power(ts.asarray([[2.0, 0.0], [0.0, 3.0]]), 2).tolist() => [[4.0, 0.0], [0.0, 9.0]]
linalg.matrix_rank: ts.linalg.matrix_rank(ts.asarray([[1.0, 1.0], [1.0, 1.0]])).item() => 1
linalg.multi_dot: ts.linalg.multi_dot([ts.ones((2, 3)), ts.ones((3, 4)), ts.ones((4, 1))]).tolist() => [[12.0], [12.0]]
linalg.norm: ts.linalg.norm(ts.asarray([3.0, 4.0])).item() => 5.0
linalg.pinv: ts.linalg.pinv(ts.ones((3, 2))).shape => (2, 3)
linalg.qr: [x.shape for x in ts.linalg.qr(ts.ones((3, 2)))] => [(3, 2), (2, 2)]
linalg.slogdet: ts.linalg.slogdet(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).sign.item() => 1.0
linalg.solve: ts.linalg.solve(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([2.0, 2.0])).tolist() => [1.0, 0.5]
linalg.solve_triangular: ts.linalg.solve_triangular(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([[2.0], [2.0]]), upper=True).tolist() => [[1.0], [0.5]]
linalg.svd: [x.shape for x in ts.linalg.svd(ts.ones((3, 2)), full_matrices=False)] => [(3, 2), (2,), (2, 2)]
linalg.svdvals: ts.linalg.svdvals(ts.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist() => [4.0, 3.0]
linalg.tensorinv: ts.linalg.tensorinv(ts.ones((1, 1))).tolist() => [[1.0]]
linalg.tensorsolve: ts.linalg.tensorsolve(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([2.0, 2.0])).tolist() => [1.0, 0.5]
linalg.trace: ts.linalg.trace(ts.asarray([[1, 2], [3, 4]])).item() => 5
linear: ts.linear(ts.asarray([[1.0, 2.0]]), ts.asarray([[1.0, 1.0]]), ts.asarray([0.5])).tolist() => [[3.5]]
linspace: ts.linspace(0, 1, 5).tolist() => [0.0, 0.25, 0.5, 0.75, 1.0]
log: ts.log(ts.asarray([1.0])).tolist() => [0.0]
log10: ts.log10(ts.asarray([100.0])).tolist() => [2.0]
log1p: ts.log1p(ts.asarray([0.0])).tolist() => [0.0]
log2: ts.log2(ts.asarray([8.0])).tolist() => [3.0]
log_softmax: ts.log_softmax(ts.asarray([[0.0, 0.0]])).shape => (1, 2)
log_softmax_backward: ts.log_softmax_backward(ts.asarray([1.0, 0.0]), ts.log(ts.asarray([0.5, 0.5]))).tolist() => [0.5, -0.5]
logaddexp: round(ts.logaddexp(ts.asarray([0.0]), ts.asarray([0.0])).item(), 6) => 0.693147
logaddexp2: ts.logaddexp2(ts.asarray([1.0]), 1.0).tolist() => [2.0]
logical_and: ts.logical_and(ts.asarray([True, True]), ts.asarray([True, False])).tolist() => [True, False]
logical_not: ts.logical_not(ts.asarray([True, False])).tolist() => [False, True]
logical_or: ts.logical_or(ts.asarray([False, False]), ts.asarray([True, False])).tolist() => [True, False]
logical_xor: ts.logical_xor(ts.asarray([True, False]), ts.asarray([True, True])).tolist() => [False, True]
logit: ts.logit(ts.asarray([0.5])).tolist() => [0.0]
logspace: [round(x, 9) for x in ts.logspace(0, 2, 3).tolist()] => [1.0, 10.0, 100.0]
logsumexp: round(ts.logsumexp(ts.asarray([0.0, 0.0])).item(), 6) => 0.693147
manual_seed: ts.manual_seed(7)
mask_indices: [one.tolist() for one in ts.mask_indices(2, ts.triu)] => [[0, 0, 1], [0, 1, 1]]
masked_fill: ts.masked_fill(ts.asarray([1, 2, 3]), ts.asarray([True, False, True]), 0).tolist() => [0, 2, 0]
masked_select: ts.masked_select(ts.asarray([1, 2, 3]), ts.asarray([True, False, True])).tolist() => [1, 3]
matmul: ts.matmul(ts.asarray([[1, 2], [3, 4]]), ts.asarray([1, 1])).tolist() => [3, 7]
matrix_transpose: ts.matrix_transpose(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 3], [2, 4]]
matvec: ts.matvec(ts.asarray([[1.0, 2.0], [3.0, 4.0]]), ts.asarray([1.0, 1.0])).tolist() => [3.0, 7.0]
max: ts.max(ts.asarray([[1, 5], [7, 0]]), axis=0).tolist() => [7, 5]
max_pool1d: ts.max_pool1d(ts.asarray([[[1.0, 3.0, 5.0, 2.0]]]), 2).tolist() => [[[3.0, 5.0]]]
max_pool2d: ts.max_pool2d(ts.ones((1, 1, 4, 4)), 2).shape => (1, 1, 2, 2)
maximum: ts.maximum(ts.asarray([1, 5]), 3).tolist() => [3, 5]
mean: ts.mean(ts.asarray([[1.0, 3.0], [5.0, 7.0]]), axis=0).tolist() => [3.0, 5.0]
median: ts.median(ts.asarray([5.0, 1.0, 3.0])).item() => 3.0
meshgrid: [x.shape for x in ts.meshgrid(ts.asarray([1, 2]), ts.asarray([1, 2, 3]))] => [(3, 2), (3, 2)]
min: ts.min(ts.asarray([[1, 5], [7, 0]]), axis=0).tolist() => [1, 0]
minimum: ts.minimum(ts.asarray([1, 5]), 3).tolist() => [1, 3]
mish: ts.mish(ts.asarray([0.0])).tolist() => [0.0]
mm: ts.mm(ts.asarray([[1, 2]]), ts.asarray([[3], [4]])).tolist() => [[11]]
mod: ts.mod(ts.asarray([7, -7]), 3).tolist() => [1, 2]
modf: [one.tolist() for one in ts.modf(ts.asarray([1.5, -2.25]))] => [[0.5, -0.25], [1.0, -2.0]]
moveaxis: ts.moveaxis(ts.ones((2, 3, 4)), 0, 2).shape => (3, 4, 2)
mse_loss: ts.mse_loss(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 4.0])).item() => 2.0
mul: ts.mul(ts.asarray([1, 2]), 3).tolist() => [3, 6]
multiply: ts.multiply(ts.asarray([1, 2]), 3).tolist() => [3, 6]
nan_to_num: ts.nan_to_num(ts.asarray([1.0, float("nan")])).tolist() => [1.0, 0.0]
nanargmax: ts.nanargmax(ts.asarray([1.0, float("nan"), 3.0])).item() => 2
nanargmin: ts.nanargmin(ts.asarray([1.0, float("nan"), 3.0])).item() => 0
nancumprod: ts.nancumprod(ts.asarray([2.0, ts.nan, 3.0])).tolist() => [2.0, 2.0, 6.0]
nancumsum: ts.nancumsum(ts.asarray([2.0, ts.nan, 3.0])).tolist() => [2.0, 2.0, 5.0]
nanmax: ts.nanmax(ts.asarray([1.0, float("nan"), 3.0])).item() => 3.0
nanmean: ts.nanmean(ts.asarray([1.0, float("nan"), 3.0])).item() => 2.0
nanmedian: ts.nanmedian(ts.asarray([1.0, ts.nan, 3.0])).item() => 2.0
nanmin: ts.nanmin(ts.asarray([1.0, float("nan"), 3.0])).item() => 1.0
nanpercentile: ts.nanpercentile(ts.asarray([1.0, float("nan"), 3.0]), 50).item() => 2.0
nanprod: ts.nanprod(ts.asarray([2.0, float("nan"), 3.0])).item() => 6.0
nanquantile: ts.nanquantile(ts.asarray([1.0, float("nan"), 3.0]), 0.5).item() => 2.0
nanstd: ts.nanstd(ts.asarray([1.0, float("nan"), 3.0])).item() => 1.0
nansum: ts.nansum(ts.asarray([1.0, float("nan"), 3.0])).item() => 4.0
nanvar: ts.nanvar(ts.asarray([1.0, float("nan"), 3.0])).item() => 1.0
ndim: ts.ndim(ts.ones((2, 3))) => 2
neg: ts.neg(ts.asarray([1, -2])).tolist() => [-1, 2]
negative: ts.negative(ts.asarray([1, -2])).tolist() => [-1, 2]
nextafter: ts.nextafter(ts.asarray([0.0]), ts.asarray([0.0])).tolist() => [0.0]
nll_loss: ts.nll_loss(ts.asarray([[-1.0, -2.0]]), ts.asarray([1])).item() => 2.0
nll_loss_and_weight: [x.item() for x in ts.nll_loss_and_weight(ts.asarray([[-1.0, -2.0], [-3.0, -4.0]]), ts.asarray([0, 1]))] => [2.5, 2.0]
nll_loss_backward: ts.nll_loss_backward(ts.asarray([[-1.0, -2.0]]), ts.asarray(1.0), ts.asarray([0]), ts.asarray(1.0))[0].tolist() => [[-1.0, 0.0]]
nonzero: [x.tolist() for x in ts.nonzero(ts.asarray([0, 3, 0, 4]))] => [[1, 3]]
normal: ts.normal(0.0, 1.0, (2, 3)).shape => (2, 3)
normalize: ts.normalize(ts.asarray([3.0, 4.0])).tolist() => [0.6, 0.8]
not_equal: ts.not_equal(ts.asarray([1, 2]), ts.asarray([1, 3])).tolist() => [False, True]
one_hot: ts.one_hot(ts.asarray([1, 0]), 2).tolist() => [[0, 1], [1, 0]]
ones: ts.ones((2,), placements=[ts.Shard(0)]).tolist() => [1.0, 1.0]
ones_like: ts.ones_like(ts.asarray([5, 6])).tolist() => [1, 1]
outer: ts.outer(ts.asarray([1, 2]), ts.asarray([3, 4])).tolist() => [[3, 4], [6, 8]]
packbits: ts.packbits(ts.asarray([True, False, True])).tolist() => [160]
pad: ts.pad(ts.asarray([1, 2]), (1, 0)).tolist() => [0, 1, 2]
partition: ts.partition(ts.asarray([3, 1, 2]), 1).tolist() => [1, 2, 3]
percentile: ts.percentile(ts.asarray([1.0, 2.0, 4.0]), [50, 100]).tolist() => [2.0, 4.0]
permutation: ts.sort(ts.permutation(4)).tolist() => [0, 1, 2, 3]
permute_dims: ts.permute_dims(ts.ones((2, 3, 4)), (2, 0, 1)).shape => (4, 2, 3)
piecewise: ts.piecewise(ts.asarray([-1.0, 2.0]), [ts.asarray([True, False])], [0, lambda x: x * x]).tolist() => [0.0, 4.0]
place: [x := ts.arange(4), ts.place(x, x > 1, [7, 8])][0].tolist() => [0, 1, 7, 8]
poly: ts.poly(ts.asarray([1.0, 2.0])).tolist() => [1.0, -3.0, 2.0]
polyadd: ts.polyadd([1, 2], [3, 4, 5]).tolist() => [3, 5, 7]
polyder: ts.polyder([3, 2, 1]).tolist() => [6, 2]
polydiv: [one.tolist() for one in ts.polydiv([1.0, 3.0, 2.0], [1.0, 1.0])] => [[1.0, 2.0], [0.0]]
polyfit: ts.round(ts.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1)).tolist() => [2.0, 1.0]
polyint: ts.polyint([6.0, 2.0]).tolist() => [3.0, 2.0, 0.0]
polymul: ts.polymul([1, 2], [1, 3]).tolist() => [1, 5, 6]
polysub: ts.polysub([1, 2], [3, 4, 5]).tolist() => [-3, -3, -3]
polyval: ts.polyval([1, 2], ts.asarray([3.0])).tolist() => [5.0]
positive: ts.positive(ts.asarray([1, -2])).tolist() => [1, -2]
pow: ts.pow(ts.asarray([2, 3]), 2).tolist() => [4, 9]
power: ts.power(ts.asarray([2, 3]), 2).tolist() => [4, 9]
prod: ts.prod(ts.asarray([2, 3, 4])).item() => 24
ptp: ts.ptp(ts.asarray([5, 1, 3])).item() => 4
put: [x := ts.arange(3), ts.put(x, [0, 2], [9, 8])][0].tolist() => [9, 1, 8]
put_along_axis: ts.put_along_axis(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[1], [0]]), 9, axis=1)
putmask: [x := ts.arange(3), ts.putmask(x, x > 0, x * 10)][0].tolist() => [0, 10, 20]
quantile: ts.quantile(ts.asarray([1.0, 2.0, 4.0]), 0.25).item() => 1.5
rad2deg: ts.rad2deg(ts.asarray([np.pi])).tolist() => [180.0]
rand: ts.rand(2, 3).shape => (2, 3)
randint: ts.randint(5, 6, (3,)).tolist() => [5, 5, 5]
randn: ts.randn(2, 3).shape => (2, 3)
ravel: ts.ravel(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 2, 3, 4]
ravel_multi_index: ts.ravel_multi_index((ts.asarray([1, 0]), ts.asarray([2, 1])), (2, 3)).tolist() => [5, 1]
real: ts.real(ts.asarray([1 + 2j])).tolist() => [1.0]
real_if_close: ts.real_if_close(ts.asarray([1 + 1e-15j, 2])).tolist() => [1.0, 2.0]
reciprocal: ts.reciprocal(ts.asarray([2.0, 4.0])).tolist() => [0.5, 0.25]
relabel: ts.relabel(ts.ones((4, 2), placements=[ts.Replicate()]), (4, 2), [ts.Replicate()]).shape => (4, 2)
relu: ts.relu(ts.asarray([-1.0, 2.0])).tolist() => [0.0, 2.0]
relu6: ts.relu6(ts.asarray([-1.0, 9.0])).tolist() => [0.0, 6.0]
remainder: ts.remainder(ts.asarray([7, -7]), 3).tolist() => [1, 2]
repeat: ts.repeat(ts.asarray([1, 2]), 2).tolist() => [1, 1, 2, 2]
require: ts.require([1, 2], dtype=ts.float32).tolist() => [1.0, 2.0]
reshape: ts.reshape(ts.asarray([1, 2, 3, 4]), (2, 2)).tolist() => [[1, 2], [3, 4]]
resize: ts.resize(ts.asarray([1, 2, 3]), (2, 2)).tolist() => [[1, 2], [3, 1]]
result_type: ts.result_type(ts.int32, ts.float32) => dtype('float64')
rms_norm: ts.rms_norm(ts.asarray([[3.0, 3.0]]), eps=0.0).tolist() => [[1.0, 1.0]]
rms_norm_backward: [x.shape for x in ts.rms_norm_backward(ts.ones((3, 2)), ts.ones((3, 2)), ts.ones((2,)))] => [(3, 2), (2,)]
roll: ts.roll(ts.asarray([1, 2, 3]), 1).tolist() => [3, 1, 2]
rollaxis: ts.rollaxis(ts.ones((2, 3, 4)), 2).shape => (4, 2, 3)
roots: ts.sort(ts.round(ts.roots([1.0, -3.0, 2.0]).real)).tolist() => [1.0, 2.0]
rot90: ts.rot90(ts.asarray([[1, 2], [3, 4]])).tolist() => [[2, 4], [1, 3]]
round: ts.round(ts.asarray([0.5, 1.5, 2.4])).tolist() => [0.0, 2.0, 2.0]
rsqrt: ts.rsqrt(ts.asarray([4.0])).tolist() => [0.5]
scaled_dot_product_attention: ts.scaled_dot_product_attention(ts.ones((2, 4, 8)), ts.ones((2, 6, 8)), ts.ones((2, 6, 3))).shape => (2, 4, 3)
scaled_dot_product_attention_backward: [x.shape for x in ts.scaled_dot_product_attention_backward(*[ts.ones((1, 1, 3, 2)) for _ in range(4)])] => [(1, 1, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2)]
scatter: ts.scatter(ts.asarray([0, 0, 0]), ts.asarray([2, 0]), ts.asarray([5, 7])).tolist() => [7, 0, 5]
scatter_add: ts.scatter_add(ts.asarray([0, 0, 0]), ts.asarray([1, 1]), ts.asarray([5, 7])).tolist() => [0, 12, 0]
searchsorted: ts.searchsorted(ts.asarray([1, 3, 5]), ts.asarray([3, 4])).tolist() => [1, 2]
select: ts.select([ts.asarray([True, False])], [ts.asarray([1, 2])], default=-1).tolist() => [1, -1]
selu: ts.selu(ts.asarray([0.0])).tolist() => [0.0]
setdiff1d: ts.setdiff1d(ts.asarray([3, 1, 2]), [2]).tolist() => [1, 3]
setxor1d: ts.setxor1d(ts.asarray([3, 1]), [2, 3]).tolist() => [1, 2]
sgd_step: ts.sgd_step(ts.asarray([1.0]), ts.asarray([2.0]), 0.25).tolist() => [0.5]
shape: ts.shape(ts.ones((2, 3))) => (2, 3)
shuffle: ts.sort(ts.shuffle(ts.asarray([3, 1, 2]))).tolist() => [1, 2, 3]
shard_counts: ts.shard_counts(ts.asarray([True, False, True])).tolist() => [2]
sigmoid: ts.sigmoid(ts.asarray([0.0])).tolist() => [0.5]
sigmoid_backward: ts.sigmoid_backward(ts.ones((2,)), ts.asarray([0.5, 1.0])).tolist() => [0.25, 0.0]
sign: ts.sign(ts.asarray([-3, 0, 5])).tolist() => [-1, 0, 1]
signbit: ts.signbit(ts.asarray([-1.0, 1.0])).tolist() => [True, False]
silu: ts.silu(ts.asarray([0.0])).tolist() => [0.0]
silu_backward: ts.silu_backward(ts.ones((2,)), ts.zeros((2,))).tolist() => [0.5, 0.5]
sin: ts.sin(ts.asarray([0.0])).tolist() => [0.0]
sinc: ts.sinc(ts.asarray([0.0])).tolist() => [1.0]
sinh: ts.sinh(ts.asarray([0.0])).tolist() => [0.0]
size: ts.size(ts.ones((2, 3))) => 6
softmax: ts.softmax(ts.asarray([[0.0, 0.0]])).tolist() => [[0.5, 0.5]]
softmax_backward: ts.softmax_backward(ts.asarray([1.0, 0.0]), ts.asarray([0.5, 0.5])).tolist() => [0.25, -0.25]
softplus: round(ts.softplus(ts.asarray([0.0])).item(), 6) => 0.693147
sort: ts.sort(ts.asarray([3, 1, 2]), descending=True).tolist() => [3, 2, 1]
sort_complex: ts.sort_complex(ts.asarray([2 + 1j, 1, 2])).tolist() => [(1+0j), (2+0j), (2+1j)]
spacing: (ts.spacing(ts.asarray([1.0, -4.0])) * 2.0**52).tolist() => [1.0, -4.0]
split: [x.tolist() for x in ts.split(ts.asarray([1, 2, 3, 4]), 2)] => [[1, 2], [3, 4]]
sqrt: ts.sqrt(ts.asarray([1.0, 4.0])).tolist() => [1.0, 2.0]
square: ts.square(ts.asarray([2, 3])).tolist() => [4, 9]
squeeze: ts.squeeze(ts.ones((1, 3, 1))).shape => (3,)
stack: ts.stack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[1, 2], [3, 4]]
std: ts.std(ts.asarray([1.0, 3.0])).item() => 1.0
sub: ts.sub(ts.asarray([5, 6]), 1).tolist() => [4, 5]
subtract: ts.subtract(ts.asarray([5, 6]), 1).tolist() => [4, 5]
sum: ts.sum(ts.asarray([[1, 2], [3, 4]]), axis=0).tolist() => [4, 6]
swapaxes: ts.swapaxes(ts.ones((2, 3)), 0, 1).shape => (3, 2)
take: ts.take(ts.asarray([10, 20, 30]), ts.asarray([2, 0]), axis=0).tolist() => [30, 10]
take_along_axis: ts.take_along_axis(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[1], [0]]), axis=1).tolist() => [[2], [3]]
tan: ts.tan(ts.asarray([0.0])).tolist() => [0.0]
tanh: ts.tanh(ts.asarray([0.0])).tolist() => [0.0]
tanh_backward: ts.tanh_backward(ts.ones((2,)), ts.asarray([0.5, 1.0])).tolist() => [0.75, 0.0]
tensordot: ts.tensordot(ts.asarray([[1, 2]]), ts.asarray([[3], [4]]), axes=1).tolist() => [[11]]
threshold_backward: ts.threshold_backward(ts.ones((2,)), ts.asarray([-1.0, 1.0])).tolist() => [0.0, 1.0]
tile: ts.tile(ts.asarray([1, 2]), (2,)).tolist() => [1, 2, 1, 2]
topk: [x.tolist() for x in ts.topk(ts.asarray([1, 9, 5]), 2)] => [[9, 5], [1, 2]]
trace: ts.trace(ts.asarray([[1, 2], [3, 4]])).item() => 5
transpose: ts.transpose(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 3], [2, 4]]
trapezoid: ts.trapezoid(ts.asarray([1.0, 2.0, 3.0])).item() => 4.0
tri: ts.tri(2).tolist() => [[1.0, 0.0], [1.0, 1.0]]
tril: ts.tril(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 0], [3, 4]]
tril_indices: [one.tolist() for one in ts.tril_indices(2)] => [[0, 1, 1], [0, 0, 1]]
tril_indices_from: [one.tolist() for one in ts.tril_indices_from(ts.ones((2, 2)), k=-1)] => [[1], [0]]
trim_zeros: ts.trim_zeros(ts.asarray([0, 1, 2, 0])).tolist() => [1, 2]
triu: ts.triu(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 2], [0, 4]]
triu_indices: [one.tolist() for one in ts.triu_indices(2)] => [[0, 0, 1], [0, 1, 1]]
triu_indices_from: [one.tolist() for one in ts.triu_indices_from(ts.ones((2, 2)), k=1)] => [[0], [1]]
trunc: ts.trunc(ts.asarray([1.7, -1.7])).tolist() => [1.0, -1.0]
uniform: ts.uniform(0.0, 1.0, (2, 3)).shape => (2, 3)
union1d: ts.union1d(ts.asarray([3, 1]), [2, 3]).tolist() => [1, 2, 3]
unique: [one.tolist() for one in ts.unique(ts.asarray([3, 1, 3]), return_counts=True)] => [[1, 3], [1, 2]]
unique_all: ts.unique_all(ts.asarray([2, 1, 2])).values.tolist() => [1, 2]
unique_counts: [x.tolist() for x in ts.unique_counts(ts.asarray([2, 1, 2]))] => [[1, 2], [1, 2]]
unique_inverse: [x.tolist() for x in ts.unique_inverse(ts.asarray([2, 1, 2]))] => [[1, 2], [1, 0, 1]]
unique_values: ts.unique_values(ts.asarray([2, 1, 2])).tolist() => [1, 2]
unpackbits: ts.unpackbits(ts.asarray([5], dtype=ts.uint8)).tolist() => [0, 0, 0, 0, 0, 1, 0, 1]
unravel_index: [x.tolist() for x in ts.unravel_index(ts.asarray([5, 1]), (2, 3))] => [[1, 0], [2, 1]]
unstack: [x.tolist() for x in ts.unstack(ts.asarray([[1, 2], [3, 4]]))] => [[1, 2], [3, 4]]
unwrap: ts.unwrap(ts.asarray([0, 1, 2, -1, 0]), period=4).tolist() => [0, 1, 2, 3, 4]
vander: ts.vander(ts.asarray([1, 2, 3]), 2).tolist() => [[1, 1], [2, 1], [3, 1]]
var: ts.var(ts.asarray([1.0, 3.0])).item() => 1.0
vdot: ts.vdot(ts.asarray([1j, 2]), ts.asarray([1j, 3])).item() => (7+0j)
vecdot: ts.vecdot(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
vecmat: ts.vecmat(ts.asarray([1.0, 1.0]), ts.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() => [4.0, 6.0]
vector_norm: ts.vector_norm(ts.asarray([3.0, 4.0])).item() => 5.0
vsplit: [x.tolist() for x in ts.vsplit(ts.asarray([[1, 2], [3, 4]]), 2)] => [[[1, 2]], [[3, 4]]]
vstack: ts.vstack([ts.asarray([1, 2]), ts.asarray([3, 4])]).tolist() => [[1, 2], [3, 4]]
wait: ts.wait(ts.asarray([1, 2]), ts.asarray([3]))
where: ts.where(ts.asarray([True, False]), ts.asarray([1, 2]), ts.asarray([3, 4])).tolist() => [1, 4]
zeros: ts.zeros((2,)).tolist() => [0.0, 0.0]
zeros_like: ts.zeros_like(ts.asarray([5, 6])).tolist() => [0, 0]
"""
