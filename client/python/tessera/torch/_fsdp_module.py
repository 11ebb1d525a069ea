"""FSDPModule: what a module has after fully_shard, by torch's names."""

from __future__ import annotations

import weakref

from .._errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError


class _Gathered:
    """The result of unshard(async_op=True): the gathering is on its way, and ops that need it wait for it on the workers."""

    def wait(self) -> None:
        pass


class FSDPModule:
    """The methods of a module after fully_shard, by torch's names. Its parameters are global tensors at any time: what these say is
    only when they are gathered and when their gradients are reduced."""

    def __deepcopy__(self, memo):
        raise FailedPreconditionError(f"deepcopy: {type(self).__name__} is fully sharded; copy the module before fully_shard, and its state_dict()")

    def __reduce_ex__(self, protocol):
        raise FailedPreconditionError(f"pickle: {type(self).__name__} is fully sharded; save its state_dict(), or tt.save it")

    def _units(self, recurse: bool) -> list:
        found = [one._fully_sharded for one in (self.modules() if recurse else [self]) if isinstance(one, FSDPModule)]
        return list(dict.fromkeys(found))

    def unshard(self, async_op: bool = False):
        """Asks for the whole parameters of this unit now, for the forward that comes."""
        self._fully_sharded.prefetch()
        return _Gathered() if async_op else None

    def reshard(self) -> None:
        """Lets the gathered parameters of this unit go."""
        self._fully_sharded.gathered = None
        self._fully_sharded.let_go()

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: gradients are added up where they are; the first backward after True reduces the sums."""
        for unit in self._units(recurse):
            unit.is_held = unit.is_copied_held = not requires_gradient_sync
            unit.mark_held()

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """False: gradients are reduced to the shards, and over the copies of a mesh of two dims by the first backward after True."""
        for unit in self._units(recurse):
            unit.is_copied_held = not requires_all_reduce
            unit.mark_held()

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        if not isinstance(reshard_after_forward, bool):
            raise InvalidArgumentError(f"set_reshard_after_forward: takes a bool, not {reshard_after_forward!r}")
        for unit in self._units(recurse):
            unit.reshard, unit.is_auto = reshard_after_forward, False

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False: what backward has gathered is there for the next forward, while the parameters are the same."""
        for unit in self._units(recurse):
            unit.keeps = not reshard_after_backward
            unit.gathered = unit.taken = None

    def set_modules_to_forward_prefetch(self, modules: list) -> None:
        """The units that are asked for before this one's forward, in place of the one that followed it in the step before."""
        self._fully_sharded.following = _units_of("set_modules_to_forward_prefetch", modules)

    def set_modules_to_backward_prefetch(self, modules: list) -> None:
        """The units that are asked for when backward reads this one, in place of the one before it."""
        self._fully_sharded.preceding = _units_of("set_modules_to_backward_prefetch", modules)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """A gradient is the one of the loss that backward was called on, over the whole batch: there is nothing to divide."""
        if factor != 1:
            raise InvalidArgumentError(f"set_gradient_divide_factor: factor is {factor!r}; a loss here is that of the whole batch, and gradients are its "
                                       "own: divide the loss by what you want, or take 1.0")

    set_reduce_scatter_divide_factor = set_gradient_divide_factor


def _without_effect(name: str, why: str):
    def method(self, *args, **kwargs) -> None:
        return None
    method.__name__, method.__doc__ = name, f"Taken as torch has it, without effect: {why}."
    return method


def _refused(name: str, why: str):
    def method(self, *args, **kwargs):
        raise UnimplementedError(f"{name}: {why}")
    method.__name__, method.__doc__ = name, f"Refused: {why}."
    return method


_ORDER, _PLANNED = "all that is asked for runs in the order of asking", "the coordinator plans what moves, and its memory"
for _name, _why in (("set_is_last_backward", "each backward reduces what set_requires_gradient_sync lets it"), ("set_post_optim_event", _ORDER),
                    ("set_unshard_in_backward", "backward gathers what it reads, and no unit that it doesn't"),
                    ("set_force_sum_reduction_for_comms", "gradients are sums"), ("set_allocate_memory_from_process_group_for_comm", _PLANNED),
                    ("set_separate_reduce_scatter_group", _PLANNED), ("set_reduce_scatter_max_input_buffers", _PLANNED),
                    ("set_keep_unsharded_storage", _PLANNED), ("set_reduce_scatter_unused_params", "a parameter without a gradient needs none reduced"),
                    ("reset_iter_state", "a forward or backward that failed leaves nothing behind"),
                    ("set_manual_backward_finalization", "a backward is through when it returns"), ("finalize_backward", "a backward is through when it returns")):
    setattr(FSDPModule, _name, _without_effect(_name, _why))
for _name in ("set_custom_all_gather", "set_custom_reduce_scatter", "set_all_reduce_hook", "set_symm_mem_for_comm"):
    setattr(FSDPModule, _name, _refused(_name, f"{_PLANNED}; no function of this process is part of it. Tensor.register_hook sees gradients"))


def _units_of(op: str, modules) -> list:
    for one in modules:
        if not isinstance(one, FSDPModule):
            raise InvalidArgumentError(f"{op}: {type(one).__name__} is not fully sharded; call tt.fully_shard on it first")
    return [weakref.ref(one._fully_sharded) for one in modules]


FSDPModule.__module__ = "tessera.torch"
