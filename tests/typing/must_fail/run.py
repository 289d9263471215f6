"""What must not pass a type checker around a loop of one's own."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import torch

from pa_core import Run, Update
from tests.typing.vocabulary import Batch, Net, OtherNet, collate, make_data, make_optimizer

net = Net()
optimizer = make_optimizer(net)
run = Run(net, optimizer, make_data(), num_epochs=1, collate_fn=collate)

wrong_model: Run[OtherNet, Batch] = Run(net, optimizer, make_data(), num_epochs=1, collate_fn=collate)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_core.Run[ModelT_co]: a run of another model
no_optimizer = Run(net, net, make_data(), num_epochs=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Run.optimizer: a module does not train another one
no_name = Run({"net": net}, {1: optimizer}, make_data(), num_epochs=1)  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]  # pa_core.Run.optimizers: names are text
positional = Run(net, optimizer, make_data(), 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.Run: a named argument
precision = Run(net, optimizer, make_data(), num_epochs=1, mixed_precision="fp32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Run.mixed_precision: it is called no
for batch in run.batches():
    field = batch.no_such_field  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.Run[BatchT]: what the batches do not have
for update in run.updates():
    update.backward(0.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Update.backward: a tensor
    update.backward(torch.ones(1), "net")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # pa_core.Update.backward: a named argument
    update.step(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Update.step: a name
run.log("loss", "low")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Run.log: a number
run.request_stop(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Run.request_stop: a text
not_a_model: Run[int]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.types.ModelT_co: a run is one of a module
other_batches: Update[int] = next(run.updates())  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_core.Update[BatchT]: an update of other batches
