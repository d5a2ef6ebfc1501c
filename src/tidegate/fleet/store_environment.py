"""Store URLs in the environment of child processes, since URLs may contain passwords."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

STORE_URL = "TIDEGATE_STORE__URL"
STORE_URLS = "TIDEGATE_STORE__URLS"


def with_stores(environment: Mapping[str, str], urls: Sequence[str]) -> dict[str, str]:
    """Return the environment with exactly these stores."""
    changed = without_stores(environment)
    if len(urls) == 1:
        # Unchanged: one libpq URL may name several hosts, separated by commas.
        return changed | {STORE_URL: urls[0]}
    return changed | {STORE_URLS: ",".join(urls)}


def without_stores(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without stores, for children that must not use them."""
    return {key: text for key, text in environment.items() if key not in (STORE_URL, STORE_URLS)}
