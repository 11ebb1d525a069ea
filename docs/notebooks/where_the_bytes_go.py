# %% [markdown]
# # Where the bytes go
#
# Before an op runs, its plan says which worker sends what to which; afterwards the workers' counters say the same numbers.

# %%
# %load_ext tessera

# %%
# %tessera start 4 256MiB

# %%
import numpy as np
import tessera as ts

mesh = session.init_device_mesh((4,))
grid = session.init_device_mesh((2, 2), mesh_dim_names=("dp", "tp"))
x = ts.randn(1024, 1024, device_mesh=mesh, placements=[ts.Shard(0)])

# %% [markdown]
# ## Rows to columns
#
# A quarter of each row stays, three quarters go: each worker gives each other one a block.

# %%
plan = x.explain_redistribute([ts.Shard(1)])
plan

# %%
with session.comm_debug() as comm:
    x.redistribute([ts.Shard(1)]).wait()
print(comm.bytes_received, comm.bytes_received == plan.bytes_received)

# %% [markdown]
# ## A pending sum for all
#
# First each worker reduces a quarter, then it gives it to the others.

# %%
total = ts.sum(ts.randn(4, 256, 256, device_mesh=mesh, placements=[ts.Shard(0)]), axis=0)
total.explain_redistribute([ts.Replicate()])

# %% [markdown]
# ## A product
#
# On a grid of workers, a row of blocks meets a column of blocks. What the planner chose, and what else there was:

# %%
a = ts.randn(1024, 1024, device_mesh=grid, placements=[ts.Shard(0), ts.Shard(1)])
plan = ts.explain(ts.matmul, a, a.T)
plan

# %%
print(plan.grid)
for other in plan.runners_up[:2]:
    print("or", other)

# %% [markdown]
# ## A function of several ops
#
# `ts.explain` plans all ops of a function, and each knows what the one before left where.

# %%
def attention(q, k, v):
    return ts.softmax(q @ k.T / 32) @ v


ts.explain(attention, x, x, x)

# %% [markdown]
# ## What ran when
#
# Plans predict; workers measure. Each bar is an op on a worker, paler where it waited for others. `profile.save("trace.json")`
# writes the same for Perfetto.

# %%
with session.profile() as profile:
    attention(x, x, x).wait()
    x.redistribute([ts.Shard(1)]).wait()
profile

# %%
for op in profile.ops:
    print(op.label, op.bytes_moved, "bytes moved")

# %% [markdown]
# ## Advice
#
# The costs of a placement: in sentences, with the numbers of the planner.

# %%
for finding in ts.advise(x.redistribute([ts.Shard(1)]), ts.softmax):
    print(f"{finding.name}: {finding}")

# %%
for finding in ts.advise(ts.ones((6, 4), device_mesh=mesh, placements=[ts.Shard(0)])):
    print(f"{finding.name}: {finding}")

# %%
ts.visualize_sharding(x)

# %%
cluster

# %%
# %tessera stop
