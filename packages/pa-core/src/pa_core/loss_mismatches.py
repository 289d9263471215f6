"""Why the model's outputs and the targets do not fit a loss function of torch."""

from __future__ import annotations

from itertools import dropwhile

import torch
from torch import Tensor, nn
from torch.nn import functional

from pa_core.errors import BatchMismatchError
from pa_data.batches import describe_batch, is_mapping, keys_of

__all__ = ["explain_failed_loss", "explain_silent_mismatch"]

_CROSS_ENTROPY: tuple[object, ...] = (nn.CrossEntropyLoss, functional.cross_entropy)
_OF_CLASSES = (*_CROSS_ENTROPY, nn.NLLLoss, functional.nll_loss)
_HUBER: tuple[object, ...] = (nn.HuberLoss, functional.huber_loss)
_OF_PROBABILITIES: tuple[object, ...] = (nn.BCELoss, functional.binary_cross_entropy)
_ELEMENTWISE = (
    *_HUBER,
    *_OF_PROBABILITIES,
    *(nn.BCEWithLogitsLoss, functional.binary_cross_entropy_with_logits),
    *(nn.KLDivLoss, functional.kl_div),
    *(nn.L1Loss, functional.l1_loss),
    *(nn.MSELoss, functional.mse_loss),
    *(nn.PoissonNLLLoss, functional.poisson_nll_loss),
    *(nn.SmoothL1Loss, functional.smooth_l1_loss),
    *(nn.SoftMarginLoss, functional.soft_margin_loss),
)
_CLASSES = 1


def explain_silent_mismatch(loss_func: object, outputs: object, targets: object) -> BatchMismatchError | None:
    """Return what torch would compute a wrong loss of, or fail with in the backward pass; None if all is well.

    It looks at shapes and dtypes alone, and waits for no accelerator.
    """
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return None
    mismatch = _Mismatch(loss_func, outputs, targets)
    if _is_one_of(loss_func, _ELEMENTWISE):
        # Other losses convert the targets; this one leaves that to its backward pass, which does not.
        of_shapes = None if mismatch.pairs_each_once() else mismatch.of_shapes()
        return of_shapes or (mismatch.of_dtypes() if _is_one_of(loss_func, _HUBER) else None)
    if _is_one_of(loss_func, _CROSS_ENTROPY):
        return mismatch.of_a_single_class()
    return None


def explain_failed_loss(loss_func: object, outputs: object, targets: object) -> BatchMismatchError | None:
    """Return what a loss function of torch could not use; None where nothing is known of it.

    Args:
        loss_func: The loss function, which raised an error.
        outputs: What the model returned.
        targets: What the loss function was to compare it with.
    """
    if not _is_one_of(loss_func, (*_OF_CLASSES, *_ELEMENTWISE)):
        return None
    if not isinstance(outputs, Tensor):
        return _outputs_not_a_tensor(outputs)
    if not isinstance(targets, Tensor):
        return _targets_not_a_tensor(targets)
    mismatch = _Mismatch(loss_func, outputs, targets)
    if outputs.device != targets.device or mismatch.loss_is_elsewhere():
        return mismatch.of_devices()
    if _is_one_of(loss_func, _OF_CLASSES):
        return mismatch.of_classes()
    return mismatch.of_shapes() or mismatch.of_dtypes() or mismatch.of_probabilities()


