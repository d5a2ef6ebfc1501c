"""Binary parameters, read back by psycopg's own loaders for the same types."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg import postgres
from psycopg.adapt import Transformer
from psycopg.pq import Format

from tidegate.core.model import Attributes
from tidegate.storage.postgres import messages as p

int4 = st.integers(-(2**31), 2**31 - 1)
int8 = st.integers(-(2**63), 2**63 - 1)


def loaded(type_name: str, data: bytes | None, form: Format = Format.BINARY) -> object:
    info = postgres.types[type_name.removesuffix("[]")]
    oid = info.array_oid if type_name.endswith("[]") else info.oid
    assert data is not None
    return Transformer().get_loader(oid, form).load(data)


@given(st.integers(-(2**15), 2**15 - 1), int4, int8, st.floats(allow_nan=False))
def test_single_values(small: int, middle: int, large: int, real: float) -> None:
    assert loaded("int2", p.int2(small)) == small
    assert loaded("int4", p.int4(middle)) == middle
    assert loaded("int8", p.int8(large)) == large
    assert loaded("float8", p.float8(real)) == real


@given(st.lists(int4, min_size=1), st.lists(st.none() | int8, min_size=1))
def test_arrays(middle: list[int], large: list[int | None]) -> None:
    assert loaded("int4[]", p.int4_array(middle)) == middle
    assert loaded("int8[]", p.int8_array(large)) == large


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_too_large_number_is_refused_as_parameter(number: int) -> None:
    with pytest.raises(OverflowError):
        p.int4_array([number])


@given(
    st.lists(
        st.none()
        | st.builds(
            Attributes,
            st.none() | st.text(max_size=5),
            st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        ),
        max_size=4,
    )
)
def test_attributes_are_json(attributes: list[Attributes | None]) -> None:
    value = loaded("jsonb", p.json_of(attributes))
    assert value == msgspec.to_builtins(attributes)


def test_no_attributes_are_null() -> None:
    assert p.json_of(None) is None


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5)), max_size=5))
def test_ranges_are_written_as_postgresql_writes_them(pairs: list[tuple[int, int]]) -> None:
    ranges, at = [], 0
    for gap, length in pairs:
        low = at + gap + 1
        at = low + length
        ranges.append((low, at))
    value = loaded("int4multirange", p.multirange_text(ranges).encode(), Format.TEXT)
    assert [(part.lower, part.upper) for part in value] == ranges  # type: ignore[attr-defined]
