"""What Tidegate's users and other programs rely on, frozen in `files`.

`pytest tests/unit/golden --rewrite-golden` writes the files from what there is now.
"""

from __future__ import annotations

import pytest
from golden_files import Golden


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compare with a golden file, or write it."""
    return Golden(rewrites=request.config.getoption("rewrite_golden"))
