"""How a child is told of its stores: by its environment, since URLs may hold passwords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STORE_URL = "TIDEGATE_STORE__URL"
STORE_URLS = "TIDEGATE_STORE__URLS"


def with_stores(environment: Mapping[str, str], urls: Sequence[str]) -> dict[str, str]:
    """The same environment with these stores, and no others."""
    changed = without_stores(environment)
    if len(urls) == 1:
        # As it is: a URL of libpq may name several hosts, with commas between.
        return changed | {STORE_URL: urls[0]}
    return changed | {STORE_URLS: ",".join(urls)}


def without_stores(environment: Mapping[str, str]) -> dict[str, str]:
    """What whoever has no business with the store is given."""
    return {key: text for key, text in environment.items() if key not in (STORE_URL, STORE_URLS)}
