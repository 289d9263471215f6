"""Processes: ways to start them, which of them does what, and what they tell each other."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import (
    ConfigurationError,
    OtherProcessError,
    StopTrainingError,
    Trainer,
    UnsupportedConfigurationError,
    gather_objects,
    local_process_zero_first,
    local_process_zero_only,
    notebook_launcher,
    world_process_zero_only,
)
from pa_core.data import remove_padding
from pa_core.distributed import gather, num_processes, rank
from pa_core.distributed.collectives import broadcast_tensors
from pa_core.testing import make_classification
from tests.launching import Launch, forked_python, run_command
from tests.support.callbacks import CallAt
from tests.support.trainers import classifier_trainer

on_one_and_two_ranks = pytest.mark.runs_on("one_process", "two_ranks")

TRAIN = """
import json, sys
from pathlib import Path

import torch
import torch.distributed as dist
from pa_core import Trainer, notebook_launcher
from pa_core.testing import TinyClassifier, make_classification

def main(batch_size):
    torch.manual_seed(0)
    model = TinyClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, torch.nn.CrossEntropyLoss(), optimizer, callbacks=[])
    trainer.train(make_classification(60), num_epochs=3, per_device_batch_size=batch_size)
    weights = torch.cat([one.detach().reshape(-1) for one in model.parameters()])
    noted = {"runs on": trainer.describe_run(), "weights": weights.tolist()}
    rank = dist.get_rank() if dist.is_initialized() else 0
    Path(f"rank_{rank}.json").write_text(json.dumps(noted))
"""
WITHOUT_NOTEBOOK = "main(16)"
IN_NOTEBOOK = "notebook_launcher(main, (8,), num_processes=2, use_port='{port}')"

WITH_OWN_ACCELERATOR = """
import torch
from accelerate import Accelerator
from pa_core import Trainer

class WithOwnAccelerator(Trainer):
    def create_accelerator(self):
        return Accelerator()

print(WithOwnAccelerator(torch.nn.Linear(1, 1), None, None).describe_run())
"""
AFTER_AN_ACCELERATOR = """
import torch
from accelerate import Accelerator
from pa_core import Trainer

Accelerator()
Trainer(torch.nn.Linear(1, 1), None, None)
print("trains by itself")
"""
WITHOUT_VARIABLES = {"ACCELERATE_USE_CPU": None}

BEFORE_ANY_TRAINER = """
import os, sys
import torch
from pa_core import gather_objects, local_process_zero_only, world_process_zero_only
from pa_core.distributed import gather, sum_over_processes

mine = os.environ["RANK"]
number = torch.tensor([int(mine)])
if sys.argv[1] == "gather_objects":
    print(gather_objects(mine))
elif sys.argv[1] == "process zero":
    ran = (world_process_zero_only(str.upper)("of all"), local_process_zero_only(str.upper)("here"))
    print(f"{mine}: {ran}")
else:
    print(f"{gather(number).tolist()} {sum_over_processes(number).tolist()}")
"""


def idle_trainer() -> Trainer[nn.Linear]:
    """A trainer that nobody trains with."""
    return Trainer(nn.Linear(1, 1), None, None)


@pytest.fixture
def trainer() -> Trainer[nn.Linear]:
    """One such trainer for a test."""
    return idle_trainer()


def test_launchers_train_the_same_model(tmp_path: Path, free_port: int) -> None:
    """`accelerate launch` starts one process, `notebook_launcher` as many as asked; all train the same weights."""
    one = noted_by_ranks(tmp_path / "accelerate", WITHOUT_NOTEBOOK, "-m", "accelerate.commands.launch")
    two_in_notebook = noted_by_ranks(tmp_path / "notebook", IN_NOTEBOOK.format(port=free_port))
    alone, connected = (f"{processes}, device cpu, precision fp32" for processes in ("1 process", "2 processes (gloo)"))
    assert [noted["runs on"] for noted in (*one, *two_in_notebook)] == [alone, connected, connected]
    for noted in two_in_notebook:
        torch.testing.assert_close(torch.tensor(noted["weights"]), torch.tensor(one[0]["weights"]))


def noted_by_ranks(folder: Path, start: str, *launcher: str) -> list[dict[str, Any]]:
    """What each rank has noted at the end of a training that was started in a folder of its own."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(TRAIN + start)
    command = [*forked_python(), *launcher, str(script)]
    launched = run_command(command, folder=folder, env={"HF_HOME": str(folder)})
    assert launched.status == 0
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank_*.json"))]


