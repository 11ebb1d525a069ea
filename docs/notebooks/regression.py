# %% [markdown]
# # A regression on a table larger than one worker
#
# 500 000 rows of 32 numbers, 128 MB: more than a worker here has, and more than all four have together. The workers read the
# file themselves, each its own rows, a part of the table at a time.

# %%
import os
import tempfile

import numpy as np
import tessera as ts

folder = tempfile.mkdtemp()
cluster = ts.local_cluster(workers=4, memory="24MiB", files=folder)
session = cluster.connect()
mesh = session.init_device_mesh((4,))

# %% [markdown]
# ## The table
#
# Made here, in parts, so that this notebook needs no download; nothing below knows that. The last column is what is to be
# predicted.

# %%
rows, columns, part = 500_000, 31, 50_000
path = os.path.join(folder, "table.npy")
rng = np.random.default_rng(7)
truth = rng.normal(size=columns)
table = np.lib.format.open_memmap(path, mode="w+", dtype="f8", shape=(rows, columns + 1))
for begin in range(0, rows, part):
    x = rng.normal(size=(part, columns)) * np.linspace(0.5, 2, columns)
    table[begin:begin + part] = np.column_stack([x, x @ truth + rng.normal(size=part)])
table.flush()
file = ts.open(path)
memory = [worker["memory_bytes"] for worker in session.status()["workers"]]
print(f"{file.nbytes >> 20} MiB in the file; a worker has {memory[0] >> 20} MiB, all four have {sum(memory) >> 20} MiB")

# %% [markdown]
# The whole is refused, with the numbers, and nothing has happened:

# %%
try:
    ts.load(path, mesh, [ts.Shard(0)]).wait()
except ts.ResourceExhaustedError as error:
    print(str(error)[:78], "...")

# %% [markdown]
# ## Normal equations, part by part
#
# The workers multiply their own rows of each part; the four terms of 32 x 32 numbers are added. That is all that moves
# between workers, and all that stays. The next part is read while this one is multiplied.

# %%
with session.profile() as profile:
    gram = ts.zeros((columns + 1, columns + 1), device_mesh=mesh)
    for begin in range(0, rows, part):
        z = file.load(mesh, [ts.Shard(0)], index=slice(begin, begin + part))
        gram = gram + (z.T @ z).redistribute([ts.Replicate()])
    solution = ts.linalg.solve(gram[:-1, :-1], gram[:-1, -1]).full_tensor()

# %%
expected = np.linalg.lstsq(np.asarray(table[:, :-1]), np.asarray(table[:, -1]), rcond=None)[0]
np.testing.assert_allclose(solution, expected, rtol=1e-9)
print("as NumPy's lstsq of the whole table; the largest error of a coefficient is", f"{np.abs(solution - truth).max():.4f}")

# %% [markdown]
# Where the time went, measured by the workers:

# %%
profile

# %% [markdown]
# ## Gradient steps
#
# As f32 and with half of the rows the table fits, split over the workers. A step is two products and moves 31 numbers.

# %%
half = rows // 2
tall = [file.load(mesh, [ts.Shard(0)], index=slice(begin, begin + part)).astype(ts.float32) for begin in range(0, half, part)]
weights = ts.zeros((columns,), dtype=ts.float32, device_mesh=mesh)
scale = np.float32(1 / half)
for step in range(60):
    gradient = None
    for z in tall:
        x, y = z[:, :-1], z[:, -1]
        term = (x.T @ (x @ weights - y)).redistribute([ts.Replicate()])
        gradient = term if gradient is None else gradient + term
    weights = weights - 0.4 * float(scale) * gradient
error = np.abs(weights.full_tensor() - np.linalg.lstsq(np.asarray(table[:half, :-1]), np.asarray(table[:half, -1]), rcond=None)[0]).max()
assert error < 1e-3, error
print(f"after 60 steps the coefficients are those of lstsq to {1e-3}")

# %%
cluster

# %%
cluster.stop()
del table, file
os.remove(path)
os.rmdir(folder)
