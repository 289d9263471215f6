"""A model that takes a dict and returns one, with metrics in the loop and in a callback."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103, T201

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn, optim
from torch.utils.data import Dataset
from torchmetrics import Accuracy, MetricCollection, Recall

from pytorch_accelerated import Trainer
from pytorch_accelerated.callbacks import TrainerCallback


class Tumours(Dataset):
    """Measurements of cell nuclei and whether the tumour is benign, each sample a dict."""

    def __init__(self, part):
        features, labels = load_breast_cancer(return_X_y=True)
        features = torch.tensor(features, dtype=torch.float32)
        self.features = ((features - features.mean(0)) / features.std(0))[part]
        self.labels = torch.tensor(labels)[part]

    def __len__(self):
        """The number of tumours."""
        return len(self.labels)

    def __getitem__(self, index):
        return {"features": self.features[index], "labels": self.labels[index]}


class ModelWithLoss(nn.Module):
    """Calculates its own loss where labels are given."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

    def forward(self, features, labels=None):
        logits = self.layers(features)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class DictTrainer(Trainer):
    """Feeds dicts to a model, and counts metrics in its own evaluation steps."""

    def __init__(self, model, optimizer, **kwargs):
        super().__init__(model, loss_func=None, optimizer=optimizer, **kwargs)
        self.metrics = MetricCollection(
            {
                "accuracy": Accuracy(task="multiclass", num_classes=2),
                "recall": Recall(task="multiclass", num_classes=2, average="macro"),
            }
        )

    def calculate_train_batch_loss(self, batch):
        outputs = self.model(**batch)
        return {"loss": outputs["loss"], "model_outputs": outputs["logits"], "batch_size": len(batch["labels"])}

    def calculate_eval_batch_loss(self, batch):
        with torch.no_grad():
            output = self.calculate_train_batch_loss(batch)
        self.metrics.update(output["model_outputs"].argmax(dim=-1), batch["labels"])
        return output

    def eval_epoch_end(self):
        for name, value in self.metrics.compute().items():
            self.run_history.update_metric(name, value.cpu())
        self.metrics.reset()


class CountMistakes(TrainerCallback):
    """Gathers the predictions of all processes and counts what is wrong."""

    def __init__(self):
        self.mistakes = 0

    def on_eval_epoch_start(self, trainer, **kwargs):
        self.mistakes = 0

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        predictions = trainer.gather(batch_output["model_outputs"]).argmax(dim=-1)
        self.mistakes += (predictions != trainer.gather(batch["labels"])).sum().item()

    def on_eval_epoch_end(self, trainer, **kwargs):
        trainer.run_history.update_metric("mistakes", self.mistakes)


def main(per_device_batch_size=32):
    torch.manual_seed(0)
    model = ModelWithLoss()
    trainer = DictTrainer(model, optim.Adam(model.parameters(), lr=0.01), callbacks=[CountMistakes()])
    trainer.train(
        train_dataset=Tumours(slice(0, 420)),
        eval_dataset=Tumours(slice(420, None)),
        num_epochs=5,
        per_device_batch_size=per_device_batch_size,
    )
    history = trainer.run_history
    return {name: [float(value) for value in history.get_metric_values(name)] for name in history.get_metric_names()}


if __name__ == "__main__":
    print(main())
