"""Which training states are removed when there are more than are wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pa_checkpoint._errors import InvalidArgumentError
from pa_checkpoint._folder import CheckpointInfo, states_to_remove

_records = st.lists(
    st.builds(
        CheckpointInfo,
        path=st.integers(0, 9).map(lambda number: Path(f"state_{number}")),
        sequence=st.integers(0, 9),
        run=st.sampled_from(["first", "second", ""]),
        update=st.integers(0, 9),
        epoch=st.just(1),
        complete=st.booleans(),
        problem=st.sampled_from([None, None, "damaged"]),
    ),
    max_size=12,
    unique_by=lambda record: record.path,
)


def _age(record: CheckpointInfo) -> tuple[int, int, str]:
    return record.sequence, record.update, record.path.name


@given(records=_records, newest=st.integers(1, 5))
def test_the_newest_valid_states_of_the_run_stay(records: list[CheckpointInfo], newest: int) -> None:
    """As many valid ones as wanted stay, or all there are; never fewer, and they are the newest."""
    removed = states_to_remove(records, newest, "first")

    valid = sorted((record for record in records if record.run == "first" and record.problem is None), key=_age)
    assert [record for record in valid if record not in removed] == valid[-newest:]


@given(records=_records, newest=st.integers(1, 5))
def test_only_old_states_of_the_run_go(records: list[CheckpointInfo], newest: int) -> None:
    """States of others stay, and so does whatever is newer than a valid state that stays."""
    removed = states_to_remove(records, newest, "first")

    assert {record.run for record in removed} <= {"first"}
    assert removed == sorted(removed, key=_age)
    kept = [record for record in records if record.run == "first" and record.problem is None and record not in removed]
    assert all(_age(old) < _age(new) for old in removed for new in kept)


@given(records=_records, newest=st.integers(1, 5), data=st.data())
def test_neither_the_order_of_the_list_nor_a_second_time_matters(
    records: list[CheckpointInfo], newest: int, data: st.DataObject
) -> None:
    """The choice depends on the states alone, and after it nothing more is to be removed."""
    removed = states_to_remove(records, newest, "first")
    left = [record for record in records if record not in removed]

    assert states_to_remove(data.draw(st.permutations(records)), newest, "first") == removed
    assert states_to_remove(left, newest, "first") == []


@pytest.mark.parametrize("newest", [0, -1])
def test_at_least_one_has_to_stay(newest: int) -> None:
    """To keep none is refused."""
    with pytest.raises(InvalidArgumentError, match=f"newest must be .*, got {newest}"):
        states_to_remove([], newest, "first")
