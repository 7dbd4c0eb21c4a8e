"""Tokens a second of a service under load, with and without speculation, in turn.

    python scripts/throughput.py --target /models/some-model --prompts prompts.jsonl

So many clients as --clients says send the prompts one after another, each as soon as its last
answer is there; every level is run plainly and with drafts, alternating, on the same prompts. The
lines of the prompts are those of `draftproof bench --prompts`.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import threading
import time
from pathlib import Path

from draftproof import EngineSettings, SamplingParams, Speculator
from draftproof.bench.workloads import read_items
from draftproof.config import ServiceSettings, Speculation
from draftproof.service.records import Failed, Finished, Progress
from draftproof.service.service import Service


class Overheads:
    """A listener that adds up what the engine does around the model's passes."""

    def __init__(self):
        self.seconds = self.passes = 0.0

    def submitted(self, request_id):
        pass

    def refused(self, reason):
        pass

    def ended(self, report):
        pass

    def round(self, report):
        self.seconds += report.seconds
        self.passes += report.cost.verify_s + report.cost.draft_s


def client(service, todo, wish, params, totals):
    """Answer prompts until none is left."""
    while True:
        try:
            prompt = todo.get_nowait()
        except queue.Empty:
            return
        over = threading.Event()

        def hear(event, over=over):
            if isinstance(event, Progress):
                totals.append(len(event.step.tokens))
            if isinstance(event, Failed):
                print(event.error, file=sys.stderr)
            if isinstance(event, Failed) or (isinstance(event, Finished) and event.last):
                over.set()

        service.submit(prompt, params, hear, speculation=wish)
        over.wait()


def run(service, prompts, clients, wish, params):
    """Tokens a second of one pass over the prompts."""
    todo, totals = queue.Queue(), []
    for prompt in prompts:
        todo.put(prompt)
    threads = [
        threading.Thread(target=client, args=(service, todo, wish, params, totals))
        for _ in range(clients)
    ]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(totals) / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", default="smollm2-135m")
    parser.add_argument("--drafter", default="self-int8")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=16, help="at each level")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--max-prompt-tokens", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    settings = EngineSettings(max_batch=max(options.clients))
    made = Speculator.from_pretrained(options.target, options.drafter, settings=settings)
    texts = [item.messages for item in read_items(options.prompts)]
    encoded = [ids for ids in map(made.encode, texts) if len(ids) <= options.max_prompt_tokens]
    prompts = encoded[:: max(1, len(encoded) // options.requests)][: options.requests]
    listener = Overheads()
    limits = ServiceSettings(keep_prefixes=False)
    service = Service(made, settings=limits, listener=listener)
    service.start()
    service.wait_until_ready()
    params = SamplingParams(max_tokens=options.max_tokens, ignore_eos=True)
    wishes = {"plain": Speculation(enabled=False), "drafts": Speculation()}
    for clients in options.clients:
        rates = {name: [] for name in wishes}
        for repeat in range(options.repeats):
            # In turn and turned round, so that a machine that grows slower slows both.
            for name in list(wishes)[:: -1 if repeat % 2 else 1]:
                listener.seconds = listener.passes = 0.0
                rates[name].append(run(service, prompts, clients, wishes[name], params))
                if name == "plain":
                    around = 1 - listener.passes / listener.seconds
        ratios = [b / a for a, b in zip(rates["plain"], rates["drafts"], strict=True)]
        row = {
            "clients": clients,
            "plain": [round(rate, 1) for rate in rates["plain"]],
            "drafts": [round(rate, 1) for rate in rates["drafts"]],
            "ratio": round(statistics.median(ratios), 3),
            "around_passes": round(around, 4),
        }
        print(json.dumps(row), flush=True)
    service.close()


if __name__ == "__main__":
    main()