def test_a_notebook_passes_its_precision_on() -> None:
    """`mixed_precision` of `notebook_launcher` is what the layers compute in, also with one process."""
    dtypes: set[torch.dtype] = set()

    def main() -> None:
        model = nn.Linear(4, 3)
        model.register_forward_hook(lambda module, inputs, output: dtypes.add(output.dtype))
        trainer = Trainer(nn.Sequential(model), nn.CrossEntropyLoss(), None)
        trainer.evaluate(make_classification(8))

    notebook_launcher(main, num_processes=1, mixed_precision="bf16")
    assert dtypes == {torch.bfloat16}
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ


def test_processes_of_a_notebook_that_has_made_a_trainer(trainer: Trainer[nn.Linear]) -> None:
    """They are refused, with what to do instead of where accelerate's check is; one process is none of them."""
    with pytest.raises(UnsupportedConfigurationError, match="num_processes=2, after a Trainer") as caught:
        notebook_launcher(idle_trainer, num_processes=2)
    assert caught.value.do == "Restart the kernel, and make the trainer inside the function."
    notebook_launcher(trainer.describe_run, num_processes=1)


def test_processes_with_an_own_accelerator_are_connected(launch: Launch) -> None:
    """Where there is no accelerator, `create_accelerator` need not say that its processes are on CPUs."""
    launched = launch(WITH_OWN_ACCELERATOR, ranks=2, env=WITHOUT_VARIABLES)
    assert launched.status == 0
    assert launched.output.count("2 processes (gloo), device cpu") == 2


def test_processes_that_would_not_be_connected(launch: Launch) -> None:
    """Two launched processes, each of which accelerate takes for the only one, end with an error that says so."""
    launched = launch(AFTER_AN_ACCELERATOR, ranks=2, env=WITHOUT_VARIABLES)
    assert launched.status != 0
    assert "UnsupportedConfigurationError" in launched.output
    assert "WORLD_SIZE=2, while accelerate runs 1 process" in launched.output
    assert "trains by itself" not in launched.output


def test_a_leftover_world_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """WORLD_SIZE without a launcher that has set it is an error, and not a wait for processes that never come."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UnsupportedConfigurationError, match="WORLD_SIZE=2 without RANK"):
        idle_trainer()


@pytest.mark.parametrize("of_all", ["gather_objects", "gather"])
def test_what_is_gathered_before_any_trainer_is_of_all_processes(of_all: str, launch: Launch) -> None:
    """In a script that has made no trainer yet, the processes are connected, instead of each being told of itself."""
    launched = launch(BEFORE_ANY_TRAINER, of_all, ranks=2)
    assert launched.status == 0
    assert launched.output.count({"gather_objects": "['0', '1']", "gather": "[0, 1] [1]"}[of_all]) == 2


def test_gathering_when_it_is_too_late_to_connect(trainer: Trainer[nn.Linear], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where accelerate has taken one of two launched processes for the only one, it is an error that says so."""
    assert trainer.num_processes == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UnsupportedConfigurationError, match="not connected with the other processes"):
        gather_objects("mine")


@pytest.mark.runs_on("two_ranks")
def test_a_stop_on_process_zero_is_no_failure_on_the_others() -> None:
    """The loop tells the others of it: a callback that only looks on process zero may end a run."""

    @world_process_zero_only
    def stop(_trainer: Any) -> None:
        raise StopTrainingError

    trainer = classifier_trainer(Trainer, CallAt("on_train_step_end", stop))
    trainer.train(make_classification(16), 1)
    assert trainer.num_updates_completed == 0


@on_one_and_two_ranks
@pytest.mark.parametrize("name", ["local_process_zero_first", "main_process_first", "local_main_process_first"])
def test_process_zero_goes_first(name: str, trainer: Trainer[nn.Linear], shared_tmp_path: Path) -> None:
    """What process zero prepares is there when the others enter the block or the function; nobody waits if it fails."""
    first: Any = getattr(trainer, name, local_process_zero_first)

    def look_and_prepare(file: str) -> bool:
        found = (shared_tmp_path / file).exists()
        time.sleep(0.1)  # another process would get ahead, if it could
        (shared_tmp_path / file).touch()
        return found

    with first():
        found = [look_and_prepare("in a block")]
    found += [first()(look_and_prepare)("in a function")]
    found += [local_process_zero_first(look_and_prepare)("without a call")]
    assert gather_objects(found) == [[one != 0] * 3 for one in range(num_processes())]

    def fail_on_zero() -> None:
        if rank() == 0:
            raise ConnectionError

    with contextlib.suppress(ConnectionError), first():
        fail_on_zero()
    for decorate in (first(), local_process_zero_first):
        with contextlib.suppress(ConnectionError):
            decorate(fail_on_zero)()
    assert gather_objects("went on") == ["went on"] * num_processes()


