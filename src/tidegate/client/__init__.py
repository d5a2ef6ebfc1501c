"""What users import: the asynchronous API, and the same without async."""

from tidegate.client.connect import connect

__all__ = ["connect"]
