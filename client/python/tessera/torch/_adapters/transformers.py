"""Hugging Face's transformers: TrainingArguments().device, device_map="auto", tp_plan="auto", the compiled step of generate."""

from __future__ import annotations

import functools
import sys
import warnings

import torch

from ..._errors import InvalidArgumentError
from .._device import DEVICE, NAME
from .._moving import default_mesh
from ..parallel import parallelize_module, tp_plan
from ._choice import has_session

_WHOLE_POOL = ("auto", "balanced", "balanced_low_0", "sequential")      # accelerate's ways to spread a model over several devices


def install_training_arguments(module) -> None:
    """module: transformers.training_args. Trainer's device is what TrainingArguments says."""
    setup = module.TrainingArguments.__dict__["_setup_devices"].func

    @functools.wraps(setup)
    def setup_devices(arguments):
        device = setup(arguments)
        return DEVICE if device.type == "cpu" and not arguments.use_cpu and arguments.parallel_mode.value == "not_parallel" and has_session() else device

    replaced = functools.cached_property(setup_devices)
    replaced.__set_name__(module.TrainingArguments, "_setup_devices")
    module.TrainingArguments._setup_devices = replaced


def install_models(module) -> None:
    """module: transformers.modeling_utils. PreTrainedModel.from_pretrained takes device_map and tp_plan for this device."""
    load = module.PreTrainedModel.__dict__["from_pretrained"].__func__

    @functools.wraps(load)
    def from_pretrained(cls, *args, **options):
        device_map, config = options.get("device_map"), options.get("distributed_config")
        plan = options.get("tp_plan") if config is None else _get(config, "tp_plan")
        if not has_session() or torch.distributed.is_initialized() or (device_map is not None and not _is_here(device_map)):
            return load(cls, *args, **options)
        if plan is None:
            if device_map is not None:
                options["device_map"] = {"": DEVICE}
            return load(cls, *args, **options)
        size = options.pop("tp_size", None) if config is None else _get(config, "tp_size")
        for name in ("tp_plan", "distributed_config", "device_map", "device_mesh"):
            options.pop(name, None)
        return _parallel(load(cls, *args, **options), plan, size)

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def install_generation(module) -> None:
    """module: transformers.generation.utils. `generate` with a cache of fixed length (cache_implementation="static") compiles the decode
    step on this device, as on others: a step is one message. disable_compile=True leaves it as it is."""
    mixin = module.GenerationMixin
    criteria = mixin._valid_auto_compile_criteria

    @functools.wraps(criteria)
    def valid_auto_compile_criteria(self, model_kwargs, generation_config):
        cache = model_kwargs.get("cache", model_kwargs.get("past_key_values"))
        if self.device.type == NAME and generation_config.compile_config is None and _is_fixed(module, cache):
            from transformers import CompileConfig
            generation_config.compile_config = CompileConfig(backend=NAME, mode="default")
            generation_config.compile_config._compile_all_devices = True
        return criteria(self, model_kwargs, generation_config)

    mixin._valid_auto_compile_criteria = valid_auto_compile_criteria
    mixin._beam_search = _beam_search(mixin._beam_search)
    layer = sys.modules[module.StaticCache.__module__].StaticLayer
    layer.reorder_cache = _reorder_cache(layer.reorder_cache)
    if hasattr(module, "DeferredStopCheck"):
        module.DeferredStopCheck = _stop_check(module.DeferredStopCheck, module.StopCheck)


def _beam_search(search):
    """transformers' beam search, which calls the model itself in each step: the compiled one, under the conditions of other searches."""
    @functools.wraps(search)
    def beam_search(self, *args, generation_config, **options):
        is_compiled = self.device.type == NAME and self._valid_auto_compile_criteria(options, generation_config)
        model = _ByStep(self, self.get_compiled_call(generation_config.compile_config)) if is_compiled else self
        return search(model, *args, generation_config=generation_config, **options)

    return beam_search


def _reorder_cache(reorder):
    """A layer of a cache of fixed length in the order of beams. transformers reads how full it is, to leave an empty one as it is: a wait for
    each layer of each token, where the order of zeros doesn't matter."""
    @functools.wraps(reorder)
    def reorder_cache(self, beam_idx):
        if not self.is_initialized or self.keys.device.type != NAME:
            return reorder(self, beam_idx)
        self.keys, self.values = self.keys.index_select(0, beam_idx), self.values.index_select(0, beam_idx)

    return reorder_cache


class _ByStep:
    """A model to a search: called it runs `step`, all else is the model's, its prefill too."""

    def __init__(self, model, step):
        self._model, self._step = model, step

    def __call__(self, **inputs):
        return self._step(**inputs)

    def __getattr__(self, name):
        return getattr(self._model, name)


def _stop_check(deferred, plain):
    """transformers' check that reads a step later whether all sequences have ended, with the value on this device: the program asks for the
    next token while workers compute this one. The step that was too many is undone by `generate`. Not where the cache is given back."""
    class StopCheck(deferred):
        @staticmethod
        def is_supported(device, cache, cache_is_returned, is_assistant):
            if device.type != NAME:
                return deferred.is_supported(device, cache, cache_is_returned, is_assistant)
            return not cache_is_returned and not is_assistant

        def __init__(self, input_ids, max_length, cache, cache_is_returned, streamer=None):
            self.is_here = input_ids.device.type == NAME
            if not self.is_here:
                super().__init__(input_ids, max_length, cache, cache_is_returned, streamer)
                return
            plain.__init__(self, streamer)
            self.max_length, self.before, self.stop_reported = max_length, None, False

        def __call__(self, unfinished_sequences, tokens, length):
            if not self.is_here:
                return super().__call__(unfinished_sequences, tokens, length)
            before, self.before = self.before, (unfinished_sequences.max() == 0, tokens if self.streamer is not None else None)
            if before is not None:
                if self.streamer is not None:
                    self.streamer.put(before[1].cpu())
                self.stop_reported = bool(before[0])
            return self.stop_reported or (self.max_length is not None and length >= self.max_length)

        def finish(self):
            if not self.is_here:
                return super().finish()
            if self.streamer is not None and self.before is not None and not self.stop_reported:
                self.streamer.put(self.before[1].cpu())
            return int(self.stop_reported)

    return StopCheck


def _is_fixed(module, cache) -> bool:
    """Whether a cache has the same shapes in each step."""
    inner = getattr(cache, "self_attention_cache", cache)
    return bool(getattr(cache, "is_compileable", False)) and type(inner) is not module.DynamicCache


def _get(config, name):
    return config.get(name) if isinstance(config, dict) else getattr(config, name, None)


def _is_here(device_map) -> bool:
    if isinstance(device_map, str):
        return device_map in _WHOLE_POOL or torch.device(device_map).type == NAME
    if isinstance(device_map, torch.device):
        return device_map.type == NAME
    return False


def _parallel(model, plan, size):
    """A loaded model with the styles of its own plan, or of the one given, on the mesh of default_placement: its dim "tp", or its only one."""
    mesh = default_mesh()
    if "tp" in (mesh.mesh_dim_names or ()):
        mesh = mesh["tp"]
    if mesh.ndim != 1:
        raise InvalidArgumentError(f"from_pretrained: tp_plan needs a mesh of one dim, or one that has a dim 'tp', and {mesh} is "
                                   "default_placement's; give another by tt.default_placement(mesh)")
    if size is not None and size != mesh.size():
        warnings.warn(f"from_pretrained: tp_size={size} is left out: {mesh} has {mesh.size()} workers", stacklevel=4)
    return parallelize_module(model, mesh, tp_plan(model) if plan == "auto" else tp_plan(model, plan))
