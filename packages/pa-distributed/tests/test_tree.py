"""Sums in the tree are associated in the same way, whoever has which part."""

from __future__ import annotations

import pytest

from pa_distributed._tree import Node, block_of, nodes_of_ranks, push


def in_tree(values: list[str]) -> str:
    """The sum by definition: the left half is the largest power of two that leaves something to the right one."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return joined(in_tree(values[:half]), in_tree(values[half:]))


def joined(left: str, right: str) -> str:
    """The sum of two strings, which shows its order."""
    return f"({left}+{right})"


def nodes_of(count: int, rank: int, num_processes: int) -> list[Node[str]]:
    """What a process has after its micro-batches."""
    nodes: list[Node[str]] = []
    for index in block_of(count, rank, num_processes):
        push(nodes, Node(0, index, str(index)), count, joined)
    return nodes


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4, 5, 7, 8, 13])
def test_the_sum_is_associated_as_by_definition_on_any_number_of_processes(num_processes: int) -> None:
    """Also where processes have no micro-batch. What the ranks have is known without asking them, and is little."""
    for count in range(1, 70):
        of_ranks = [nodes_of(count, rank, num_processes) for rank in range(num_processes)]
        shapes = [[node[:2] for node in nodes] for nodes in of_ranks]
        assert shapes == [[node[:2] for node in nodes] for nodes in nodes_of_ranks(count, num_processes)]
        assert all(len(nodes) <= 2 * (count.bit_length() - 1) + 1 for nodes in of_ranks)
        together: list[Node[str]] = []
        for nodes in of_ranks:
            for node in nodes:
                push(together, node, count, joined)
        assert [node.value for node in together] == [in_tree(list(map(str, range(count))))]


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4, 5, 7, 8, 13])
def test_blocks_are_contiguous_and_as_equal_as_possible(num_processes: int) -> None:
    """The larger ones come first."""
    for count in range(70):
        blocks = [block_of(count, rank, num_processes) for rank in range(num_processes)]
        assert [index for block in blocks for index in block] == list(range(count))
        sizes = list(map(len, blocks))
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("num_processes", [1, 2, 3, 5, 8])
def test_a_process_has_one_node_where_each_has_a_power_of_two(num_processes: int) -> None:
    """So that as many bytes are sent as by a ring."""
    for exponent in range(6):
        of_ranks = nodes_of_ranks(num_processes << exponent, num_processes)
        assert [len(nodes) for nodes in of_ranks] == [1] * num_processes
