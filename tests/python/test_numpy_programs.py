"""Calls as NumPy's programs write them give what NumPy gives: its positions and keywords, its names, lists and arrays as operands, and
what writes in place. The expressions are run with `np` as NumPy, on arrays, and as tessera, on tensors."""

import numpy as np
import pytest

import tessera as ts

CALLS = """
np.median(x,axis=(0,1))
np.diff(v,prepend=0.)
np.diff(x,axis=0,append=7)
np.average(x)
np.average(x,weights=x)
np.average(x,axis=0)
np.average(x,axis=1,weights=[1,2,3,4])
np.average(x,axis=0,returned=True,weights=x)
np.where(m)
np.where(i,1,0)
m+m
m*m
m+True
np.add(m,m)
np.maximum(m,m)
np.max(m)
np.min(m,axis=0)
m.max(axis=1)
i+u
i*u
np.isclose(n,n,equal_nan=True)
np.allclose(n,n,equal_nan=True)
np.trapezoid(v,x=v*2)
np.sort(x,axis=None)
np.argsort(v,kind='stable')
np.linspace(np.array([0,1]),np.array([1,2]),5)
np.linspace(0,1,5,retstep=True)
np.linspace(0,1,5,False)
np.angle(z+1j,deg=True)
np.linalg.svd(x,compute_uv=False)
np.abs(np.linalg.svd(x,False)[0])
np.abs(np.linalg.qr(x,mode='r'))
np.linalg.matrix_rank(x,tol=1e-3)
np.linalg.pinv(x,rcond=1e-3)
np.reshape(x,(4,3),order='F')
x.reshape(4,3,order='F')
x.ravel(order='F')
np.ravel(x,'F')
x.flatten('F')
np.tril(x,-1)
np.searchsorted(v,i)
np.quantile(x,.5)
np.quantile(x,[.2,.5],axis=1)
np.quantile(x,np.asarray([.2,.5]))
np.percentile(x,[5,6],axis=0,keepdims=True)
np.arange(np.asarray(5))
np.full((2,),np.asarray(3.))
np.full((2,3),[1,2,3])
np.linspace(np.asarray(0.),1,5)
np.pad(v,2,mode='mean')
np.pad(i,(1,2),mode='mean')
np.pad(v,(2,3),mode='linear_ramp')
np.pad(x,2,mode='linear_ramp',end_values=5)
np.pad(v,2,mode='symmetric')
np.pad(x,((2,1),(0,3)),mode='symmetric')
np.pad(v,20,mode='symmetric')
np.pad(x,1,mode='maximum')
np.pad(x,1,mode='minimum',stat_length=2)
np.pad(x,1,mode='median')
np.exp2(3.)
np.sqrt(4)
x+[1,2,3,4]
[1,2,3,4]*x
x==[0,1,2,3]
np.sum([1,2])
np.sort(x,kind='stable')
np.amax(x)
np.amin(x,axis=1)
np.arccos(v/9)
np.rint(v*1.3)
np.vdot(z,z)
np.copy(x)
np.lexsort((v,-v))
np.lexsort((v,np.abs(v)))
np.nancumsum(n)
np.nancumprod(n)
np.nanmedian(n)
np.tril_indices(3)
np.triu_indices(3,1,4)
np.triu_indices_from(sq)
np.diag_indices(3)
np.indices((2,3))
np.packbits(m)
np.packbits(m,axis=1)
np.packbits(m,axis=0,bitorder='little')
np.unpackbits(b)
np.unpackbits(b,count=11)
np.extract(m,x)
np.logaddexp2(v,v*2)
np.sort_complex(z)
np.sum(x,where=m)
np.sum(x,axis=0,where=m)
np.sum(x,initial=3)
np.prod(x+1,axis=1,initial=2,where=m)
np.max(x,initial=3,where=m)
np.min(x,axis=0,initial=-3)
np.mean(x,where=m)
np.mean(x,axis=1,where=m,keepdims=True)
np.var(x,where=m)
np.std(x,axis=0,ddof=1,where=m)
np.mean(i,dtype='f4')
np.sum(i,0,'f4')
np.sum(x,0,None,None,True)
np.exp(v,dtype='f8')
np.concatenate([x,x],0)
np.concatenate((x,[[1,2,3,4]]))
np.stack([x,x],1)
np.take(v,[7,-9],mode='wrap')
np.take(v,[7,-9],mode='clip')
np.take(x,[1,5])
np.take(x,[[0,1],[2,2]],axis=0)
np.tri(3,M=4)
np.histogram([1,2,3])
np.append([1],[2])
np.allclose(x,[0]*4)
np.vander([1,2,3])
np.meshgrid(v,v[:2],sparse=True)
np.einsum('i,i',np.arange(6.),v)
np.cumsum([1,2,3])
np.linalg.eigvals(i[:4].reshape(2,2))
np.linalg.eigvalsh(sq,'L')
np.convolve(v,v,'same')
np.zeros_like(v,order='C')
np.zeros_like(v,'f4','C')
np.array([1,2],dtype='f4',copy=True,order='C',ndmin=2)
np.array([[1,2],[3,4]])
np.clip(x,a_min=1,a_max=3)
np.round(x*1.234,decimals=1)
np.transpose(x,(1,0))
np.unique([3,1,3])
np.unique(i%3,return_counts=True)
np.unique(i%3,return_index=True,return_inverse=True)
np.dot([1,2],[3,4])
np.outer([1,2],[3])
np.array_equiv(x,x[0])
np.isposinf(v)
np.ndim(x)
np.shape(x)
np.size(x,1)
np.iscomplexobj(x)
np.modf(v*1.5)
np.ldexp(v,i)
np.ldexp(v,3)
np.polyval([1,2,3],v)
np.ediff1d(x,to_end=[9,8],to_begin=0)
np.isreal(z)
np.iscomplex(z)
np.bitwise_count(i)
np.bitwise_count(-i)
np.inner(x,x)
np.diag([1,2])
np.broadcast_to([1,2],(2,2))
np.promote_types('i4','f4')
np.var(x,ddof=1,axis=0)
x[np.ix_([0,2],[1,3])]
np.cross(x[:,:3],x[:,1:])
np.linalg.norm(x,'fro')
np.argmax(x,axis=1,keepdims=True)
np.count_nonzero(m,axis=0)
np.all(m,axis=1,where=m)
np.any(m,keepdims=True)
np.roll(x,1,0)
np.repeat(v,2)
np.tile(x,(2,1))
np.squeeze(x[None],0)
np.moveaxis(t,0,-1)
np.split(v,3)
np.array_split(v,4)
np.hstack([v,v])
np.linalg.solve(sq,[1,2,3])
np.linalg.inv(np.eye(2))
np.fft.fft([1,2,3])
np.fft.fft(v,8)
np.flip(x,1)
np.nan_to_num(n,nan=7.)
np.interp([0.5,1.5],v,v*2)
np.digitize(v,[1,2])
np.select([v>1,v<0],[v,v*2],9)
np.isin(v,[1,2])
np.float_power(np.abs(v),2)
np.maximum(v,[0]*6)
np.logical_and(m,[True,False,True,True])
np.bincount(i%3)
np.cov(x)
np.ptp(x,axis=0)
np.trace(t)
np.trace(t,offset=1,axis1=1,axis2=2)
np.diagonal(t)
np.kron(sq,sq)
np.tensordot(x,x,axes=([0,1],[0,1]))
np.empty_like(v).shape
np.eye(3,4,1)
np.eye(3,k=-1)
np.identity(3)
np.hypot(3,4)
np.greater([1,2],[2,1])
np.expand_dims(v,(0,2))
np.degrees(v)
np.nanmean(n)
np.nansum(n,keepdims=True)
np.swapaxes(t,0,2)
np.bitwise_not(i)
np.left_shift(i,1)
np.conjugate(z)
np.real(z)
x.sum(0)
x.mean(axis=0,dtype='f4',keepdims=True)
x.std(ddof=1)
x.max(initial=100)
x.cumsum(0)
x.argmax(1)
x.clip(1,3)
x.round(1)
x.take([1,2])
x.flat[3]
""".strip().splitlines()

