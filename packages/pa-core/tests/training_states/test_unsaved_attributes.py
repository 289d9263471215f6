"""What a script keeps on its trainer between steps, and training states do not have."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, Trainer
from pa_core.testing import make_regression

DATA = make_regression(24)


class KeepsHidden(Trainer[nn.Linear]):
    """Adds up the outputs of all batches, as a recurrent model carries its hidden state over them."""

    def __init__(self, folder: Path | None) -> None:
        model = nn.Linear(4, 1)
        save = [] if folder is None else [SaveTrainingStateCallback(folder, save_every_n_steps=2)]
        super().__init__(model, nn.MSELoss(), SGD(model.parameters(), lr=0.1), callbacks=save)
        self.weights_of_loss = torch.ones(1)
        self.teacher = nn.Linear(4, 1).eval()
        self.hidden = torch.zeros(1)

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        output = super().calculate_train_batch_loss(batch)
        output["loss"] = output["loss"] * self.weights_of_loss
        self.carry(output["model_outputs"].detach().mean())
        return output

    def carry(self, value: Tensor) -> None:
        """Keep something of a step."""
        self.hidden = self.hidden + value


class InPlace(KeepsHidden):
    """The same, in the same tensor."""

    @override
    def carry(self, value: Tensor) -> None:
        self.hidden += value


class InList(KeepsHidden):
    """A memory that grows."""

    @override
    def carry(self, value: Tensor) -> None:
        memory: list[Tensor] = vars(self).setdefault("memory", [])
        memory.append(value)


class InModule(KeepsHidden):
    """A copy that follows the model."""

    @override
    def carry(self, value: Tensor) -> None:
        self.teacher.load_state_dict(self.model.state_dict())


class Holder:
    """What the message advises."""

    def __init__(self, trainer: KeepsHidden) -> None:
        self.trainer = trainer

    def state_dict(self) -> dict[str, Tensor]:
        """A copy, as many write it."""
        return {"hidden": self.trainer.hidden.clone()}

    def load_state_dict(self, state_dict: dict[str, Tensor]) -> None:
        """Take it back."""
        self.trainer.hidden = state_dict["hidden"]


@pytest.mark.parametrize(
    ("kind", "attribute"), [(KeepsHidden, "hidden"), (InPlace, "hidden"), (InList, "memory"), (InModule, "teacher")]
)
def test_what_steps_leave_on_the_trainer_is_warned_of_once(
    kind: type[KeepsHidden], attribute: str, tmp_path: Path
) -> None:
    """It would be lost by a kill; what does not change is no part of it."""
    trainer = kind(tmp_path)
    with pytest.warns(UserWarning, match="Training steps have left") as warned:
        trainer.train(DATA, num_epochs=2)
    (said,) = [str(one.message) for one in warned]
    assert f"in trainer.{attribute}, which" in said
    assert "trainer.register_for_checkpointing(" in said


def test_what_is_registered_or_lost_by_nothing_is_not_warned_of(tmp_path: Path) -> None:
    """A registered object has it, perhaps as a copy; and a run that saves no states has nothing to be resumed from."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "callbacks=")
        KeepsHidden(None).train(DATA, num_epochs=1)
        trainer = KeepsHidden(tmp_path)
        trainer.register_for_checkpointing(Holder(trainer))
        trainer.train(DATA, num_epochs=1)
        whole = InModule(tmp_path / "module")
        whole.register_for_checkpointing(whole.teacher)
        whole.train(DATA, num_epochs=1)


class ReadsFromDisk(Mapping[str, Tensor]):
    """Stands for a file of many tensors."""

    reads = 0

    @override
    def __getitem__(self, key: str) -> Tensor:
        self.reads += 1
        return torch.zeros(1)

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(("first", "second"))

    @override
    def __len__(self) -> int:
        return 2


def test_attributes_that_hold_themselves_or_read_from_a_file_are_in_nobodys_way(tmp_path: Path) -> None:
    """A tree whose nodes know their parents does not end the run, and a file is not read for the sake of a warning."""
    trainer = KeepsHidden(tmp_path)
    tree: dict[str, Any] = {"hidden": trainer.hidden, "children": []}
    tree["children"].append({"parent": tree})
    file = ReadsFromDisk()
    vars(trainer).update(tree=tree, file=file)
    with pytest.warns(UserWarning, match=r"in trainer\.hidden, which"):
        trainer.train(DATA, num_epochs=1)
    assert file.reads == 0
