"""What a plugin of accelerate asks for is sharded when the first run begins, with the weights of rank zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.utils.data import TensorDataset
from typing_extensions import override

from pa_core import ConfigurationError, Trainer, UnsupportedConfigurationError
from pa_core._tensors import is_sharded, is_unit
from tests.cells import forget_accelerate_state
from tests.support.pa_core.sharding.by_hand import require_same, updates_by_hand
from tests.support.pa_core.sharding.plugins import sharding
from tests.support.sharded_models import Block, TinyTransformer, sentences, tiny_transformer, whole_weights

pytestmark = pytest.mark.runs_on("two_ranks")

BY_CLASS: dict[str, Any] = {"auto_wrap_policy": "transformer_based_wrap", "transformer_cls_names_to_wrap": ["Block"]}


def updated_by_hand(data: TensorDataset, seed: int | None) -> TinyTransformer:
    """A model after an epoch of updates by eight samples."""
    model = tiny_transformer()
    list(updates_by_hand(model, data, seed, 8))
    return model


def units(model: nn.Module) -> set[str]:
    """The names of the modules that are gathered by themselves."""
    return {name for name, module in model.named_modules() if is_unit(module)}


def trained(model: nn.Module, **settings: Any) -> nn.Module:
    """The model after two updates in which it is sharded."""
    sharding(model, AdamW(model.parameters(), lr=0.01), **settings).train(TensorDataset(*sentences(8)), 1, None, 2)
    return model


def test_a_plugin_shards_what_the_trainer_was_given() -> None:
    """The first run splits the model in place, with an optimizer made before, and trains as one process does."""
    data = TensorDataset(*sentences(20))
    model = tiny_transformer(seed=dist.get_rank())
    optimizer = AdamW(model.parameters(), lr=0.01)
    trainer = sharding(model, optimizer, **BY_CLASS)
    trainer.train(data, 1, per_device_batch_size=4)
    assert trainer.get_model() is model
    assert trainer.optimizer is optimizer
    assert all(is_sharded(parameter) for parameter in model.parameters())
    assert set(map(id, optimizer.param_groups[0]["params"])) == set(map(id, model.parameters()))
    require_same(model, updated_by_hand(data, trainer.run_config.seed))


def test_a_model_stays_sharded_after_it_was_evaluated() -> None:
    """Torch would keep what is outside of the blocks whole until the next backward pass, also in an evaluation."""
    data, model = TensorDataset(*sentences(8)), tiny_transformer()
    trainer = sharding(model, AdamW(model.parameters(), lr=0.01))
    trainer.train(data, 2, data, per_device_batch_size=4)
    assert all(is_sharded(parameter) for parameter in model.parameters())
    trainer.evaluate(data)
    assert all(is_sharded(parameter) for parameter in model.parameters())


def by_type(module: nn.Module) -> bool:
    """Whether a module is a block, as a script would say it."""
    return isinstance(module, Block)


def of_torch() -> Any:
    """A policy of torch."""
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return ModuleWrapPolicy({Block})


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module .* returned a view tensor:UserWarning")  # a linear layer does
@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, {"blocks.0", "blocks.1"}),
        (BY_CLASS, {"blocks.0", "blocks.1"}),
        (
            {"auto_wrap_policy": "size_based_wrap", "min_num_params": 200},
            {"blocks.0", "blocks.0.feed", "blocks.1", "blocks.1.feed"},
        ),
        ({"auto_wrap_policy": by_type}, {"blocks.0", "blocks.1"}),
        ({"auto_wrap_policy": of_torch}, {"blocks.0", "blocks.1"}),
    ],
    ids=["repeated layers", "by class", "by size", "by a function", "by a policy of torch"],
)
def test_which_modules_are_gathered_by_themselves(settings: dict[str, Any], names: set[str]) -> None:
    """They are found, or chosen by class, by size or by a function."""
    if settings.get("auto_wrap_policy") is of_torch:
        settings = {"auto_wrap_policy": of_torch()}
    assert units(trained(tiny_transformer(), **settings)) == {"", *names}


def test_tied_weights_are_gathered_with_the_model() -> None:
    """A block that shares a parameter with another module is no block of its own, which a warning says."""
    model = tiny_transformer()
    cast("Any", model.blocks[0]).attend.weight = cast("Any", model.blocks[1]).attend.weight
    with pytest.warns(UserWarning, match=r"blocks\.0, blocks\.1 share parameters"):
        trained(model)
    assert cast("Any", model.blocks[0]).attend.weight is cast("Any", model.blocks[1]).attend.weight
    assert units(model) == {""}


def test_a_model_without_blocks_is_warned_of() -> None:
    """Its weights are whole on each process during a step, and the warning tells how to name blocks."""
    model = nn.Sequential(nn.Embedding(11, 8), nn.Flatten(), nn.Linear(40, 3))
    with pytest.warns(UserWarning, match="No blocks were found in Sequential.*transformer_cls_names_to_wrap"):
        trained(model)


def test_what_cannot_be_split_stays_whole() -> None:
    """Scalars and ignored modules train alike on all processes, as do, in half precision, batch norms."""

    class Scaled(TinyTransformer):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.norm = nn.Parameter(torch.tensor(2.0)), nn.BatchNorm1d(3)
            self.ignored = nn.Linear(3, 3)

        @override
        def forward(self, words: Tensor) -> Tensor:
            scaled: Tensor = self.ignored(self.norm(super().forward(words)).float()) * self.scale
            return scaled

    torch.manual_seed(dist.get_rank())
    model = trained(Scaled(), ignored_modules="ignored", _mixed_precision="bf16")
    whole = {name: one.detach() for name, one in model.named_parameters() if not is_sharded(one)}
    assert whole.keys() == {"scale", "norm.weight", "norm.bias", "ignored.weight", "ignored.bias"}
    assert whole["scale"] != 2
    for of_this_one in whole.values():
        of_first = of_this_one.clone()
        dist.broadcast(of_first, src=0)
        assert torch.equal(of_first, of_this_one)
    with torch.no_grad():
        assert model(sentences(4)[0]).dtype == torch.float32


class Tracking(Block):
    """Drops values at random, and keeps statistics in each of the ways in which a forward pass may change buffers."""

    centre: Tensor
    calls: Tensor

    def __init__(self) -> None:
        super().__init__(7)
        self.batch_norm = nn.BatchNorm1d(7)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(7, 7))
        self.register_buffer("centre", torch.zeros(7))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.computed = 0

    @override
    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        self.computed += 1
        self.centre = 0.9 * self.centre + 0.1 * hidden.detach().mean((0, 1))
        normalized = self.batch_norm(hidden.transpose(1, 2)).transpose(1, 2)
        outputs: Tensor = super().forward(hidden + self.spectral(normalized - self.centre))
        return nn.functional.dropout(outputs, 0.5, self.training)


class Tracked(TinyTransformer):
    """A model of such blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Tracking(), Tracking()])