@on_one_and_two_ranks
def test_functions_that_some_processes_run(trainer: Trainer[nn.Linear]) -> None:
    """The others return None; of a trainer's own, they wait for nobody: a process may call such a function alone."""

    def greet(name: str, *, greeting: str) -> str:
        """Say hello."""
        return f"{greeting} {name}"

    last = trainer.num_processes - 1
    decorated = {
        world_process_zero_only(greet): 0,
        local_process_zero_only(greet): 0,
        trainer.on_main_process(greet): 0,
        trainer.on_local_main_process(greet): 0,
        trainer.on_process(process_index=last)(greet): last,
    }
    for number, (function, runs_on) in enumerate(decorated.items()):
        assert (function.__name__, function.__doc__) == ("greet", "Say hello.")
        expected = ["hello world" if one == runs_on else None for one in range(num_processes())]
        assert gather_objects(function("world", greeting="hello")) == expected
        if rank() == runs_on and number > 1:
            assert function("again", greeting="hello") == "hello again"
    for index in (last + 1, -1):
        if last == 0:  # so that a script runs everywhere
            assert trainer.on_process(process_index=3)(lambda: "runs")() == "runs"
        else:
            with pytest.raises(ConfigurationError, match=rf"process_index={index}\) would run on none of 2 processes"):
                trainer.on_process(process_index=index)


def test_functions_of_process_zero_before_any_trainer(launch: Launch) -> None:
    """In a script that has made no trainer yet, the processes are connected, instead of each being the first."""
    launched = launch(BEFORE_ANY_TRAINER, "process zero", ranks=2)
    assert launched.status == 0
    assert "0: ('OF ALL', 'HERE')" in launched.output
    assert "1: (None, None)" in launched.output


@on_one_and_two_ranks
def test_a_trainer_knows_its_process(trainer: Trainer[nn.Linear], shared_tmp_path: Path) -> None:
    """Which process this is, of how many, on its machine and on all; and where they wait for each other."""
    assert (trainer.process_index, trainer.local_process_index) == (rank(), rank())
    assert trainer.num_processes == num_processes()
    assert (trainer.is_main_process, trainer.is_local_main_process) == (rank() == 0, rank() == 0)
    assert torch.ones(1).to(trainer.device).device == trainer.device
    assert f"device {trainer.device}," in trainer.describe_run()
    if trainer.is_main_process:
        time.sleep(0.1)
        (shared_tmp_path / "prepared").touch()
    trainer.wait_for_everyone()
    assert (shared_tmp_path / "prepared").exists()


@pytest.mark.runs_on("two_ranks")
def test_a_function_on_some_processes_waits_for_nobody(trainer: Trainer[nn.Linear]) -> None:
    """What it calls may be decorated; where it would wait for the others, it is an error instead of a hang."""

    @world_process_zero_only
    def outer() -> str:
        return "not waited for"

    @trainer.on_main_process
    def wait() -> str | None:
        with trainer.main_process_first(), trainer.local_main_process_first():
            said = outer()
        with pytest.raises(OtherProcessError, match=r"(?s)wait forever for the others.*wait_for_everyone\(\)"):
            trainer.wait_for_everyone()
        return said

    assert gather_objects(wait()) == ["not waited for", None]
    trainer.wait_for_everyone()


@on_one_and_two_ranks
def test_print(trainer: Trainer[nn.Linear], capsys: pytest.CaptureFixture[str]) -> None:
    """`trainer.print` prints once on a machine, in the manner of `print`."""
    trainer.print("loss", 0.5, sep=": ", end=".\n")
    assert gather_objects(capsys.readouterr().out) == [
        "loss: 0.5.\n" if one == 0 else "" for one in range(num_processes())
    ]


def rows(of_rank: int, count: int) -> Tensor:
    """Some rows of two columns, different ones on each rank."""
    return torch.arange(2 * count).view(count, 2) + 100 * of_rank


