"""The functions of accelerate that pa-core uses, typed and imported lazily, because accelerate is slow to import."""

# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import copy
import functools
import operator
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pa_core._attributes import temporarily
from pa_core._tensors import compiled_from
from pa_core.errors import ConfigurationError, NonFiniteLossError, UnsupportedConfigurationError
from pa_data import map_tensors

_Loader = TypeVar("_Loader")

_SMALLEST_SCALE = 2.0**-24
"""The smallest positive number in fp16; at a smaller scale, all gradients of a loss of 1 would be zero."""


class ProcessState(Protocol):
    """The members of ``accelerate.PartialState`` that the process decorators use, and of an ``Accelerator``.

    Attributes:
        device: The device of this process.
        is_main_process: Whether this is the process of rank zero.
        is_local_main_process: Whether this is the first process on its machine.
    """

    device: torch.device
    is_main_process: bool
    is_local_main_process: bool

    def wait_for_everyone(self) -> None:
        """Wait until all processes have called this."""
        ...


class AcceleratorLike(ProcessState, Protocol):
    """The members of ``accelerate.Accelerator`` that a run uses.

    Attributes:
        num_processes: The number of processes of the run.
        process_index: The rank of this process.
        local_process_index: The rank of this process on its machine.
        mixed_precision: The mixed precision of the run: "no", "bf16", "fp16" or "fp8".
        distributed_type: How the run is distributed, a string enumeration of accelerate.
        scaler: The gradient scaler of fp16, or None.
        gradient_accumulation_steps: The accumulation steps of accelerate, which the trainer does not use.
    """

    num_processes: int
    process_index: int
    local_process_index: int
    mixed_precision: str
    distributed_type: Any
    scaler: torch.amp.GradScaler | None
    gradient_accumulation_steps: int

    def prepare_model(self, model: nn.Module, *, evaluation_mode: bool = False) -> nn.Module:
        """Place the module, set its precision and wrap it."""
        ...

    def prepare_data_loader(self, data_loader: _Loader) -> _Loader:
        """Split the loader over the processes and move its batches."""
        ...

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in the mixed precision of the run within the context."""
        ...


def _several_processes_on_cpu() -> bool:
    """Whether several processes run on CPUs, where accelerate connects them only with ``cpu=True``."""
    return launched_processes() > 1 and not torch.accelerator.is_available()


def launched_processes() -> int:
    """Return the number of processes that a launcher started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


# Environment variables of torchrun and accelerate launch, and of three kinds of MPI.
_RANK_VARIABLES = {"RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"}


def _require_rank() -> None:
    """Raise an error for a number of processes without a rank, because this process would wait for the others."""
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    if launched_processes() > 1 and not connected and _RANK_VARIABLES.isdisjoint(os.environ):
        raise UnsupportedConfigurationError(
            "This process has no rank among several processes.",
            given=f"WORLD_SIZE={launched_processes()} without RANK",
            do="Start the script with torchrun or accelerate launch, or unset WORLD_SIZE.",
        )


_PRECISION = "ACCELERATE_MIXED_PRECISION"


@contextmanager
def launched_with(mixed_precision: str | None, cpu: bool | None) -> Generator[None]:
    """Create an ``accelerate.Accelerator`` within the context as if the script had been launched with these options.

    Arguments of its constructor take precedence. If an option is None (or False for ``cpu``), the launcher's option is
    used.

    Raises:
        UnsupportedConfigurationError: WORLD_SIZE is set, but no launcher set the rank.
    """
    from accelerate.utils import patch_environment  # pyright: ignore[reportUnknownVariableType]  # no types

    _require_rank()
    requested = {} if mixed_precision is None else {_PRECISION: mixed_precision}
    if cpu or _several_processes_on_cpu():
        requested["ACCELERATE_USE_CPU"] = "true"
    with patch_environment(**requested):
        yield


def create_accelerator(**kwargs: Any) -> AcceleratorLike:
    """Create the ``accelerate.Accelerator`` of a trainer.

    Args:
        **kwargs: Passed on to ``accelerate.Accelerator``.
    """
    from accelerate import Accelerator

    # By default, accelerate would silently keep the precision of an earlier trainer of this process.
    kwargs.setdefault("mixed_precision", os.environ.get(_PRECISION, "no").lower())
    return cast("AcceleratorLike", Accelerator(**kwargs))


