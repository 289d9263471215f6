"""Transfer learning: a network that knows the digits 0 to 4 learns 5 to 9, its head first and the rest later."""

# Written as users write, who annotate nothing: that it runs is what the tests are about, not what its types are.
# mypy: ignore-errors
# pyright: basic, reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportOptionalMemberAccess=false
# ruff: noqa: D102, D103, T201

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import TensorDataset

from pytorch_accelerated.callbacks import EarlyStoppingCallback, SaveBestModelCallback, TrainerCallback
from pytorch_accelerated.finetuning import ModelFreezer
from pytorch_accelerated.schedulers.cosine_scheduler import CosineLrScheduler
from pytorch_accelerated.trainer import Trainer


class DigitsModel(nn.Module):
    """Two blocks of convolutions and a head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU())
        self.block = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(16 * 4 * 4, 5)

    def forward(self, images):
        return self.head(self.block(self.stem(images)))


class Accuracy(TrainerCallback):
    """Counts the hits on all processes."""

    def __init__(self):
        self.hits = []

    def on_eval_step_end(self, trainer, batch, batch_output, **kwargs):
        hits = batch_output["model_outputs"].argmax(-1) == batch[1]
        self.hits.append(trainer.gather(hits))

    def on_eval_epoch_end(self, trainer, **kwargs):
        trainer.run_history.update_metric("accuracy", torch.cat(self.hits).float().mean().item())
        self.hits = []


def digits(labels, part):
    scanned = load_digits()
    images, targets = torch.tensor(scanned.images, dtype=torch.float32), torch.tensor(scanned.target)
    chosen = (targets >= labels.start) & (targets < labels.stop)
    return TensorDataset(images[chosen].unsqueeze(1)[part] / 16, targets[chosen][part] - labels.start)


def create_callbacks():
    return [
        Accuracy,
        SaveBestModelCallback(save_path="transferred.pt", watch_metric="accuracy", greater_is_better=True),
        EarlyStoppingCallback(early_stopping_patience=3, early_stopping_threshold=0.001),
    ]


def main(per_device_batch_size=32):
    torch.manual_seed(0)
    known, new, unseen = (
        digits(range(5), slice(None)),
        digits(range(5, 10), slice(60)),
        digits(range(5, 10), slice(600, None)),
    )

    model = DigitsModel()
    trainer = Trainer(model, nn.CrossEntropyLoss(), optim.Adam(model.parameters(), lr=0.01), callbacks=[])
    trainer.train(known, num_epochs=2, per_device_batch_size=per_device_batch_size)

    model.head = nn.Linear(model.head.in_features, 5)
    freezer = ModelFreezer(model)
    freezer.freeze()
    stem_before = model.stem[0].weight.detach().clone()
    optimizer = optim.Adam(freezer.get_trainable_parameters(), lr=0.02)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, callbacks=create_callbacks())
    trainer.train(new, num_epochs=4, eval_dataset=unseen, per_device_batch_size=per_device_batch_size)
    stem_kept = torch.equal(stem_before, model.stem[0].weight)
    of_head = list(trainer.run_history.get_metric_values("accuracy"))

    unfrozen = freezer.unfreeze(from_index=-2)
    for group in unfrozen.values():
        trainer.optimizer.add_param_group({"params": group["params"], "lr": 0.002})
    trainer.train(
        new,
        num_epochs=6,
        eval_dataset=unseen,
        per_device_batch_size=per_device_batch_size,
        create_scheduler_fn=CosineLrScheduler.create_scheduler_fn(num_warmup_epochs=1, num_cooldown_epochs=1),
    )
    return {
        "stem_kept": stem_kept,
        "stem_changed": not torch.equal(stem_before, model.stem[0].weight),
        "unfrozen_groups": sorted(unfrozen),
        "of_head": of_head,
        "of_all": list(trainer.run_history.get_metric_values("accuracy")),
        "weight": model.block[0].weight.sum().item(),
        "rates": [group["lr"] for group in trainer.optimizer.param_groups],
    }


if __name__ == "__main__":
    print(main())
