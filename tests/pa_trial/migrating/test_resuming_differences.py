"""What docs/maintainers/differences-from-determined.md says of resuming and checkpoints: a test for each row."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from typing_extensions import override

import pa_trial as pytorch
from tests.launching import Launch
from tests.pa_trial.migrating.line_trial import LineTrial, Numbers, checkpoints_in, fit, with_tests

Batch = tuple[Tensor, Tensor]


def resume(folder: Path, trial_class: Any = LineTrial, **options: Any) -> Any:
    """Continue from the newest checkpoint in a folder."""
    return fit(folder, trial_class, latest_checkpoint=str(checkpoints_in(folder)[-1]), **options)


def test_position(tmp_path: Path) -> None:
    """Three batches are trained, and three more: the fourth of the first epoch, and two of the second."""
    fit(tmp_path, LineTrial, batches=3)
    trial = resume(tmp_path, batches=6)
    assert trial.batches == [(0, 3), (1, 4), (1, 5)]
    assert trial.seen == [[6, 7], [0, 1], [2, 3]]


def test_startup(tmp_path: Path) -> None:
    """Both know the first batch, the latter where the loaders are built."""
    told: list[tuple[str, int]] = []

    class Listener(pytorch.PyTorchCallback):
        @override
        def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
            told.append(("on_trial_startup", first_batch_idx))

    class Trial(LineTrial):
        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"listener": Listener()}

        @override
        def build_training_data_loader(self) -> pytorch.DataLoader:
            told.append(("build_training_data_loader", self.context.get_initial_batch()))
            return pytorch.DataLoader(Numbers(), batch_size=2)

    fit(tmp_path, Trial, batches=3)
    resume(tmp_path, Trial, batches=6)
    names = ["on_trial_startup", "build_training_data_loader"]
    assert told == [(name, first) for first in (0, 3) for name in names]


def test_shuffled(tmp_path: Path) -> None:
    """Ten batches in two parts are those of ten in one."""

    class Shuffled(LineTrial):
        shuffle = True

    whole = fit(tmp_path / "whole", Shuffled, batches=10)
    first = fit(tmp_path / "parts", Shuffled, batches=3)
    second = resume(tmp_path / "parts", Shuffled, batches=10)
    assert first.seen + second.seen == whole.seen
    assert whole.seen[:4] != whole.seen[4:8] != [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(torch.equal(a, b) for a, b in zip(second.model.parameters(), whole.model.parameters(), strict=True))


def test_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a directory, it is Determined's."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    fit(tmp_path / "mine", LineTrial, batches=1)
    assert [path.parent for path in checkpoints_in(tmp_path)] == [tmp_path / "mine"]
    with pytorch.init(seed=1) as context:
        pytorch.Trainer(LineTrial(context), context).fit(max_length=pytorch.Batch(1), checkpoint_policy="none")
    assert len(checkpoints_in(tmp_path / "data" / "determined")) == 1


def test_retention(tmp_path: Path) -> None:
    """Of six checkpoints, two are left."""
    options: dict[str, Any] = {"batches": 6, "checkpoint_period": pytorch.Batch(1)}
    fit(tmp_path / "all", LineTrial, **options)
    fit(tmp_path / "two", LineTrial, max_checkpoints=2, **options)
    assert [len(checkpoints_in(tmp_path / name)) for name in ("all", "two")] == [6, 2]


class Stateful(pytorch.PyTorchCallback):
    """A callback with a state that is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    @override
    def state_dict(self) -> dict[str, Any]:
        return self.state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.state = state_dict


def test_pickle(tmp_path: Path) -> None:
    """All of it can be read with `weights_only=True`; an object that could not is refused, or trusted by request."""

    class Trial(LineTrial):
        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"mine": Stateful({"count": 3, "seen": torch.ones(2)})}

    class Refused(Trial):
        @override
        def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
            return {"mine": Stateful({"function": print})}

    fit(tmp_path, Trial, batches=1)
    (checkpoint,) = checkpoints_in(tmp_path)
    saved: dict[str, Any] = torch.load(checkpoint / "state_dict.pth", weights_only=True)
    assert saved["callbacks"]["mine"]["count"] == 3
    assert list(checkpoint.rglob("*.pkl")) == []
    with pytest.raises(Exception, match="function"):
        fit(tmp_path / "refused", Refused, batches=1)
    fit(tmp_path / "trusted", Refused, batches=1, trust_pickle=True)
    (trusted,) = checkpoints_in(tmp_path / "trusted")
    fit(tmp_path / "trusted", Refused, batches=2, latest_checkpoint=trusted.name, trust_pickle=True)


