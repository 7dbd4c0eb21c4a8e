"""docs/operations.md and the dashboard speak of the metrics, settings and pictures that exist."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from draftproof.config import EngineSettings, ServerSettings, ServiceSettings
from draftproof.server.metrics import Metrics
from tests.server.reports import StandIn, ended, round_of, turn

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((DOCS / "grafana-dashboard.json").read_text(encoding="utf-8"))
SETTINGS = {one.__name__: one() for one in (EngineSettings, ServiceSettings, ServerSettings)}


def families():
    """Every metric, each with at least one sample."""
    metrics = Metrics()
    metrics.submitted(1)
    metrics.turned_away("overloaded")
    metrics.round(round_of(turn("aac", drafted=3), turn("p")))
    metrics.ended(ended())
    metrics.exposition(StandIn().snapshot())
    return list(metrics.registry.collect())


def exposed_names():
    """Names as Prometheus has them."""
    return {one.name for family in families() for one in family.samples}


def names_in(expression):
    return set(re.findall(r"draftproof_\w+", expression))


def expressions():
    for panel in DASHBOARD["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    yield from (one["expr"] for one in DASHBOARD["annotations"]["list"])
    yield from (one.get("definition", "") for one in DASHBOARD["templating"]["list"])


def test_the_table_lists_every_metric_as_it_is():
    rows = re.findall(r"^\| `(draftproof_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.M)
    expected = []
    for family in families():
        labels = {label for one in family.samples for label in one.labels} - {"le"}
        name = family.name + "_total" * (family.type == "counter")
        labels = ", ".join(sorted(labels)) or "–"
        expected.append((name, family.type, labels, family.documentation))
    assert sorted(rows) == sorted(expected)


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_the_dashboard_asks_for_metrics_that_exist(expression):
    assert names_in(expression) <= exposed_names()


def test_no_panel_takes_what_is_counted_for_samples_from_what_is_counted_for_requests():
    assert not [one for one in expressions() if " - " in one]


def test_the_dashboard_can_be_imported():
    assert DASHBOARD["schemaVersion"] >= 38
    kinds = {one["name"]: one["type"] for one in DASHBOARD["templating"]["list"]}
    assert kinds["datasource"] == "datasource"
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels:
        assert panel["datasource"]["uid"] == "${datasource}"
        assert panel["targets"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


def test_the_dashboard_shows_all_that_is_counted_of_speculation():
    shown = set().union(*map(names_in, expressions()))
    hidden = {name for name in exposed_names() if "spec_decode" in name} - shown
    assert {name.removeprefix("draftproof_spec_decode_num_") for name in hidden} == {
        "drafts_total",
        "verified_tokens_total",
    }


def test_alerts_and_questions_name_metrics_that_exist():
    assert names_in(PAGE) <= exposed_names() | {family.name for family in families()}


def written(field, default):
    if default is None:
        return "–"
    if field.endswith("bytes"):
        return f"{default >> 30} GiB" if default >> 30 else f"{default >> 20} MiB"
    return f"{default:g}"


def test_limits_are_those_of_the_settings():
    rows = re.findall(r"^\| `(\w+)\.(\w+)` \| ([^|]+) \|", PAGE, re.M)
    assert len(rows) > 8
    for name, field, said in rows:
        assert field in {one.name for one in dataclasses.fields(SETTINGS[name])}
        default = getattr(SETTINGS[name], field)
        assert said == written(field, default)


def test_pictures_are_there_and_small():
    pictures = re.findall(r"\]\((figures/[^)]+)\)", PAGE)
    assert pictures
    for picture in pictures:
        assert 10_000 < (DOCS / picture).stat().st_size < 200_000
