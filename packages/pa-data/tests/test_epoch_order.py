"""The order of an epoch: a permutation that depends on (seed, epoch) alone, and is never materialised."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pa_data.orders import Mixture, epoch_order
from pa_data.orders._epoch_order import RANDPERM_LIMIT
from pa_data.rng import extend_key, mix
from tests.support.drawing import Indices

ALGORITHMS = ["identity", "randperm-v1", "feistel-v1"]
SHUFFLES = ALGORITHMS[1:]

seeds = st.integers(-(2**70), 2**70)


def whole(num_samples: int, algorithm: str, seed: int = 0, epoch: int = 0) -> list[int]:
    """Return a whole order as a list."""
    order = epoch_order(num_samples, seed=seed, epoch=epoch, algorithm=algorithm)
    return [int(index) for index in order.indices(0, num_samples)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(num_samples=st.integers(0, 700), seed=seeds, epoch=st.integers(0, 1000))
def test_every_sample_has_one_position(algorithm: str, num_samples: int, seed: int, epoch: int) -> None:
    """An order visits each sample exactly once, at any size, seed and epoch."""
    assert sorted(whole(num_samples, algorithm, seed, epoch)) == list(range(num_samples))


@pytest.mark.parametrize("num_samples", [65_535, 65_536, 65_537, 131_072, 200_003])
def test_every_sample_has_one_position_across_the_chunks(num_samples: int) -> None:
    """The order that is computed in chunks is a permutation where several chunks are needed, too."""
    order = epoch_order(num_samples, seed=1, epoch=2, algorithm="feistel-v1")
    assert torch.equal(order.indices(0, num_samples).sort().values, torch.arange(num_samples))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@given(data=st.data())
def test_a_part_is_a_part_of_the_whole(algorithm: str, data: st.DataObject) -> None:
    """Any part of an order, asked for by itself, is that part of the whole."""
    num_samples = data.draw(st.integers(1, 300))
    start = data.draw(st.integers(0, num_samples))
    stop = data.draw(st.integers(start, num_samples))
    part = epoch_order(num_samples, seed=3, epoch=1, algorithm=algorithm).indices(start, stop)
    assert part.dtype == torch.int64
    assert [int(index) for index in part] == whole(num_samples, algorithm, seed=3, epoch=1)[start:stop]


def test_a_part_that_spans_chunks_is_a_part_of_the_whole() -> None:
    """A part that begins in one chunk and ends in another is whole, whatever was asked for before."""
    order = epoch_order(200_003, seed=3, epoch=1, algorithm="feistel-v1")
    everything = order.indices(0, 200_003)
    for start, stop in [(65_530, 65_540), (199_990, 200_003), (0, 3), (60_000, 140_000), (65_536, 131_072)]:
        assert torch.equal(order.indices(start, stop), everything[start:stop])


@pytest.mark.parametrize("algorithm", SHUFFLES)
def test_seed_and_epoch_decide(algorithm: str) -> None:
    """Each epoch and seed has an order of its own; epoch 0 of the next seed is not epoch 1 of this."""
    orders = {tuple(whole(64, algorithm, seed, epoch)) for seed in range(8) for epoch in range(8)}
    assert len(orders) == 64
    assert tuple(range(64)) not in orders
    assert whole(64, algorithm, 5, 2) == whole(64, algorithm, 5, 2)


@pytest.mark.parametrize("algorithm", SHUFFLES)
def test_every_position_is_as_likely_as_any_other(algorithm: str) -> None:
    """Over many epochs each sample is found at each position about equally often."""
    size, epochs = 16, 4096
    counts = torch.zeros(size, size)
    for epoch in range(epochs):
        counts[torch.arange(size), torch.tensor(whole(size, algorithm, epoch=epoch))] += 1
    expected = epochs / size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    # 225 degrees of freedom: mean 225, standard deviation 21.
    assert 130 < chi_square < 330


@pytest.mark.parametrize("algorithm", SHUFFLES)
def test_neighbours_are_torn_apart(algorithm: str) -> None:
    """Samples that are next to each other in the dataset are not next to each other in the order."""
    order = torch.tensor(whole(5000, algorithm)).double()
    assert abs(float(torch.corrcoef(torch.stack([order[:-1], order[1:]]))[0, 1])) < 0.05


@pytest.mark.parametrize(
    ("algorithm", "num_samples", "digest"),
    [
        ("identity", 1000, "a1002f575c7074b1"),
        ("randperm-v1", 1000, "31c7325fd6f21859"),
        ("feistel-v1", 1000, "301e64520eff43cb"),
        ("feistel-v1", 100_003, "1aa0beb2f28b911e"),
    ],
)
def test_a_stored_name_means_the_same_order_forever(algorithm: str, num_samples: int, digest: str) -> None:
    """A training state stored by any version finds the order that it was stored with."""
    order = epoch_order(num_samples, seed=42, epoch=7, algorithm=algorithm)
    text = ",".join(str(int(index)) for index in order.indices(0, num_samples))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest


def test_the_defaults_follow_shuffle_and_size() -> None:
    """Without a name, shuffle and the number of samples decide which order it is."""
    assert epoch_order(10, seed=0, epoch=0, shuffle=False).algorithm == "identity"
    assert epoch_order(RANDPERM_LIMIT, seed=0, epoch=0).algorithm == "randperm-v1"
    assert epoch_order(RANDPERM_LIMIT + 1, seed=0, epoch=0).algorithm == "feistel-v1"


def test_a_name_wins_over_shuffle() -> None:
    """What a stored state names is reproduced, whatever the loader would do by default."""
    order = epoch_order(10, seed=0, epoch=0, shuffle=False, algorithm="randperm-v1")
    assert order.algorithm == "randperm-v1"
    assert [int(index) for index in order.indices(0, 10)] == whole(10, "randperm-v1")


def test_a_hundred_million_samples_hold_no_table() -> None:
    """The order of 1e8 samples is read anywhere at once, and holds no more than one chunk."""
    order = epoch_order(100_000_000, seed=0, epoch=0)
    for start in (0, 50_000_000, 99_999_000):
        part = order.indices(start, start + 1000)
        assert len({int(index) for index in part}) == 1000
        assert int(part.min()) >= 0
        assert int(part.max()) < 100_000_000
    tensors = [value for value in vars(order).values() if isinstance(value, torch.Tensor)]
    assert sum(tensor.numel() for tensor in tensors) <= 65_536


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 11)])
def test_positions_outside_the_epoch_are_refused(start: int, stop: int) -> None:
    """Asking for positions that the epoch does not have is an error, not a shorter answer."""
    with pytest.raises(IndexError, match="epoch of 10 samples"):
        epoch_order(10, seed=0, epoch=0).indices(start, stop)


@pytest.mark.parametrize("stop", [-1, 11])
def test_shares_of_positions_outside_the_epoch_are_refused(stop: int) -> None:
    """Those of a mixture, and of an order with a single source."""
    mixture = Mixture({"ours": Indices(4), "others": Indices(6)}).default_order
    for order in (mixture.epoch_order(10, seed=0, epoch=0), epoch_order(10, seed=0, epoch=0)):
        with pytest.raises(IndexError, match="epoch of 10 samples"):
            order.shares(stop)


@given(st.lists(seeds, max_size=4), seeds)
def test_a_key_is_extended_value_by_value(values: list[int], value: int) -> None:
    """Mixing more values is extending the key of the first ones, in 64 bits."""
    assert mix(*values, value) == extend_key(mix(*values), value)
    assert 0 <= mix(*values) < 2**64


def test_the_mixing_function_never_changes() -> None:
    """Keys of stored runs stay what they were."""
    # The first is also the first output of splitmix64 seeded with 0, as published.
    assert [hex(mix(0)), hex(mix(1, 2, 3)), hex(mix(-1))] == [
        "0xe220a8397b1dcdaf",
        "0xd0734750fde362b3",
        "0xe4d971771b652c20",
    ]


def test_neighbouring_keys_differ_in_half_of_their_bits() -> None:
    """Samples next to each other get keys that have nothing in common, in either half."""
    key = mix(0, 0)
    for half in (0, 32):
        flipped = [
            ((extend_key(key, index) ^ extend_key(key, index + 1)) >> half & 0xFFFFFFFF).bit_count()
            for index in range(2000)
        ]
        assert 15.5 < sum(flipped) / len(flipped) < 16.5