_USE_DEEPSPEED = "ACCELERATE_USE_DEEPSPEED"
_USE_FSDP = "ACCELERATE_USE_FSDP"
_USE_PARALLELISM = "ACCELERATE_USE_PARALLELISM_CONFIG"
_VARIABLES_OF_PLUGINS = (
    _USE_FSDP,
    _USE_PARALLELISM,
    _USE_DEEPSPEED,
    "ACCELERATE_USE_MEGATRON_LM",
    "FSDP_CPU_RAM_EFFICIENT_LOADING",
)

OTHER_ENGINES = {"deepspeed_plugin", "deepspeed_plugins", "megatron_lm_plugin"}
"""The ``accelerate.Accelerator`` arguments that request another engine."""


@contextmanager
def recording_arguments() -> Generator[dict[str, Any]]:
    """Record the keyword arguments of an ``accelerate.Accelerator`` created in the context, which it does not keep.

    A plugin for sharding is recorded without changes: accelerate would change its precision, and make later
    Accelerators of the process shard too. A ``ParallelismConfig``, for which accelerate raises an error on a CPU, and
    plugins of other engines are recorded and not passed on. So accelerate never creates a DeepSpeed engine; only the
    precision of DeepSpeed's configuration is passed on. Environment variables that a plugin sets are restored.

    Raises:
        ConfigurationError: The DeepSpeed configuration of the launcher cannot be read.
    """
    from accelerate import Accelerator

    kind: Any = Accelerator
    create = kind.__init__
    noted: dict[str, Any] = {"deepspeed_plugin": _deepspeed_of_launcher()}

    @functools.wraps(create)
    def record_and_create(self: Any, *args: Any, **kwargs: Any) -> None:
        given = kwargs.get("deepspeed_plugin") or kwargs.get("deepspeed_plugins") or noted["deepspeed_plugin"]
        noted.update(kwargs, fsdp_plugin=copy.copy(kwargs.get("fsdp_plugin")), deepspeed_plugin=given)
        left_out = dict.fromkeys(kwargs.keys() & OTHER_ENGINES)
        create(self, *args, **{**kwargs, **_precision_of_deepspeed(given), "parallelism_config": None, **left_out})

    variables = {name: os.environ.get(name) for name in _VARIABLES_OF_PLUGINS}
    os.environ.pop(_USE_PARALLELISM, None)
    os.environ.pop(_USE_DEEPSPEED, None)
    kind.__init__ = record_and_create
    try:
        yield noted
    finally:
        kind.__init__ = create
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _deepspeed_of_launcher() -> Any:
    """Return the ``DeepSpeedPlugin`` with the file and the variables of ``accelerate launch``, or None."""
    from accelerate.utils import DeepSpeedPlugin, parse_flag_from_env  # pyright: ignore[reportUnknownVariableType]  # no types

    try:
        return DeepSpeedPlugin() if parse_flag_from_env(_USE_DEEPSPEED) else None
    except ValueError as error:
        raise ConfigurationError(
            f"The DeepSpeed configuration of the launcher cannot be read: {error}",
            given=f"deepspeed_config_file: {os.environ.get('ACCELERATE_DEEPSPEED_CONFIG_FILE')}",
            do="Pass the path of a JSON file to accelerate launch --deepspeed_config_file.",
        ) from error


def _precision_of_deepspeed(plugin: Any) -> dict[str, str]:
    """Return the argument of an ``Accelerator`` for the precision that a ``DeepSpeedPlugin`` switches on, if any."""
    config: dict[str, Any] = getattr(plugin, "deepspeed_config", {})
    sections = {name: cast("dict[str, Any]", config.get(name) or {}) for name in ("bf16", "fp16")}
    on = [name for name, section in sections.items() if section.get("enabled") is True]
    return {"mixed_precision": on[0]} if on else {}


def sharding_plugin(accelerator: AcceleratorLike, arguments: dict[str, Any]) -> Any:
    """Return the ``FullyShardedDataParallelPlugin`` with the settings of sharding, or None.

    Args:
        accelerator: The accelerator of the trainer.
        arguments: Its arguments, from ``recording_arguments``.
    """
    from accelerate.utils import FullyShardedDataParallelPlugin, parse_flag_from_env  # pyright: ignore[reportUnknownVariableType]  # no types

    given = arguments.get("fsdp_plugin") or getattr(cast("Any", accelerator).state, "fsdp_plugin", None)
    return FullyShardedDataParallelPlugin() if given is None and parse_flag_from_env(_USE_FSDP) else given


