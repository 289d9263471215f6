"""Scripts with a mistake, the error that each gives, and the edit that its advice asks for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BEGINNING", "MISTAKES", "Mistake"]

BEGINNING = """
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from pa_core import PrintProgressCallback, SaveBestModelCallback, StepBasedEvaluationCallback, Trainer, TrainerCallback

torch.manual_seed(0)
inputs, classes, values = torch.randn(16, 4), torch.arange(16) % 3, torch.randn(16)
images, words = torch.randn(16, 3, 6, 6), torch.randint(10, (16, 5))
"""

_CLASSIFY = """
model = nn.Linear(4, 3)
trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(inputs, classes), 1)
"""
_REGRESS = """
model = nn.Linear(4, 1)
trainer = Trainer(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(inputs, values.unsqueeze(1)), 1)
"""
_TELL_APART = """
model = nn.Linear(4, 1)
trainer = Trainer(model, nn.BCEWithLogitsLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(inputs, (values > 0).float().unsqueeze(1)), 1)
"""
_SEE = """
model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(32, 3))
trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(images, classes), 1)
"""
_READ = """
model = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))
trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(words, classes), 1)
"""
_SQUEEZE = """
class Squeezes(nn.Linear):
    def forward(self, x):
        return super().forward(x).squeeze(1)

model = Squeezes(4, 1)
trainer = Trainer(model, nn.BCEWithLogitsLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(inputs[:9], (values[:9] > 0).float()), 1, train_dataloader_kwargs={"shuffle": False})
"""
_OWN_STEP = """
class MyTrainer(Trainer):
    def calculate_train_batch_loss(self, batch):
        outputs = self.model(batch[0])
        loss = self.loss_func(outputs, batch[1])
        return {"loss": loss, "model_outputs": outputs, "batch_size": len(batch[1])}

model = nn.Linear(4, 3)
trainer = MyTrainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))
trainer.train(TensorDataset(inputs, classes), 1)
"""
_THREE_ITEMS = """
class Weighted(nn.Linear):
    def forward(self, x, weights=None):
        return super().forward(x if weights is None else x * weights)
