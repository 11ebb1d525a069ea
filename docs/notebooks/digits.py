# %% [markdown]
# # Principal components and k-means of images
#
# 1797 images of handwritten digits, 8 x 8 pixels, from the UCI repository (`tools/digits` takes them out of Debian's
# scikit-learn). The rows are split over four workers; nothing but sums of 64 x 64 numbers moves.

# %%
# %load_ext tessera

# %%
# %tessera start 4 256MiB

# %%
import gzip

import numpy as np
import tessera as ts
from IPython.display import HTML
from tessera.demo import find_digits

table = np.loadtxt(gzip.open(find_digits(), "rt"), delimiter=",")
pixels, labels = table[:, :64], table[:, 64].astype(int)


def images(rows, scale=5):
    """Rows of 64 pixels as pictures, side by side."""
    drawn = []
    for i, row in enumerate(rows):
        for p, value in enumerate(row):
            grey = 255 - int(np.clip(value, 0, 16) * 15.9)
            drawn.append(f'<rect x="{(i * 9 + p % 8) * scale}" y="{p // 8 * scale}" width="{scale}" height="{scale}" fill="rgb({grey},{grey},{grey})"/>')
    return HTML(f'<svg width="{len(rows) * 9 * scale}" height="{8 * scale}">{"".join(drawn)}</svg>')


images(pixels[:10])

# %%
mesh = session.init_device_mesh((4,))
x = session.distribute_tensor(pixels, mesh, [ts.Shard(0)])
x.wait()

# %% [markdown]
# ## Principal components
#
# The mean of each pixel is a sum over the split dim: pending, and reduced where it is taken away. The covariance is a product
# over the split dim: each worker multiplies its own rows, and the four terms are added.

# %%
centred = x - x.mean(axis=0)
covariance = centred.T @ centred / (len(pixels) - 1)
covariance.wait()

# %%
values, vectors = ts.linalg.eigh(covariance)
share = (values[-10:].sum() / values.sum()).item()
print(f"ten of 64 components have {share:.0%} of the variance")
expected = np.linalg.eigvalsh(np.cov(pixels.T))
np.testing.assert_allclose(values.full_tensor(), expected, atol=1e-8 * expected.max())

# %%
points = (centred @ vectors[:, -2:]).full_tensor()[:, ::-1]
colours = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#3f9c9c", "#b8901f", "#9c755f", "#d4719b", "#7f7f7f"]
dots = "".join(f'<circle cx="{200 + 6 * px:.0f}" cy="{180 - 5 * py:.0f}" r="2" fill="{colours[label]}" fill-opacity="0.7"/>'
               for (px, py), label in zip(points[:600], labels))
names = "".join(f'<text x="{8 + 16 * i}" y="14" font-size="13" fill="{c}">{i}</text>' for i, c in enumerate(colours))
HTML(f'<svg width="400" height="360">{dots}{names}</svg>')

# %% [markdown]
# ## k-means
#
# Distances are a product, the nearest centre an argmin, the new centres a sum by one-hot rows: all of it catalog ops on the
# rows where they lie. The loop never waits: it queues 12 rounds and looks at the last.

# %%
rng = np.random.default_rng(3)
start = pixels[rng.choice(len(pixels), 10, replace=False)]
centres = session.distribute_tensor(start, mesh)
for _ in range(12):
    distances = ts.sum(centres**2, axis=1) - 2 * x @ centres.T
    nearest = ts.argmin(distances, axis=1)
    chosen = ts.one_hot(nearest, 10, dtype=ts.float64)
    sums, counts = chosen.T @ x, chosen.sum(axis=0)
    centres = sums / ts.maximum(counts, 1)[:, None]
images(centres.full_tensor())

# %%
reference = start
for _ in range(12):
    own = np.argmin((reference**2).sum(axis=1) - 2 * pixels @ reference.T, axis=1)
    one_hot = np.eye(10)[own]
    reference = one_hot.T @ pixels / np.maximum(one_hot.sum(axis=0), 1)[:, None]
np.testing.assert_allclose(centres.full_tensor(), reference, atol=1e-9)
found = nearest.full_tensor()
right = sum(np.bincount(labels[found == k]).max() for k in range(10) if (found == k).any())
print(f"as NumPy does it; {right / len(labels):.0%} of the images are in a cluster of their digit")

# %% [markdown]
# ## What moved
#
# One round more, with the bytes counted by the workers:

# %%
with session.comm_debug() as comm:
    nearest = ts.argmin(ts.sum(centres**2, axis=1) - 2 * x @ centres.T, axis=1)
    chosen = ts.one_hot(nearest, 10, dtype=ts.float64)
    (chosen.T @ x).redistribute([ts.Replicate()]).wait()
print(comm.bytes_received, "bytes of", x.nbytes)

# %%
# %tessera stop
