"""What kind of thing each argument of a trainer must be, refused where it is another one."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from pa_core.errors import ArgumentTypeError, ConfigurationError

__all__ = ["check_precision_and_device", "check_trainer_arguments"]

_PRECISIONS = ("no", "bf16", "fp16")
_MEANT = {
    "fp32": "no", "float32": "no", "torch.float32": "no", "none": "no", "false": "no",
    "bfloat16": "bf16", "torch.bfloat16": "bf16",
    "float16": "fp16", "half": "fp16", "torch.float16": "fp16",
}  # fmt: skip
"""Other names of the precisions."""


def check_trainer_arguments(model: object, loss_func: object, optimizer: object) -> None:
    """Refuse a class in the place of its instance, a name in the place of what it names, and swapped arguments.

    Args:
        model: The model of the trainer.
        loss_func: Its loss function, or None.
        optimizer: Its optimizer, or None.

    Raises:
        ArgumentTypeError: One of them is something else.
    """
    _check_model(model)
    if _is_optimizer(loss_func):
        raise _swapped(loss_func, optimizer)
    if loss_func is not None:
        _check_loss_function(loss_func)
    if optimizer is not None:
        _check_optimizer(optimizer)


def check_precision_and_device(mixed_precision: object, cpu: object) -> None:
    """Refuse what is no mixed precision, or no answer to whether to run on the CPU.

    Args:
        mixed_precision: The argument of the trainer, or None.
        cpu: The argument of the trainer, or None.

    Raises:
        ConfigurationError: The precision is none that a trainer knows.
        ArgumentTypeError: ``cpu`` is neither a bool nor None.
    """
    if mixed_precision is not None and mixed_precision not in _PRECISIONS:
        raise ConfigurationError(
            "This is not a mixed precision that a trainer computes in.",
            given=f"mixed_precision={mixed_precision!r}",
            expected="'no', 'bf16' or 'fp16'; or None for what the script was launched with",
            do=_precision_advice(str(mixed_precision).lower()),
        )
    if cpu is not None and not isinstance(cpu, bool):
        raise ArgumentTypeError(
            "Whether to run on the CPU is asked by a bool.",
            given=f"cpu={cpu!r}",
            expected="True, or None for the device that the script was launched on",
            do="Choose another device when launching; pass cpu=True for the CPU.",
        )


def _precision_advice(name: str) -> str:
    if name == "fp8":
        return "Use mixed_precision='bf16': in fp8, layers would have to be converted, which a trainer does not do."
    meant = name if name in _PRECISIONS else _MEANT.get(name)
    return "Pass one of these strings." if meant is None else f"Pass mixed_precision={meant!r}."


def _check_model(model: object) -> None:
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        raise ArgumentTypeError(
            "The model is a class.",
            given=f"model={model.__name__}",
            expected="an instance of the class",
            do=f"Create the model first, with the arguments that it needs: model={model.__name__}(...).",
        )
    raise ArgumentTypeError(
        "The model is not a torch.nn.Module.",
        given=f"a model of type {type(model).__name__}",
        expected="an instance of torch.nn.Module",
        do="Pass the module that is to be trained as the first argument.",
    )


def _check_loss_function(loss_func: object) -> None:
    if isinstance(loss_func, type):
        raise ArgumentTypeError(
            "The loss function is a class.",
            given=f"loss_func={_qualified(loss_func)}",
            expected="a function of the model's outputs and the targets, such as an instance of the class",
            do=f"Add the parentheses that create it: loss_func={_qualified(loss_func)}().",
        )
    if isinstance(loss_func, str):
        named = _loss_named(loss_func)
        raise ArgumentTypeError(
            "The loss function is a string.",
            given=f"loss_func={loss_func!r}",
            expected="a function of the model's outputs and the targets",
            do=f"Pass loss_func=torch.nn.{named}()." if named else "Pass the function that the name stands for.",
        )
    if not callable(loss_func):
        raise ArgumentTypeError(
            "The loss function cannot be called.",
            given=f"a loss_func of type {type(loss_func).__name__}",
            expected="a function of the model's outputs and the targets",
            do="Pass the function itself, not what it returned.",
        )


def _loss_named(name: str) -> str | None:
    """The class of torch that a name such as ``"mse"`` or ``"cross_entropy"`` stands for."""
    wanted = _letters(name)
    return next((one for one in dir(nn) if one.endswith("Loss") and _letters(one) == wanted), None)


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower())).removesuffix("loss")


def _check_optimizer(optimizer: object) -> None:
    if isinstance(optimizer, Optimizer):
        return
    if isinstance(optimizer, type):
        raise ArgumentTypeError(
            "The optimizer is a class.",
            given=f"optimizer={_qualified(optimizer)}",
            expected="an optimizer of the model's parameters",
            do=f"Create it: optimizer={_qualified(optimizer)}(model.parameters(), lr=...).",
        )
    # Optimizers of other libraries need not derive from torch's.
    if not all(hasattr(optimizer, name) for name in ("param_groups", "step", "zero_grad")):
        raise ArgumentTypeError(
            "The optimizer is not an optimizer.",
            given=f"optimizer={optimizer!r}"
            if isinstance(optimizer, str)
            else f"an optimizer of type {type(optimizer).__name__}",
            expected="an instance of torch.optim.Optimizer",
            do="Pass an optimizer of the model's parameters, for example "
            "optimizer=torch.optim.SGD(model.parameters(), lr=0.1).",
        )


def _is_optimizer(value: object) -> bool:
    return isinstance(value, Optimizer) or (isinstance(value, type) and issubclass(value, Optimizer))


def _swapped(loss_func: object, optimizer: object) -> ArgumentTypeError:
    return ArgumentTypeError(
        "The loss function is an optimizer.",
        given=f"loss_func={_short(loss_func)}, optimizer={_short(optimizer)}",
        expected="the order Trainer(model, loss_func, optimizer)",
        do="Swap the two arguments, or pass them by name: Trainer(model, loss_func=..., optimizer=...).",
    )


def _short(value: object) -> str:
    if value is None or isinstance(value, type):
        return value.__name__ if value else "None"
    return f"{type(value).__name__}(...)"


def _qualified(kind: type) -> str:
    """The name under which scripts know a class: that of torch's begin with nn or torch.optim."""
    if getattr(nn, kind.__name__, None) is kind:
        return f"nn.{kind.__name__}"
    return f"torch.optim.{kind.__name__}" if kind.__module__.startswith("torch.optim") else kind.__name__
