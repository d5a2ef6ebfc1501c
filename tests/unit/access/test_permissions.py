"""Who may do what with which queue: denied, unless a grant says otherwise."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.broker.access import Authorizer
from tidegate.core.errors import Forbidden, InvalidValue
from tidegate.core.model import (
    ALL_PERMISSIONS,
    NO_PERMISSIONS,
    ROLES,
    Grant,
    PasswordKeys,
    Permissions,
    Right,
    User,
    check_pattern,
    matches_pattern,
)

LETTERS = st.text(alphabet="ab.[]?\n", max_size=8)


@pytest.mark.parametrize(
    ("pattern", "name", "does"),
    [
        ("orders", "orders", True),
        ("orders", "orders.dead", False),
        ("orders", "Orders", False),
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders.", True),
        ("orders.*", "reorders.eu", False),
        ("orders*", "orders.dead", True),
        ("*", "", True),
        ("*", "anything", True),
        ("*.dead", "orders.dead", True),
        ("*.dead", "orders.deadly", False),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("a*a", "a", False),
        ("orders.?", "orders.x", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
    ],
)
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(
    pattern: str, name: str, does: bool
) -> None:
    assert matches_pattern(pattern, name) is does


@given(st.lists(LETTERS, min_size=1, max_size=5), LETTERS)
def test_patterns_mean_what_a_regular_expression_would(parts: list[str], name: str) -> None:
    expression = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
    assert matches_pattern("*".join(parts), name) is (expression.fullmatch(name) is not None)


def test_many_stars_cost_no_more_than_one_pass() -> None:
    assert not matches_pattern("*a" * 100 + "b", "a" * 255)


def test_user_without_grants_has_no_right() -> None:
    assert not any(NO_PERMISSIONS.allows(right, "orders") for right in Right)


def test_admin_of_every_queue_may_everything() -> None:
    assert ALL_PERMISSIONS.is_everything
    assert all(ALL_PERMISSIONS.allows(right, "orders") for right in Right)


@pytest.mark.parametrize("role", ROLES)
def test_a_role_gives_itself_and_sight_and_admin_gives_all(role: Right) -> None:
    permissions = Permissions([Grant(role, "orders")])

    given = {right for right in Right if permissions.allows(right, "orders")}

    assert given == (set(Right) if role is Right.ADMIN else {role, Right.SEE})
    for other in ("orders.dead", "billing", "order", ""):
        assert not any(permissions.allows(right, other) for right in Right)
    assert not permissions.is_everything


def test_names_that_strangers_ask_for_do_not_fill_memory() -> None:
    permissions = Permissions([Grant(Right.READ, "orders.*")])
    for number in range(25_000):
        permissions.allows(Right.READ, f"orders.{number}")
    assert len(permissions._remembered) <= 10_000
    assert permissions.allows(Right.READ, "orders.7")


@pytest.mark.parametrize("pattern", ["", "a" * 256, "a\nb", "\x00"])
def test_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidValue):
        check_pattern(pattern)


@pytest.mark.parametrize(
    ("right", "option"),
    [
        (Right.SEE, "--read|--write|--configure"),
        (Right.READ, "--read"),
        (Right.WRITE, "--write"),
        (Right.CONFIGURE, "--configure"),
        (Right.ADMIN, "--admin-of"),
    ],
)
def test_denied_user_reads_the_grant_option_in_the_error(right: Right, option: str) -> None:
    with pytest.raises(Forbidden, match=re.escape(f"grant ann {option} PATTERN`")):
        Authorizer(NO_PERMISSIONS, User("ann", PasswordKeys(b"", b"", b"", 1))).require(
            right, "orders"
        )
