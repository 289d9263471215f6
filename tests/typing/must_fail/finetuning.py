"""What must not pass a type checker around freezing and unfreezing."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from torch import nn
from torch.optim import SGD

from pa_core import Trainer
from pa_finetuning import GradualUnfreezing, LearningRates, ModelFreezer, TrainerLike
from tests.typing.vocabulary import Net, make_optimizer

net = Net()
freezer = ModelFreezer(net)
optimizer = make_optimizer(net)

SGD(freezer.unfreeze()["head"]["params"], lr=0.1)  # type: ignore[index]  # pyright: ignore[reportArgumentType]  # pa_finetuning.ModelFreezer.unfreeze: groups by their index
ModelFreezer(net, layer_groups=[0, 1])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_finetuning.ModelFreezer: names or modules
head: nn.Module = freezer.get_layer_groups()["head"]  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]  # pa_finetuning.ModelFreezer.get_layer_groups: a list
rates: LearningRates = {"head": 0.1}  # type: ignore[dict-item]  # pyright: ignore[reportAssignmentType]  # pa_finetuning.LearningRates: groups by their index
Trainer(net, None, optimizer, callbacks=[GradualUnfreezing(freezer)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]  # pa_finetuning.GradualUnfreezing: derive a callback
index: int = freezer.get_layer_groups()[0].layer_group_idx  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_finetuning.LayerGroup: a pair
of_layer: tuple[int, int] = freezer.get_layers()[0].layer_group_idx  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_finetuning.Layer: perhaps in no group
like: TrainerLike = net  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]  # pa_finetuning.TrainerLike: a model is no trainer
