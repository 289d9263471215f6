"""Data and metrics of other libraries: a run of a small script that was interrupted ends bit for bit as a whole one."""

from __future__ import annotations

import importlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from typing_extensions import override

from pa_core import SaveTrainingStateCallback, Trainer, TrainerCallback
from pa_core.testing import make_regression
from tests.support.pa_core.training_states.small_runs import InterruptAt, Interrupted

everywhere = pytest.mark.runs_on("one_process", "two_ranks")


class OfLibrary:
    """What a test needs of the data of a library.

    Args:
        data: Makes what is trained on.
        trainer: The class of the trainer.
        model: Makes the model.
        options: Further arguments of `train`. A stream, which needs a number of updates, makes its batches itself.
    """

    def __init__(
        self,
        data: Callable[[], Any],
        *,
        trainer: type[Trainer[nn.Module]] = Trainer,
        model: Callable[[], nn.Module] = lambda: nn.Linear(4, 1),
        **options: Any,
    ) -> None:
        self._data, self._trainer, self._model = data, trainer, model
        self._options: dict[str, Any] = options
        if "max_num_train_steps" not in options:
            self._options = {"per_device_batch_size": 4, **options}

    def train(self, folder: Path, *callbacks: TrainerCallback) -> str:
        """Train in three epochs, or go on, and return the fingerprint."""
        torch.default_generator.manual_seed(0)
        model = self._model()
        saving = SaveTrainingStateCallback(folder, save_every_n_steps=1)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        trainer = self._trainer(model, nn.MSELoss(), optimizer, callbacks=[*callbacks, saving])
        trainer.train(self._data(), 3, resume_from=folder, resume_missing="start", **self._options)
        return trainer.fingerprint()


def require_resumes(script: OfLibrary, folder: Path) -> None:
    """Interrupt the script in the middle of its second epoch, and compare its end with that of a whole run."""
    whole = script.train(folder / "whole")
    with pytest.raises(Interrupted):
        script.train(folder / "resumed", InterruptAt("on_optimizer_step_end", 6))
    assert script.train(folder / "resumed") == whole


def rank() -> int:
    """The rank of this process."""
    return dist.get_rank() if dist.is_initialized() else 0


@everywhere
def test_a_data_frame_of_polars(shared_tmp_path: Path) -> None:
    """What `DataFrame.to_torch` returns is a dataset."""
    polars: Any = pytest.importorskip("polars")
    inputs, targets = (tensor.numpy() for tensor in make_regression(32).tensors)
    columns = {f"x{number}": inputs[:, number] for number in range(4)}
    frame = polars.DataFrame({**columns, "y": targets[:, 0]})

    def data() -> Any:
        return frame.to_torch("dataset", label="y", dtype=polars.Float32)

    require_resumes(OfLibrary(data, model=lambda: nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))), shared_tmp_path)


class ByGraph(Trainer[nn.Module]):
    """Batches are graphs, which the model is called with."""

    @override
    def calculate_train_batch_loss(self, batch: Any) -> dict[str, Any]:
        outputs = self.model(batch)
        return {"loss": self.loss_func(outputs, batch.y), "model_outputs": outputs, "batch_size": batch.num_graphs}


@everywhere
def test_graphs_of_torch_geometric(shared_tmp_path: Path) -> None:
    """A list of graphs is a dataset, and its library puts them together."""
    geometric: Any = pytest.importorskip("torch_geometric.data")
    layers: Any = importlib.import_module("torch_geometric.nn")

    class Graphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.head = layers.GCNConv(3, 8), nn.Linear(8, 1)

        @override
        def forward(self, batch: Any) -> Tensor:
            nodes = self.convolution(batch.x, batch.edge_index).relu()
            outputs: Tensor = self.head(layers.global_mean_pool(nodes, batch.batch))
            return outputs

    edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    nodes = torch.randn(32, 3, 3, generator=torch.Generator().manual_seed(0))
    graphs = [geometric.Data(x=x, edge_index=edges, y=x.sum().reshape(1, 1)) for x in nodes]
    collate = geometric.Batch.from_data_list
    require_resumes(OfLibrary(lambda: graphs, trainer=ByGraph, model=Graphs, collate_fn=collate), shared_tmp_path)


def write_shard(path: Path, start: int, number: int) -> None:
    """Write samples as webdataset reads them."""
    with tarfile.open(path, "w") as archive:
        for key in range(start, start + number):
            content = io.BytesIO()
            np.save(content, np.full(5, key / 32, dtype=np.float32))
            entry = tarfile.TarInfo(f"{key:04}.npy")
            entry.size = content.tell()
            content.seek(0)
            archive.addfile(entry, content)


def inputs_and_target(sample: Any) -> tuple[Any, Any]:
    """Divide the five numbers of a sample."""
    return sample[0][:4], sample[0][4:]


@everywhere
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it leaves files to the collector
def test_shards_that_webdataset_divides(shared_tmp_path: Path) -> None:
    """With `split_by_node`, each process trains on its own shards, once the script has said so."""
    webdataset: Any = pytest.importorskip("webdataset")
    if rank() == 0:
        for shard in range(4):
            write_shard(shared_tmp_path / f"{shard}.tar", 8 * shard, 8)
    if dist.is_initialized():
        dist.barrier()
    shards = [str(shared_tmp_path / f"{shard}.tar") for shard in range(4)]

    def data() -> Any:
        dataset = webdataset.WebDataset(shards, shardshuffle=False, nodesplitter=webdataset.split_by_node)
        samples = dataset.decode().to_tuple("npy").map(inputs_and_target)
        samples.own_share = True
        return DataLoader(samples, batch_size=4)

    require_resumes(OfLibrary(data, max_num_train_steps=12), shared_tmp_path)


class Augmented(Dataset[tuple[Tensor, Tensor]]):
    """Pictures that a library changes by chance, which is seeded for each of them as the documentation says.

    Args:
        change: Changes a picture, after it was given a seed.
    """

    def __init__(self, change: Callable[[Any, int], Any]) -> None:
        self._change = change
        self._pictures = np.random.default_rng(0).random((32, 8, 8, 1), dtype=np.float32)

    def __len__(self) -> int:
        """Return the number of pictures."""
        return len(self._pictures)

    @override
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        changed = self._change(self._pictures[index], int(torch.randint(2**31, ())))
        return torch.as_tensor(np.asarray(changed)).flatten()[:4], torch.ones(1)


@everywhere
def test_transforms_of_albumentations(shared_tmp_path: Path) -> None:
    """They draw from generators of their own; seeded for each sample, they resume without a warning."""
    albumentations: Any = pytest.importorskip("albumentations")

    def data() -> Dataset[Any]:
        transform = albumentations.Compose([albumentations.HorizontalFlip(), albumentations.GaussNoise(p=1.0)])

        def change(picture: Any, seed: int) -> Any:
            transform.set_random_seed(seed)
            return transform(image=picture)["image"]

        return Augmented(change)

    require_resumes(OfLibrary(data), shared_tmp_path)


@everywhere
def test_transforms_of_monai(shared_tmp_path: Path) -> None:
    """As above, with its `set_random_state`."""
    transforms: Any = pytest.importorskip("monai.transforms")

    def data() -> Dataset[Any]:
        transform = transforms.Compose([transforms.RandFlip(prob=0.5), transforms.RandGaussianNoise(prob=1.0)])
        return Augmented(lambda picture, seed: transform.set_random_state(seed)(picture))

    require_resumes(OfLibrary(data), shared_tmp_path)