def test_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the directory that the program runs in is in a checkpoint; a class in ``code`` is found."""
    (tmp_path / "big.bin").write_bytes(bytes(100))
    monkeypatch.chdir(tmp_path)
    fit(tmp_path, LineTrial, batches=1)
    (checkpoint,) = checkpoints_in(tmp_path)
    assert {path.name for path in checkpoint.rglob("*")} & {"big.bin", "code"} == set()
    (checkpoint / "code").mkdir()
    (checkpoint / "code" / "model_def.py").write_text(
        "from tests.pa_trial.migrating.line_trial import LineTrial\nclass Copied(LineTrial): ...\n"
    )
    (checkpoint / "trial_state.json").unlink()
    (checkpoint / "metadata.json").write_text(json.dumps({"determined_version": "0.38.1", "steps_completed": 1}))
    (checkpoint / "load_data.json").write_text(json.dumps({"trial_cls_spec": "model_def:Copied"}))
    assert type(pytorch.load_trial_from_checkpoint_path(str(checkpoint))).__name__ == "Copied"


class WithHparam(LineTrial):
    """A trial that asks for a hyperparameter, and can be imported."""

    @override
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.rate = context.get_hparam("rate")


def test_hparams(tmp_path: Path) -> None:
    """A trial that asks for one can be loaded."""
    fit(tmp_path, WithHparam, batches=1, hparams={"rate": 0.5})
    (checkpoint,) = checkpoints_in(tmp_path)
    assert json.loads((checkpoint / "load_data.json").read_text())["hparams"] == {"rate": 0.5}
    loaded = pytorch.load_trial_from_checkpoint_path(str(checkpoint))
    assert isinstance(loaded, WithHparam)
    assert loaded.rate == 0.5


MAIN = """
import pa_trial as pytorch
from tests.pa_trial.migrating.line_trial import LineTrial, checkpoints_in, fit
from pathlib import Path

class Trial(LineTrial):
    pass

fit(Path("checkpoints"), Trial)
(checkpoint,) = checkpoints_in(Path("checkpoints"))
loaded = pytorch.load_trial_from_checkpoint_path(str(checkpoint))
print(type(loaded) is Trial)
"""


def test_main_class(launch: Launch, tmp_path: Path) -> None:
    """The script that trained a class finds it; another program is told to pass it."""
    assert launch(MAIN, env=with_tests()).output.splitlines()[-1] == "True"
    (checkpoint,) = checkpoints_in(tmp_path)
    with pytest.raises(ValueError, match="trial_class"):
        pytorch.load_trial_from_checkpoint_path(str(checkpoint))
    assert isinstance(pytorch.load_trial_from_checkpoint_path(str(checkpoint), trial_class=LineTrial), LineTrial)


def test_warm_start(tmp_path: Path) -> None:
    """The weights are those of the other training, which otherwise begins anew."""
    trained = fit(tmp_path / "first", LineTrial, batches=4)
    (checkpoint,) = checkpoints_in(tmp_path / "first")

    class Trial(LineTrial):
        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            if not self.seen:
                self.start = [parameter.detach().clone() for parameter in self.model.parameters()]
            return super().train_batch(batch, epoch_idx, batch_idx)

    trial = fit(tmp_path / "second", Trial, batches=2, warm_start=checkpoint)
    assert trial.batches == [(0, 0), (0, 1)]
    assert all(torch.equal(a, b) for a, b in zip(trial.start, trained.model.parameters(), strict=True))


def test_unfinished(tmp_path: Path) -> None:
    """A training that is interrupted within a group ends with the weights of one that is not."""
    options: dict[str, Any] = {"aggregation_frequency": 3}
    whole = fit(tmp_path / "whole", LineTrial, batches=6, **options)
    fit(tmp_path / "parts", LineTrial, batches=4, **options)
    parts = resume(tmp_path / "parts", batches=6, **options)
    assert all(torch.equal(a, b) for a, b in zip(parts.model.parameters(), whole.model.parameters(), strict=True))


def test_damaged(tmp_path: Path) -> None:
    """A flipped bit is found, and the file named."""
    fit(tmp_path, LineTrial, batches=1)
    path = checkpoints_in(tmp_path)[0] / "state_dict.pth"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(pytorch.InvalidCheckpointException, match=r"state_dict\.pth"):
        resume(tmp_path, batches=2)


class RunsCode:
    """Unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_foreign(tmp_path: Path) -> None:
    """Weights in the form in which two processes of Determined saved them are loaded, and no code of its files runs."""
    folder, trace = tmp_path / "0f8e3c52-1a2b-4c3d-8e9f-001122334455", tmp_path / "unpickled"
    folder.mkdir()
    weights = {"module.weight": torch.tensor([[2.0]]), "module.bias": torch.tensor([5.0])}
    states = {"models_state_dict": [weights], "rng_state": {"np_rng_state": np.random.get_state()}}
    torch.save(states, folder / "state_dict.pth")
    (folder / "trial_state.pkl").write_bytes(pickle.dumps({"batches_trained": RunsCode(trace)}))
    (folder / "metadata.json").write_text(json.dumps({"determined_version": "0.38.1", "steps_completed": 7}))
    (folder / "load_data.json").write_text(json.dumps({"trial_type": "PyTorchTrial", "is_trainer": True}))

    class Trial(LineTrial):
        @override
        def train_batch(self, batch: Batch, epoch_idx: int, batch_idx: int) -> pytorch.TrainingMetrics:
            self.weights = {name: value.tolist() for name, value in self.model.state_dict().items()}
            return super().train_batch(batch, epoch_idx, batch_idx)

    expected = {"weight": [[2.0]], "bias": [5.0]}
    assert fit(tmp_path / "new", Trial, batches=1, warm_start=folder).weights == expected
    loaded = pytorch.load_trial_from_checkpoint_path(str(folder), trial_class=LineTrial)
    assert {name: value.tolist() for name, value in loaded.model.state_dict().items()} == expected
    assert not trace.exists()
