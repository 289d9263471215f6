"""Permutations of any size that are computed on request, without a table."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pa_data.orders._keyed_numbers import as_int64, extend_keys

__all__ = ["Permutations", "permutations"]

_ROUNDS = 6
_MULTIPLIER_1 = as_int64(0xBF58_476D_1CE4_E5B9)  # of splitmix64, as in pa_data.rng
_MULTIPLIER_2 = as_int64(0x94D0_49BB_1331_11EB)


class Permutations(NamedTuple):
    """Permutations by key: one for all values, or one for each value; ``permutations`` returns them.

    They are a Feistel network over the smallest power of two that holds the size: six rounds of a keyed function on
    alternating halves of a value are a bijection of ``[0, 2**bits)`` (Luby and Rackoff, 1988). A result beyond the size
    is permuted again until it falls inside, which makes it a bijection of ``[0, size)`` (Black and Rogaway, "Ciphers
    with arbitrary finite domains", 2002). On average fewer than two passes are needed.

    Attributes:
        sizes: The number of permuted values.
        low_bits: The number of bits of the lower half of a value.
        low_mask: The mask of these bits.
        high_mask: The mask of the upper bits, shifted down.
        round_keys: The keys of the rounds in the first dimension.
    """

    sizes: Tensor
    low_bits: Tensor
    low_mask: Tensor
    high_mask: Tensor
    round_keys: Tensor

    def of(self, values: Tensor) -> Tensor:
        """Return the permuted values.

        Args:
            values: Integers of ``[0, size)``, as int64 in one dimension.

        Returns:
            As many integers of ``[0, size)``.
        """
        permuted = self._encrypt(values)
        outside = (permuted >= self.sizes).nonzero().squeeze(1)
        if outside.numel() > 0:
            permuted[outside] = self._chosen(outside).of(permuted[outside])
        return permuted

    def _chosen(self, values: Tensor) -> Permutations:
        return self if self.sizes.dim() == 0 else Permutations(*(part[..., values] for part in self))

    def _encrypt(self, values: Tensor) -> Tensor:
        high, low = values >> self.low_bits, values & self.low_mask
        for number, key in enumerate(self.round_keys):
            if number % 2 == 0:
                high ^= _scramble(low, key).bitwise_and_(self.high_mask)
            else:
                low ^= _scramble(high, key).bitwise_and_(self.low_mask)
        return (high << self.low_bits) | low


def permutations(sizes: Tensor, keys: Tensor) -> Permutations:
    """Return permutations of some sizes for some keys.

    Args:
        sizes: The number of permuted values, as int64: a scalar, or an element for each value.
        keys: The keys as their 64 bits in int64, in the shape of ``sizes``.

    Example:
        >>> permutation = permutations(torch.tensor(5), torch.tensor(1234))
        >>> sorted(permutation.of(torch.arange(5)).tolist())
        [0, 1, 2, 3, 4]
    """
    bits = torch.frexp((sizes - 1).to(torch.float64)).exponent.to(torch.int64).clamp_(min=2)
    low_bits = bits // 2
    rounds = torch.arange(_ROUNDS).view(-1, *[1] * keys.dim())
    return Permutations(sizes, low_bits, (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1, extend_keys(keys, rounds))


def _scramble(values: Tensor, key: Tensor) -> Tensor:
    """Return the result of a round: the upper 32 bits of a keyed multiply-xor-multiply that wraps at 64 bits."""
    mixed = (values ^ key).mul_(_MULTIPLIER_1)
    mixed ^= mixed >> 29
    return mixed.mul_(_MULTIPLIER_2).bitwise_right_shift_(32)
