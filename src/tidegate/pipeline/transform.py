"""The type of a transform: a function from frame to frame. Jobs are chains of transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pyspark.sql import DataFrame

Transform: TypeAlias = Callable[[DataFrame], DataFrame]