def parallelism_config(accelerator: AcceleratorLike, arguments: dict[str, Any]) -> Any:
    """Return the ``ParallelismConfig`` with the number of processes that models are split over, or None.

    Args:
        accelerator: The accelerator of the trainer.
        arguments: Its arguments, from ``recording_arguments``.
    """
    from accelerate.parallelism_config import ParallelismConfig
    from accelerate.utils import parse_flag_from_env  # pyright: ignore[reportUnknownVariableType]  # no types

    given = arguments.get("parallelism_config") or getattr(accelerator, "parallelism_config", None)
    return ParallelismConfig() if given is None and parse_flag_from_env(_USE_PARALLELISM) else given


def replace_gather(accelerator: AcceleratorLike, gather: Callable[..., Any]) -> None:
    """Let ``accelerator.gather`` accept tensors with different numbers of rows, which occur in the last batches.

    Scripts and libraries call it in evaluations, in which samples are not padded or repeated. Accelerate's own function
    needs the same shape on each process.

    Args:
        accelerator: The accelerator of a trainer; other Accelerators do not change.
        gather: The function to call instead.
    """
    cast("Any", accelerator).gather = gather


def process_state() -> ProcessState:
    """Return the state of this process, even before a trainer is created."""
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env, patch_environment  # pyright: ignore[reportUnknownVariableType]  # no types

    _require_rank()
    # Only Accelerator reads this variable itself, when PartialState has already chosen the device.
    on_cpu = _several_processes_on_cpu() or parse_flag_from_env("ACCELERATE_USE_CPU")
    with patch_environment(**{_USE_DEEPSPEED: "false"}):  # otherwise DeepSpeed would connect the processes
        return cast("ProcessState", PartialState(cpu=on_cpu))


def device_of(accelerator: AcceleratorLike) -> torch.device:
    """Return the device of this process, with the name that tensors on it have.

    On a CPU, accelerate adds the rank: ``cpu:1``. Tensors never have this device, and ``torch.load`` raises an error
    for it.
    """
    device = accelerator.device
    return torch.device("cpu") if device.type == "cpu" else device


def precision_of_process() -> str | None:
    """Return the mixed precision that the first Accelerator fixed for the whole process; None before that."""
    from accelerate.state import AcceleratorState, is_initialized

    return str(cast("Any", AcceleratorState)().mixed_precision) if is_initialized() else None


def computed_precision(accelerator: AcceleratorLike) -> str:
    """Return the mixed precision of a run: "no" if accelerate accepts "fp16" but ignores it."""
    ignored = accelerator.mixed_precision == "fp16" and accelerator.scaler is None
    return "no" if ignored else accelerator.mixed_precision


def unscale(scaler: torch.amp.GradScaler, *optimizers: Optimizer) -> bool:
    """Undo the scale of fp16, and return whether any gradient overflowed, so that there is no update.

    Args:
        scaler: The gradient scaler of the run.
        *optimizers: The optimizers of the update, whose gradients were accumulated.

    Raises:
        NonFiniteLossError: The gradients overflow no matter how small the scale is. At a scale of 0 the weights would
            become NaN.
    """
    scale = scaler.get_scale()
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    scaler.update()
    overflowed = scaler.get_scale() < scale
    if overflowed and scaler.get_scale() < _SMALLEST_SCALE:
        raise NonFiniteLossError(
            "The gradients overflow no matter how small the scale of fp16 is.",
            given=f"gradients that are not finite at a scale of {scale:.3g}, after it was halved repeatedly",
            do="Look for NaN or infinity in the data and in the weights, lower the learning rate, or pass "
            'mixed_precision="bf16", which has the range of float32.',
        )
    return overflowed


def settings_of_exchange(accelerator: AcceleratorLike) -> tuple[int, torch.dtype | None]:
    """Return the size of gradient buckets in bytes, and the dtype for exchanging gradients (None for their own)."""
    handler: Any = getattr(accelerator, "ddp_handler", None)
    if handler is None:
        return 25 << 20, None
    dtypes = {"fp16": torch.float16, "bf16": torch.bfloat16}
    return int(handler.bucket_cap_mb) << 20, dtypes.get(str(handler.comm_hook.value))


