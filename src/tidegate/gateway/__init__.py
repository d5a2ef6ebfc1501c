"""The embedded HTTP reverse proxy; see gateway.py."""

from tidegate.gateway.gateway import Gateway
from tidegate.gateway.health import HealthCheck
from tidegate.gateway.limits import GatewayLimits
from tidegate.gateway.server import ServerAddress
from tidegate.gateway.sticky_session import StickySessions

__all__ = ["Gateway", "GatewayLimits", "HealthCheck", "ServerAddress", "StickySessions"]
