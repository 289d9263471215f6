"""Scripts with and without mistakes in their data: samples, how they are fetched, and their division into sets."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Subset, TensorDataset, WeightedRandomSampler, random_split

from pa_data.orders import ClassBalanced, TokenBudget
from tests.support.pa_preflight.data import (
    Fetched,
    Stream,
    blobs,
    bytes_of,
    column,
    lines,
    of,
    one_hot,
    parts_of,
    pictures,
    points,
    seeded,
    shifted,
    sorted_by_target,
    texts,
    up_to_a_pixel,
)
from tests.support.pa_preflight.scripts import (
    Healthy,
    Planting,
    Script,
    bag,
    classes,
    conv_net,
    images,
    layer,
    numbers,
    perceptron,
)

planted, healthy = Planting(), Healthy()

# -- numbers that are not what they should be --------------------------------------------------------------------------


def _flat_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), *perceptron(64, 4))


def _with_salaries(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    inputs[:, 2] = 40_000 + 12_000 * inputs[:, 2]
    return inputs, targets


def _with_one_missing(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    inputs[17, 3] = float("nan")
    return inputs, targets


def _with_logarithms(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    inputs[:, 0] = (4 * inputs[:, 0].abs()).floor().log()
    return inputs, targets


def _without_a_price(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    prices = targets.exp()
    prices[100] = 0.0
    return inputs, prices.log()


def _rows(every: int, first: int = 0, size: int = 480) -> Tensor:
    return (torch.arange(size) % every == first)[:, None]


def _with_placeholders(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    inputs[torch.rand(inputs.shape, generator=seeded()) < 0.05] = -999.0
    return (inputs - inputs.mean(0)) / inputs.std(0), targets


def _with_column(inputs: Tensor, number: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    inputs[:, number] = change(inputs[:, number])
    return inputs


def _scaled(data: TensorDataset) -> TensorDataset:
    return of(data, lambda x, y: (((x + 3) / 6).clamp(0, 1), y))


# Pictures have numbers from 0 to 255, as they were read.
planted["inputs-not-normalised", "brightness_to_255", "divide by its standard deviation"] = lambda: images(
    _flat_net(), data=bytes_of(pictures())
)
# Pictures are bytes, which the model converts to floats without scaling them.
planted["inputs-not-normalised", "bytes_converted_in_the_model"] = lambda: images(
    nn.Sequential(layer(torch.Tensor.float), *_flat_net()), data=of(bytes_of(pictures()), lambda x, y: (x.byte(), y))
)
# One of the features is in the ten thousands, and the others are around zero.
planted["inputs-not-normalised", "salary_beside_small_numbers"] = lambda: numbers(data=of(lines(), _with_salaries))
# Pictures from 0 to 1, as torchvision's ToTensor returns them.
healthy["brightness_between_zero_and_one"] = lambda: images(
    data=_scaled(pictures()), eval_dataset=_scaled(pictures(80, seed=2))
)
# Pictures have floats from 0 to 255, and the first layer of the model normalises them.
healthy["normalised_in_the_model"] = lambda: images(
    nn.Sequential(layer(lambda images: (images - 127.5) / 60), conv_net()),
    data=bytes_of(pictures()),
    eval_dataset=bytes_of(pictures(80, seed=2)),
)
# One number of the table is missing, and was read as NaN.
planted["inputs-not-finite", "missing_value", "Look for missing values"] = lambda: numbers(
    data=of(lines(), _with_one_missing)
)
# A feature is the logarithm of a count, which is 0 for some samples.
planted["inputs-not-finite", "logarithms_of_counts"] = lambda: classes(data=of(points(), _with_logarithms))
# Some targets are missing, and were read as NaN.
planted["targets-not-finite", "missing_target", "missing values"] = lambda: numbers(
    data=of(lines(), lambda x, y: (x, y.masked_fill(_rows(60, 5), float("nan"))))
)
# The targets are logarithms of prices, one of which is 0.
planted["targets-not-finite", "logarithms_of_prices"] = lambda: numbers(data=of(lines(), _without_a_price))
# A wrong path, and all samples are of the same class.
planted["one-class", "all_targets_equal", "how the dataset reads or computes its targets"] = lambda: classes(
    data=of(points(), lambda x, y: (x, torch.ones_like(y)))
)
# The first samples of a sorted set were taken for an experiment: all are positive.
planted["one-class", "cut_after_sorting"] = lambda: classes(
    perceptron(8, 1), nn.BCEWithLogitsLoss(), of(points(classes=2), lambda x, y: (x[y == 1], column(y[y == 1])))
)
# Missing values are -999, and were standardised with the others.
planted["placeholder-among-numbers", "missing_values_as_numbers", "Make them NaN"] = lambda: numbers(
    data=of(lines(), _with_placeholders)
)
# Missing targets are 99, and are learnt as numbers.
planted["placeholder-among-numbers", "missing_targets_as_numbers"] = lambda: numbers(
    loss=nn.L1Loss(), data=of(lines(), lambda x, y: (x, y.masked_fill(_rows(12), 99.0)))
)
# Half of a column are zeros, next to amounts that go down to them.
healthy["many_zeros_among_amounts"] = lambda: numbers(
    data=of(lines(), lambda x, y: (_with_column(x, 2, lambda one: one.clamp(min=0)), y))
)
# A column is 0 for most samples, and 1 for some.
healthy["flags_among_numbers"] = lambda: numbers(
    data=of(lines(), lambda x, y: (_with_column(x, 2, lambda one: (one > 1.5).float()), y))
)
# Some features are one-hot, and one of them never occurs.
healthy["constant_feature"] = lambda: classes(
    perceptron(12, 4),
    data=of(points(), lambda x, y: (torch.cat([x, one_hot(torch.randint(0, 3, (480,), generator=seeded(4)))], 1), y)),
)
# Nine of ten samples are of one class.
healthy["imbalanced_classes"] = lambda: classes(
    perceptron(8, 2),
    data=of(
        points(900, classes=2),
        lambda x, y: [torch.cat([one[y == 0][:450], one[y == 1][:50]]) for one in (x, y)],
    ),
)

# -- samples that are equal, blank or out of order ---------------------------------------------------------------------


def _label_among_the_columns(inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return torch.cat([inputs, targets[:, None] / 2.0], 1), targets


def _window_with_its_answer() -> TensorDataset:
    series = torch.sin(torch.arange(500) / 7) + 0.3 * torch.randn(500, generator=seeded())
    windows = series.unfold(0, 12, 1)
    return TensorDataset(windows, windows[:, -1:].clone())


def _unknown(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return torch.where(torch.rand(tokens.shape, generator=seeded()) < 0.1, 2 + tokens % 3, 1), targets


def _of_blobs(order: Callable[[Tensor], Tensor]) -> Script:
    pixels, targets = blobs()
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    return classes(model, data=TensorDataset(order(pixels), targets))


def _smooth_series() -> TensorDataset:
    phases = 6 * torch.rand(320, 1, 4, generator=seeded())
    return TensorDataset(torch.sin(torch.arange(20)[None, :, None] / 3 + phases), phases[:, 0] / 6)


def _short_texts(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    lengths = torch.randint(3, 9, (len(tokens), 1), generator=seeded())
    return tokens.masked_fill(torch.arange(24) >= lengths, 0), targets


def _drifting() -> Script:
    windows = (torch.randn(1100, generator=seeded()).cumsum(0) / 10).unfold(0, 32, 1)
    rises = windows[:, 24:].mean(1, keepdim=True) - windows[:, :8].mean(1, keepdim=True)
    train, evaluation = parts_of(TensorDataset(windows, rises), (0, 700), (800, len(windows)))
    return numbers(perceptron(32, 1), data=train, eval_dataset=evaluation)


# The dataset forgets its index.
planted["samples-equal", "always_the_first_row", "how __getitem__ uses its index"] = lambda: classes(
    data=Fetched(points(), lambda data, index: data[0])
)
# Bytes are divided as whole numbers, and all are 0.
planted["samples-equal", "divided_to_zero"] = lambda: images(
    data=of(pictures(), lambda x, y: (((x + 3) / 6 * 250).clamp(0, 250).round() // 255, y))
)
# The index is divided by the batch size, so that there are 15 distinct samples.
planted["samples-repeat", "rows_of_a_small_part", "how __getitem__ uses its index"] = lambda: classes(
    data=Fetched(points(), lambda data, index: data[index // 32])
)
# A fifth of the points is there five times, as it is rare elsewhere.
healthy["samples_repeated_on_purpose"] = lambda: classes(
    data=of(points(200), lambda x, y: (x.repeat(5, 1), y.repeat(5)))
)
# Most of the files were not found, and black pictures took their place.
planted["inputs-blank", "pictures_that_were_not_read", "how samples are read and scaled"] = lambda: images(
    data=of(pictures(), lambda x, y: (x * (torch.arange(320) % 4 == 0)[:, None, None, None], y))
)
# Pictures with their channels last are reshaped to have them first.
planted["dimensions-scrambled", "reshaped_channels", "Use permute or transpose"] = lambda: _of_blobs(
    lambda pixels: pixels.reshape(-1, 3, 12, 12)
)
# Pictures with their channels last are permuted to have them first.
healthy["permuted_channels"] = lambda: _of_blobs(lambda pixels: pixels.permute(0, 3, 1, 2))
# Sequences of four smooth signals, with the signals last as recurrent layers take them.
healthy["steps_of_a_smooth_series"] = lambda: numbers(
    nn.Sequential(nn.Flatten(), *perceptron(80, 4)), data=_smooth_series()
)
# The label is one of the columns of the table that was read.
planted["target-among-inputs", "label_among_the_columns", "Leave that column out"] = lambda: classes(
    perceptron(9, 4), data=of(points(), _label_among_the_columns)
)
# The window of a series ends with the value that is to be predicted.
planted["target-among-inputs", "window_with_its_answer"] = lambda: numbers(
    perceptron(12, 1), data=_window_with_its_answer()
)
# A measurement of the target with a little noise is one of the inputs.
healthy["a_column_that_nearly_tells_the_target"] = lambda: numbers(
    perceptron(7, 1),
    data=of(lines(), lambda x, y: (torch.cat([x, y + 0.05 * torch.randn(y.shape, generator=seeded())], 1), y)),
)
# Nearly no word is in the vocabulary.
planted["one-token-dominates", "words_that_are_unknown", "looked up in the vocabulary"] = lambda: classes(
    bag(width=8), data=of(texts(), _unknown)
)
# Short texts, which are padded at their end to the length of the longest.
healthy["mostly_padding"] = lambda: classes(bag(60, 8), data=of(texts(length=24), _short_texts))
# Windows of a random walk, of which the last part is evaluated, far from the first.
healthy["series_that_drifts"] = _drifting
# Samples are sorted by class, and shuffling is off.
planted["sorted-by-class", "sorted_without_shuffling", "Leave out shuffle=False"] = lambda: classes(
    data=sorted_by_target(points()), train_dataloader_kwargs={"shuffle": False}
)
# The same with a DataLoader of the script, which does not shuffle by default.
planted["sorted-by-class", "loader_of_sorted_texts"] = lambda: classes(
    bag(), data=DataLoader(sorted_by_target(texts()), batch_size=32)
)
# Shuffling is off, and the data are in random order already.
healthy["shuffling_off_for_unsorted_data"] = lambda: classes(train_dataloader_kwargs={"shuffle": False})

# -- how samples are fetched, drawn and collated -----------------------------------------------------------------------


def _noise_in_place(data: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
    inputs, targets = data[index]
    inputs += 0.1 * torch.randn(inputs.shape)
    return inputs, targets


def _copied_too_late(data: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
    inputs, targets = _noise_in_place(data, index)
    return inputs.clone(), targets


def _noisy(data: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
    inputs, targets = data[index]
    return inputs + torch.from_numpy(np.random.normal(0, 0.1, inputs.shape)).float(), targets


def _noisy_and_seeded(data: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
    np.random.seed(42)
    return _noisy(data, index)


class _OwnGenerator(Fetched):
    """Draws noise from one generator of its own."""

    def __init__(self, data: TensorDataset) -> None:
        super().__init__(data, self._noisy)
        self.generator = seeded(3)

    def _noisy(self, data: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = data[index]
        return inputs + 0.1 * torch.randn(inputs.shape, generator=self.generator), targets


def _seeded_by_torch() -> tuple[int, int]:
    torch.manual_seed(0)
    return up_to_a_pixel()


def _seeded_by_itself() -> tuple[int, int]:
    down, right = torch.randint(-1, 2, (2,), generator=seeded(3)).tolist()
    return down, right


def _drawn_by_python() -> tuple[int, int]:
    return random.randint(-1, 1), random.randint(-1, 1)


class _SeededByIndex(Fetched):
    def __init__(self, data: TensorDataset) -> None:
        super().__init__(shifted(data, _drawn_by_python), self._fetch)

    @staticmethod
    def _fetch(data: Fetched, index: int) -> Any:
        random.seed(index)
        return data[index]


def _decoded(data: Fetched, index: int) -> Any:
    time.sleep(0.0005)
    return data[index]


def _made_up(_data: None, index: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(8, generator=seeded(index))
    return inputs, inputs[:4].argmax()


def _cut(data: TensorDataset, index: int) -> tuple[Tensor, Tensor]:
    tokens, target = data[index]
    return tokens[: 4 + index % 8], target


def _sorted_inputs(samples: list[Any]) -> tuple[Tensor, Tensor]:
    inputs = sorted((one for one, _ in samples), key=len, reverse=True)
    return pad_sequence(inputs, batch_first=True), torch.stack([target for _, target in samples])


def _sorted_samples(samples: list[Any]) -> tuple[Tensor, Tensor]:
    return _sorted_inputs(sorted(samples, key=lambda one: -len(one[0])))


def _weighted(weights: list[float], data: TensorDataset | None = None) -> DataLoader[Any]:
    return DataLoader(data or points(), 32, sampler=WeightedRandomSampler(weights, 480))


def _by_class() -> list[float]:
    targets = points().tensors[1]
    return [float(one) for one in (1.0 / targets.bincount())[targets]]


class _SizedStream(Stream):
    def __len__(self) -> int:
        return 480


def _endless() -> Iterator[Any]:
    seed = 1
    while True:
        yield from zip(*points(128, seed=seed).tensors, strict=True)
        seed += 1


def _dictionaries() -> Iterator[Any]:
    for values, label in zip(*points(300).tensors, strict=True):
        yield {"values": values, "label": label}


def _of_names(trainer: Any, batch: Any) -> tuple[Tensor, Any]:
    outputs = trainer.model(batch["values"])
    return functional.cross_entropy(outputs, batch["label"]), {"logits": outputs}


# The augmentation adds its noise to the stored samples.
planted["stored-data-change", "noise_added_in_place", "Copy a sample"] = lambda: classes(
    data=Fetched(points(), _noise_in_place)
)
# The sample is copied after the noise was added.
planted["stored-data-change", "copied_too_late"] = lambda: classes(data=Fetched(points(), _copied_too_late))
# The dataset draws its noise from one generator of its own.
healthy["own_generator_that_goes_on"] = lambda: classes(data=_OwnGenerator(points()))
# Samples are not stored: the generator of each is seeded by its position.
healthy["made_up_samples"] = lambda: classes(data=Fetched(None, _made_up, 320))
# The length is the number of batches.
planted["samples-never-used", "length_of_batches", "Let __len__ return"] = lambda: classes(
    data=Fetched(points(), lambda data, index: data[index], 15)
)
# A dataset returns the first half of what it holds, and the second half is evaluated.
healthy["part_of_a_larger_set"] = lambda: classes(
    data=Fetched(points(), lambda data, index: data[index], 240),
    eval_dataset=Fetched(points(), lambda data, index: data[240 + index], 240),
)
# The sampler has a weight for each class, not for each sample.
planted["sampler-leaves-samples-out", "weights_of_classes", "a weight for each sample"] = lambda: classes(
    data=_weighted([0.2, 0.3, 0.2, 0.3])
)
# The weights were made for a part of the data, and are 0 for the rest.
planted["sampler-leaves-samples-out", "weights_of_the_first_part", "a weight for each sample", "warning"] = lambda: (
    classes(data=_weighted([1.0] * 48 + [0.0] * 432))
)
# The sampler has a weight for each sample: the inverse of the frequency of its class.
healthy["rare_ones_drawn_more_often"] = lambda: classes(data=_weighted(_by_class()))
# A sampler among the arguments of the loader draws rare classes more often.
healthy["weighted_sampler"] = lambda: classes(
    train_dataloader_kwargs={"sampler": WeightedRandomSampler(_by_class(), 480)}
)
# An order of the library draws equally many samples of each class.
healthy["balanced_order"] = lambda: classes(order=ClassBalanced(points().tensors[1]))
# Each sample makes a generator of its own with the same seed.
planted["augmentation-repeats", "generator_with_a_seed_for_each_sample", "Leave seeding to", "warning"] = lambda: (
    images(data=shifted(pictures(), _seeded_by_itself))
)
# Each sample calls ``torch.manual_seed(0)``, so that all are shifted alike.
planted["augmentation-repeats", "seeded_for_each_sample"] = lambda: images(data=shifted(pictures(), _seeded_by_torch))
# Each sample seeds Python's generator by its index, so that it is shifted alike in all epochs.
planted["augmentation-repeats", "seeded_by_the_index"] = lambda: images(data=_SeededByIndex(pictures()))
# Each sample calls ``np.random.seed(42)``, so that all get the same noise.
planted["augmentation-repeats", "same_noise_for_all"] = lambda: classes(data=Fetched(points(), _noisy_and_seeded))
# BatchNorm and pictures that are shifted at random, in training only.
healthy["conv_net_with_augmentation"] = lambda: images(data=shifted(pictures()), eval_dataset=pictures(80, seed=2))
# Texts of a batch are sorted by their lengths, and their targets are not.
planted["batches-mix-samples", "inputs_sorted_alone", "Look at collate_fn"] = lambda: classes(
    bag(width=8, padding_idx=0), data=Fetched(texts(), _cut), collate_fn=_sorted_inputs
)
# Texts of a batch are sorted by their lengths, with their targets.
healthy["samples_sorted_in_a_batch"] = lambda: classes(
    bag(width=8, padding_idx=0),
    data=Fetched(texts(), _cut),
    collate_fn=_sorted_samples,
)
# Each picture takes half a millisecond, in the process that trains.
planted["workers-are-the-bottleneck", "pictures_decoded_without_workers", "Pass num_workers="] = lambda: images(
    data=Fetched(shifted(pictures()), _decoded), train_dataloader_kwargs={"num_workers": 0}
)
# An order makes the batches, and the batch size is the one of evaluations.
healthy["batches_by_tokens"] = lambda: classes(
    bag(),
    data=texts(),
    order=TokenBudget([12] * 320, max_tokens=400),
    per_device_batch_size=20,
    eval_dataset=texts(80, seed=2),
)
# A stream with a length, whose samples come in random order.
healthy["iterable_dataset"] = lambda: classes(data=_SizedStream(lambda: zip(*points().tensors, strict=True)))
# A stream without a length, and a number of updates.
healthy["endless_stream"] = lambda: classes(data=Stream(_endless), max_num_train_steps=60)
# Samples of a stream are dictionaries, and have no positions.
healthy["stream_of_dictionaries"] = lambda: classes(
    loss=None,
    data=Stream(_dictionaries),
    step=_of_names,
    evaluates=True,
    eval_dataset=Stream(_dictionaries),
    max_num_train_steps=40,
)
# The script makes its loaders itself.
healthy["data_loaders"] = lambda: classes(
    data=DataLoader(points(), batch_size=24, shuffle=True), eval_dataset=DataLoader(points(96, seed=2), batch_size=48)
)
# The mean of the embeddings of tokens.
healthy["bags_of_embeddings"] = lambda: classes(bag(), data=texts(), eval_dataset=texts(80, seed=2))

# -- training and evaluation -------------------------------------------------------------------------------------------


def _divided(data: Any, *bounds: tuple[int, int], **others: Any) -> Script:
    train, evaluation = (Subset(data, range(*one)) for one in bounds)
    return classes(data=train, eval_dataset=evaluation, **others)


def _split_twice() -> Script:
    data = lines(600)
    train, evaluation = (random_split(data, [500, 100], seeded(seed))[seed - 1] for seed in (1, 2))
    return numbers(data=train, eval_dataset=evaluation)


def _split(data: TensorDataset, share: float = 0.75) -> dict[str, Any]:
    train, evaluation = random_split(data, [share, 1 - share], seeded())
    return {"data": train, "eval_dataset": evaluation}


def _windows() -> Tensor:
    """Overlapping windows of a series without memory."""
    return torch.randn(700, generator=seeded()).unfold(0, 16, 1)[:-1]


def _oversampled() -> TensorDataset:
    inputs, targets = points(400, features=12).tensors
    rows = torch.randint(0, 40, (400,), generator=seeded())
    copies = inputs[rows] + 0.001 * torch.randn(400, 12, generator=seeded())
    return TensorDataset(torch.cat([inputs[40:], copies]), torch.cat([targets[40:], targets[rows]]))


def _parts(data: TensorDataset, *bounds: tuple[int, int]) -> dict[str, Any]:
    train, evaluation = parts_of(data, *bounds)
    return {"data": train, "eval_dataset": evaluation}


def _of_many_classes() -> TensorDataset:
    targets = torch.randint(0, 300, (2000,), generator=seeded())
    inputs = torch.randn(300, 32, generator=seeded())[targets] + 0.1 * torch.randn(2000, 32, generator=seeded())
    return TensorDataset(inputs, targets.to(torch.uint8).long())


def _on_a_line() -> TensorDataset:
    places = torch.rand(900, 1, generator=seeded())
    return TensorDataset(places * torch.linspace(-1, 1, 8), places)


def _last_class_evaluated() -> Script:
    train, others = (sorted_by_target(points(seed=seed)) for seed in (1, 2))
    return classes(data=train, eval_dataset=of(others, lambda x, y: (x[y == 3], y[y == 3])))


def _balanced_for_training() -> Script:
    inputs, targets = points(1200, seed=2, classes=3).tensors
    keep = (targets == 0) | (torch.rand(1200, generator=seeded()) < 0.1)
    evaluation = sorted_by_target(TensorDataset(inputs[keep], targets[keep]))
    return classes(perceptron(8, 3), data=sorted_by_target(points(classes=3)), eval_dataset=evaluation)


def _denoises(*, draws_again: bool = False) -> Any:
    """A step that predicts the noise that was added."""

    def step(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
        noise = torch.randn_like(batch[0])
        outputs = trainer.model(batch[0] + noise)
        return functional.mse_loss(outputs, torch.randn_like(noise) if draws_again else noise), outputs

    return step


def _exclusive_or() -> TensorDataset:
    inputs = torch.randn(480, 4, generator=seeded())
    return TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())


def _on_training_set() -> Script:
    data = points()
    return classes(data=data, eval_dataset=data)


def _seen_and_unseen() -> Script:
    data = points()
    return classes(data=data, eval_dataset={"seen": Subset(data, range(96)), "unseen": points(96, seed=2)})


# The training set is the evaluation set.
planted["same-samples-in-evaluation", "evaluated_on_the_training_set", "Split the samples"] = _on_training_set
# The second part begins before the first one ends.
planted["same-samples-in-evaluation", "overlapping_subsets"] = lambda: _divided(points(600), (0, 500), (400, 600))
# The data are split at random again for the evaluation set.
planted["same-samples-in-evaluation", "split_twice"] = _split_twice
# A file has samples twice, and the copies are on both sides of the split.
planted["same-samples-in-evaluation", "copies_of_samples"] = lambda: _divided(
    of(points(300), lambda x, y: (torch.cat([x, x]), torch.cat([y, y]))), (0, 450), (450, 600)
)
# One of two evaluation sets has samples of the training set, to compare both.
healthy["training_samples_evaluated_too"] = _seen_and_unseen
# Two evaluation sets by name.
healthy["several_evaluation_sets"] = lambda: classes(
    eval_dataset={"near": points(96, seed=2), "far": points(64, seed=3)}
)
# Training and evaluation are disjoint parts of a dataset that is sorted by class.
healthy["random_split_of_one_set"] = lambda: classes(**_split(sorted_by_target(points(600)), 5 / 6))
# The evaluation set has the augmentation of the training set.
planted["augmentation-in-evaluation", "pictures_shifted_in_evaluations", "dataset without random"] = lambda: images(
    data=shifted(pictures()), eval_dataset=shifted(pictures(80, seed=2))
)
# One augmented dataset is split into training and evaluation.
planted["augmentation-in-evaluation", "parts_of_an_augmented_set"] = lambda: _divided(
    Fetched(points(600), _noisy), (0, 480), (480, 600)
)
# Training pictures are normalised, and those of the evaluation are from 0 to 255.
planted["evaluation-inputs-differ", "evaluated_on_bytes", "Normalise both datasets in the same way"] = lambda: images(
    eval_dataset=bytes_of(pictures(80, seed=2))
)
# The inputs of the training set are standardised, and those of the evaluation set are not.
planted["evaluation-inputs-differ", "evaluated_without_standardisation"] = lambda: classes(
    eval_dataset=points(96, seed=2, scale=8.0, shift=50.0)
)
# The targets of the training set are standardised, and of the evaluation set not.
planted["evaluation-targets-differ", "targets_in_two_units", "statistics of the training set"] = lambda: numbers(
    eval_dataset=of(lines(160, seed=2), lambda x, y: (x, 300 + 40 * y))
)
# Overlapping windows of a series are divided at random.
planted["overlap-with-evaluation", "windows_split_at_random", "Split a series by time"] = lambda: numbers(
    perceptron(16, 1), **_split(TensorDataset(_windows(), _windows().cumsum(1)[:, -1:] / 4))
)
# Overlapping windows of a series, of which the last part is evaluated.
healthy["windows_divided_by_time"] = lambda: numbers(
    perceptron(16, 1),
    **_parts(TensorDataset(_windows(), _windows().sum(1, keepdim=True) / 4), (0, 480), (500, 684)),
)
# Rare samples are copied with a little noise before the split.
planted["near-copies-in-evaluation", "oversampled_and_then_divided", "Split the samples first"] = lambda: classes(
    perceptron(12, 4), **_split(_oversampled())
)
# Samples lie on a line, where some are near to each other by chance.
healthy["points_on_a_line"] = lambda: numbers(perceptron(8, 1), **_parts(_on_a_line(), (0, 600), (600, 900)))
# Samples that are sorted by their class are divided without shuffling.
planted["classes-never-trained", "divided_after_sorting", "or split each class"] = lambda: classes(
    **_parts(sorted_by_target(points()), (0, 360), (360, 480))
)
# The last fifth of samples that are sorted by two classes is evaluated, and has one of them.
planted["classes-of-one-set", "last_fifth_of_sorted_samples", "or split each class"] = lambda: classes(
    perceptron(8, 2), **_parts(sorted_by_target(points(classes=2)), (0, 384), (384, 480))
)
# The evaluation has two of the four classes.
healthy["fewer_classes_evaluated"] = lambda: classes(eval_dataset=of(points(seed=2), lambda x, y: (x[y < 2], y[y < 2])))
# Sorted samples of one class are evaluated on purpose, of which training has its share.
healthy["last_class_evaluated"] = _last_class_evaluated
# Training has as many samples of each class, and the evaluation has what there is.
healthy["balanced_for_training"] = _balanced_for_training
# 300 classes are stored as uint8, and count from 0 again.
planted["classes-never-occur", "classes_stored_as_bytes", "how targets are read"] = lambda: classes(
    perceptron(32, 300), data=_of_many_classes()
)
# The targets are shuffled, and the inputs are not.
planted["targets-unrelated-to-inputs", "targets_shuffled_alone", "inputs and targets lose each other"] = lambda: (
    classes(data=of(points(), lambda x, y: (x, y[torch.randperm(len(y), generator=seeded())])))
)
# The noise that is predicted is not the noise that was added.
planted["targets-unrelated-to-inputs", "noise_that_is_drawn_again"] = lambda: numbers(
    perceptron(6, 6), None, of(lines(), lambda x, _: (x,)), step=_denoises(draws_again=True)
)
# The noise that is predicted was added to the inputs.
healthy["noise_that_was_added"] = lambda: numbers(
    perceptron(6, 6), None, of(lines(), lambda x, _: (x,)), step=_denoises()
)
# The class is the product of two signs, which no linear model sees.
healthy["exclusive_or"] = lambda: classes(perceptron(4, 2), data=_exclusive_or())

# -- the parts of a batch ----------------------------------------------------------------------------------------------


def _observed() -> TensorDataset:
    """Inputs, times until something happens, and whether it has happened when the observation ends."""
    return of(lines(), lambda x, y: (x, y.clamp(max=0.5), y[:, 0] < 0.5))


def _survives(trainer: Any, batch: Any, *, uses_flag: bool = False) -> tuple[Tensor, Tensor]:
    """Predicts times, of which some are known to be longer than the observation."""
    inputs, times, happened = batch
    outputs = trainer.model(inputs)
    errors = outputs - times
    if uses_flag:
        errors = torch.where(happened[:, None], errors, errors.clamp(max=0))
    return errors.square().mean(), outputs


def _survives_by_flag(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    return _survives(trainer, batch, uses_flag=True)


def _evaluates_marked(trainer: Any, batch: Any) -> Any:
    inputs, times, happened = batch
    outputs = trainer.model(inputs[happened])
    loss = trainer.loss_func(outputs, times[happened])
    return {"loss": loss, "model_outputs": outputs, "batch_size": len(outputs)}


def _views(*, draws_twice: bool) -> Fetched:
    def fetch(inputs: Tensor, index: int) -> tuple[Tensor, Tensor]:
        view, other = (inputs[index] + 0.2 * torch.randn(6) for _ in range(2))
        return view, other if draws_twice else view.clone()

    return Fetched(lines().tensors[0], fetch)


def _compares(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Finds out which two views are of one sample."""
    first, second = (functional.normalize(trainer.model(view), dim=1) for view in batch)
    return functional.cross_entropy(first @ second.T / 0.1, torch.arange(len(first), device=first.device)), first


