"""The API described for programs: OpenAPI, out of the same routes and structs.

Made by an application of its own that is never served: what Litestar would add to ours, a viewer at
the root and errors in HTML, nobody has asked for.
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
    """The description as JSON."""
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
    # Of what is sent, msgspec knows what it refuses, unknown fields too.
    _, schemas = msgspec.json.schema_components(
        Wish.__subclasses__(), ref_template="#/components/schemas/{name}"
    )
    description["components"]["schemas"] |= schemas
    return msgspec.json.encode(description)


@get("/openapi.json", include_in_schema=False)
async def openapi() -> Response[bytes]:
    return Response(described(), media_type=MediaType.JSON)
