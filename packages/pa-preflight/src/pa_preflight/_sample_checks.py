"""Checks of samples, alone and together, before a batch is made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import SequentialSampler

from pa_data.rng import capture_rng_state, mix, seed_rng
from pa_preflight._findings import FILL_GAPS, Finding, noticed
from pa_preflight._registry import Level
from pa_preflight._samples import Samples, inputs_of, is_loader, targets_of
from pa_preflight._tensors import features_of, is_continuous, tensors_in

_FEW, _SOME, _MANY = 8, 20, 50

_HALF, _DOMINANT, _HARDLY_ANY = 0.5, 0.6, 0.1

_APART, _REPEATED = 2.0, 3

_SMOOTHER, _CHANNELS, _SIDE = 0.7, 4, 8

_PERFECT = 0.99999

_MOST_CLASSES = 50


def check_many_samples(train: Samples, model: nn.Module, *, is_own_step: bool) -> Iterator[Finding]:
    """Yield findings about the inputs and targets of many samples.

    Args:
        train: Training samples.
        model: The model.
        is_own_step: Whether the step is in the script, which may make its inputs itself.
    """
    inputs, targets = inputs_of(train), targets_of(train)
    if targets is not None and targets.is_floating_point() and len(targets) >= _MANY:
        yield from _check_placeholders("Targets", features_of(targets))
    if inputs is None or len(inputs) < _FEW or not inputs.numel():
        return
    if bool((inputs == inputs[:1]).all()):
        yield _equal(len(inputs), "note" if is_own_step else "mistake")
        return
    yield from _check_repeated(inputs)
    yield from _check_blank(inputs)
    if inputs.is_floating_point():
        yield from _check_order(inputs)
    if len(inputs) < _MANY:
        return
    if inputs.is_floating_point():
        if bool(inputs.isfinite().all()):
            yield from _check_placeholders("Inputs", features_of(inputs))
            yield from _check_leak(inputs, targets)
    elif inputs.dim() > 1:
        yield from _check_tokens(inputs.flatten(1), model)


def _equal(count: int, level: Level) -> Finding:
    return noticed(
        "samples-equal",
        f"The inputs of {count} samples from all over the training data are the same constant, so the model cannot "
        "distinguish them.",
        "Look at how __getitem__ uses its index, and at conversions to whole numbers.",
        level,
    )


def _check_repeated(inputs: Tensor) -> Iterator[Finding]:
    if len(inputs) < 2 * _MANY or not is_continuous(inputs):
        return
    distinct = len({row.numpy().tobytes() for row in inputs.flatten(1).contiguous()})
    if distinct < _HARDLY_ANY * len(inputs):
        yield noticed(
            "samples-repeat",
            f"Among {len(inputs)} samples from all over the training data, there are only {distinct} different inputs.",
            "Look at how __getitem__ uses its index.",
        )


def _check_blank(inputs: Tensor) -> Iterator[Finding]:
    flat = inputs.flatten(1) if inputs.dim() > 1 else inputs[:, None]
    if flat.shape[1] < 2 * _FEW or not (inputs.is_floating_point() or inputs.dtype == torch.uint8):
        return
    blank = float((flat == flat[:, :1]).all(1).double().mean())
    if blank > _HALF:
        yield noticed(
            "inputs-blank",
            f"{blank:.0%} of the samples have inputs that are constant, such as {float(flat[0, 0]):.4g} everywhere.",
            "Look at how samples are read and scaled: small integers divided with // become 0.",
        )


def _check_placeholders(subject: str, table: Tensor) -> Iterator[Finding]:
    """Look for columns with a number that occurs often, far away from all others, which differ."""
    for sign in (1.0, -1.0):
        ordered = (sign * table).sort(dim=0).values
        lowest = ordered[:1]
        counts = (ordered == lowest).sum(0)
        is_many = (counts >= _REPEATED) & (counts < _HALF * len(table))
        following = ordered.gather(0, counts.clamp(max=len(table) - 1)[None])[0]
        spread = ordered[-1] - following
        is_far = following - lowest[0] > _APART * spread
        changes = (ordered[1:] != ordered[:-1]).sum(0)
        differ = changes > _HALF * (len(table) - counts)
        found = (is_many & is_far & differ & (spread > 0)).nonzero().flatten()
        if len(found):
            column = int(found[0])
            value = sign * float(lowest[0, column])
            rest = sorted((sign * float(following[column]), sign * float(ordered[-1, column])))
            yield noticed(
                "placeholder-among-numbers",
                f"{subject} have the same outlier in {int(counts[column])} of {len(table)} samples: {value:.6g} in "
                f"column {column}, where all other numbers lie between {rest[0]:.4g} and {rest[1]:.4g}. It looks like "
                "a placeholder of missing values, such as -999.",
                "Make them NaN before you compute means and deviations, and replace them by a usual value afterwards.",
            )
            return


def _check_order(inputs: Tensor) -> Iterator[Finding]:
    """Compare the smoothness of inputs with their smoothness when their memory is read with the channels last."""
    size, shape = len(inputs), inputs.shape[1:]
    if inputs.dim() == 4 and 1 < shape[0] <= _CHANNELS and min(shape[1:]) >= _SIDE:  # noqa: PLR2004  # pictures
        given = _roughness(inputs, 2, 3)
        other = _roughness(inputs.reshape(size, *shape[1:], shape[0]), 1, 2)
    elif inputs.dim() == 3 and shape[0] != shape[1] and min(shape) > 1 and max(shape) >= _SIDE:  # noqa: PLR2004  # sequences
        given = torch.minimum(_roughness(inputs, 1), _roughness(inputs, 2))
        turned = inputs.reshape(size, shape[1], shape[0])
        other = torch.minimum(_roughness(turned, 1), _roughness(turned, 2))
    else:
        return
    if float((other < _SMOOTHER * given).double().mean()) > 0.9:  # noqa: PLR2004  # nearly all
        yield noticed(
            "dimensions-scrambled",
            f"Inputs of shape {tuple(shape)} are much smoother when their numbers are read as "
            f"{(*shape[1:], shape[0])}: a reshape or view has separated neighbours, such as the pixels of a "
            "channel.",
            "Use permute or transpose to exchange dimensions, not reshape or view.",
        )


def _roughness(inputs: Tensor, *dimensions: int) -> Tensor:
    """Return the mean squared difference of neighbours in each sample."""
    return torch.stack([inputs.diff(dim=dimension).square().flatten(1).mean(1) for dimension in dimensions]).mean(0)


def _check_leak(inputs: Tensor, targets: Tensor | None) -> Iterator[Finding]:
    """Look for a column of a table that is the target."""
    if targets is None or inputs.dim() != 2 or inputs.shape[1] < 2:  # noqa: PLR2004  # a table
        return
    targets = targets.flatten(1)[:, 0] if targets.dim() > 1 and targets[0].numel() == 1 else targets
    if targets.dim() != 1 or bool((targets == targets[0]).all()):
        return
    table, known = features_of(inputs), targets.double()
    varies = (table != table[:1]).any(0)
    if targets.is_floating_point() and len(set(map(float, targets))) > _MOST_CLASSES:
        centred, wanted = table - table.mean(0), known - known.mean()
        of_columns = centred.square().sum(0).sqrt()
        alike = (centred * wanted[:, None]).sum(0).abs() / (of_columns * wanted.square().sum().sqrt() + 1e-12)
        found = (varies & (alike > _PERFECT)).nonzero().flatten()
    else:
        classes = [known == label for label in set(map(float, known))]
        if len(classes) > _MOST_CLASSES:
            return
        firsts = torch.stack([table[rows][0] for rows in classes])
        is_one = torch.stack([(table[rows] == first).all(0) for rows, first in zip(classes, firsts, strict=True)]).all(
            0
        )
        ordered = firsts.sort(dim=0).values
        found = (varies & is_one & (ordered.diff(dim=0) != 0).all(0)).nonzero().flatten()
    if 0 < len(found) < _HALF * inputs.shape[1]:
        yield noticed(
            "target-among-inputs",
            f"Column {int(found[0])} of the inputs is the target itself, up to its scale: a leak that predictions "
            "will lack.",
            "Leave that column out; let windows of a series end before the value that is predicted.",
        )


def _check_tokens(tokens: Tensor, model: nn.Module) -> Iterator[Finding]:
    """Look for texts with nearly all words the same token, which is not padding at an end."""
    tables = [module for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))]
    if not tables or tokens.shape[1] < _REPEATED:
        return
    value, used = int(tokens.flatten().mode().values), len(set(map(int, tokens.flatten())))
    is_value = tokens == value
    at_ends = is_value.long().cumprod(1) + is_value.flip(1).long().cumprod(1).flip(1)
    share = float(is_value.double().mean())
    is_padding = float((is_value & (at_ends == 0)).sum()) < _HARDLY_ANY * float(is_value.sum())
    if share > _DOMINANT and not is_padding and used < _HALF * max(embedding.num_embeddings for embedding in tables):
        yield noticed(
            "one-token-dominates",
            f"{share:.0%} of the tokens of {len(tokens)} samples are {value}, and only {used} distinct tokens occur, "
            "as if nearly all words were unknown (UNK).",
            "Look at how words are looked up in the vocabulary: lower case, spaces, prefixes of subwords.",
        )


def check_samples(train: Samples, options: dict[str, Any], *, is_torch_loss: bool) -> Iterator[Finding]:
    """Yield findings about the training samples.

    Args:
        train: Some training samples.
        options: The arguments of the loader.
        is_torch_loss: Whether the loss gets the targets unchanged.
    """
    if train.dataset is None or not train.samples:
        return
    if _reseeds(train.dataset):
        yield noticed(
            "augmentation-repeats",
            "Fetching a sample seeds the global random number generators, so all later draws, for augmentation and "
            "for dropout, are the same in each epoch.",
            "Leave seeding to the trainer, which gives each sample and epoch its own random numbers.",
        )
    yield from _check_finite(train, is_torch_loss=is_torch_loss)
    targets = targets_of(train)
    is_in_order = options.get("shuffle") is False and "sampler" not in options
    if is_loader(train.data):
        is_in_order = isinstance(getattr(cast("object", train.data), "sampler", None), SequentialSampler)
    if is_in_order and targets is not None and targets.dim() == 1 and len(targets) >= _SOME:
        changes, classes = int((targets[1:] != targets[:-1]).sum()), len(set(map(float, targets)))
        if 1 < classes == changes + 1 < len(targets) / 4:
            yield noticed(
                "sorted-by-class",
                f"The samples are sorted by their target ({classes} classes, one after the other), and not shuffled.",
                "Leave out shuffle=False.",
            )


def _check_finite(train: Samples, *, is_torch_loss: bool) -> Iterator[Finding]:
    for position, sample in zip(train.positions, train.samples, strict=False):
        tensors = tensors_in(sample)
        for number, tensor in enumerate(tensors):
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                is_target = number == len(tensors) - 1 > 0
                yield noticed(
                    "targets-not-finite" if is_target else "inputs-not-finite",
                    f"Sample {position} of the training data has {'a target' if is_target else 'an input'} that is NaN "
                    "or infinite.",
                    FILL_GAPS,
                    "note" if is_target and not is_torch_loss else "mistake",
                )
                return


def _reseeds(dataset: Any) -> bool:
    states: list[dict[str, Any]] = []
    for seed in (1, 2):
        seed_rng(mix(seed))
        dataset[0]
        states.append(capture_rng_state(torch.device("cpu")))
    return any(repr(states[0][name]) == repr(states[1][name]) for name in ("python", "numpy")) or torch.equal(
        states[0]["torch"], states[1]["torch"]
    )
