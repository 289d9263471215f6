"""Fine-tune with LoRA (peft), and resume bit-for-bit.

A small vision transformer with random weights stands for `from_pretrained`, which would download one. Only the adapters
of peft and the new head learn. Killed, or stopped with Ctrl-C, the same command resumes from the newest training state.
All states share one file of the frozen weights, which is written once. At the end the adapters and the head are saved
by themselves, as peft reads them.

    pip install peft transformers scikit-learn
    python examples/lora.py
    torchrun --nproc-per-node 2 examples/lora.py
    accelerate launch --mixed_precision bf16 examples/lora.py

Delete outputs/lora to start over. The last two lines that it prints, with a checksum that depends on the versions of
torch and transformers:

    96.3% of new digits recognised; 38,154 of 439,188 parameters trained, saved in 156 kB
    The checksum of all weights is 2014909172
"""

from __future__ import annotations

import argparse
import zlib
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset, random_split
from transformers import ViTConfig, ViTForImageClassification

from pa_core import DEFAULT_CALLBACKS, SaveTrainingStateCallback, Trainer

Sample = dict[str, Tensor]


class Digits(Dataset):
    """The digits that come with scikit-learn, under the names of what the model takes."""

    def __init__(self) -> None:
        data, target = load_digits(return_X_y=True)
        self.images = torch.tensor(data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return {"pixel_values": self.images[index], "labels": self.labels[index]}


class DigitsTrainer(Trainer):
    """A trainer of a model that returns its own loss, which also records the share of digits that are recognised."""

    def calculate_eval_batch_loss(self, batch: Sample) -> dict[str, Any]:
        output = super().calculate_eval_batch_loss(batch)
        guesses = output["model_outputs"].logits.argmax(dim=1)
        self.log("accuracy", (guesses == batch["labels"]).float().mean())
        return output


def make_model() -> PeftModel:
    """Return a frozen transformer with trainable adapters in all its layers, and with a trainable head."""
    config = ViTConfig(
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        initializer_range=0.1,
        image_size=8,
        patch_size=4,
        num_channels=1,
        id2label={number: str(number) for number in range(10)},
    )
    lora = LoraConfig(r=8, lora_dropout=0.1, target_modules="all-linear", modules_to_save=["classifier"])
    model = get_peft_model(ViTForImageClassification(config), lora)
    assert isinstance(model, PeftModel)
    return model


def checksum(model: nn.Module) -> int:
    """Return a number that changes with any bit of the weights."""
    number = 0
    for tensor in model.state_dict().values():
        number = zlib.crc32(tensor.cpu().numpy().tobytes(), number)
    return number


def main(epochs: int = 6, output: Path = Path("outputs/lora")) -> None:
    """Train the adapters, or resume their training, save them, and print how good and how large they are."""
    torch.manual_seed(0)
    digits = Digits()
    train_digits, eval_digits = random_split(digits, [1500, len(digits) - 1500])
    model = make_model()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    states = output / "states"
    save = SaveTrainingStateCallback(states, save_every_n_steps=20, max_checkpoints=2, stop_on_signals=("SIGINT",))
    trainer = DigitsTrainer(model, None, torch.optim.AdamW(trained, lr=3e-3), [*DEFAULT_CALLBACKS, save])
    trainer.train(train_digits, epochs, eval_digits, 32, resume_from=states, resume_missing="start")
    if trainer.is_main_process:
        model.save_pretrained(str(output / "adapters"))
    trainer.wait_for_everyone()
    accuracy = trainer.run_history.get_latest_metric("eval_accuracy_epoch")
    counts = f"{sum(map(Tensor.numel, trained)):,} of {sum(map(Tensor.numel, model.parameters())):,} parameters"
    size = (output / "adapters" / "adapter_model.safetensors").stat().st_size / 1000
    trainer.print(f"{accuracy:.1%} of new digits recognised; {counts} trained, saved in {size:.0f} kB")
    trainer.print(f"The checksum of all weights is {checksum(model)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a LoRA on digits, in a run that can be stopped at any time.")
    parser.add_argument("--epochs", type=int, default=6, help="how often to go over the digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/lora"), help="where it writes")
    main(**vars(parser.parse_args()))
