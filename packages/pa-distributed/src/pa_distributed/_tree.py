"""The fixed binary tree over the micro-batches of an update that defines the order in which their gradients are added.

A node covers the micro-batches from ``place << level`` to the next multiple of ``1 << level``, or to the last
micro-batch. Which nodes are added to each other depends only on the number of micro-batches, not on the processes that
compute them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

_T = TypeVar("_T")


class Node(NamedTuple, Generic[_T]):
    """The sum over some neighboring micro-batches.

    Attributes:
        level: The binary logarithm of the largest number of micro-batches in the node.
        place: The index of the node within its level.
        value: The sum.
    """

    level: int
    place: int
    value: _T


def block_of(count: int, rank: int, num_processes: int) -> range:
    """Return the micro-batches that a process computes: contiguous blocks of nearly equal size, larger blocks first.

    Args:
        count: The number of micro-batches of the update.
        rank: The rank of the process.
        num_processes: The number of processes.
    """
    size, larger = divmod(count, num_processes)
    first = rank * size + min(rank, larger)
    return range(first, first + size + (rank < larger))


def push(nodes: list[Node[_T]], node: Node[_T], count: int, add: Callable[[_T, _T], _T]) -> None:
    """Append a node to the nodes on its left, and merge neighbors that form a larger node.

    Args:
        nodes: The nodes so far, from left to right. The list is changed.
        node: The next node.
        count: The number of micro-batches of the update.
        add: A function that returns the sum of the values of two neighbors. It may change and return the left value.
    """
    nodes.append(node)
    while True:
        level, place, value = nodes[-1]
        if place % 2 == 1 and len(nodes) > 1 and nodes[-2][:2] == (level, place - 1):
            nodes[-2:] = [Node(level + 1, place // 2, add(nodes[-2].value, value))]
        elif place % 2 == 0 and place > 0 and (place + 1) << level >= count:  # without a neighbour to its right
            nodes[-1] = Node(level + 1, place // 2, value)
        else:
            return


@lru_cache(maxsize=64)
def nodes_of_ranks(count: int, num_processes: int) -> tuple[tuple[Node[None], ...], ...]:
    """Return the nodes that each process can compute without the others.

    Args:
        count: The number of micro-batches of the update.
        num_processes: The number of processes.

    Example:
        >>> [[tuple(node[:2]) for node in nodes] for nodes in nodes_of_ranks(6, 2)]
        [[(1, 0), (0, 2)], [(0, 3), (2, 1)]]
    """
    of_ranks: list[tuple[Node[None], ...]] = []
    for rank in range(num_processes):
        nodes: list[Node[None]] = []
        for index in block_of(count, rank, num_processes):
            push(nodes, Node(0, index, None), count, _nothing)
        of_ranks.append(tuple(nodes))
    return tuple(of_ranks)


def _nothing(_left: None, _right: None) -> None:
    """Take the place of the sum where only the structure of the tree matters."""
