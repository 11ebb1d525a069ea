"""torch's names for meshes: tt.DeviceMesh and tt.init_device_mesh."""

from __future__ import annotations

from .._context import current_session
from .._mesh import DeviceMesh
from ._device import NAME


def init_device_mesh(device_type: str = NAME, mesh_shape=None, *, mesh_dim_names=None, backend_override=None) -> DeviceMesh:
    """A mesh of the current session's workers, by torch.distributed's signature.

    device_type: "tessera", the workers of the default mesh in their order; "cpu" or "cuda" chooses those of that kind. mesh_shape: workers
    by dim; default all in one dim. mesh_dim_names: one name a dim. backend_override: taken as torch's callers give
    it; workers move by their own transports.

    >>> mesh = tt.init_device_mesh("tessera", (2, 2), mesh_dim_names=("dp", "tp"))
    """
    session = current_session()
    kind = None if str(device_type).partition(":")[0] == NAME else device_type
    if mesh_shape is None:
        mesh_shape = (session.default_mesh.size(),)
    return session.init_device_mesh(*([] if kind is None else [kind]), tuple(mesh_shape), mesh_dim_names=mesh_dim_names)
