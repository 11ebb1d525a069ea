# %% [markdown]
# # First steps
#
# A cluster of this machine, a tensor on it, and where its parts lie. Run it with Tessera and `ipykernel` installed, or from
# a checkout with `tools/notebooks`.

# %%
# %load_ext tessera

# %% [markdown]
# That started a coordinator and a worker for each core, and connected. Here four small ones do:

# %%
# %tessera start 4 256MiB

# %%
import numpy as np
import tessera as ts

mesh = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
mesh

# %% [markdown]
# ## A tensor
#
# It has one shape for you, and lies in shards. (Where it is not there yet, a picture has no values: `wait()` waits for
# them.) A mesh dim splits it along a dim (`Shard`), or copies it (`Replicate`).

# %%
a = np.arange(48.0).reshape(8, 6)
x = session.distribute_tensor(a, mesh, [ts.Shard(0), ts.Shard(1)])
x.wait()

# %% [markdown]
# Rows halve over `dp`, columns over `tp`. With `Replicate` both columns of the mesh have the same:

# %%
session.distribute_tensor(a, mesh, [ts.Shard(0), ts.Replicate()]).wait()

# %% [markdown]
# ## Ops
#
# Ops return at once, with shape and placement; values come when you look. A sum over a split dim is *pending*: each worker
# has a term, and the sum is made when an op needs it.

# %%
total = x.sum(axis=0)
total.wait()

# %%
total.full_tensor(), a.sum(axis=0)

# %%
y = ts.softmax(x @ x.T / 1000)
np.allclose(y.full_tensor().sum(axis=1), 1)

# %% [markdown]
# ## Moving it
#
# `redistribute` gives the same tensor with other placements. What moves is known before:

# %%
x.explain_redistribute([ts.Shard(1), ts.Shard(0)])

# %%
x.redistribute([ts.Shard(1), ts.Shard(0)]).wait()

# %% [markdown]
# ## What is there
#
# The session says what it holds, by worker. What no name refers to any more is freed.

# %%
session

# %% [markdown]
# ## When it is called otherwise
#
# Names of NumPy and torch that differ, and typos, say what to write.

# %%
for attempt in (lambda: x.cuda(), lambda: ts.cat([x, x]), lambda: x.sum(dim=0), lambda: x.redistribute(placement=[]), lambda: x.full_tensr()):
    try:
        attempt()
    except (AttributeError, TypeError) as error:
        print(f"{type(error).__name__}: {error}")

# %%
help(ts.sort)

# %%
# %tessera stop
