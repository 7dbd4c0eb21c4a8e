"""Take the picture of docs/operations.md: `python -m scripts.screenshot [FILE]`, from the root.

Three requests of a real server, as its page shows them. Needs the extra `test`, a Chromium, and
`smollm2-135m`, which is fetched once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from draftproof import EngineSettings, SamplingParams, Speculator
from draftproof.config import Speculation
from draftproof.drafters.ngram import NgramDrafter
from draftproof.server.app import make_app
from draftproof.server.live import Live, Together
from draftproof.server.metrics import Metrics
from draftproof.server.page import routes
from draftproof.service.service import Service
from tests.server.browser import browser
from tests.server.serving import served

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "live-page.png"
LIST = "red, green, blue, white, black"
REQUESTS = [
    ("Bread is made of flour, water,", Speculation(enabled=False)),
    (f"The colours are {LIST}. Again, the colours are", Speculation(drafter="ngram")),
    ("Photosynthesis is the process by which", Speculation()),
]
TOKENS = 300
"""Of all requests together, when the picture is taken."""


def main(picture: Path) -> None:
    settings = EngineSettings(depth=4, max_batch=4)
    speculator = Speculator.from_pretrained("smollm2-135m", "self-int8", settings=settings)
    metrics, live = Metrics(), Live()
    drafters = {"ngram": NgramDrafter()}
    service = Service(speculator, drafters=drafters, listener=Together(metrics, live))
    app = make_app(speculator, service, parts=[routes(service, metrics, live, show_text=True)])
    with served(app) as address, browser() as chromium:
        if chromium is None:
            sys.exit("there is no Chromium; run .ci/browser")
        page = chromium.new_page(viewport={"width": 1000, "height": 800})
        service.wait_until_ready()
        page.goto(address)
        page.wait_for_selector("#status.live")
        for text, speculation in REQUESTS:
            ids = speculator.tokenizer.encode(text)
            params = SamplingParams(max_tokens=400, temperature=0)
            service.submit(ids, params, lambda _event: None, speculation=speculation)
        page.locator("article .token").nth(TOKENS).wait_for(state="attached", timeout=120_000)
        page.screenshot(path=picture, full_page=True)
        page.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE)