def broadcasts_buffers(accelerator: AcceleratorLike) -> bool:
    """Whether all processes get the buffers of the first process in each step, which is the default."""
    handler: Any = getattr(accelerator, "ddp_handler", None)
    return handler is None or bool(handler.broadcast_buffers)


def finds_unused_parameters(accelerator: AcceleratorLike) -> bool:
    """Whether parameters may be unused in a backward pass, on some processes or on all of them."""
    handler: Any = getattr(accelerator, "ddp_handler", None)
    return handler is not None and bool(handler.find_unused_parameters)


_PREPARED, _UNPREPARED_FORWARD = "_is_accelerate_prepared", "_original_forward"
_FORWARD = ("forward", _UNPREPARED_FORWARD, _PREPARED)


class Compilation(NamedTuple):
    """The settings with which accelerate compiles models.

    Attributes:
        arguments: The arguments of ``torch.compile``.
        by_blocks: Whether repeated blocks are compiled rather than the model as a whole.
    """

    arguments: dict[str, Any]
    by_blocks: bool


def compilation(accelerator: AcceleratorLike) -> Compilation | None:
    """Return the settings of compilation; None if models are not compiled."""
    plugin: Any = cast("Any", accelerator).state.dynamo_plugin
    if str(plugin.backend.value) == "NO":
        return None
    return Compilation(plugin.to_kwargs(), bool(plugin.use_regional_compilation))


def _without_compilation(accelerator: AcceleratorLike) -> AbstractContextManager[None]:
    from accelerate.utils import DynamoBackend

    return temporarily(cast("Any", accelerator).state.dynamo_plugin, backend=DynamoBackend.NO)


def _forget_preparation(module: nn.Module) -> None:
    """Let a module compute in its own precision again; otherwise accelerate would not prepare it again."""
    attributes = vars(module)
    del attributes[_PREPARED]
    original = attributes.pop(_UNPREPARED_FORWARD, None)
    if original is not None:
        del attributes["forward"]
        if getattr(original, "__func__", original) is not type(module).forward:
            attributes["forward"] = original


def place(accelerator: AcceleratorLike, model: nn.Module, *, compiles: bool) -> tuple[nn.Module, Callable[[], None]]:
    """Place the module on the device and set its precision.

    Args:
        accelerator: The accelerator of the trainer.
        model: The user's module.
        compiles: False skips the compilation that accelerate is configured for.

    Returns:
        The module to call, and a function that restores the user's module: accelerate replaces its ``forward`` for
        mixed precision, even for later runs.
    """
    prepared = [module for module in model.modules() if _PREPARED in vars(module)]
    inside = compiled_from(model)
    patched = [vars(module) for module in dict.fromkeys((model, inside, *prepared)) if module is not None]
    undo_all = ExitStack()
    before = [{key: attributes[key] for key in _FORWARD if key in attributes} for attributes in patched]

    def undo() -> None:
        for attributes, original in zip(patched, before, strict=True):
            for key in _FORWARD:
                attributes.pop(key, None)
            attributes.update(original)

    for module in prepared:
        _forget_preparation(module)
    undo_all.callback(undo)
    try:
        with nullcontext() if compiles else _without_compilation(accelerator):
            called = accelerator.prepare_model(model, evaluation_mode=True)
        if accelerator.mixed_precision != "no":
            undo_all.callback(called.register_forward_hook(_convert_output).remove)
    except BaseException:
        undo_all.close()
        raise
    return called, undo_all.close


def _convert_output(_module: nn.Module, _inputs: object, output: object) -> object:
    """Convert tensors in dataclasses to float32, which accelerate leaves in 16 bits."""
    return map_tensors(output, _to_float32)


def _to_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


_SHORT = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def _describe_precision(computed: str, models: Iterable[nn.Module]) -> str:
    """Describe the precision of the computation, and of the weights if it is not float32."""
    dtypes = dict.fromkeys(
        parameter.dtype for model in models for parameter in model.parameters() if parameter.is_floating_point()
    )
    of_weights = " and ".join(_SHORT.get(dtype, str(dtype).removeprefix("torch.")) for dtype in dtypes)
    if of_weights in ("", "fp32"):
        return "fp32" if computed == "no" else computed
    return f"{of_weights} weights" if computed == "no" else f"{computed}, {of_weights} weights"


