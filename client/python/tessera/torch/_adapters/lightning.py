"""Lightning: Trainer(accelerator="tessera"), strategy="tessera", and the same of Fabric; accelerator="auto" chooses it, too."""

from __future__ import annotations

import functools
import importlib

import torch

from ..._placements import Replicate, Shard
from .. import _memory
from .._device import DEVICE, NAME
from .._fully_shard import fully_shard
from .._moving import default_mesh, default_placement
from ._choice import has_session, warn_of_cpu


def _accelerator_of(base, errors):
    """The class of this device's accelerator, below Lightning's or Fabric's."""

    class TesseraAccelerator(base):
        """A pool of workers, which is one device."""

        def setup_device(self, device: torch.device) -> None:
            if device.type != NAME:
                raise errors.MisconfigurationException(f"Device should be {NAME}, got {device} instead.")

        def get_device_stats(self, device) -> dict:
            return {key: value for key, value in _memory.memory_stats().items() if isinstance(value, (int, float))}

        def teardown(self) -> None:
            pass

        @staticmethod
        def parse_devices(devices):
            if devices in ("auto", -1, "-1", 1, "1", [0]):
                return 1
            raise errors.MisconfigurationException(f"devices={devices!r}: a pool is one device, whatever workers it has; say devices=1 or devices='auto'")

        @staticmethod
        def get_parallel_devices(devices) -> list[torch.device]:
            return [DEVICE]

        @staticmethod
        def auto_device_count() -> int:
            return 1

        @staticmethod
        def is_available() -> bool:
            return has_session()

        @staticmethod
        def name() -> str:
            return NAME

    return TesseraAccelerator


def _strategy_of(base):
    """The class of this device's strategy."""

    class TesseraStrategy(base):
        """One program, whose module and batches lie on a mesh: parameters replicated, batches in shards along dim 0.

        mesh: default default_placement's. batch_dims: the mesh dims over which batches are cut, by name or number; default the dim "dp", else
        all of them. shard_parameters: the module is one unit of tt.fully_shard on these dims.
        """

        strategy_name = NAME

        def __init__(self, mesh=None, batch_dims=None, shard_parameters: bool = False, accelerator=None, checkpoint_io=None, precision_plugin=None):
            super().__init__(device=DEVICE, accelerator=accelerator, checkpoint_io=checkpoint_io, precision_plugin=precision_plugin)
            self._mesh, self._batch_dims, self._shards_parameters = mesh, batch_dims, shard_parameters

        @property
        def mesh(self):
            if self._mesh is None:
                self._mesh = default_mesh()
            return self._mesh

        def _placements(self) -> list:
            names = list(self.mesh.mesh_dim_names or ())
            dims = self._batch_dims if self._batch_dims is not None else ["dp"] if "dp" in names else range(self.mesh.ndim)
            dims = [names.index(one) if isinstance(one, str) else one for one in ([dims] if isinstance(dims, (str, int)) else dims)]
            return [Shard(0) if k in dims else Replicate() for k in range(self.mesh.ndim)]

        def model_to_device(self) -> None:
            with default_placement(self.mesh):
                super().model_to_device()
            if self._shards_parameters:
                dims = [k for k, one in enumerate(self._placements()) if isinstance(one, Shard)]
                names = list(self.mesh.mesh_dim_names or ())
                fully_shard(self.model, mesh=self.mesh if len(dims) == self.mesh.ndim else self.mesh[names[dims[0]]])

        def batch_to_device(self, batch, device=None, dataloader_idx: int = 0):
            with default_placement(self.mesh, self._placements()):
                return super().batch_to_device(batch, device=device, dataloader_idx=dataloader_idx)

        def teardown(self) -> None:
            """Lightning brings the module back to this process after fit. One in shards stays where it is: it may have no room here."""
            if not self._shards_parameters:
                super().teardown()
                return
            self.precision_plugin.teardown()
            self.checkpoint_io.teardown()

        @classmethod
        def register_strategies(cls, strategy_registry) -> None:
            strategy_registry.register(cls.strategy_name, cls, description=cls.__name__)

    return TesseraStrategy


def _is_chosen(connector) -> bool:
    flag = connector._accelerator_flag
    return flag == NAME if isinstance(flag, str) else type(flag).__name__ == "TesseraAccelerator"


def _install(connector, precision_of, strategy) -> None:
    """connector: the class by which a Trainer, or Fabric, chooses accelerator, strategy and precision. strategy: makes the default one."""
    module = importlib.import_module(connector.__module__)
    auto, choose, precision = connector._choose_auto_accelerator, connector._choose_strategy, connector._check_and_init_precision

    def choose_auto_accelerator() -> str:
        if has_session():
            return NAME
        found = auto()
        if found == "cpu":
            warn_of_cpu("Lightning", "no session is open; connect with ts.connect(address) or ts.local_cluster() before the Trainer is made")
        return found

    @functools.wraps(choose)
    def choose_strategy(self):
        return strategy() if _is_chosen(self) and self._num_nodes_flag == 1 else choose(self)

    @functools.wraps(precision)
    def check_and_init_precision(self):
        kind, given = precision_of(self)
        if _is_chosen(self) and given is None and kind in ("16-mixed", "bf16-mixed"):
            return module.MixedPrecision(kind, NAME)
        return precision(self)

    connector._choose_auto_accelerator = staticmethod(choose_auto_accelerator)
    connector._choose_strategy = choose_strategy
    connector._check_and_init_precision = check_and_init_precision


def install_trainer(module) -> None:
    """module: lightning.pytorch.trainer.connectors.accelerator_connector"""
    package = module.__name__.partition(".trainer.")[0]
    fabric = "lightning.fabric" if package.startswith("lightning.") else "lightning_fabric"
    errors = importlib.import_module(f"{package}.utilities.exceptions")
    base = importlib.import_module(f"{package}.accelerators.accelerator").Accelerator
    _register(module.AcceleratorRegistry, importlib.import_module(f"{fabric}.accelerators").ACCELERATOR_REGISTRY, _accelerator_of(base, errors))
    strategy = _strategy_of(module.SingleDeviceStrategy)
    strategy.register_strategies(module.StrategyRegistry)
    _install(module._AcceleratorConnector, lambda self: (self._precision_flag, self._precision_plugin_flag), strategy)


def install_fabric(module) -> None:
    """module: lightning.fabric.connector"""
    package = module.__name__.removesuffix(".connector")
    errors = importlib.import_module(f"{package}.utilities.exceptions")
    accelerators = importlib.import_module(f"{package}.accelerators")
    base = importlib.import_module(f"{package}.accelerators.accelerator").Accelerator
    _register(accelerators.ACCELERATOR_REGISTRY, None, _accelerator_of(base, errors))
    _install(module._Connector, lambda self: (self._precision_input, self._precision_instance), lambda: module.SingleDeviceStrategy(device=DEVICE))


def _register(registry, other, accelerator) -> None:
    for one in (registry, other):
        if one is not None and (NAME not in one or one is registry):
            one.register(NAME, accelerator, description=accelerator.__name__, override=True)
