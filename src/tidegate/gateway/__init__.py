"""The embedded HTTP reverse proxy; see gateway.py."""

from tidegate.gateway.gateway import Gateway, GatewayLimits
from tidegate.gateway.http1 import StickySessions
from tidegate.gateway.servers import HealthCheck, ServerAddress

__all__ = ["Gateway", "GatewayLimits", "HealthCheck", "ServerAddress", "StickySessions"]