# An expression, and what it has written.
WRITES = """
np.put(x,[0,5],[9])  ->  x
np.put(x,[0,5,7],[9,8])  ->  x
np.put(x,[0,50],[9],mode='wrap')  ->  x
np.place(x,x>3,[1])  ->  x
np.place(x,x>3,[1,2,3])  ->  x
np.putmask(x,x>3,x*2)  ->  x
np.fill_diagonal(sq,0)  ->  sq
np.fill_diagonal(x,7)  ->  x
np.fill_diagonal(x.T,7)  ->  x
np.fill_diagonal(t[:,:2,:2],1)  ->  t
np.copyto(v,1)  ->  v
np.copyto(x,5.,where=m)  ->  x
np.add(x,1,out=x)  ->  x
np.add(x,1,x)  ->  x
np.add(x,1,where=m,out=x)  ->  x
np.multiply(x,2,out=x[:, ::-1])  ->  x
np.sum(x,axis=0,out=v[:4])  ->  v
np.clip(x,1,3,x)  ->  x
np.matmul(x,x.T,out=sq)  ->  sq
x.sort(axis=0)  ->  x
v[::-1].sort()  ->  v
x.put([1],[50])  ->  x
x.fill(3)  ->  x
x.flat[::2]=1  ->  x
""".strip().splitlines()


def values():
    return {"x": np.arange(12.0).reshape(3, 4), "v": np.arange(6.0) - 2, "m": np.arange(12).reshape(3, 4) % 3 > 0, "i": np.arange(6),
            "u": np.arange(6, dtype="u8"), "sq": np.eye(3) * 4 + 1, "z": np.arange(6) * (1 - 1j), "t": np.arange(24.0).reshape(2, 3, 4),
            "b": np.array([3, 200], "u1"), "n": np.array([1.0, np.nan, 3.0])}


@pytest.fixture
def tensors(session, mesh4):
    return {name: ts.asarray(array, device_mesh=mesh4) for name, array in values().items()}