""" + _OWN_STEP.replace("batch[1]", "batch[2]").replace("inputs, classes)", "inputs, inputs, classes)")


@dataclass(frozen=True)
class Mistake:
    """A script that works, and what a beginner writes instead of a part of it.

    Attributes:
        script: The script that works.
        right: The part that the advice leads to.
        wrong: What stands there instead.
        error: The class of the error.
        given: Parts of what the error says was given.
        do: Its advice; of an error of torch, a part of what its notes say.
    """

    script: str
    right: str
    wrong: str
    error: str
    given: tuple[str, ...]
    do: str

    @property
    def broken(self) -> str:
        """The script with the mistake."""
        assert self.script.count(self.right) == 1, self.right
        return BEGINNING + self.script.replace(self.right, self.wrong)

    @property
    def mended(self) -> str:
        """The script after the advice was followed."""
        return BEGINNING + self.script


def _of_arguments(right: str, wrong: str, given: str, do: str, script: str = _CLASSIFY) -> Mistake:
    return Mistake(script, right, wrong, "ArgumentTypeError", (given,), do)


def _of_batches(right: str, wrong: str, given: str, do: str, script: str = _CLASSIFY) -> Mistake:
    return Mistake(script, right, wrong, "BatchMismatchError", (*given.split(" | "), "training step 1 of epoch 1"), do)


def _of_torch(
    right: str, wrong: str, given: str, do: str, script: str = _CLASSIFY, error: str = "RuntimeError"
) -> Mistake:
    return Mistake(script, right, wrong, error, (*given.split(" | "), "training step 1 of epoch 1"), do)


def _overriding(taken: str) -> str:
    """The advice to override the step."""
    return (
        "Override the step in a subclass of Trainer, for example:\n"
        "              def calculate_train_batch_loss(self, batch):\n"
        f"                  outputs = self.model({taken})\n"
        '                  return {"loss": self.loss_func(outputs, batch[2]), "model_outputs": outputs, '
        '"batch_size": len(batch[2])}\n'
        "              calculate_eval_batch_loss = calculate_train_batch_loss"
    )


ARGUMENTS = {
    "a loss class": _of_arguments(
        "nn.CrossEntropyLoss()",
        "nn.CrossEntropyLoss",
        "loss_func=nn.CrossEntropyLoss",
        "Create it: loss_func=nn.CrossEntropyLoss().",
    ),
    "a loss as a string": _of_arguments(
        "nn.CrossEntropyLoss()",
        '"cross_entropy"',
        "loss_func='cross_entropy'",
        "Pass the function that the name stands for, such as loss_func=torch.nn.CrossEntropyLoss().",
    ),
    "a loss that was called": _of_arguments(
        "nn.CrossEntropyLoss()",
        "nn.CrossEntropyLoss()(torch.randn(4, 3), classes[:4])",
        "a loss_func of type Tensor",
        "Pass the function itself, not its result.",
    ),
    "an optimizer class": _of_arguments(
        "torch.optim.SGD(model.parameters(), lr=0.1)",
        "torch.optim.SGD",
        "optimizer=torch.optim.SGD",
        "Create it: optimizer=torch.optim.SGD(model.parameters(), lr=...).",
    ),
    "an optimizer as a string": _of_arguments(
        "torch.optim.SGD(model.parameters(), lr=0.1)",
        '"sgd"',
        "optimizer='sgd'",
        "Pass an optimizer of the model's parameters, for example "
        "optimizer=torch.optim.SGD(model.parameters(), lr=0.1).",
    ),
    "loss and optimizer swapped": _of_arguments(
        "nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1)",
        "torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss()",
        "loss_func=SGD(...), optimizer=CrossEntropyLoss(...)",
        "Swap the two arguments, or pass them by name: Trainer(model, loss_func=..., optimizer=...).",
    ),
    "a model class": _of_arguments(
        "Trainer(Classifier(),",
        "Trainer(Classifier,",
        "model=Classifier",
        "Create it: model=Classifier(...).",
        "class Classifier(nn.Linear):\n    def __init__(self):\n        super().__init__(4, 3)\n"
        "Trainer(Classifier(), nn.CrossEntropyLoss(), None).evaluate(TensorDataset(inputs, classes))\n",
    ),
    "one callback, not in a list": _of_arguments(
        "[PrintProgressCallback]",
        "PrintProgressCallback",
        "callbacks=PrintProgressCallback",
        "Put it into a list: callbacks=[PrintProgressCallback].",
        _CLASSIFY.replace("lr=0.1))", "lr=0.1), callbacks=[PrintProgressCallback])"),
    ),
    "None for the callbacks": _of_arguments(
        "callbacks=[]",
        "callbacks=None",
        "callbacks=None",
        "Pass callbacks=[] for none, or leave the argument out for the default callbacks.",
        _CLASSIFY.replace("lr=0.1))", "lr=0.1), callbacks=[])"),
    ),
    "a callback class that needs arguments": _of_arguments(
        "StepBasedEvaluationCallback(eval_every_n_steps=2)",
        "StepBasedEvaluationCallback",
        "the class StepBasedEvaluationCallback",
        "Create it: StepBasedEvaluationCallback(eval_every_n_steps=...).",
        _CLASSIFY.replace("lr=0.1))", "lr=0.1), [StepBasedEvaluationCallback(eval_every_n_steps=2)])").replace(
            "classes), 1)", "classes), 1, TensorDataset(inputs, classes))"
        ),
    ),
    "a callback that does not derive from TrainerCallback": _of_arguments(
        "class Mine(TrainerCallback):",
        "class Mine:",
        "Mine",
        "Derive Mine from TrainerCallback.",
        "class Mine(TrainerCallback):\n    pass\n" + _CLASSIFY.replace("lr=0.1))", "lr=0.1), callbacks=[Mine])"),
    ),
}

TARGETS = {
    "classes as floats": _of_torch(
        "(inputs, classes)",
        "(inputs, classes.float())",
        "a Tensor of shape (8, 3) and dtype float32; the targets are a Tensor of shape (8,) and dtype float32",
        "targets.squeeze(1).long()",
    ),
    "classes with a dimension too many": _of_torch(
        "(inputs, classes)",
        "(inputs, classes.unsqueeze(1))",
        "returned a Tensor of shape (8, 3) | the targets are a Tensor of shape (8, 1) and dtype int64",
        "without the second dimension: targets.squeeze(1).long()",
    ),
    "classes counted from 1": _of_torch(
        "(inputs, classes)",
        "(inputs, classes + 1)",
        "Target 3 is out of bounds. | returned a Tensor of shape (8, 3)",
        "indices of classes, from 0 to classes - 1 (or ignore_index)",
        error="IndexError",
    ),
    "one-hot classes as integers": _of_torch(
        ".float()",
        "",
        "the targets are a Tensor of shape (8, 3) and dtype int64",
        "the dtype of the outputs: targets.float()",
        script=_CLASSIFY.replace("inputs, classes)", "inputs, functional.one_hot(classes).float())"),
    ),
    "cross entropy with a single output": _of_batches(
        "nn.BCEWithLogitsLoss()",
        "nn.CrossEntropyLoss()",
        "outputs of shape (8, 1)",
        "Use nn.BCEWithLogitsLoss() with targets of dtype float32 and the shape of the outputs.",
        script=_TELL_APART,
    ),
    "a last batch of one sample that is squeezed": Mistake(
        _SQUEEZE,
        "squeeze(1)",
        "squeeze()",
        "ValueError",
        ("returned a Tensor of shape ()", "the targets are a Tensor of shape (1,)", "training step 2 of epoch 1"),
        "squeeze() removes the dimension of a single sample too: use squeeze(1).",
    ),
    "one value and several outputs": _of_batches(
        "nn.Linear(4, 1)",
        "nn.Linear(4, 4)",
        "outputs of shape (8, 4), targets of shape (8, 1)",
        "Let the model return outputs of shape (8, 1): its last layer decides the number for each sample.",
        script=_REGRESS,
    ),
    "a dimension too few, which would be broadcast": _of_batches(
        "values.unsqueeze(1)",
        "values",
        "outputs of shape (8, 1), targets of shape (8,)",
        "Add the last dimension to the targets: targets.unsqueeze(1).",
        script=_REGRESS,
    ),
    "a dimension too many, which would be broadcast": _of_batches(
        ".squeeze(1)",
        "",
        "outputs of shape (8,), targets of shape (8, 1)",
        "Take the last dimension from the targets: targets.squeeze(1).",
        script=_REGRESS.replace("nn.Linear(4, 1)", "nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))").replace(
            "values.unsqueeze(1)", "values.unsqueeze(1).squeeze(1)"
        ),
    ),
    "a loss that fails in the backward pass": _of_batches(
        ".float()",
        "",
        "outputs of shape (8, 1), targets of shape (8, 1)",
        "Convert the targets: targets.to(torch.float32).",
        script=_REGRESS.replace("MSELoss", "HuberLoss").replace(
            "values.unsqueeze(1)", "values.double().unsqueeze(1).float()"
        ),
    ),
    "no sigmoid before a loss of probabilities": _of_torch(
        "nn.BCEWithLogitsLoss()",
        "nn.BCELoss()",
        "should be between 0 and 1",
        "nn.BCEWithLogitsLoss() applies the sigmoid to the outputs itself.",
        script=_REGRESS.replace("MSELoss", "BCEWithLogitsLoss").replace(
            "values.unsqueeze(1)", "(values > 0).float().unsqueeze(1)"
        ),
    ),
    "outputs that are a tuple": _of_torch(
        "lambda outputs, targets: your_loss(outputs[0], targets)",
        "your_loss",
        "must be Tensor, not tuple | returned a tuple of 2",
        "loss_func=lambda outputs, targets: your_loss(outputs[0], targets).",
        script="class Two(nn.Linear):\n    def forward(self, x):\n        return super().forward(x), x\n"
        "model = Two(4, 3)\nyour_loss = nn.CrossEntropyLoss()\n"
        "trainer = Trainer(model, lambda outputs, targets: your_loss(outputs[0], targets), "
        "torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "trainer.train(TensorDataset(inputs, classes), 1)\n",
        error="TypeError",
    ),
    "a model that mixes samples up": _of_torch(
        "x.flatten(1)",
        "x.view(2, -1)[:, :4]",
        "returned a Tensor of shape (2, 3) | the targets are a Tensor of shape (8,)",
        "Expected input batch_size (2) to match target batch_size (8).",
        script="class Mixed(nn.Linear):\n    def forward(self, x):\n        return super().forward(x.flatten(1))\n"
        "model = Mixed(4, 3)\n"
        "trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "trainer.train(TensorDataset(inputs.unflatten(1, (2, 2)), classes), 1)\n",
        error="ValueError",
    ),
}

INPUTS = {
    "too few features": _of_torch(
        "nn.Linear(4, 3)",
        "nn.Linear(5, 3)",
        "the model, which is Linear(in_features=5 | with a Tensor of shape (8, 4) and dtype float32 as input",
        "Let the input have the dtype and the dimensions that the layer takes",
    ),
    "no flattening": _of_torch(
        "nn.Flatten(), nn.Linear",
        "nn.Linear",
        "the layer '1', which is Linear(in_features=32 | with a Tensor of shape (8, 2, 4, 4)",
        "nn.Flatten() before a linear layer",
        script=_SEE,
    ),
    "channels last": _of_torch(
        ".permute(0, 3, 1, 2)",
        "",
        "(8, 6, 6, 3)",
        "inputs.permute(0, 3, 1, 2) for the channels",
        script=_SEE.replace("images", "images.permute(0, 2, 3, 1).permute(0, 3, 1, 2)"),
    ),
    "images without channels": _of_torch(
        ".unsqueeze(1)",
        "",
        "with a Tensor of shape (8, 6, 6)",
        "inputs.unsqueeze(1) or ",
        script=_SEE.replace("nn.Conv2d(3", "nn.Conv2d(1").replace("images", "images[:, 0].unsqueeze(1)"),
    ),
    "indices as floats": _of_torch(
        ".long()",
        "",
        "Embedding(10, 4) | dtype float32 as input",
        "inputs.long() for indices",
        script=_READ.replace("(words", "(words.float().long()"),
    ),
    "a vocabulary that is too small": _of_torch(
        "nn.Embedding(11, 4)",
        "nn.Embedding(10, 4)",
        "index out of range | Embedding(10, 4)",
        "inputs.long() for indices",
        script=_READ.replace("10, 4", "11, 4").replace("(words", "(words.fill_(10)"),
        error="IndexError",
    ),
    "a model of two inputs": _of_torch(
        "trainer = MyTrainer(",
        "trainer = Trainer(",
        "Bilinear.forward() missing 1 required positional argument: 'input2'",
        _overriding("batch[0], batch[1]"),
        script=_OWN_STEP.replace("self.model(batch[0])", "self.model(batch[0], batch[1])")
        .replace("batch[1])\n        return", "batch[2])\n        return")
        .replace("len(batch[1])", "len(batch[2])")
        .replace("nn.Linear(4, 3)", "nn.Bilinear(4, 4, 3)")
        .replace("(inputs,", "(inputs, inputs,"),
        error="TypeError",
    ),
}

_THIRD_ITEM = {
    f"targets that are the third item, of a model that takes {taken}": Mistake(
        _THREE_ITEMS.replace("self.model(batch[0])", f"self.model({taken})").replace("nn.Linear(4, 3)", model),
        "trainer = MyTrainer(",
        "trainer = Trainer(",
        "RuntimeError",
        ("list of 3 [Tensor", "Tensor of shape (8, 3)", "training step 1 of epoch 1"),
        _overriding(taken),
    )
    for taken, model in (("batch[0]", "nn.Linear(4, 3)"), ("batch[0], batch[1]", "Weighted(4, 3)"))
}

_LAST_BATCH = {
    "a last batch of one sample for a batch norm": Mistake(
        _REGRESS.replace("nn.Linear(4, 1)", "nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))")
        .replace("inputs, values.unsqueeze(1)", "inputs[:9], values[:9].unsqueeze(1)")
        .replace("), 1)\n", '), 1, train_dataloader_kwargs={"drop_last": True})\n'),
        ', train_dataloader_kwargs={"drop_last": True}',
        "",
        "ValueError",
        ("of shape (1, 4)", "BatchNorm1d(4", "training step 2 of epoch 1"),
        'train(..., train_dataloader_kwargs={"drop_last": True}) leaves out a shorter last batch.',
    )
}

NOTHING_TO_TRAIN = {
    "an optimizer of no parameters": Mistake(
        _CLASSIFY,
        "SGD(model.parameters(), lr=0.1)",
        'SGD([{"params": []}], lr=0.1)',
        "ConfigurationError",
        ("SGD with 0 other parameters",),
        "Create the optimizer from model.parameters(), after replacing parts of the model.",
    )
}

_WATCH = """
import tempfile
model = nn.Linear(4, 3)
with tempfile.TemporaryDirectory() as folder:
    best = SaveBestModelCallback(folder + "/best.pt", watch_metric="eval_loss_epoch")
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[best])
    trainer.train(TensorDataset(inputs, classes), 1, eval_dataset=TensorDataset(inputs, classes))