class _Mismatch:
    """What there is to say about outputs and targets."""

    def __init__(self, loss_func: object, outputs: Tensor, targets: Tensor) -> None:
        self._loss_func = loss_func
        self._outputs = outputs
        self._targets = targets

    def pairs_each_once(self) -> bool:
        """Whether broadcasting only adds dimensions, as in a batch of one sample that the model has squeezed."""
        return _without_leading_ones(self._outputs) == _without_leading_ones(self._targets)

    def of_shapes(self) -> BatchMismatchError | None:
        outputs, targets = tuple(self._outputs.shape), tuple(self._targets.shape)
        if outputs == targets:
            return None
        do = "Let the dataset return targets of the shape that the model's outputs have."
        if not outputs and targets == (1,):
            do = "Keep the dimension of the samples in the model's forward, with squeeze(1) instead of squeeze()."
        elif outputs == (*targets, 1):
            do = f"Add the last dimension to the targets: targets.unsqueeze({len(targets)})."
        elif targets == (*outputs, 1):
            do = f"Take the last dimension from the targets: targets.squeeze({len(outputs)})."
        elif len(outputs) == len(targets) and outputs[:-1] == targets[:-1]:
            do = f"Let the last layer of the model have {targets[-1]} output{'' if targets[-1] == 1 else 's'}."
        return self._error("outputs and targets of the same shape, which are compared element by element", do)

    def of_dtypes(self) -> BatchMismatchError | None:
        if self._targets.dtype is self._outputs.dtype:
            return None
        dtype = self._outputs.dtype
        conversion = "float()" if dtype is torch.float32 else f"to({dtype})"
        return self._error(
            f"targets of dtype {_name_of(dtype)}, as the outputs", f"Convert the targets: targets.{conversion}."
        )

    def of_probabilities(self) -> BatchMismatchError | None:
        """Outputs of a model without a sigmoid at its end."""
        if not _is_one_of(self._loss_func, _OF_PROBABILITIES):
            return None
        for what, tensor in (("outputs", self._outputs.detach()), ("targets", self._targets)):
            lowest, highest = float(tensor.min()), float(tensor.max())
            if lowest < 0 or highest > 1:
                return self._error(
                    f"{what} from 0 to 1",
                    "Use nn.BCEWithLogitsLoss(), which applies the sigmoid to the outputs itself."
                    if what == "outputs"
                    else "Let the dataset return targets of 0 and 1.",
                    f"; {what} from {lowest:.4g} to {highest:.4g}",
                )
        return None

    def of_a_single_class(self) -> BatchMismatchError | None:
        """The loss of one class is zero for any model."""
        if self._outputs.dim() < 2 or self._outputs.shape[_CLASSES] != 1:  # noqa: PLR2004  # samples and classes
            return None
        return self._error(
            "an output for each class, two at least: the loss of a single one is always 0",
            "Use nn.BCEWithLogitsLoss() with targets of dtype float32 and the shape of the outputs.",
        )

    def of_classes(self) -> BatchMismatchError | None:
        outputs, targets = self._outputs, self._targets
        if outputs.dim() > 1 and targets.dim() > 0 and len(outputs) != len(targets):
            return self._error(
                "as many outputs as targets: one for each sample",
                "Keep the first dimension in the model's forward, for example with x.flatten(1) instead of a view().",
            )
        if outputs.dim() > 1 and tuple(targets.shape) == (len(targets), 1, *outputs.shape[2:]):
            squeezed = "targets.squeeze(1)" if _holds_indices(targets) else "targets.squeeze(1).long()"
            return self._error("the index of a class for each sample", f"Take the second dimension away: {squeezed}.")
        if outputs.dim() == 1 and targets.dim() == 1:
            return self._error(
                "a row of outputs for each sample, with one for each class",
                "Let the model return outputs of shape (samples, classes).",
            )
        if targets.shape == outputs.shape:
            return None if targets.is_floating_point() else self._of_one_hot()
        of_range = self._of_range() if _holds_indices(targets) else None
        return of_range or self._of_dtype_of_indices()

    def _of_dtype_of_indices(self) -> BatchMismatchError | None:
        """Images of classes have to be int64, where rows of them may be uint8."""
        if self._targets.dtype is torch.int64:
            return None
        return self._error("indices of classes, of dtype int64", "Convert the targets: targets.long().")

    def _of_one_hot(self) -> BatchMismatchError:
        return self._error(
            "indices of classes, or probabilities of a floating-point dtype", "Convert the targets: targets.float()."
        )

    def _of_range(self) -> BatchMismatchError | None:
        """The loss function has raised, so that reading the targets costs nothing any more."""
        classes, ignored = self._outputs.shape[min(_CLASSES, self._outputs.dim() - 1)], self._ignored_index()
        counted = self._targets[self._targets != ignored]
        if not counted.numel():
            return None
        lowest, highest = int(counted.min()), int(counted.max())
        if lowest >= 0 and highest < classes:
            return None
        name = type(self._loss_func).__name__ if isinstance(self._loss_func, nn.Module) else "the loss function"
        if lowest < 0:
            do = f"Name the targets that stand for no class: {name} with ignore_index={lowest}."
        elif lowest == 1 and highest == classes:
            do = "Count the classes from 0: targets - 1."
        else:
            do = f"Let the last layer of the model have {highest + 1} outputs, or more: one for each class."
        return self._error(
            f"indices from 0 to {classes - 1}, since the model has {classes} outputs",
            do,
            f", with values {lowest} to {highest}",
        )

    def _ignored_index(self) -> int:
        return int(getattr(self._loss_func, "ignore_index", -100))  # the default of the functions

    def loss_is_elsewhere(self) -> bool:
        """Whether the loss function has tensors, such as weights of classes, that are not where the outputs are."""
        if not isinstance(self._loss_func, nn.Module):
            return False
        tensors = (*self._loss_func.parameters(), *self._loss_func.buffers())
        return any(tensor.device != self._outputs.device for tensor in tensors)

    def of_devices(self) -> BatchMismatchError:
        device = self._outputs.device
        if self.loss_is_elsewhere():
            return self._error(
                f"weights of the loss function on {device}",
                "Add MoveModulesToDeviceCallback to the callbacks, one of the default ones.",
                "; weights of the loss function on another device",
            )
        return self._error(
            f"outputs and targets on the device of the run, {device}",
            f"Return outputs on the device of the inputs from the model, which are on {self._targets.device}.",
            f"; outputs on {device}, targets on {self._targets.device}",
        )

    def _error(self, expected: str, do: str, values: str = "") -> BatchMismatchError:
        outputs, targets = (f"of shape {tuple(one.shape)}" for one in (self._outputs, self._targets))
        dtypes = [_name_of(one.dtype) for one in (self._outputs, self._targets)]
        if dtypes[0] == dtypes[1]:
            given = f"outputs {outputs}, targets {targets}, both of dtype {dtypes[0]}"
        else:
            given = f"outputs {outputs} and dtype {dtypes[0]}, targets {targets} and dtype {dtypes[1]}"
        return BatchMismatchError(
            "The model's outputs and the targets do not fit the loss function.",
            given=given + values,
            expected=expected,
            do=do,
        )