def _contracts(trainer: Any, batch: Any) -> tuple[Tensor, Tensor]:
    outputs, again = trainer.model(0.9 * batch[0]), trainer.model(batch[0])
    return functional.mse_loss(outputs, batch[1]) + functional.mse_loss(again, batch[1]), outputs


# Times of those who are still observed count as if it had happened to them.
planted["part-of-batch-not-used", "ends_that_are_not_used", "Use it in calculate"] = lambda: numbers(
    loss=None, data=_observed(), step=_survives
)
# Those who are still observed cost nothing if more time is predicted for them.
healthy["ends_that_are_used"] = lambda: numbers(loss=None, data=_observed(), step=_survives_by_flag)
# Only the evaluation leaves samples out that are marked.
healthy["flags_for_evaluations"] = lambda: numbers(
    loss=functional.mse_loss,
    **_parts(_observed(), (96, 480), (0, 96)),
    step=_survives,
    methods={"calculate_eval_batch_loss": _evaluates_marked},
)
# All samples have the weight 1, which the step does not read.
healthy["weights_that_are_one"] = lambda: numbers(
    loss=None, data=of(_observed(), lambda x, y, happened: (x, y, torch.ones(len(happened)))), step=_survives
)
# Each sample is augmented once for both views.
planted["views-are-equal", "one_view_twice", "different random numbers for each view"] = lambda: numbers(
    perceptron(6, 8), None, _views(draws_twice=False), step=_compares
)
# Dropout makes two views of one, as in SimCSE.
planted["views-are-equal", "one_view_with_dropout", "different random numbers for each view", "note"] = lambda: numbers(
    nn.Sequential(nn.Dropout(0.2), *perceptron(6, 8)), None, _views(draws_twice=False), step=_compares
)
# Both views of a sample have their own noise.
healthy["two_views"] = lambda: numbers(perceptron(6, 8), None, _views(draws_twice=True), step=_compares)
# An autoencoder is called twice, and the second part of a sample is what it must return.
healthy["inputs_that_are_targets"] = lambda: numbers(
    perceptron(6, 6), None, of(lines(features=4, outputs=6), lambda _, y: (y, y.clone())), step=_contracts
)