"""

WATCHED = {
    "a metric that is misspelt": Mistake(
        _WATCH,
        '"eval_loss_epoch"',
        '"eval_los_epoch"',
        "MetricNotFoundError",
        ("watch_metric='eval_los_epoch'",),
        "Correct the name: watch_metric='eval_loss_epoch'.",
    ),
    "a metric of the evaluation, without one": Mistake(
        _WATCH,
        ", eval_dataset=TensorDataset(inputs, classes)",
        "",
        "ConfigurationError",
        ("watch_metric='eval_loss_epoch'", "no eval_dataset"),
        "Pass eval_dataset to Trainer.train(), or watch_metric='train_loss_epoch'.",
    ),
    "a metric that nobody records": Mistake(
        "class Mine(Trainer):\n    def eval_epoch_end(self):\n        self.run_history.update_metric('my_error', 0.5)\n"
        + _WATCH.replace("Trainer(model", "Mine(model").replace("eval_loss_epoch", "my_error"),
        "    def eval_epoch_end(self):\n        self.run_history.update_metric('my_error', 0.5)\n",
        "    pass\n",
        "MetricNotFoundError",
        ("watch_metric='my_error'",),
        "Record it before the end of each epoch: run_history.update_metric('my_error', ...).",
    ),
}

MISTAKES = {**WATCHED, **ARGUMENTS, **TARGETS, **INPUTS, **_THIRD_ITEM, **_LAST_BATCH, **NOTHING_TO_TRAIN}
