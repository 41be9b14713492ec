"""Requests of schemathesis from the server's description: no 500, and only described answers."""

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from gguf_spec.server.openapi import describe

SETTINGS = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def schema_of(models, wanted=lambda _path: True):
    """The description of a server with some models, of the wanted paths only."""
    description = describe(models, False)
    paths = {path: one for path, one in description["paths"].items() if wanted(path)}
    return schemathesis.openapi.from_dict(description | {"paths": paths})


def check(case, server):
    case.call_and_validate(
        base_url=server.url,
        checks=[not_a_server_error, status_code_conformance, response_schema_conformance],
        timeout=120,
    )
