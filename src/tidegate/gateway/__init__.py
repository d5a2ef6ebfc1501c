"""The embedded HTTP reverse proxy: it balances requests and sessions over servers."""

from tidegate.gateway.gateway import Gateway, GatewayLimits
from tidegate.gateway.http1 import StickySessions
from tidegate.gateway.servers import HealthCheck, ServerAddress

__all__ = ["Gateway", "GatewayLimits", "HealthCheck", "ServerAddress", "StickySessions"]
