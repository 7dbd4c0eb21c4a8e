"""The live page in headless Chromium."""

from __future__ import annotations

import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from fastapi import FastAPI

from draftproof.core import Plan
from draftproof.sampling.params import SamplingParams
from draftproof.server.live import Live, Together
from draftproof.server.metrics import Metrics
from draftproof.server.page import routes
from draftproof.service.records import Progress
from draftproof.service.service import Service
from tests.server.reports import ended, round_of, turn
from tests.server.serving import served
from tests.server.test_page import Watched
from tests.tiny import prompt, shared_target, speculator

playwright = pytest.importorskip("playwright.sync_api", reason="the page needs playwright")
expect = playwright.expect
expect.set_options(timeout=10_000)


@pytest.fixture(scope="module")
def chromium():
    from tests.server.browser import browser

    with browser() as started:
        if started is None:
            pytest.skip("no Chromium: apt-get install chromium, or playwright install chromium")
        yield started


@pytest.fixture
def visit(chromium):
    """Opens the page of whatever is watched; what it complains of fails the test."""

    @contextmanager
    def visit(watched, status="live"):
        context, complaints = chromium.new_context(), []
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda message: complaints.append(message.text))
        with served(watched.app) as address:
            page.goto(address)
            expect(page.locator("#status")).to_have_text(status)
            yield page
            context.close()
        assert [text for text in complaints if "401" not in text] == []

    return visit


def play(watched, *turns, plans):
    watched.service.plans = plans
    watched.listener.round(round_of(*turns))


def test_tokens_are_marked_by_origin_and_their_text_is_hidden(visit):
    watched = Watched()
    with visit(watched) as page:
        expect(page.locator("#none")).to_be_visible()
        watched.listener.submitted(1)
        private = ["tell", " no", " one"]
        play(watched, turn("aac", drafted=4, texts=private), plans={1: Plan(4, width=2)})
        play(watched, turn("aab", drafted=2, texts=private), plans={1: Plan(2)})
        play(watched, turn("p", texts=["tell"]), plans={1: Plan(0)})
        card = page.locator("article[data-request='1']")
        expect(card.locator(".token")).to_have_count(7)
        kinds = card.locator(".token").evaluate_all("all => all.map(one => one.classList[1])")
        assert kinds == list("aacaabp")
        assert card.locator(".token.block").count() == 7
        facts = card.locator(".facts")
        expect(facts).to_contain_text("drafter ngram")
        expect(facts).to_contain_text("plan plain")
        expect(facts).to_contain_text("7 tokens")
        expect(facts).to_contain_text("acceptance 67 %")
        expect(page.locator("#hidden")).to_be_visible()
        assert "tell" not in page.content()


def test_texts_are_shown_when_the_server_shows_them(visit):
    watched = Watched(show_text=True)
    with visit(watched) as page:
        texts = ["<b>bold", "\n", "</b>"]
        play(watched, turn("aac", drafted=2, texts=texts), plans={1: Plan(2)})
        tokens = page.locator("article .tokens")
        expect(tokens).to_have_text("<b>bold\n</b>")
        expect(page.locator("#hidden")).to_be_hidden()


def test_samples_of_a_request_stand_apart_and_an_ended_one_says_how(visit):
    watched = Watched()
    with visit(watched) as page:
        play(watched, turn("p"), turn("p", sample=1), plans={1: Plan(0)})
        expect(page.locator("article .tokens")).to_have_count(2)
        watched.service.plans = {}
        watched.listener.ended(ended(outcome="length"))
        expect(page.locator("article.over .facts")).to_contain_text("length")
        expect(page.locator("#none")).to_be_visible()


def test_a_real_service_is_shown_to_the_last_token(visit):
    metrics, live, origins = Metrics(), Live(), []
    made = speculator(shared_target("llama"), "close-model", depth=3)
    service = Service(made, listener=Together(metrics, live))
    app = FastAPI()
    app.include_router(routes(service, metrics, live))
    service.start()

    def hear(event):
        if isinstance(event, Progress):
            origins.extend(origin[0] for origin in event.step.origins)

    with visit(SimpleNamespace(app=app)) as page:
        params = SamplingParams(max_tokens=40, temperature=0.9)
        ticket = service.submit(prompt(12), params, hear)
        card = page.locator(f"article[data-request='{ticket.request_id}'].over")
        expect(card.locator(".facts")).to_contain_text("length")
        expect(card.locator(".facts")).to_contain_text("drafter model:llama in int8")
        kinds = card.locator(".token").evaluate_all("all => all.map(one => one.classList[1])")
        assert kinds == origins
        assert len(kinds) == 40
        assert len(set(kinds)) > 1
    service.close()


def test_the_service_s_figures_and_charts(visit):
    watched = Watched()
    with visit(watched) as page:
        for _ in range(4):
            play(watched, turn("aac", drafted=4), plans={1: Plan(4)})
            page.wait_for_timeout(400)
        expect(page.locator("#acceptance")).to_have_text("50 %")
        expect(page.locator("#per-call")).to_have_text("3.00")
        expect(page.locator("#speed")).to_have_text(re.compile(r"\d+\.\d"))
        expect(page.locator("#waiting")).to_have_text("2")
        expect(page.locator("#cache")).to_have_text("512 of 4096")
        label = page.locator("#acceptance-chart").get_attribute("aria-label")
        assert "highest 50 %" in label
        assert page.locator("#acceptance-chart .curve").get_attribute("d").startswith("M")


def test_the_page_stays_small_however_many_tokens_and_requests_come(visit):
    watched = Watched()
    with visit(watched) as page:
        for request in range(30):
            play(watched, turn("a" * 64, request=request, drafted=64), plans={request: Plan(64)})
            watched.listener.ended(ended(request))
        for _ in range(40):
            play(watched, turn("a" * 64, request=99, drafted=64), plans={99: Plan(64)})
            page.wait_for_timeout(20)
        expect(page.locator("article[data-request='99'] .facts")).to_contain_text("2560 tokens")
        assert page.locator("article[data-request='99'] .token").count() == 1500
        assert page.locator("article").count() == 7


def test_a_key_is_asked_for_and_kept_nowhere(visit):
    watched = Watched(keys=["open"])
    with visit(watched, "a key is needed") as page:
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Watch").click()
        expect(page.locator("#status")).to_have_text("this key is not known")
        page.get_by_label("API key").fill("open")
        page.get_by_role("button", name="Watch").click()
        expect(page.locator("#status")).to_have_text("live")
        kept = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
        assert kept == [0, 0, ""]
        assert "open" not in page.url


def test_it_fits_a_phone_and_keeps_its_marks_in_the_dark(visit):
    watched = Watched()
    with visit(watched) as page:
        page.set_viewport_size({"width": 360, "height": 740})
        page.emulate_media(color_scheme="dark")
        play(watched, turn("a" * 60 + "b", drafted=60), plans={1: Plan(60)})
        expect(page.locator("article .token")).to_have_count(61)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
        shapes = page.evaluate(
            """["a", "c", "b", "p"].map((kind) => {
              const style = getComputedStyle(document.querySelector(`.legend .block.${kind}`));
              return style.borderRadius + style.borderStyle + (style.backgroundImage !== "none");
            })"""
        )
        assert len(set(shapes)) == 4