@pytest.mark.parametrize("offloads", [False, True])
def test_activation_checkpointing(offloads: bool) -> None:
    """Blocks are computed again in the backward pass, with the same draws, and change buffers once.

    Running statistics, counters and all weights are those of a run that computes each forward pass once.
    """
    states: list[dict[str, Tensor]] = []
    computed: list[int] = []
    for checkpoints in (False, True):
        torch.manual_seed(0)
        settings = {
            "activation_checkpointing": checkpoints,
            "activation_checkpointing_offload": checkpoints and offloads,
        }
        model = trained(Tracked().double(), **settings)
        states.append({**whole_weights(model), **dict(model.named_buffers())})
        computed.append(cast("Any", model).blocks[0].computed)
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert states[1]["blocks.0.calls"] == states[1]["blocks.0.batch_norm.num_batches_tracked"] == 2
    assert computed == [2, 4]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch hides it
@pytest.mark.parametrize("by_blocks", [False, True])
def test_compiled_by_accelerate(by_blocks: bool) -> None:
    """Accelerate's settings compile the model, or its blocks, in place, and the weights stay the same."""
    from accelerate.utils import DynamoBackend, TorchDynamoPlugin

    plugin = TorchDynamoPlugin(backend=DynamoBackend.AOT_EAGER, use_regional_compilation=by_blocks)
    torch.manual_seed(0)
    expected = whole_weights(trained(tiny_transformer()))
    forget_accelerate_state()  # which has settings for compilation once for each process
    torch.manual_seed(0)
    model = trained(tiny_transformer(), _dynamo_plugin=plugin)
    compiled = {name for name, one in model.named_modules() if hasattr(one.forward, "_torchdynamo_orig_callable")}
    assert compiled == ({"blocks.0", "blocks.1"} if by_blocks else {""})
    torch.testing.assert_close(whole_weights(model), expected, rtol=0, atol=1e-12)


