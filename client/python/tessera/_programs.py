"""Where the programs of a pool are: in the folder of TESSERA_BIN_DIR, in this package, or in PATH."""

from __future__ import annotations

import os

from ._errors import NotFoundError

_BUILT = {"tessera": "client/cli/tessera", "tessera-worker": "server/worker/tessera-worker",
          "tessera-coordinator": "server/coordinator/tessera-coordinator"}


def program(name: str, op: str) -> str:
    """The path of "tessera", "tessera-worker" or "tessera-coordinator"; NotFoundError names the places."""
    import pathlib
    import shutil
    places = [pathlib.Path(__file__).parent / "bin" / name]
    if os.environ.get("TESSERA_BIN_DIR"):
        folder = pathlib.Path(os.environ["TESSERA_BIN_DIR"])
        places = [folder / name, folder / _BUILT[name]]
    for place in places:
        if os.access(place, os.X_OK) and place.is_file():
            return str(place)
    found = shutil.which(name)
    if found:
        return found
    raise NotFoundError(f"{op}: the program {name} is not at {places[0]} nor in PATH: install the package with servers (tools/wheel --full), "
                        "or set TESSERA_BIN_DIR")
