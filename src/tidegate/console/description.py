"""The API's OpenAPI description, generated from its routes and structs.

A second application, which is never served, generates it. In the served one Litestar would add a
viewer at the root and error pages in HTML.
"""

from __future__ import annotations

from functools import cache

import msgspec
from litestar import Litestar, MediaType, Response, Router, get
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

from tidegate import __version__
from tidegate.console.reference import MODULES, handlers
from tidegate.console.wishes import Wish


@cache
def described() -> bytes:
    """Return the OpenAPI description as JSON."""
    routes = [one for module in MODULES for one in handlers(module)]
    application = Litestar(
        route_handlers=[Router(path="/api", route_handlers=routes)],
        openapi_config=OpenAPIConfig(
            title="Tidegate console",
            version=__version__,
            description="All that the console does, for programs.",
            render_plugins=[JsonRenderPlugin()],
        ),
        logging_config=None,
    )
    description = application.openapi_schema.to_schema()
    # msgspec describes request bodies exactly, including that unknown fields are refused.
    _, schemas = msgspec.json.schema_components(
        Wish.__subclasses__(), ref_template="#/components/schemas/{name}"
    )
    description["components"]["schemas"] |= schemas
    return msgspec.json.encode(description)


@get("/openapi.json", include_in_schema=False)
async def openapi() -> Response[bytes]:
    return Response(described(), media_type=MediaType.JSON)