def describe_processes(accelerator: AcceleratorLike, models: Iterable[nn.Module] = ()) -> str:
    """Return a line about processes, backend, device and precision.

    Args:
        accelerator: The accelerator of the trainer.
        models: The models of the trainer, whose weights also have a precision.
    """
    count = accelerator.num_processes
    backend = torch.distributed.get_backend() if count > 1 else None
    processes = "1 process" if backend is None else f"{count} processes ({backend})"
    precision = _describe_precision(computed_precision(accelerator), models)
    return f"{processes}, device {device_of(accelerator)}, precision {precision}"


def split_loader(accelerator: AcceleratorLike, loader: _Loader) -> _Loader:
    """Return this process's part of a loader; a ``StatefulDataLoader`` of torchdata stays stateful.

    Accelerate would convert it to a plain loader, unless all loaders are configured to be stateful.
    """
    config: Any = cast("Any", accelerator).dataloader_config
    with temporarily(config, use_stateful_dataloader=config.use_stateful_dataloader or is_of_torchdata(loader)):
        share: Any = accelerator.prepare_data_loader(loader)
    if is_of_torchdata(share.base_dataloader):
        share.base_dataloader.snapshot_every_n_steps = getattr(loader, "snapshot_every_n_steps", 1)
        # Its state was read, for which it began an epoch, before the processes agreed on the order.
        share.base_dataloader.load_state_dict({})
    return cast("_Loader", share)


def is_of_torchdata(loader: object) -> bool:
    """Whether this is a ``StatefulDataLoader`` of torchdata."""
    module: Any = sys.modules.get("torchdata.stateful_dataloader")
    return module is not None and isinstance(loader, module.StatefulDataLoader)


def fetching_loader(loader: Any) -> Any:
    """Return the loader that fetches the batches of this process, inside accelerate's loader."""
    return loader.base_dataloader if is_split(loader) else loader


def is_split(loader: object) -> bool:
    """Whether accelerate created this loader, which has the same number of batches on all processes."""
    from accelerate.data_loader import DataLoaderAdapter

    return issubclass(type(loader), DataLoaderAdapter)


def is_dispatched(loader: object) -> bool:
    """Whether the first process fetches for all processes, accelerate's default for iterable datasets."""
    from accelerate.data_loader import DataLoaderDispatcher

    return issubclass(type(loader), DataLoaderDispatcher)


def without_read_ahead(loader: Any) -> Any:
    """Return an iterable for an epoch of a loader that does not fetch a batch before it is requested.

    Accelerate reads a batch ahead, which a training state would have to record. It always does so if the first process
    fetches for all.
    """
    from accelerate.data_loader import DataLoaderShard
    from accelerate.utils import synchronize_rng_states

    if type(loader) is not DataLoaderShard:
        return loader
    share: Any = loader
    if share.rng_types is not None:
        synchronize_rng_states(share.rng_types, share.synchronized_generator)
    return share.base_dataloader


def forget_prepared_objects(accelerator: AcceleratorLike) -> None:
    """Drop accelerate's references to the objects of a finished run, which would keep them in memory."""
    for name in ("_models", "_optimizers", "_schedulers", "_dataloaders"):
        prepared: list[Any] = getattr(accelerator, name, [])
        prepared.clear()


def launch_in_notebook(function: Callable[..., object], args: tuple[object, ...], **kwargs: Any) -> None:
    """Call accelerate's ``notebook_launcher``, and pass on the precision, which it ignores."""
    import accelerate

    untyped: Any = accelerate
    precision = {_PRECISION: kwargs["mixed_precision"]} if "mixed_precision" in kwargs else {}
    with untyped.utils.patch_environment(**precision):
        untyped.notebook_launcher(function, args, **kwargs)


def files_of_export(
    tensors: Mapping[str, Tensor], max_shard_size: int | str
) -> tuple[dict[str, list[str]], dict[str, Any] | None]:
    """Return the names of the tensors in each file of an export, divided as in ``save_model``, and the index.

    Args:
        tensors: The tensors by name; they may be on the meta device.
        max_shard_size: The largest size of a file, in bytes or as a string such as ``"5GB"``.

    Returns:
        The names by file, and the content of the index; None for a single file.
    """
    import huggingface_hub

    hub: Any = huggingface_hub  # annotated only in part
    # In versions of 2024, its function for torch treats all tensors on the meta device as the same tensor.
    split = hub.split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=operator.attrgetter("nbytes"),
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=max_shard_size,
    )
    index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename} if split.is_sharded else None
    return split.filename_to_tensors, index
