"""What must not pass a type checker around a loop of one's own."""

# What is unknown because of an error is no error of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from pa_core import Run, Update
from tests.typing.vocabulary import Batch, Net, OtherNet, collate, make_data, make_optimizer

net = Net()
optimizer = make_optimizer(net)
run = Run(net, optimizer, make_data(), num_epochs=1, collate_fn=collate)

wrong_model: Run[OtherNet, Batch] = Run(net, optimizer, make_data(), num_epochs=1, collate_fn=collate)  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_core.Run[ModelT_co]: a run of another model
no_name = Run({"net": net}, {1: optimizer}, make_data(), num_epochs=1)  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]  # pa_core.Run.optimizers: names are text
precision = Run(net, optimizer, make_data(), num_epochs=1, mixed_precision="fp32")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # pa_core.Run.mixed_precision: it is called no
for batch in run.batches():
    field = batch.no_such_field  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # pa_core.Run[BatchT]: what the batches do not have
not_a_model: Run[int]  # type: ignore[type-var]  # pyright: ignore[reportInvalidTypeArguments]  # pa_core.types.ModelT_co: a run is one of a module
other_batches: Update[int] = next(run.updates())  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]  # pa_core.Update[BatchT]: an update of other batches
