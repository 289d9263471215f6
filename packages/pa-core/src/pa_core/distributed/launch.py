"""Starting a training function in several processes from a notebook or a debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVarTuple, overload

from pa_core import _accelerate
from pa_core.errors import UnsupportedConfigurationError

__all__ = ["notebook_launcher"]

_Arguments = TypeVarTuple("_Arguments")


@overload
def notebook_launcher(
    function: Callable[[], object], args: tuple[()] = ..., num_processes: int | None = ..., **kwargs: Any
) -> None: ...
@overload
def notebook_launcher(
    function: Callable[[*_Arguments], object], args: tuple[*_Arguments], num_processes: int | None = ..., **kwargs: Any
) -> None: ...
def notebook_launcher(
    function: Callable[..., object], args: tuple[object, ...] = (), num_processes: int | None = None, **kwargs: Any
) -> None:
    """Run a training function from a notebook, in as many processes as requested.

    Create the trainer inside the function: what a notebook has initialised on an accelerator cannot be shared with
    the processes that are started here.

    Args:
        function: The function to run; it is called once in each process, and what it returns is dropped.
        args: Its positional arguments.
        num_processes: The number of processes; None leaves the choice to accelerate.
        **kwargs: Passed on to ``accelerate.notebook_launcher``, for example ``mixed_precision="bf16"``.

    Raises:
        UnsupportedConfigurationError: Several processes are requested, after a trainer was made in this one.

    Example:
        >>> def main(epochs: int) -> None:
        ...     print("training for", epochs, "epochs")
        >>> notebook_launcher(main, (3,), num_processes=1)
        Launching training on CPU.
        training for 3 epochs
    """
    if num_processes is not None and num_processes > 1 and _accelerate.precision_of_process() is not None:
        raise UnsupportedConfigurationError(
            "The processes of a notebook cannot be started once it has made a trainer: they would share its device.",
            given=f"num_processes={num_processes}, after a Trainer, a Run or an Accelerator in this process",
            do="Restart the kernel, and make the trainer inside the function.",
        )
    _accelerate.launch_in_notebook(function, args, num_processes=num_processes, **kwargs)
