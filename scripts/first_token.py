"""How long a short prompt waits for its first token while a long one is read.

    python scripts/first_token.py --target smollm2-135m --long 8000 --repeats 16

On an idle service first, then while the long prompt is read, at random moments.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time

from draftproof import EngineSettings, SamplingParams, Speculator
from draftproof.config import ServiceSettings
from draftproof.service.records import Failed, Progress
from draftproof.service.service import Service


def first_token(service, prompt):
    """Seconds until the first token of `prompt`."""
    begun = threading.Event()

    def hear(event):
        if isinstance(event, Progress | Failed):
            begun.set()

    start = time.perf_counter()
    ticket = service.submit(prompt, SamplingParams(max_tokens=4, ignore_eos=True), hear)
    begun.wait()
    took = time.perf_counter() - start
    ticket.cancel()
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", default="self-int8")
    parser.add_argument("--long", type=int, default=8000)
    parser.add_argument("--short", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--prefill-tokens", type=int, default=ServiceSettings().prefill_tokens)
    options = parser.parse_args()
    made = Speculator.from_pretrained(
        options.target, options.drafter, settings=EngineSettings(max_batch=4)
    )
    limits = ServiceSettings(keep_prefixes=False, prefill_tokens=options.prefill_tokens)
    service = Service(made, settings=limits)
    service.start()
    service.wait_until_ready()
    dice = random.Random(0)

    def prompt(length):
        return [dice.randrange(10, made.num_tokens // 2) for _ in range(length)]

    idle = [first_token(service, prompt(options.short)) for _ in range(8)]
    begun = threading.Event()
    start = time.perf_counter()
    long = service.submit(
        prompt(options.long), SamplingParams(max_tokens=1), lambda _event: begun.set()
    )
    busy = []
    while len(busy) < options.repeats and not begun.is_set():
        time.sleep(dice.uniform(0.3, 1.2))
        if not begun.is_set():
            busy.append(first_token(service, prompt(options.short)))
    begun.wait(0.01 if len(busy) == options.repeats else None)
    took = time.perf_counter() - start
    long.cancel()
    service.close()
    usual = statistics.median(idle)
    print(
        json.dumps(
            {
                "idle_s": [round(f(idle), 4) for f in (statistics.median, min, max)],
                "busy_s": [round(f(busy), 4) for f in (statistics.median, min, max)],
                "times_idle": [round(f(busy) / usual, 2) for f in (statistics.median, min, max)],
                "each_s": [round(one, 3) for one in busy],
                "long_read_s": round(took, 1) if begun.is_set() else None,
            }
        )
    )


if __name__ == "__main__":
    main()