class TestGather:
    """`trainer.gather`, on one rank and on two."""

    pytestmark = on_one_and_two_ranks

    @given(counts=st.tuples(st.integers(0, 5), st.integers(0, 5)))
    def test_different_numbers_of_rows(self, counts: tuple[int, int]) -> None:
        """All rows come together in the order of the ranks, however many each rank has, even none."""
        expected = torch.cat([rows(one, counts[one]) for one in range(num_processes())])
        assert torch.equal(idle_trainer().gather(rows(rank(), counts[rank()])), expected)

    @given(counts=st.tuples(st.integers(0, 5), st.integers(0, 5)), padding_value=st.sampled_from([-1, 0, 101]))
    def test_padding(self, counts: tuple[int, int], padding_value: int) -> None:
        """A padding value leaves no padding behind, also none that a script has made."""
        pieces = [nn.functional.pad(rows(one, counts[one]).flatten(), (0, 1), value=padding_value) for one in (0, 1)]
        expected = torch.cat([pieces[one] for one in range(num_processes())])
        gathered = idle_trainer().gather(pieces[rank()], padding_value=padding_value)
        assert torch.equal(gathered, expected[expected != padding_value])

    @pytest.mark.parametrize("placeholder", [torch.full((7,), -1.0), torch.full((1, 7), -1.0), torch.zeros(0)])
    def test_nothing_but_padding(self, trainer: Trainer[nn.Linear], placeholder: Tensor) -> None:
        """A process without predictions passes a placeholder of any shape, of which nothing is in the result."""
        assert len(trainer.gather(placeholder, padding_value=-1)) == 0
        predictions = torch.arange(14.0).view(2, 7)
        gathered = trainer.gather(placeholder if rank() == 0 else predictions, padding_value=-1)
        assert torch.equal(gathered, predictions if trainer.num_processes > 1 else torch.zeros_like(placeholder)[:0])

    @given(shapes=st.tuples(*[st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 2))] * 2))
    def test_padding_of_other_dimensions(self, shapes: tuple[tuple[int, int, int], ...]) -> None:
        """With a padding value the other dimensions may differ too: rows are filled up, none is padding alone."""
        pieces = [torch.arange(math.prod(shape)).view(shape) + 100 * one for one, shape in enumerate(shapes)]
        pieces = [pieces[one] for one in range(num_processes())]
        longest = [max(piece.size(dim) for piece in pieces) for dim in (1, 2)]
        filled = [
            nn.functional.pad(piece, (0, longest[1] - piece.size(2), 0, longest[0] - piece.size(1)), value=-1)
            for piece in pieces
        ]
        gathered = idle_trainer().gather(pieces[rank()], padding_value=-1)
        expected = torch.cat(filled)
        assert torch.equal(gathered, expected[(expected != -1).flatten(1).any(1)])

    @pytest.mark.runs_on("two_ranks")
    @pytest.mark.parametrize(
        ("shapes", "advice"), [([(2, 3), (2, 4)], "padding_value"), ([(2,), (0, 4)], "dimensions")]
    )
    def test_shapes_that_do_not_fit(self, trainer: Trainer[nn.Linear], shapes: Any, advice: str) -> None:
        """Where a collective would hang, or mix rows up, all ranks get an error with the shapes of each."""
        with pytest.raises(ConfigurationError, match=rf"on rank 0, .* on rank 1(.|\n)*{advice}"):
            trainer.gather(torch.zeros(shapes[rank()]))

    def test_containers(self, trainer: Trainer[nn.Linear]) -> None:
        """Nested containers come back as they were, with the gathered tensors in their places."""

        class Boxes(NamedTuple):
            corners: Tensor
            scores: list[Tensor]

        def predicted(of_rank: int) -> dict[str, Any]:
            some = rows(of_rank, 1 + of_rank)
            return {"boxes": Boxes(some, [some + 1, some + 2]), "pair": (some + 3, {"deep": some + 4})}

        gathered = trainer.gather(predicted(rank()))
        boxes = gathered["boxes"]
        parts = [boxes.corners, *boxes.scores, gathered["pair"][0], gathered["pair"][1]["deep"]]
        assert isinstance(boxes, Boxes)
        for offset, part in enumerate(parts):
            assert torch.equal(part, torch.cat([rows(one, 1 + one) for one in range(num_processes())]) + offset)

    def test_other_objects(self, trainer: Trainer[nn.Linear]) -> None:
        """What holds no tensors is refused on every rank, with the name of the function that takes it."""
        with pytest.raises(TypeError, match=r"(?s)str.*gather_objects"):
            trainer.gather({"name": "digit"})


LEAVES = """
import atexit
import torch.distributed as dist
from torch import nn
from pa_core import Trainer

atexit.register(lambda: print(f"left: {not dist.is_initialized()}", flush=True))  # runs behind what is registered later
for _ in range(2):
    trainer = Trainer(nn.Linear(1, 1), nn.MSELoss(), None, callbacks=[])
assert trainer.run_config is None and dist.get_world_size() == 2
dist.barrier()  # a process that ends while another one still connects to it takes that one along
"""


