"""The record of what a run was started with."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import re
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import relu
from typing_extensions import override

from pa_core.distributed import num_processes, rank
from pa_core.errors import ConfigurationError
from pa_core.run_config import TrainerRunConfig
from tests.small_runs import make_trainer, samples
from tests.support.pa_core.stages import Stages

VALUES: dict[str, Any] = {
    "num_epochs": 2,
    "train_per_device_batch_size": 8,
    "train_dl_kwargs": {"shuffle": True},
    "eval_per_device_batch_size": 16,
    "eval_dl_kwargs": {},
    "gradient_accumulation_steps": 1,
    "gradient_clip_value": None,
    "train_total_batch_size": 8,
    "eval_total_batch_size": 16,
    "num_update_steps_per_epoch": 10,
    "max_num_train_steps": 20,
    "is_local_process_zero": True,
    "is_world_process_zero": True,
    "is_distributed": False,
    "mixed_precision": "no",
    "num_processes": 1,
}
"""Those of a small training run: the documented ones in their order."""

OTHERS = {"num_update_steps_per_epoch", "max_num_train_steps"}
COUNTS = [name for name, value in VALUES.items() if type(value) is int and name not in OTHERS]


def make_config(**changes: Any) -> TrainerRunConfig:
    """Return the config of a small training run, with the given values changed."""
    return TrainerRunConfig(**{**VALUES, **changes})


def test_every_value_reads_the_same_by_key_and_by_attribute() -> None:
    """`config["num_epochs"]` is `config.num_epochs`, for each name."""
    config = make_config(seed=3)

    assert dict(config) == {name: getattr(config, name) for name in config}
    assert set(VALUES) < set(config)
    assert "seed" in config
    assert "sead" not in config


def test_a_config_is_a_value() -> None:
    """It is copied, compared and sent to another process, and nobody can assign to it."""
    config = make_config(seed=1)
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config)), dataclasses.replace(config)):
        assert twin == config
        assert hash(twin) == hash(config)
    assert dataclasses.replace(config, seed=2) != config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_epochs = 5  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # that is the test


def test_an_unknown_key_names_its_neighbours() -> None:
    """A misspelt key is a KeyError that shows what was probably meant."""
    config = make_config()

    with pytest.raises(KeyError, match="train_per_device_batch_size"):
        config["train_per_device_batchsize"]
    with pytest.raises(KeyError, match=r"num_epochs, train_per.*num_processes"):
        config["xyzzy"]


def test_loader_arguments_are_copies() -> None:
    """Changing the dictionary that a loader was made from leaves the record as it was."""
    arguments = {"shuffle": True}
    config = make_config(train_dl_kwargs=arguments, eval_dl_kwargs=arguments)

    arguments["shuffle"] = False

    assert config.train_dl_kwargs == config.eval_dl_kwargs == {"shuffle": True}


def test_counts_may_be_floats_that_are_whole() -> None:
    """As dividing two counts makes them; they are read as integers, and thresholds of clipping as they were given."""
    config = make_config(
        num_epochs=3.0, num_local_update_steps_per_epoch=100.0, max_num_train_steps=1e3, gradient_clip_value=1.0
    )
    counts = config.num_epochs, config.num_local_update_steps_per_epoch, config.max_num_train_steps
    assert [repr(count) for count in counts] == ["3", "100", "1000"]
    assert repr(config.gradient_clip_value) == "1.0"


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.5, "2", True, None, math.nan])
@pytest.mark.parametrize("name", COUNTS)
def test_counts_must_be_positive_whole_numbers(name: str, value: object) -> None:
    """A count that cannot work is refused with the argument's name and what was given."""
    with pytest.raises(ConfigurationError) as caught:
        make_config(**{name: value})

    assert re.search(rf"^{name} must .*, got {re.escape(repr(0 if value == 0 else value))}\.$", str(caught.value))


@pytest.mark.parametrize("value", [None, 1, 0.5, math.inf, np.float32(0.5)])
@pytest.mark.parametrize("name", ["gradient_clip_value", "gradient_clip_norm"])
def test_usable_clipping_thresholds_are_kept(name: str, value: object) -> None:
    """None, any positive number and infinity (which only measures) are thresholds."""
    assert make_config(**{name: value})[name] == value


