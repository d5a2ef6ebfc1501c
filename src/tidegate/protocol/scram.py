"""SCRAM-SHA-256 (RFC 5802, RFC 7677): a login that never sends the password, by `scramp`.

    client                               node
    n,,n=ann,r=…          ───────▶       looks up the keys
                          ◀───────       r=…,s=salt,i=iterations
    c=…,r=…,p=proof       ───────▶       checks the proof
    checks the signature  ◀───────       v=signature

The client proves that it knows the password, and the node that it knows the keys. A user that does
not exist gets a challenge, too, and fails at the proof like a wrong password. So a login does not
reveal which users exist.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from tidegate.core.errors import InvalidValue, NotAuthenticated
from tidegate.core.model import PasswordKeys

# RFC 7677 asks for at least 4096; this number costs a client about ten milliseconds per login.
ITERATIONS = 16_384
_SALT_BYTES = 32
PASSWORD_LENGTH_MIN = 8
PASSWORD_LENGTH_MAX = 1024
USER_LENGTH_MAX = 64

_MECHANISM = "SCRAM-SHA-256"
WRONG_CREDENTIALS = "user or password is wrong"


def check_user_name(name: str) -> str:
    """Raise `InvalidValue` unless the name looks the same in a URL, in a log and in a list."""
    plain = name.replace("-", "a").replace("_", "a").replace(".", "a")
    if not 0 < len(name) <= USER_LENGTH_MAX or not (plain.isascii() and plain.isalnum()):
        raise InvalidValue(
            f"a user's name has 1 to {USER_LENGTH_MAX} letters, digits, dots, dashes and "
            f"underscores, not {name!r}"
        )
    return name


def derive_keys(password: str, *, iterations: int = ITERATIONS) -> PasswordKeys:
    """Derive the keys that a store keeps of a password; `InvalidValue` for a bad password."""
    import scramp

    if not PASSWORD_LENGTH_MIN <= len(password) <= PASSWORD_LENGTH_MAX:
        raise InvalidValue(
            f"a password has {PASSWORD_LENGTH_MIN} to {PASSWORD_LENGTH_MAX} characters"
        )
    try:
        return PasswordKeys(*scramp.ScramMechanism(_MECHANISM).make_auth_info(password, iterations))
    except scramp.ScramException:
        # The library's own text may quote the password.
        raise InvalidValue("a password cannot hold control characters") from None


def decoy_keys(name: str, secret: bytes) -> PasswordKeys:
    """Return keys for a user that does not exist: the salt is stable, and no password matches."""
    salt = hmac.digest(secret, b"salt " + name.encode(), hashlib.sha256)[:_SALT_BYTES]
    unknown = hmac.digest(secret, b"key " + name.encode(), hashlib.sha256)
    return PasswordKeys(salt, unknown, unknown, ITERATIONS)


class ServerLogin:
    """The node's side of one login."""

    __slots__ = ("_server", "user")

    def __init__(self, keys_for: Callable[[str], PasswordKeys]) -> None:
        import scramp

        # The user named in the first message, whose proof is still to come.
        self.user = ""

        def look_up(user: str) -> tuple[bytes, bytes, bytes, int]:
            self.user = user
            keys = keys_for(user)
            return keys.salt, keys.stored_key, keys.server_key, keys.iterations

        self._server = scramp.ScramMechanism(_MECHANISM).make_server(look_up)

    def challenge(self, client_first: str) -> str:
        import scramp

        try:
            self._server.set_client_first(client_first)
            return str(self._server.get_server_first())
        except (scramp.ScramException, ValueError):
            raise NotAuthenticated("that is no SCRAM-SHA-256 message") from None

    def verify(self, client_final: str) -> str:
        """Return the node's signature; raise `NotAuthenticated` if the client's proof is wrong."""
        import scramp

        try:
            self._server.set_client_final(client_final)
            return str(self._server.get_server_final())
        except (scramp.ScramException, ValueError):
            raise NotAuthenticated(WRONG_CREDENTIALS) from None


class ClientLogin:
    """The client's side of one login."""

    __slots__ = ("_client",)

    def __init__(self, user: str, password: str) -> None:
        import scramp

        try:
            self._client = scramp.ScramClient([_MECHANISM], user, password)
        except scramp.ScramException:
            raise NotAuthenticated(WRONG_CREDENTIALS) from None

    def first(self) -> str:
        return str(self._client.get_client_first())

    def proof(self, server_first: str) -> str:
        """Return the proof for a challenge.

        Hashing takes milliseconds, so do not call it in an event loop.
        """
        import scramp

        try:
            self._client.set_server_first(server_first)
            return str(self._client.get_client_final())
        except (scramp.ScramException, ValueError):
            raise NotAuthenticated("the node's challenge makes no sense") from None

    def check(self, server_final: str) -> None:
        import scramp

        try:
            self._client.set_server_final(server_final)
        except (scramp.ScramException, ValueError):
            raise NotAuthenticated(
                "this node does not know the user's keys: is it the node that it claims to be?"
            ) from None