def _outputs_not_a_tensor(outputs: object) -> BatchMismatchError:
    part = "[0]"
    if is_mapping(outputs):
        names = keys_of(outputs)
        part = f"[{'logits' if 'logits' in names else next(iter(names), '...')!r}]"
    elif hasattr(outputs, "logits"):
        part = ".logits"
    return BatchMismatchError(
        "The loss function cannot use what the model returned.",
        given=f"model outputs that are {describe_batch(outputs)}",
        expected="a tensor",
        do="Pass a function that takes the tensor from them, for example "
        f"loss_func=lambda outputs, targets: your_loss(outputs{part}, targets).",
    )


def _targets_not_a_tensor(targets: object) -> BatchMismatchError:
    return BatchMismatchError(
        "The loss function cannot use the targets.",
        given=f"targets that are {describe_batch(targets)}",
        expected="a tensor",
        do="Let the dataset return numbers as targets, or one tensor for each sample.",
    )


def _without_leading_ones(tensor: Tensor) -> tuple[int, ...]:
    return tuple(dropwhile(lambda size: size == 1, tensor.shape))


def _is_one_of(loss_func: object, kinds: tuple[object, ...]) -> bool:
    """Exactly: a class derived from them may compute something else."""
    kind: object = type(loss_func)
    return any(one is loss_func or one is kind for one in kinds)


def _holds_indices(targets: Tensor) -> bool:
    return targets.dtype in {torch.int64, torch.uint8}


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
