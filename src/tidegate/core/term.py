"""The operand type of laws in plain arithmetic: a number, a numpy array, or a Spark Column.

These types have + − × ÷, comparisons, and `&` between comparisons in common, and nothing else. Laws
that use `Term` therefore contain no `max` and no `if`. The type is `Any`, since a result has the
type of the operands. No type can express that without importing numpy and Spark.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Term: TypeAlias = Any
