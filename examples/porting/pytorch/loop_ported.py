"""Train a small network on scanned digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from pa_core import Run, SaveTrainingStateCallback

torch.manual_seed(0)
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)

save = SaveTrainingStateCallback("states/loop", save_every_n_steps=50)
with Run(model, optimizer, data, num_epochs=5, per_device_batch_size=32, callbacks=[save],
         resume_from="states/loop", resume_missing="start") as run:
    for epoch in run.epochs():
        for step, (images, targets) in enumerate(run.batches()):
            loss = F.cross_entropy(model(images), targets)
            run.backward(loss)
            run.step()
            if step % 50 == 0:
                run.print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
if run.is_main_process:
    torch.save(model.state_dict(), "digits.pt")
