"""Generated requests over the OpenAPI document: no answer is a defect, each is as declared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

if TYPE_CHECKING:
    from schemathesis import Case

Api = Any  # the fixture's class lives in conftest

CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]


@pytest.mark.timeout(600)
def test_no_generated_request_breaks_the_server(routed: Api) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", routed.anonymous.app)
    # binary bodies are tried by hand in test_runs_api.py
    schema = schema.exclude(path="/v1/gate-runs/{run_id}/evidence/{table}", method="PUT")
    schema = schema.exclude(path="/v1/decisions/stream")  # has no end
    authorization = {"Authorization": routed.admin.headers["Authorization"]}
    tried = []
    for found in schema.get_all_operations():
        operation = found.ok()

        # Schemathesis's own pytest plugin does not work with pytest 9, its strategies do.
        @given(case=operation.as_strategy())
        @settings(
            max_examples=6,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: Case) -> None:
            case.call_and_validate(headers=authorization, checks=CHECKS)

        check()
        tried.append(operation.label)
    assert len(tried) > 30
