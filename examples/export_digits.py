"""Export a model as safetensors and with `torch.export`.

`save_model` writes safetensors, which the module of any other script loads. `torch.export` writes the computation too,
for any batch size: it needs neither the class nor pa-core where it is run. Both give what the trained model gives.

    python examples/export_digits.py
    torchrun --nproc-per-node 2 examples/export_digits.py
    accelerate launch --mixed_precision bf16 examples/export_digits.py

The last lines that it prints:

    outputs/export_digits/weights/model.safetensors (20,944 bytes): 92.9% of 297 digits, as the trained model
    outputs/export_digits/program.pt2 (500,008 bytes): 92.9% of 297 digits, as the trained model
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from pa_core import Trainer


def make_model() -> nn.Sequential:
    """Return a network that has dropout and a batch norm, which act otherwise in training."""
    hidden = nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


def load_data() -> tuple[TensorDataset, Tensor, Tensor]:
    """Return digits to train on, and the pixels and names of others."""
    data, target = load_digits(return_X_y=True)
    pixels, names = torch.tensor(data, dtype=torch.float32).view(-1, 8, 8) / 16, torch.tensor(target)
    return TensorDataset(pixels[:1500], names[:1500]), pixels[1500:], names[1500:]


def export(model: nn.Module, example: Tensor, path: Path) -> None:
    """Write a model as a program that takes batches of any size."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    torch.export.save(torch.export.export(model, (example,), dynamic_shapes=({0: batch},)), path)


@torch.no_grad()
def describe(path: Path, model: Callable[[Tensor], Tensor], expected: Tensor, pixels: Tensor, names: Tensor) -> str:
    """Say how good an exported model is, and whether it does what the trained one does."""
    logits = model(pixels)
    same = "as" if torch.allclose(logits, expected, atol=1e-5) else "other than"
    right = (logits.argmax(dim=1) == names).float().mean().item()
    size = f"{path.as_posix()} ({path.stat().st_size:,} bytes)"
    return f"{size}: {right:.1%} of {len(names)} digits, {same} the trained model"


def main(epochs: int = 10, output: Path = Path("outputs/export_digits")) -> None:
    """Train, export in two ways, and try out what was exported as another program would."""
    torch.manual_seed(0)
    train_dataset, pixels, names = load_data()
    model = make_model()
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), lr=3e-3))
    trainer.train(train_dataset, epochs, per_device_batch_size=32)

    trainer.save_model(output / "weights")  # every process may call it, the first one writes
    if not trainer.is_main_process:
        return
    trained = trainer.get_model().to("cpu").eval()  # after train() it is in training mode: dropout would be exported
    with torch.no_grad():
        expected = trained(pixels)
    weights, program = output / "weights" / "model.safetensors", output / "program.pt2"
    export(trained, pixels[:2], program)

    # From here on as another program would; that one needs the file, and for the weights `make_model` too.
    fresh = make_model()
    fresh.load_state_dict(load_file(weights))
    print(describe(weights, fresh.eval(), expected, pixels, names))
    print(describe(program, torch.export.load(program).module(), expected, pixels, names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Export a model that was trained on scanned digits.")
    parser.add_argument("--epochs", type=int, default=10, help="how often to go over the training digits")
    parser.add_argument("--output", type=Path, default=Path("outputs/export_digits"), help="where it writes")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.output)
