"""Methods of sessions, profiles and clusters that stand on the modules above them."""

from __future__ import annotations

import _tessera
from ._attach import attach
from ._cluster_picture import cluster_html, session_html
from ._from_local import from_local
from ._profile import Profile
from ._profile_picture import html as profile_html
from ._publications import attach_of, publish_of
from ._session import Cluster
from ._worker_watch import watch_workers


@attach(_tessera.Session)
class _SessionMethods:
    def from_local(self, locals, device_mesh=None, placements=None, *, shape=None):
        """A tensor of shards that exist already: a dict by position, a nested list in mesh shape, or f(position)."""
        return from_local(self, locals, device_mesh, placements, shape)

    def profile(self):
        """The ops of a `with` block, or the last ones, with the times and places that the workers measured.

        >>> with session.profile() as profile:
        ...     y = (x @ w).wait()
        >>> print(profile); profile.save("trace.json")
        """
        return Profile(self)

    def on_worker(self, callback):
        """Calls `callback` with a WorkerChange, ("came" or "went", the worker's entry of `status()`), when a worker comes or goes,
        from a thread of its own and within about half a second. Workers that are there already are not told; one that comes
        and goes between two looks isn't either. Returns the watch: `stop()` ends it, as the session's end does. A callback
        that raises makes a warning, and is called again at the next change.

        >>> watch = session.on_worker(lambda change: print(change.change, change.worker["index"]))
        """
        return watch_workers(self, callback)

    def publish(self, tensors, name, readers=()) -> int:
        """Publishes tensors of this session as one set: ts.publish."""
        return publish_of(self, tensors, name, readers)

    def attach(self, name):
        """The tensors of a publication, by their names, where they lie: ts.attach."""
        return attach_of(self, name)

    def _repr_html_(self):
        return session_html(self)


@attach(Profile)
class _ProfileMethods:
    def _repr_html_(self) -> str:
        return profile_html(self)


@attach(Cluster)
class _ClusterMethods:
    def _repr_html_(self):
        return cluster_html(self)
