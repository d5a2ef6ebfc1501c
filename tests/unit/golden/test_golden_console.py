"""The console's API: calls, parameters, bodies and answers."""

from __future__ import annotations

import json

from golden_files import Golden
from golden_openapi import OpenApi

from tidegate.console.application import openapi_document


def test_the_api_of_the_console_is_as_it_was(golden: Golden) -> None:
    golden("json/console_api.txt", OpenApi(json.loads(openapi_document())).lines())
