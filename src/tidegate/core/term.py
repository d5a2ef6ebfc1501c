"""What a law of plain arithmetic takes: a number, a numpy array, or a Spark Column.

All three know + − × ÷ and comparison, and `&` between comparisons, and nothing else that is common
to them. So laws that say `Term` use nothing else: no `max`, no `if`. The type is open because
their results are what went in, which no type that we have can say without importing all three.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Term: TypeAlias = Any
