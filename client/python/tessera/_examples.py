"""Examples of the functions: `name: expression => what it shows`. help() has them, and a test runs each; in them there is
a session on four workers, with `mesh = session.init_device_mesh((4,))`."""

TEXT = r"""
abs: ts.abs(ts.asarray([-1.5, 2.0])).tolist() => [1.5, 2.0]
absolute: ts.absolute(ts.asarray([-1.5, 2.0])).tolist() => [1.5, 2.0]
acos: ts.acos(ts.asarray([1.0, 0.0])).tolist() => [0.0, 1.5707963267948966]
acosh: ts.acosh(ts.asarray([1.0])).tolist() => [0.0]
add: ts.add(ts.asarray([1, 2]), 10).tolist() => [11, 12]
addmm: ts.addmm(ts.asarray([1.0, 1.0]), ts.asarray([[1.0, 2.0]]), ts.asarray([[1.0, 0.0], [0.0, 1.0]])).tolist() => [[2.0, 3.0]]
all: ts.all(ts.asarray([[True, False], [True, True]]), axis=1).tolist() => [False, True]
allclose: ts.allclose(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 2.0 + 1e-9])).item() => True
angle: ts.angle(ts.asarray([1.0, -1.0])).tolist() => [0.0, 3.141592653589793]
any: ts.any(ts.asarray([[False, False], [True, False]]), axis=1).tolist() => [False, True]
arange: ts.arange(2, 10, 3).tolist() => [2, 5, 8]
argmax: ts.argmax(ts.asarray([[1, 5, 2], [7, 0, 3]]), axis=1).tolist() => [1, 0]
argmin: ts.argmin(ts.asarray([[1, 5, 2], [7, 0, 3]]), axis=1).tolist() => [0, 1]
argsort: ts.argsort(ts.asarray([30, 10, 20])).tolist() => [1, 2, 0]
asarray: ts.asarray([[1, 2], [3, 4]], dtype=ts.float32).tolist() => [[1.0, 2.0], [3.0, 4.0]]
asin: ts.asin(ts.asarray([0.0])).tolist() => [0.0]
asinh: ts.asinh(ts.asarray([0.0])).tolist() => [0.0]
astype: ts.astype(ts.asarray([1.7, -1.7]), ts.int32).tolist() => [1, -1]
atan: ts.atan(ts.asarray([0.0])).tolist() => [0.0]
atan2: ts.atan2(ts.asarray([0.0]), ts.asarray([1.0])).tolist() => [0.0]
atanh: ts.atanh(ts.asarray([0.0])).tolist() => [0.0]
average: ts.average(ts.asarray([1.0, 4.0]), ts.asarray([3.0, 1.0])).item() => 1.75
avg_pool1d: ts.avg_pool1d(ts.asarray([[[1.0, 3.0, 5.0, 7.0]]]), 2).tolist() => [[[2.0, 6.0]]]
avg_pool2d: ts.avg_pool2d(ts.ones((1, 1, 4, 4)), 2).shape => (1, 1, 2, 2)
baddbmm: ts.baddbmm(ts.ones((1, 2, 2)), ts.ones((1, 2, 3)), ts.ones((1, 3, 2))).tolist() => [[[4.0, 4.0], [4.0, 4.0]]]
batch_norm: ts.batch_norm(ts.ones((1, 2)), ts.zeros((2,)), ts.ones((2,)), eps=0.0).tolist() => [[1.0, 1.0]]
bernoulli: ts.bernoulli(1.0, (3,)).tolist() => [True, True, True]
bitwise_and: ts.bitwise_and(ts.asarray([6, 5]), 4).tolist() => [4, 4]
bitwise_invert: ts.bitwise_invert(ts.asarray([0, 1])).tolist() => [-1, -2]
bitwise_left_shift: ts.bitwise_left_shift(ts.asarray([1, 2]), 3).tolist() => [8, 16]
bitwise_or: ts.bitwise_or(ts.asarray([1, 2]), 4).tolist() => [5, 6]
bitwise_right_shift: ts.bitwise_right_shift(ts.asarray([8, -8]), 1).tolist() => [4, -4]
bitwise_xor: ts.bitwise_xor(ts.asarray([1, 3]), 1).tolist() => [0, 2]
bmm: ts.bmm(ts.ones((2, 2, 3)), ts.ones((2, 3, 1))).shape => (2, 2, 1)
broadcast_arrays: [x.shape for x in ts.broadcast_arrays(ts.ones((2, 1)), ts.ones((3,)))] => [(2, 3), (2, 3)]
broadcast_shapes: ts.broadcast_shapes((2, 1), (3,)) => (2, 3)
broadcast_to: ts.broadcast_to(ts.asarray([1, 2]), (2, 2)).tolist() => [[1, 2], [1, 2]]
can_cast: ts.can_cast(ts.int32, ts.float64) => True
ceil: ts.ceil(ts.asarray([1.2, -1.2])).tolist() => [2.0, -1.0]
choice: ts.choice(ts.asarray([7, 7, 7]), (2,)).tolist() => [7, 7]
clip: ts.clip(ts.asarray([-3, 1, 9]), 0, 5).tolist() => [0, 1, 5]
complex: ts.complex(ts.asarray([1.0]), ts.asarray([2.0])).tolist() => [(1+2j)]
concat: ts.concat([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
concatenate: ts.concatenate([ts.asarray([1, 2]), ts.asarray([3])]).tolist() => [1, 2, 3]
conj: ts.conj(ts.asarray([1 + 2j])).tolist() => [(1-2j)]
conv1d: ts.conv1d(ts.asarray([[[1.0, 2.0, 3.0]]]), ts.asarray([[[1.0, 1.0]]])).tolist() => [[[3.0, 5.0]]]
conv2d: ts.conv2d(ts.ones((1, 3, 8, 8)), ts.ones((16, 3, 3, 3)), padding=1).shape => (1, 16, 8, 8)
conv3d: ts.conv3d(ts.ones((1, 1, 4, 4, 4)), ts.ones((2, 1, 3, 3, 3))).shape => (1, 2, 2, 2, 2)
copysign: ts.copysign(ts.asarray([1.0, 2.0]), ts.asarray([-1.0, 1.0])).tolist() => [-1.0, 2.0]
cos: ts.cos(ts.asarray([0.0])).tolist() => [1.0]
cosh: ts.cosh(ts.asarray([0.0])).tolist() => [1.0]
count_nonzero: ts.count_nonzero(ts.asarray([0, 3, 0, 4])).item() => 2
cross: ts.cross(ts.asarray([1.0, 0.0, 0.0]), ts.asarray([0.0, 1.0, 0.0])).tolist() => [0.0, 0.0, 1.0]
cross_entropy: round(ts.cross_entropy(ts.asarray([[0.0, 0.0]]), ts.asarray([1])).item(), 6) => 0.693147
cumprod: ts.cumprod(ts.asarray([1, 2, 3])).tolist() => [1, 2, 6]
cumsum: ts.cumsum(ts.asarray([1, 2, 3])).tolist() => [1, 3, 6]
cumulative_max: ts.cumulative_max(ts.asarray([1, 3, 2])).tolist() => [1, 3, 3]
cumulative_min: ts.cumulative_min(ts.asarray([3, 1, 2])).tolist() => [3, 1, 1]
cumulative_prod: ts.cumulative_prod(ts.asarray([1, 2, 3])).tolist() => [1, 2, 6]
cumulative_sum: ts.cumulative_sum(ts.asarray([1, 2, 3]), include_initial=True).tolist() => [0, 1, 3, 6]
diagonal: ts.diagonal(ts.asarray([[1, 2], [3, 4]])).tolist() => [1, 4]
diff: ts.diff(ts.asarray([1, 4, 9])).tolist() => [3, 5]
distribute_tensor: ts.distribute_tensor(np.arange(4), mesh, [ts.Shard(0)]).placements => (Shard(0),)
div: ts.div(ts.asarray([1, 2]), 4).tolist() => [0.25, 0.5]
divide: ts.divide(ts.asarray([1, 2]), 4).tolist() => [0.25, 0.5]
dropout: ts.dropout(ts.asarray([1.0, 2.0]), 0.5, training=False).tolist() => [1.0, 2.0]
einsum: ts.einsum("ij,j->i", ts.asarray([[1, 2], [3, 4]]), ts.asarray([1, 1])).tolist() => [3, 7]
elu: ts.elu(ts.asarray([0.0, 2.0])).tolist() => [0.0, 2.0]
embedding: ts.embedding(ts.asarray([1, 0]), ts.asarray([[1.0, 2.0], [3.0, 4.0]])).tolist() => [[3.0, 4.0], [1.0, 2.0]]
empty: ts.empty((2, 3)).shape => (2, 3)
empty_like: ts.empty_like(ts.asarray([1, 2])).dtype => dtype('int64')
equal: ts.equal(ts.asarray([1, 2]), ts.asarray([1, 3])).tolist() => [True, False]
erf: ts.erf(ts.asarray([0.0])).tolist() => [0.0]
exp: ts.exp(ts.asarray([0.0, 1.0])).tolist() => [1.0, 2.7182818284590455]
exp2: ts.exp2(ts.asarray([3.0])).tolist() => [7.999999999999998]
expand_dims: ts.expand_dims(ts.asarray([1, 2]), 0).shape => (1, 2)
expm1: ts.expm1(ts.asarray([0.0])).tolist() => [0.0]
exponential: ts.exponential(2.0, (1000,)).shape => (1000,)
eye: ts.eye(2).tolist() => [[1.0, 0.0], [0.0, 1.0]]
finfo: ts.finfo(ts.float32).bits => 32
flip: ts.flip(ts.asarray([1, 2, 3])).tolist() => [3, 2, 1]
floor: ts.floor(ts.asarray([1.7, -1.2])).tolist() => [1.0, -2.0]
floor_divide: ts.floor_divide(ts.asarray([7, -7]), 2).tolist() => [3, -4]
from_dlpack: ts.from_dlpack(np.arange(3)).tolist() => [0, 1, 2]
from_local: ts.from_local(lambda position: np.full((1,), position[0]), mesh, [ts.Shard(0)]).shape => (4,)
full: ts.full((2,), 7).tolist() => [7, 7]
full_like: ts.full_like(ts.asarray([1, 2]), 9).tolist() => [9, 9]
gather: ts.gather(ts.asarray([[1, 2], [3, 4]]), ts.asarray([[0], [1]])).tolist() => [[1], [4]]
gelu: ts.gelu(ts.asarray([0.0])).tolist() => [0.0]
greater: ts.greater(ts.asarray([1, 3]), 2).tolist() => [False, True]
greater_equal: ts.greater_equal(ts.asarray([1, 2]), 2).tolist() => [False, True]
group_norm: ts.group_norm(ts.ones((1, 4, 3)), groups=2).shape => (1, 4, 3)
hardsigmoid: ts.hardsigmoid(ts.asarray([-4.0, 0.0, 4.0])).tolist() => [0.0, 0.5, 1.0]
hardswish: ts.hardswish(ts.asarray([-4.0, 3.0])).tolist() => [-0.0, 3.0]
hypot: ts.hypot(ts.asarray([3.0]), ts.asarray([4.0])).tolist() => [5.0]
iinfo: ts.iinfo(ts.int8).max => 127
imag: ts.imag(ts.asarray([1 + 2j])).tolist() => [2.0]
index_add: ts.index_add(ts.asarray([1, 2, 3]), ts.asarray([0, 0]), ts.asarray([10, 20])).tolist() => [31, 2, 3]
init_device_mesh: ts.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp")) => mesh(dp:2,tp:2)
isclose: ts.isclose(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 2.1])).tolist() => [True, False]
isdtype: ts.isdtype(ts.float32, "real floating") => True
isfinite: ts.isfinite(ts.asarray([1.0, float("inf")])).tolist() => [True, False]
isin: ts.isin(ts.asarray([1, 2, 3]), ts.asarray([3, 1])).tolist() => [True, False, True]
isinf: ts.isinf(ts.asarray([1.0, float("inf")])).tolist() => [False, True]
isnan: ts.isnan(ts.asarray([1.0, float("nan")])).tolist() => [False, True]
layer_norm: ts.layer_norm(ts.asarray([[1.0, 3.0]]), eps=0.0).tolist() => [[-1.0, 1.0]]
leaky_relu: ts.leaky_relu(ts.asarray([-2.0, 2.0]), negative_slope=0.5).tolist() => [-1.0, 2.0]
lerp: ts.lerp(ts.asarray([0.0]), ts.asarray([10.0]), 0.25).tolist() => [2.5]
less: ts.less(ts.asarray([1, 3]), 2).tolist() => [True, False]
less_equal: ts.less_equal(ts.asarray([1, 2]), 1).tolist() => [True, False]
linear: ts.linear(ts.asarray([[1.0, 2.0]]), ts.asarray([[1.0, 1.0]]), ts.asarray([0.5])).tolist() => [[3.5]]
linspace: ts.linspace(0, 1, 5).tolist() => [0.0, 0.25, 0.5, 0.75, 1.0]
log: ts.log(ts.asarray([1.0])).tolist() => [0.0]
log10: ts.log10(ts.asarray([100.0])).tolist() => [2.0]
log1p: ts.log1p(ts.asarray([0.0])).tolist() => [0.0]
log2: ts.log2(ts.asarray([8.0])).tolist() => [3.0]
log_softmax: ts.log_softmax(ts.asarray([[0.0, 0.0]])).shape => (1, 2)
logaddexp: round(ts.logaddexp(ts.asarray([0.0]), ts.asarray([0.0])).item(), 6) => 0.693147
logical_and: ts.logical_and(ts.asarray([True, True]), ts.asarray([True, False])).tolist() => [True, False]
logical_not: ts.logical_not(ts.asarray([True, False])).tolist() => [False, True]
logical_or: ts.logical_or(ts.asarray([False, False]), ts.asarray([True, False])).tolist() => [True, False]
logical_xor: ts.logical_xor(ts.asarray([True, False]), ts.asarray([True, True])).tolist() => [False, True]
logit: ts.logit(ts.asarray([0.5])).tolist() => [0.0]
logsumexp: round(ts.logsumexp(ts.asarray([0.0, 0.0])).item(), 6) => 0.693147
manual_seed: ts.manual_seed(7)
masked_fill: ts.masked_fill(ts.asarray([1, 2, 3]), ts.asarray([True, False, True]), 0).tolist() => [0, 2, 0]
masked_select: ts.masked_select(ts.asarray([1, 2, 3]), ts.asarray([True, False, True])).tolist() => [1, 3]
matmul: ts.matmul(ts.asarray([[1, 2], [3, 4]]), ts.asarray([1, 1])).tolist() => [3, 7]
matrix_transpose: ts.matrix_transpose(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 3], [2, 4]]
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
moveaxis: ts.moveaxis(ts.ones((2, 3, 4)), 0, 2).shape => (3, 4, 2)
mse_loss: ts.mse_loss(ts.asarray([1.0, 2.0]), ts.asarray([1.0, 4.0])).item() => 2.0
mul: ts.mul(ts.asarray([1, 2]), 3).tolist() => [3, 6]
multiply: ts.multiply(ts.asarray([1, 2]), 3).tolist() => [3, 6]
neg: ts.neg(ts.asarray([1, -2])).tolist() => [-1, 2]
negative: ts.negative(ts.asarray([1, -2])).tolist() => [-1, 2]
nextafter: ts.nextafter(ts.asarray([0.0]), ts.asarray([0.0])).tolist() => [0.0]
nll_loss: ts.nll_loss(ts.asarray([[-1.0, -2.0]]), ts.asarray([1])).item() => 2.0
nonzero: [x.tolist() for x in ts.nonzero(ts.asarray([0, 3, 0, 4]))] => [[1, 3]]
normal: ts.normal(0.0, 1.0, (2, 3)).shape => (2, 3)
normalize: ts.normalize(ts.asarray([3.0, 4.0])).tolist() => [0.6, 0.8]
not_equal: ts.not_equal(ts.asarray([1, 2]), ts.asarray([1, 3])).tolist() => [False, True]
one_hot: ts.one_hot(ts.asarray([1, 0]), 2).tolist() => [[0, 1], [1, 0]]
ones: ts.ones((2,), placements=[ts.Shard(0)]).tolist() => [1.0, 1.0]
ones_like: ts.ones_like(ts.asarray([5, 6])).tolist() => [1, 1]
outer: ts.outer(ts.asarray([1, 2]), ts.asarray([3, 4])).tolist() => [[3, 4], [6, 8]]
pad: ts.pad(ts.asarray([1, 2]), (1, 0)).tolist() => [0, 1, 2]
permutation: ts.sort(ts.permutation(4)).tolist() => [0, 1, 2, 3]
permute_dims: ts.permute_dims(ts.ones((2, 3, 4)), (2, 0, 1)).shape => (4, 2, 3)
positive: ts.positive(ts.asarray([1, -2])).tolist() => [1, -2]
pow: ts.pow(ts.asarray([2, 3]), 2).tolist() => [4, 9]
power: ts.power(ts.asarray([2, 3]), 2).tolist() => [4, 9]
prod: ts.prod(ts.asarray([2, 3, 4])).item() => 24
rand: ts.rand(2, 3).shape => (2, 3)
randint: ts.randint(5, 6, (3,)).tolist() => [5, 5, 5]
randn: ts.randn(2, 3).shape => (2, 3)
real: ts.real(ts.asarray([1 + 2j])).tolist() => [1.0]
reciprocal: ts.reciprocal(ts.asarray([2.0, 4.0])).tolist() => [0.5, 0.25]
relu: ts.relu(ts.asarray([-1.0, 2.0])).tolist() => [0.0, 2.0]
relu6: ts.relu6(ts.asarray([-1.0, 9.0])).tolist() => [0.0, 6.0]
remainder: ts.remainder(ts.asarray([7, -7]), 3).tolist() => [1, 2]
repeat: ts.repeat(ts.asarray([1, 2]), 2).tolist() => [1, 1, 2, 2]
reshape: ts.reshape(ts.asarray([1, 2, 3, 4]), (2, 2)).tolist() => [[1, 2], [3, 4]]
result_type: ts.result_type(ts.int32, ts.float32) => dtype('float64')
rms_norm: ts.rms_norm(ts.asarray([[3.0, 3.0]]), eps=0.0).tolist() => [[1.0, 1.0]]
roll: ts.roll(ts.asarray([1, 2, 3]), 1).tolist() => [3, 1, 2]
round: ts.round(ts.asarray([0.5, 1.5, 2.4])).tolist() => [0.0, 2.0, 2.0]
rsqrt: ts.rsqrt(ts.asarray([4.0])).tolist() => [0.5]
scaled_dot_product_attention: ts.scaled_dot_product_attention(ts.ones((2, 4, 8)), ts.ones((2, 6, 8)), ts.ones((2, 6, 3))).shape => (2, 4, 3)
scatter: ts.scatter(ts.asarray([0, 0, 0]), ts.asarray([2, 0]), ts.asarray([5, 7])).tolist() => [7, 0, 5]
scatter_add: ts.scatter_add(ts.asarray([0, 0, 0]), ts.asarray([1, 1]), ts.asarray([5, 7])).tolist() => [0, 12, 0]
searchsorted: ts.searchsorted(ts.asarray([1, 3, 5]), ts.asarray([3, 4])).tolist() => [1, 2]
selu: ts.selu(ts.asarray([0.0])).tolist() => [0.0]
shuffle: ts.sort(ts.shuffle(ts.asarray([3, 1, 2]))).tolist() => [1, 2, 3]
sigmoid: ts.sigmoid(ts.asarray([0.0])).tolist() => [0.5]
sign: ts.sign(ts.asarray([-3, 0, 5])).tolist() => [-1, 0, 1]
signbit: ts.signbit(ts.asarray([-1.0, 1.0])).tolist() => [True, False]
silu: ts.silu(ts.asarray([0.0])).tolist() => [0.0]
sin: ts.sin(ts.asarray([0.0])).tolist() => [0.0]
sinh: ts.sinh(ts.asarray([0.0])).tolist() => [0.0]
softmax: ts.softmax(ts.asarray([[0.0, 0.0]])).tolist() => [[0.5, 0.5]]
softplus: round(ts.softplus(ts.asarray([0.0])).item(), 6) => 0.693147
sort: ts.sort(ts.asarray([3, 1, 2]), descending=True).tolist() => [3, 2, 1]
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
tensordot: ts.tensordot(ts.asarray([[1, 2]]), ts.asarray([[3], [4]]), axes=1).tolist() => [[11]]
tile: ts.tile(ts.asarray([1, 2]), (2,)).tolist() => [1, 2, 1, 2]
topk: [x.tolist() for x in ts.topk(ts.asarray([1, 9, 5]), 2)] => [[9, 5], [1, 2]]
trace: ts.trace(ts.asarray([[1, 2], [3, 4]])).item() => 5
transpose: ts.transpose(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 3], [2, 4]]
tril: ts.tril(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 0], [3, 4]]
triu: ts.triu(ts.asarray([[1, 2], [3, 4]])).tolist() => [[1, 2], [0, 4]]
trunc: ts.trunc(ts.asarray([1.7, -1.7])).tolist() => [1.0, -1.0]
uniform: ts.uniform(0.0, 1.0, (2, 3)).shape => (2, 3)
unique_all: ts.unique_all(ts.asarray([2, 1, 2])).values.tolist() => [1, 2]
unique_counts: [x.tolist() for x in ts.unique_counts(ts.asarray([2, 1, 2]))] => [[1, 2], [1, 2]]
unique_inverse: [x.tolist() for x in ts.unique_inverse(ts.asarray([2, 1, 2]))] => [[1, 2], [1, 0, 1]]
unique_values: ts.unique_values(ts.asarray([2, 1, 2])).tolist() => [1, 2]
unstack: [x.tolist() for x in ts.unstack(ts.asarray([[1, 2], [3, 4]]))] => [[1, 2], [3, 4]]
var: ts.var(ts.asarray([1.0, 3.0])).item() => 1.0
vecdot: ts.vecdot(ts.asarray([1, 2]), ts.asarray([3, 4])).item() => 11
vector_norm: ts.vector_norm(ts.asarray([3.0, 4.0])).item() => 5.0
wait: ts.wait(ts.asarray([1, 2]), ts.asarray([3]))
where: ts.where(ts.asarray([True, False]), ts.asarray([1, 2]), ts.asarray([3, 4])).tolist() => [1, 4]
zeros: ts.zeros((2,)).tolist() => [0.0, 0.0]
zeros_like: ts.zeros_like(ts.asarray([5, 6])).tolist() => [0, 0]
linalg.cholesky: ts.linalg.cholesky(ts.asarray([[4.0, 0.0], [0.0, 9.0]])).tolist() => [[2.0, 0.0], [0.0, 3.0]]
linalg.det: ts.linalg.det(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).item() => 6.0
linalg.eigh: ts.linalg.eigh(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues.tolist() => [2.0, 3.0]
linalg.eigvalsh: ts.linalg.eigvalsh(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).tolist() => [2.0, 3.0]
linalg.inv: ts.linalg.inv(ts.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist() => [[0.5, 0.0], [0.0, 0.25]]
linalg.lstsq: ts.linalg.lstsq(ts.asarray([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), ts.asarray([[1.0], [4.0], [0.0]])).x.shape => (2, 1)
linalg.matrix_norm: ts.linalg.matrix_norm(ts.asarray([[3.0, 0.0], [0.0, 4.0]])).item() => 5.0
linalg.matrix_power: ts.linalg.matrix_power(ts.asarray([[2.0, 0.0], [0.0, 3.0]]), 2).tolist() => [[4.0, 0.0], [0.0, 9.0]]
linalg.matrix_rank: ts.linalg.matrix_rank(ts.asarray([[1.0, 1.0], [1.0, 1.0]])).item() => 1
linalg.pinv: ts.linalg.pinv(ts.ones((3, 2))).shape => (2, 3)
linalg.qr: [x.shape for x in ts.linalg.qr(ts.ones((3, 2)))] => [(3, 2), (2, 2)]
linalg.slogdet: ts.linalg.slogdet(ts.asarray([[2.0, 0.0], [0.0, 3.0]])).sign.item() => 1.0
linalg.solve: ts.linalg.solve(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([2.0, 2.0])).tolist() => [1.0, 0.5]
linalg.solve_triangular: ts.linalg.solve_triangular(ts.asarray([[2.0, 0.0], [0.0, 4.0]]), ts.asarray([[2.0], [2.0]]), upper=True).tolist() => [[1.0], [0.5]]
linalg.svd: [x.shape for x in ts.linalg.svd(ts.ones((3, 2)), full_matrices=False)] => [(3, 2), (2,), (2, 2)]
linalg.svdvals: ts.linalg.svdvals(ts.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist() => [4.0, 3.0]
fft.fft: ts.fft.fft(ts.asarray([1.0, 0.0])).tolist() => [(1+0j), (1+0j)]
fft.ifft: ts.fft.ifft(ts.asarray([1.0, 1.0])).tolist() => [(1-0j), 0j]
fft.fftn: ts.fft.fftn(ts.ones((2, 2))).tolist() => [[(4+0j), 0j], [0j, 0j]]
fft.ifftn: ts.fft.ifftn(ts.ones((2, 2))).tolist() => [[(1-0j), -0j], [-0j, 0j]]
fft.rfft: ts.fft.rfft(ts.asarray([1.0, 0.0])).tolist() => [(1+0j), (1+0j)]
fft.irfft: ts.fft.irfft(ts.asarray([1.0, 1.0])).tolist() => [1.0, 0.0]
fft.rfftn: ts.fft.rfftn(ts.ones((2, 2))).shape => (2, 2)
fft.irfftn: ts.fft.irfftn(ts.ones((2, 2))).shape => (2, 2)
fft.hfft: ts.fft.hfft(ts.asarray([1.0, 1.0])).tolist() => [2.0, 0.0]
fft.ihfft: ts.fft.ihfft(ts.asarray([1.0, 1.0])).tolist() => [(1-0j), -0j]
fft.fftfreq: ts.fft.fftfreq(4).tolist() => [0.0, 0.25, -0.5, -0.25]
fft.rfftfreq: ts.fft.rfftfreq(4).tolist() => [0.0, 0.25, 0.5]
fft.fftshift: ts.fft.fftshift(ts.asarray([0, 1, 2, 3])).tolist() => [2, 3, 0, 1]
fft.ifftshift: ts.fft.ifftshift(ts.asarray([2, 3, 0, 1])).tolist() => [0, 1, 2, 3]
"""
