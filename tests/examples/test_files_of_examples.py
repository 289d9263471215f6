"""What examples print of the weights, predictions, tables and images that they write is so."""

from __future__ import annotations

import ast
import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.event_files import read_curves, read_images
from tests.examples.shared_launches import SharedLaunches
from tests.examples.ways import EXAMPLES, WAYS, load_example, numbers_in
from tests.launching import Launch

ONE, TWO = WAYS[:2]
ONE_AT_NIGHT = pytest.param(ONE, marks=pytest.mark.whole_proof)


def share(model: nn.Module, weights: Path, dataset: Any) -> float:
    """How many of the samples a model recognises with weights from a file, counted by hand."""
    model.load_state_dict(torch.load(weights, weights_only=True)["model_state_dict"])
    ((inputs, targets),) = DataLoader(dataset, batch_size=len(dataset))
    return int((model.eval()(inputs).argmax(dim=1) == targets).sum()) / len(dataset)


def test_two_ranks_count_each_test_digit_once(shared_launch: SharedLaunches) -> None:
    """The printed share is that of the saved weights over the 300 test digits."""
    launched = shared_launch("train_digits", TWO)
    example = load_example("train_digits")
    weights = launched.folder / "outputs" / "train_digits" / "best_digits.pt"
    recognised = share(example["make_model"](), weights, example["load_data"]()[2])
    assert f"Recognised {recognised:.1%} of the test digits" in launched.output


@pytest.mark.parametrize("way", [ONE, TWO])
def test_the_average_recognises_more_digits(shared_launch: SharedLaunches, way: str) -> None:
    """The printed share is that of the saved average; after some epochs, it is the larger one."""
    launched = shared_launch("average_weights", way)
    example = load_example("average_weights")
    weights = launched.folder / "outputs" / "average_weights" / "average_of_digits.pt"
    recognised = share(example["make_model"](), weights, example["load_data"]()[2])
    shares = re.findall(r"Recognised ([\d.]+)% of the test digits with the (last|best)", launched.output)
    assert [kind for _, kind in shares] == ["last", "best"]
    assert shares[1][0] == f"{100 * recognised:.1f}"
    if way == ONE:  # the run on two ranks is short
        assert float(shares[1][0]) > float(shares[0][0])


def test_two_ranks_print_the_share_of_the_average_that_a_script_of_pytorch_accelerated_saved(launch: Launch) -> None:
    """The script imports none of our packages by its own name, and the printed share is that of the saved average."""
    script = EXAMPLES / "porting" / "from_pytorch_accelerated.py"
    imports = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    imported = {str(node.module).partition(".")[0] for node in imports}
    assert "pytorch_accelerated" in imported
    assert [name for name in imported if name.startswith("pa_")] == []

    launched = launch(script, "--epochs=6", "--output=best", ranks=2)
    assert launched.status == 0
    example = load_example("porting/from_pytorch_accelerated")
    weights = launch.folder / "best" / "averaged_digits.pt"
    recognised = share(example["create_model"](), weights, example["load_data"]()[2])
    assert f"Recognised {recognised:.1%} of the test digits with averaged weights" in launched.output
    assert recognised >= 0.95
    assert "Trained by pa_core.trainer" in launched.output


def test_each_checkpoint_is_a_finished_model(shared_launch: SharedLaunches) -> None:
    """The shares that are printed are those of the saved weights over the 357 test digits."""
    launched = shared_launch("schedule_with_decays", ONE)
    example = load_example("schedule_with_decays")
    model: nn.Module = example["make_trainer"](example["WSDCheckpointCallback"](launched.folder)).model
    data = example["load_data"]()[1]
    outputs = launched.folder / "outputs" / "schedule_with_decays"
    saved = [(f"first/checkpoint_{updates}", str(updates)) for updates in (45, 90, 180)]
    assert re.findall(r"Recognised ([\d.]+%) of the test digits after (\d+) updates", launched.output) == [
        (f"{share(model, outputs / f'{name}_wsd_post_decay.pt', data):.1%}", updates)
        for name, updates in (*saved, ("longer/checkpoint_180", "360"))
    ]
    assert (outputs / "first" / "checkpoint_171_wsd_pre_decay").is_dir()


@pytest.mark.parametrize("way", [ONE_AT_NIGHT, TWO])
def test_each_set_is_counted_with_the_best_weights(shared_launch: SharedLaunches, way: str) -> None:
    """The printed shares are those of the saved weights over each set."""
    launched = shared_launch("several_evaluation_sets", way)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    weights = launched.folder / "outputs" / "several_evaluation_sets" / "best.pt"
    sets = load_example("several_evaluation_sets")["load_data"]()[1]
    assert [*sets] == ["clean", "noisy", "shifted"]
    for name, dataset in sets.items():
        recognised = share(model, weights, dataset)
        assert re.search(rf"^{name} +{recognised:.1%} recognised$", launched.output, re.MULTILINE), name


