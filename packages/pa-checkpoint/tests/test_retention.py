"""Which training states are removed when there are more than are wanted."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

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


def _is_own(record: CheckpointInfo) -> bool:
    return record.run == "first"


def _age(record: CheckpointInfo) -> tuple[int, int, str]:
    return record.sequence, record.update, record.path.name


@given(records=_records, newest=st.integers(1, 5), data=st.data())
def test_old_states_of_the_run_go_and_the_newest_valid_ones_stay(
    records: list[CheckpointInfo], newest: int, data: st.DataObject
) -> None:
    """Never fewer valid ones than wanted or there; states of others stay, and what is newer than one that stays."""
    removed = states_to_remove(records, newest, _is_own)

    valid = sorted((record for record in records if record.run == "first" and record.problem is None), key=_age)
    kept = [record for record in valid if record not in removed]
    assert kept == valid[-newest:]
    assert {record.run for record in removed} <= {"first"}
    assert removed == sorted(removed, key=_age)
    assert all(_age(old) < _age(new) for old in removed for new in kept)

    # the choice depends on the states alone, and after it nothing more is to be removed
    assert states_to_remove(data.draw(st.permutations(records)), newest, _is_own) == removed
    left = [record for record in records if record not in removed]
    assert states_to_remove(left, newest, _is_own) == []
