"""The published OpenAPI is true: requests made from it, right and wrong, get documented answers."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from draftproof.config import ServerSettings
from draftproof.server.app import make_app
from draftproof.server.live import Live
from draftproof.server.metrics import Metrics
from draftproof.server.page import routes
from tests.server.conftest import wait_for
from tests.server.serving import served

schemathesis = pytest.importorskip("schemathesis")
# Now, and not while threads of a server run: two that parse code at once confuse Python 3.11.
pytest.importorskip("schemathesis.specs.openapi.schemas")

EXAMPLES = 40


OPERATIONS = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("GET", "/v1/speculation"),
    ("GET", "/health"),
    ("GET", "/metrics"),
]


UNSAID = [schemathesis.checks.positive_data_acceptance]
"""A schema cannot say what fits a model: its ids, its longest text, its template."""


@pytest.fixture(scope="module")
def published(spec, make_service):
    service = make_service(start=False)
    page = routes(service, Metrics(), Live())
    short = ServerSettings(max_tokens_limit=16)
    with served(make_app(spec, service, short, name="tiny", parts=[page])) as address:
        wait_for(lambda: service.ready)
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


def test_every_route_is_published(published):
    found = {(one.ok().method.upper(), one.ok().path) for one in published.get_all_operations()}
    assert found == {*OPERATIONS, ("GET", "/v1/events")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "mode"),
    [
        *((method, path, "positive") for method, path in OPERATIONS),
        *((method, path, "negative") for method, path in OPERATIONS if method == "POST"),
    ],
)
def test_answers_are_as_documented(published, method, path, mode):
    generation = schemathesis.GenerationMode(mode)
    statuses = set()

    @given(case=published[path][method].as_strategy(generation_mode=generation))
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    def check(case):
        statuses.add(case.call_and_validate(excluded_checks=UNSAID).status_code)

    check()
    if method == "POST":
        assert 400 in statuses
        assert (200 in statuses) == (mode == "positive")
