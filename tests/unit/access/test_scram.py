"""Logins that never send the password, and stores that never have it."""

from __future__ import annotations

import pytest

from tidegate.core.errors import InvalidValue, NotAuthenticated
from tidegate.core.model import PasswordKeys, User
from tidegate.protocol.scram import (
    ITERATIONS,
    ClientLogin,
    ServerLogin,
    check_user_name,
    decoy_keys,
    derive_keys,
)

PASSWORD = "pencil & pençil 7"
KEYS = derive_keys(PASSWORD, iterations=4096)


def log_in(client: ClientLogin, node: ServerLogin) -> list[str]:
    """The four messages of a login."""
    first = client.first()
    challenge = node.challenge(first)
    proof = client.proof(challenge)
    signature = node.verify(proof)
    client.check(signature)
    return [first, challenge, proof, signature]


def test_login_succeeds_and_never_sends_the_password() -> None:
    node = ServerLogin(lambda _: KEYS)
    messages = log_in(ClientLogin("ann", PASSWORD), node)
    assert node.user == "ann"
    assert not any(PASSWORD in message for message in messages)


def test_a_wrong_password_does_not_get_in() -> None:
    with pytest.raises(NotAuthenticated, match="user or password is wrong"):
        log_in(ClientLogin("ann", "wrong password"), ServerLogin(lambda _: KEYS))


def test_login_of_unknown_user_fails_like_a_wrong_password() -> None:
    node = ServerLogin(lambda name: decoy_keys(name, b"secret"))
    client = ClientLogin("nobody", PASSWORD)
    challenge = node.challenge(client.first())
    assert f"i={ITERATIONS}" in challenge
    with pytest.raises(NotAuthenticated, match="user or password is wrong"):
        node.verify(client.proof(challenge))
    # And asking twice does not tell either: a salt does not change.
    assert decoy_keys("nobody", b"secret").salt == decoy_keys("nobody", b"secret").salt
    assert decoy_keys("nobody", b"secret").salt != decoy_keys("nobody", b"other").salt
    assert len(decoy_keys("nobody", b"secret").salt) == len(KEYS.salt)


def test_a_node_that_does_not_know_the_keys_is_found_out() -> None:
    impostor = PasswordKeys(KEYS.salt, KEYS.stored_key, b"0" * 32, KEYS.iterations)
    with pytest.raises(NotAuthenticated, match="does not know the user's keys"):
        log_in(ClientLogin("ann", PASSWORD), ServerLogin(lambda _: impostor))


def test_a_proof_is_good_for_one_login() -> None:
    client = ClientLogin("ann", PASSWORD)
    node = ServerLogin(lambda _: KEYS)
    proof = client.proof(node.challenge(client.first()))
    node.verify(proof)
    again = ServerLogin(lambda _: KEYS)
    again.challenge(ClientLogin("ann", PASSWORD).first())
    with pytest.raises(NotAuthenticated):
        again.verify(proof)


@pytest.mark.parametrize("message", ["", "n,,", "n,,n=ann", "y,,r=x", "p=tls,,n=a,r=b", "\x00,,"])
def test_nonsense_is_no_login(message: str) -> None:
    with pytest.raises(NotAuthenticated):
        ServerLogin(lambda _: KEYS).challenge(message)
    node = ServerLogin(lambda _: KEYS)
    node.challenge(ClientLogin("ann", PASSWORD).first())
    with pytest.raises(NotAuthenticated):
        node.verify(message)
    with pytest.raises(NotAuthenticated):
        ClientLogin("ann", PASSWORD).proof(message)


def test_keys_are_salted_and_show_nothing() -> None:
    again = derive_keys(PASSWORD, iterations=4096)
    assert (again.salt, again.stored_key) != (KEYS.salt, KEYS.stored_key)
    shown = repr(User("ann", KEYS, []))
    assert PASSWORD not in shown
    assert repr(KEYS.stored_key) not in shown
    assert ITERATIONS >= 4096
    with pytest.raises(InvalidValue):
        derive_keys(PASSWORD, iterations=4095)


@pytest.mark.parametrize("password", ["", "short", "a" * 1025, "bell\x07 bell bell"])
def test_a_bad_password_is_refused_without_being_repeated(password: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        derive_keys(password)
    assert not password or password not in str(refusal.value)


@pytest.mark.parametrize("name", ["", "@node", "a b", "ann:", "ann@home", "änn", "a" * 65, "a,b"])
def test_names_look_the_same_everywhere(name: str) -> None:
    with pytest.raises(InvalidValue):
        check_user_name(name)
    assert check_user_name("ann.smith-2_x") == "ann.smith-2_x"