def assert_same(found, wanted):
    if isinstance(wanted, (tuple, list)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            assert_same(one, other)
    elif isinstance(wanted, (np.dtype, bool, int)):
        assert found == wanted
    else:
        assert isinstance(found, ts.Tensor) or np.ndim(wanted) == 0, type(found)
        found, wanted = np.asarray(found), np.asarray(wanted)
        assert found.shape == wanted.shape and (found.dtype == wanted.dtype or wanted.dtype.kind == "f"), (found.dtype, wanted.dtype)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("expression", CALLS)
def test_a_call_gives_what_numpy_gives(tensors, expression):
    with np.errstate(all="ignore"):
        wanted = eval(expression, {"np": np, **values()})
    with ts.implicit_redistribution("allow"):
        assert_same(eval(expression, {"np": ts, **tensors}), wanted)


@pytest.mark.parametrize("expression", WRITES)
def test_what_writes_in_place_leaves_what_numpy_leaves(tensors, expression):
    statement, _, name = expression.partition("  ->  ")
    arrays = values()
    exec(statement, {"np": np, **arrays})
    with ts.implicit_redistribution("allow"):
        exec(statement, {"np": ts, **tensors})
    assert_same(tensors[name], arrays[name])


UFUNCS = {"add out": lambda x, out: np.add(x, 1, out=out), "add where": lambda x, out: np.add(x, 1, where=x > 3, out=out), "exp": lambda x, out: np.exp(x / 9),
          "reduce": lambda x, out: np.add.reduce(x), "reduce axis": lambda x, out: np.maximum.reduce(x, axis=1), "accumulate": lambda x, out: np.multiply.accumulate(x),
          "sum where": lambda x, out: np.sum(x, where=x > 3), "sort": lambda x, out: np.sort(x, axis=0, kind="stable"), "unique": lambda x, out: np.unique(x),
          "list": lambda x, out: np.add(x, [1, 2, 3, 4]), "put": lambda x, out: np.put(out, [1], 5) or out, "std": lambda x, out: np.std(x, ddof=1)}


@pytest.mark.parametrize("name", UFUNCS)
def test_numpys_functions_take_tensors_and_download_nothing(tensors, name, recwarn):
    array, tensor = values()["x"], tensors["x"]
    wanted, found = UFUNCS[name](array, array), UFUNCS[name](tensor, tensor)
    assert isinstance(found, ts.Tensor)
    assert_same(found, wanted)
    assert_same(tensor, array)
    assert not [one for one in recwarn if issubclass(one.category, ts.ImplicitDownloadWarning)]


def test_what_cannot_be_called_so_says_why(session, tensors):
    x = tensors["x"]
    for act, said in ((lambda: ts.sum(x, dim=0), "axis="), (lambda: ts.add(x, 1, out=np.zeros((3, 4))), "out is ndarray"),
                      (lambda: ts.add(x, 1, out=x[0]), r"out is f64\[4\] .*, the result has shape \(3, 4\)"),
                      (lambda: ts.add(x, 1j, out=x), "can't be written into out"), (lambda: ts.max(x, where=x > 3), "where= needs initial="),
                      (lambda: ts.reshape(x, (4, 3), order="Q"), "order is 'Q'"), (lambda: ts.take(x, [0], mode="no"), "mode is 'no'"),
                      (lambda: ts.put(np.zeros(3), [0], 1), "x is ndarray, not a Tensor"), (lambda: x + [1, [2]], "can't stand|unsupported"),
                      (lambda: ts.fill_diagonal(tensors["v"], 1), "needs at least 2"), (lambda: ts.place(x, x > 3, []), "there are no values"),
                      (lambda: ts.softmax(x, spam=1), "spam"), (lambda: ts.linalg.solve_triangular(x, x, upper=True, lower=True), "contradict")):
        with pytest.raises((ts.TesseraError, TypeError, ValueError), match=said):
            print(said, act())


def test_random_numbers_by_numpys_names(session):
    rng = ts.random.default_rng(3)
    first = [rng.random((2, 3)), rng.normal(1.0, 2.0, size=4), rng.integers(0, 5, size=7), ts.random.rand(3), ts.random.randint(5, size=(2,))]
    ts.random.seed(3)
    second = [rng.random((2, 3)), rng.normal(1.0, 2.0, size=4), rng.integers(0, 5, size=7), ts.random.rand(3), ts.random.randint(5, size=(2,))]
    assert [one.shape for one in first] == [(2, 3), (4,), (7,), (3,), (2,)]
    for one, other in zip(first, second):
        assert_same(one, other.full_tensor())
    assert int(rng.integers(3, endpoint=True, size=200).max()) == 3


def test_arrays_of_tensors(session, tensors):
    v = tensors["v"]
    assert_same(ts.array([v, v * 2]), np.stack([values()["v"], values()["v"] * 2]))
    assert_same(ts.array([[v[0], 1], [2, v[3]]]), np.array([[-2.0, 1], [2, 1]]))
    copy = ts.array(v)
    copy += 1
    assert_same(v, values()["v"])
    assert ts.array(v, copy=False) is v and isinstance(v, ts.ndarray)