@pytest.mark.parametrize("limit", [None, 0])
def test_a_run_that_only_evaluates_has_no_updates(limit: int | None) -> None:
    """An evaluation has a config too: zero updates, and no limit on them."""
    config = make_config(num_epochs=1, num_update_steps_per_epoch=0, max_num_train_steps=limit)

    assert config.num_update_steps_per_epoch == config.num_local_update_steps_per_epoch == 0
    with pytest.raises(ConfigurationError, match=r"num_update_steps_per_epoch must .* got -1"):
        make_config(num_update_steps_per_epoch=-1)


def train(num_epochs: int | None = 2, **asked: Any) -> TrainerRunConfig:
    """Train ten batches of 8 in an epoch, and return the config of the run."""
    trainer = make_trainer()
    trainer.train(samples(80), num_epochs, per_device_batch_size=8 // num_processes(), **asked)
    return trainer.run_config


@pytest.mark.parametrize(
    ("asked", "updates_per_epoch", "epochs", "updates"),
    [
        ({}, 10, 2, 20),
        ({"gradient_accumulation_steps": 4}, 3, 2, 6),
        ({"max_num_train_steps": 25}, 10, 3, 25),
        ({"num_epochs": None, "max_num_train_steps": 25}, 10, 3, 25),
        ({"max_num_train_steps": 4, "gradient_accumulation_steps": 3}, 4, 1, 4),
        ({"order": Stages([32, 80, 40]), "num_epochs": 3}, 7, 3, 19),
        ({"order": Stages([32, 80, 40]), "max_num_train_steps": 5}, 7, 2, 5),
    ],
)
def test_updates_and_epochs_follow_from_each_other(
    asked: dict[str, Any], updates_per_epoch: int, epochs: int, updates: int
) -> None:
    """The last group of an epoch may be shorter; a number of updates wins over epochs."""
    config = train(**asked)

    assert config.num_update_steps_per_epoch == updates_per_epoch
    assert (config.num_epochs, config.max_num_train_steps) == (epochs, updates)


@pytest.mark.runs_on("one_process", "two_ranks")
def test_total_batch_sizes_are_those_of_all_processes() -> None:
    """An update has the samples of each process and of each accumulated batch, an evaluation step has no groups."""
    config = train(1, gradient_accumulation_steps=3, eval_dataset=samples(8))

    assert (config.train_total_batch_size, config.eval_total_batch_size) == (8 * 3, 8)
    assert (config.num_processes, config.is_distributed) == (num_processes(), num_processes() > 1)
    assert config.is_world_process_zero == (rank() == 0)


def test_the_updates_of_a_process_are_a_field() -> None:
    """They are those of the run by default, can be given by name, and are counted like the others."""
    assert make_config().num_local_update_steps_per_epoch == 10
    assert make_config(num_local_update_steps_per_epoch=5)["num_local_update_steps_per_epoch"] == 5
    assert "num_local_update_steps_per_epoch" in {entry.name for entry in dataclasses.fields(TrainerRunConfig)}
    with pytest.raises(ConfigurationError, match=r"num_local_update_steps_per_epoch must .* got -1"):
        make_config(num_local_update_steps_per_epoch=-1)


class _Sampler:
    @override
    def __repr__(self) -> str:
        return "_Sampler()"


def test_to_dict_is_json_whatever_the_loader_arguments_hold() -> None:
    """Trackers get plain values; functions, classes and objects appear by name."""
    config = make_config(
        num_epochs=np.int64(2),
        gradient_clip_value=np.float32(0.5),
        train_dl_kwargs={
            "collate_fn": relu,
            "sampler": _Sampler(),
            "dataset_class": torch.utils.data.TensorDataset,
            "worker_init_fn": partial(int, base=2),
            "prefetch": (1, [np.int32(2), {3: None}]),
            "pin_memory": False,
        },
    )

    plain = json.loads(json.dumps(config.to_dict()))

    assert plain == config.to_dict()
    assert list(plain) == list(config)
    assert plain["num_epochs"] == 2
    assert plain["gradient_clip_value"] == 0.5
    arguments = plain["train_dl_kwargs"]
    assert "int" in arguments.pop("worker_init_fn")
    assert arguments == {
        "collate_fn": "torch.nn.functional.relu",
        "sampler": "_Sampler()",
        "dataset_class": "torch.utils.data.dataset.TensorDataset",
        "prefetch": [1, [2, {"3": None}]],
        "pin_memory": False,
    }