def test_an_optimizer_with_a_state_continues_on_its_pieces() -> None:
    """What it has kept for each parameter before the model was sharded is split with the parameter."""
    torch.manual_seed(0)
    data = TensorDataset(*sentences(8))
    model, expected = tiny_transformer(), tiny_transformer()
    optimizers = [AdamW(one.parameters(), lr=0.01) for one in (model, expected)]
    for one, optimizer in zip((model, expected), optimizers, strict=True):
        torch.autograd.backward(nn.functional.cross_entropy(one(data.tensors[0]), data.tensors[1]))
        optimizer.step()
        optimizer.zero_grad()
    sharding(model, optimizers[0]).train(data, 1, per_device_batch_size=4)
    torch.autograd.backward(nn.functional.cross_entropy(expected(data.tensors[0]), data.tensors[1]))
    optimizers[1].step()
    require_same(model, expected)


def with_hook(model: TinyTransformer) -> None:
    """Register a hook, as scripts do that step an optimizer in the backward pass."""
    cast("Any", model.head.weight).register_post_accumulate_grad_hook(print)


def with_two_dtypes(model: TinyTransformer) -> None:
    """Convert a part of the model."""
    model.head.float()


def with_sparse_gradients(model: TinyTransformer) -> None:
    """Let the embedding have sparse gradients."""
    model.embed.sparse = True


@pytest.mark.parametrize(
    ("change", "settings", "error", "message"),
    [
        (with_hook, {}, UnsupportedConfigurationError, "on head.weight"),
        (with_two_dtypes, {}, UnsupportedConfigurationError, "in float32"),
        (with_sparse_gradients, {}, UnsupportedConfigurationError, "Embedding"),
        (id, {**BY_CLASS, "transformer_cls_names_to_wrap": ["Blok"]}, ConfigurationError, "Blok"),
        (id, {"ignored_modules": "haed"}, ConfigurationError, "haed"),
    ],
)
def test_what_cannot_be_sharded(
    change: Callable[[Any], object], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    """It is refused before the first step, with what to do, and stays whole; so are names that the model lacks."""
    model = tiny_transformer()
    change(model)
    with pytest.raises(error, match=message):
        trained(model, **settings)
    assert not any(is_sharded(parameter) for parameter in model.parameters())


def test_an_optimizer_that_is_made_of_the_pieces() -> None:
    """A function makes it once, of the sharded model, and training is that of an optimizer that was made before."""
    data = TensorDataset(*sentences(20))
    model, made = tiny_transformer(), list[Optimizer]()

    def create(given: nn.Module) -> Optimizer:
        assert given is model
        assert all(is_sharded(parameter) for parameter in given.parameters())
        made.append(AdamW(given.parameters(), lr=0.01))
        return made[-1]

    trainer = sharding(model, None, create)
    trainer.evaluate(data, per_device_batch_size=4)
    trainer.train(data, 1, per_device_batch_size=4)
    require_same(model, updated_by_hand(data, trainer.run_config.seed))
    trainer.train(data, 1, per_device_batch_size=4)
    assert made == [trainer.optimizer]


@pytest.mark.runs_on("one_process")
def test_an_optimizer_that_is_made_without_sharding() -> None:
    """The function is called alike on one process, so that one script does for both."""
    model = tiny_transformer()
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), None, [], create_optimizer_fn=lambda model: AdamW(model.parameters(), lr=0.01)
    )
    trainer.train(TensorDataset(*sentences(8)), 1)
    assert isinstance(trainer.optimizer, AdamW)