def test_a_process_leaves_the_others_in_order_when_it_ends(launch: Launch) -> None:
    """Threads of a process group that is not left can abort a process whose work is done."""
    launched = launch(LEAVES, ranks=2)
    assert launched.status == 0
    assert launched.output.count("left: True") == 2


@given(st.lists(st.integers(-3, 3)), st.integers(-3, 3))
def test_of_one_dimension_each_element_is_a_row(values: list[int], pad_value: int) -> None:
    """Class predictions, one number for each sample, lose exactly the elements with the padding value."""
    tensor = torch.tensor(values, dtype=torch.int64)
    assert remove_padding(tensor, pad_value).tolist() == [value for value in values if value != pad_value]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pad_value", [0.1, -100, math.nan, math.inf])
def test_the_value_is_compared_in_the_precision_of_the_tensor(dtype: torch.dtype, pad_value: float) -> None:
    """A padding value that the tensor can only hold rounded, or NaN, is found all the same."""
    rows = torch.tensor([[1.0, 2.0], [3.0, pad_value]], dtype=dtype)
    tensor = torch.cat([rows, rows.new_full((3, 2), pad_value)])
    assert torch.equal(remove_padding(tensor, pad_value).nan_to_num(), rows.nan_to_num())


def test_rows_of_any_shape() -> None:
    """Only a row whose every element is the padding value is taken away."""
    boxes = torch.arange(24.0).reshape(2, 3, 4)
    boxes[0, :, 1:] = -1
    assert torch.equal(remove_padding(torch.cat([boxes, torch.full((1, 3, 4), -1.0)]), -1), boxes)


SCRIPT = Path(__file__).with_name("resumed_on_three_ranks.py")


def test_a_resumed_run_on_three_processes_ends_with_the_same_bits(launch: Launch) -> None:
    """The sum of three numbers depends on their order; that of a first update after a start is that of all others."""
    launched = launch(SCRIPT, ranks=3)
    assert launched.status == 0
    assert "\n0 of 6649 weights differ" in f"\n{launched.output}"


RARE = (
    torch.int16,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.bool,
)
USUAL = (torch.uint8, torch.int64, torch.bfloat16, torch.float64)


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("dtype", [*RARE, *USUAL])
def test_tensors_of_any_type_are_gathered_by_value(dtype: torch.dtype) -> None:
    """Small integers and 8-bit floats are brought together as other types are, as tensors and within objects."""
    shown = [0.0, 1.0] if dtype == torch.bool else [2.0, 3.0, 4.0]
    rows = torch.tensor(shown)[: len(shown) - rank()].to(dtype)
    of_all = [value for number in range(num_processes()) for value in shown[: len(shown) - number]]
    for tensor in (rows, rows[:, None].expand(-1, 2)):
        gathered = gather(tensor)
        assert gathered.dtype == dtype
        assert gathered.to(torch.complex64).reshape(len(of_all), -1)[:, 0].tolist() == of_all
    numbers = gather(rows[-1].clone())
    assert numbers.shape == (num_processes(),)
    assert numbers.to(torch.complex64).tolist() == [shown[-1 - number] for number in range(num_processes())]
    for tensor in gather_objects({"rows": [rows]})[0]["rows"]:
        assert tensor.to(torch.complex64).tolist() == shown
    broadcast = rows[:1].clone() if rank() == 0 else torch.zeros(1).to(dtype)
    broadcast_tensors([broadcast])
    assert broadcast.to(torch.complex64).tolist() == shown[:1]


class WithBuffer(nn.Module):
    """A model with a buffer of a rare type."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("codes", torch.ones(3).to(dtype))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return cast("Tensor", self.layer(inputs))


class PredictsCodes(Trainer[WithBuffer]):
    """Predicts the buffer for each sample."""

    @override
    def predict_batch(self, batch: Any) -> Any:
        return cast("Tensor", self.model.codes)[:1].expand(len(batch[0])).clone()


@pytest.mark.runs_on("one_process", "two_ranks")
@pytest.mark.parametrize("dtype", RARE)
def test_a_model_with_a_buffer_of_a_rare_type_trains_and_predicts(dtype: torch.dtype) -> None:
    """Its buffer is given to all processes in each step, and what is predicted may be of its type."""
    data = TensorDataset(torch.ones(6, 1), torch.ones(6, 1))
    model = WithBuffer(dtype)
    trainer = PredictsCodes(model, nn.MSELoss(), torch.optim.SGD(model.parameters(), lr=0.1), callbacks=[])
    trainer.train(data, 1, data, per_device_batch_size=1)
    predicted = list(trainer.predict(data, 2))
    assert [one.to(torch.complex64).tolist() for one in predicted] == ([[1, 1]] * 3 if rank() == 0 else [])
