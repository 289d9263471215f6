"""Starting a training function in several processes from a notebook or a debugger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pa_core import _accelerate

__all__ = ["notebook_launcher"]


def notebook_launcher(
    function: Callable[..., Any], args: tuple[Any, ...] = (), num_processes: int | None = None, **kwargs: Any
) -> Any:
    """Run a training function from a notebook, in as many processes as asked for.

    Create the trainer inside the function: what a notebook has initialised on an accelerator cannot be shared with
    the processes that are started here.

    Args:
        function: The function to run; it is called once in each process.
        args: Its positional arguments.
        num_processes: The number of processes; None leaves the choice to accelerate.
        **kwargs: Passed on to ``accelerate.notebook_launcher``, for example ``mixed_precision="bf16"``.

    Returns:
        What accelerate returns: nothing of the function's own.

    Example:
        >>> def main(epochs: int) -> None:
        ...     print("training for", epochs, "epochs")
        >>> notebook_launcher(main, (3,), num_processes=1)
        Launching training on CPU.
        training for 3 epochs
    """
    return _accelerate.launch_in_notebook(function, args, num_processes=num_processes, **kwargs)