def test_the_best_weights_recognise_the_printed_share(shared_launch: SharedLaunches) -> None:
    """Trained on mixtures on two ranks, they are counted on the images of the evaluation as these are, each once."""
    launched = shared_launch("image_folder", TWO)
    ((printed, number),) = re.findall(r"recognises ([\d.]+)% of (\d+) other images", launched.output)
    output = launched.folder / "outputs" / "image_folder"
    assert len(list(output.glob("images/*/*/*.png"))) == 1500 + int(number)
    example = load_example("image_folder")
    transforms = example["transforms"]
    as_they_are = [transforms.Grayscale(), transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
    images = example["datasets"].ImageFolder(str(output / "images" / "eval"), transforms.Compose(as_they_are))
    model = example["timm"].create_model("test_convnext", num_classes=10, in_chans=1, patch_size=1)
    with torch.no_grad():
        assert f"{share(model, output / 'best.pt', images):.1%}" == f"{printed}%"


@pytest.mark.parametrize("way", [ONE_AT_NIGHT, TWO])
def test_the_file_has_each_sample_once_and_the_printed_accuracy(shared_launch: SharedLaunches, way: str) -> None:
    """The digits of the file are those of the test set, in its order, and the printed share is that of its guesses."""
    launched = shared_launch("predict_digits", way)
    with (launched.folder / "outputs" / "predict_digits" / "digits.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    digits = [int(digit) for _, digit in load_example("predict_digits")["load_data"]()[1]]
    assert [int(row["digit"]) for row in rows] == digits
    right = sum(row["digit"] == row["guess"] for row in rows)
    assert f"digits.csv has 300 predictions, {right / 300:.1%} of them are right." in launched.output
    least_certain = min(float(row["certainty"]) for row in rows)
    assert f"with a certainty of {least_certain:.1%}." in launched.output


def test_what_is_exported_needs_no_code_and_is_as_good(shared_launch: SharedLaunches) -> None:
    """The program takes one image or many, and its outputs have no dropout in them."""
    launched = shared_launch("export_digits", TWO)
    assert launched.output.count("of 297 digits, as the trained model") == 2
    program = torch.export.load(launched.folder / "outputs" / "export_digits" / "program.pt2").module()
    images = torch.rand(5, 8, 8)
    torch.testing.assert_close(program(images[:1]), program(images)[:1])
    torch.testing.assert_close(program(images), program(images), rtol=0, atol=0)


def test_the_saved_model_has_the_printed_loss(shared_launch: SharedLaunches) -> None:
    """Trained on two ranks, it is loaded by transformers alone; its mean over all tokens is what was printed."""
    launched = shared_launch("finetune_transformers", TWO)
    printed = numbers_in(launched.output.splitlines()[-1], r"(\d\.\d{3})")
    example = load_example("finetune_transformers")
    folder = launched.folder / "outputs" / "finetune_transformers" / "model"
    model = example["GPT2LMHeadModel"].from_pretrained(folder).eval()
    loss = num_tokens = 0.0
    for paragraph in example["load_data"]()[1]:
        with torch.no_grad():
            logits = model(paragraph[None]).logits[0, :-1]
        loss += torch.nn.functional.cross_entropy(logits, paragraph[1:], reduction="sum").item()
        num_tokens += len(paragraph) - 1
    assert printed == pytest.approx([loss / num_tokens] * 2, abs=0.001)


def test_the_mistakes_are_a_table_of_the_only_run(shared_launch: SharedLaunches) -> None:
    """On two ranks there is one run of Weights & Biases, whose table has a row for each text classified wrongly."""
    launched = shared_launch("classify_texts", TWO)
    numbers = re.findall(r"\d+", launched.output.splitlines()[-1])
    (table,) = launched.folder.glob("outputs/classify_texts/wandb/offline-run-*/files/media/table/mistakes_*.json")
    rows = json.loads(table.read_text())["data"]
    assert len(rows) == int(numbers[0]) - int(numbers[1])
    assert all(chapter != predicted for _, chapter, predicted in rows)


def test_the_images_stand_beside_the_metrics(shared_launch: SharedLaunches) -> None:
    """Of two ranks one writes; there is an image of each kind after each evaluation, and the losses go down."""
    folder = shared_launch("vae", TWO).folder / "outputs" / "vae" / "digits"
    images, curves = read_images(folder), read_curves(folder)
    steps = [step for step, _ in curves["eval_loss_epoch"]]
    kinds = ("reconstructions", "samples")
    assert {name: [step for step, _ in shown] for name, shown in images.items()} == dict.fromkeys(kinds, steps)
    assert [images[name][-1][1].shape for name in kinds] == [(3, 16, 80), (3, 40, 80)]
    assert curves["eval_loss_epoch"][0][1] > curves["eval_loss_epoch"][-1][1]
    assert len(list(folder.glob("events*"))) == 1
