"""The client library: the asynchronous API, and the same API without async."""

from tidegate.client.connect import connect

__all__ = ["connect"]
