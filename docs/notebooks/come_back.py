# %% [markdown]
# # Save, restart the kernel, go on
#
# Tensors live on the cluster, not in the kernel. A session that has a *lease* outlives the process that opened it: name it,
# name what you want to find again, and leave. This notebook restarts its own kernel twice.
#
# It wants a cluster that stays: `tessera up --workers 2 --files /tmp` in a terminal, and `export TESSERA_ADDRESS=...` with
# what that prints, before Jupyter starts.

# %%
import os
import tempfile

import numpy as np
import tessera as ts

session = ts.connect(name="my regression", lease=3600)
data = session.distribute_tensor(np.arange(1_000_000.0).reshape(1000, 1000), session.default_mesh, [ts.Shard(0)])
mean = data.mean(axis=0)
data.name, mean.name = "data", "mean"

# %% [markdown]
# A file holds what is to outlive the cluster, too. The workers write it, each its own part:

# %%
file = os.path.join(tempfile.gettempdir(), "tessera-come-back.safetensors")
ts.save(file, {"data": data, "mean": mean})

# %% [markdown]
# `detach` leaves the session as it is; what was asked for runs on.

# %%
centred = data - mean
centred.name = "centred"
session.detach()

# %% [markdown] [restart]
# ## The kernel has been restarted
#
# Nothing of the above is here any more. The session is found by its name, its tensors by theirs:

# %%
try:
    session
except NameError as error:
    print(error)

# %%
import numpy as np
import tessera as ts

session = ts.connect(resume="my regression")
centred = session["centred"]
centred

# %%
assert abs(float(centred.sum())) < 1e-3
centred.shape, centred.placements, sorted(one["name"] for one in session.status()["tensors"])

# %% [markdown]
# A kernel that dies says no `detach`. The session is there all the same, for as long as its lease:

# %%
covariance = centred.T @ centred / 999
covariance.name = "covariance"
covariance.wait()
session.drop(session["data"])       # it is in the file

# %% [markdown] [restart]
# ## And once more, without a word

# %%
import os
import tempfile

import numpy as np
import tessera as ts

session = ts.connect(resume="my regression")
covariance = session["covariance"]
file = os.path.join(tempfile.gettempdir(), "tessera-come-back.safetensors")
data = ts.load(file, session.default_mesh, [ts.Shard(0)])["data"]
np.testing.assert_allclose(covariance.full_tensor(), np.cov(data.full_tensor().T))
print("the covariance of before is that of the file's data")

# %% [markdown]
# `close` ends it, with all that it has.

# %%
os.remove(file)
session.close()
