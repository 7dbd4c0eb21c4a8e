"""Peers: the same work as ours, a channel that nothing disturbs, and no child left behind."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch

from draftproof.bench.peers import process as process_module
from draftproof.bench.peers.base import Answer, Job, Start, make_peer
from draftproof.bench.peers.process import PeerProcess
from draftproof.errors import InvalidSetting, PeerFailed
from tests.tiny import own_greedy, prompt, tiny_model

IDS, OTHER = prompt(12), prompt(7, seed=1)


def start(folder, spec="transformers", **changes) -> Start:
    fields = {"dtype": "float64", "device": "cpu", "threads": 1}
    return Start(spec, str(folder), **(fields | changes))


def greedy(*prompts, max_tokens=10) -> Job:
    return Job([list(ids) for ids in prompts], max_tokens, 0.0, 0)


def script(*lines: str) -> tuple[str, ...]:
    """A child that does this instead of loading a model."""
    return (sys.executable, "-c", "\n".join(("import json, os, sys, time", *lines)))


@pytest.fixture
def expected(folder):  # noqa: ARG001
    model = tiny_model("llama", max_position_embeddings=512)
    return [list(own_greedy(model, ids, 10)) for ids in (IDS, OTHER)]


# The adapter --------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["transformers", "transformers-lookup", "transformers-assisted:"])
def test_every_way_gives_the_greedy_text_whatever_the_checkpoint_says(folder, spec, expected):
    """The checkpoint's own settings name half of all tokens as ends, and penalise repetition."""
    spec += str(folder) if spec.endswith(":") else ""
    answer = make_peer(start(folder, spec)).generate(greedy(IDS))
    assert answer.token_ids == [expected[0]]
    assert 0 < answer.first_seconds <= answer.seconds
    assert 1 <= answer.first_tokens <= 10


def test_a_batch_is_each_prompt_as_alone(folder, expected):
    answer = make_peer(start(folder)).generate(greedy(IDS, OTHER))
    assert answer.token_ids == expected
    assert answer.first_tokens == 1


def test_sampling_draws_from_all_tokens_and_repeats_with_its_seed(folder):
    """At so high a temperature 200 draws see some 84 of 97 tokens; the default top_k keeps 50."""
    peer = make_peer(start(folder))
    job = Job([IDS] * 200, 2, 100.0, 7)
    first = peer.generate(job)
    assert len({ids[0] for ids in first.token_ids}) > 60
    torch.manual_seed(99)
    assert peer.generate(job).token_ids == first.token_ids
    assert peer.generate(Job(job.prompts, 2, 100.0, 8)).token_ids != first.token_ids


# The process --------------------------------------------------------------------------------


def test_a_child_answers_as_the_adapter_does_and_is_gone_afterwards(folder, expected):
    with PeerProcess(start(folder)) as peer:
        peer.wait()
        pid = peer.pid
        assert pid != os.getpid()
        assert [peer.generate(greedy(IDS)).token_ids for _ in range(2)] == [[expected[0]]] * 2
        assert peer.generate(greedy(IDS, OTHER)).token_ids == expected
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_missing_model_is_one_clear_error(folder):
    with (
        PeerProcess(start(folder, "transformers-assisted:/no/such/model")) as peer,
        pytest.raises(PeerFailed, match=r"transformers-assisted.*nothing at '/no/such/model'"),
    ):
        peer.wait()


def test_an_unknown_peer_is_refused_before_a_child_is_started(folder):
    with pytest.raises(InvalidSetting, match="peer is 'other'"):
        PeerProcess(start(folder, "other"))


WORKER = (
    "import draftproof.bench.peers.worker as worker",
    "from draftproof.bench.peers.base import Answer",
    "class Noisy:",
    "    def generate(self, job):",
    "        print('printed'); os.write(1, b'written\\n'); os.system('echo shouted')",
    "        assert os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev, 'standard input'",
    "        return Answer([[1] * job.max_tokens], 1.0, 0.5, 1, None)",
    "worker._ready = lambda start: print('loaded') or Noisy()",
    "worker.main()",
)


def test_what_libraries_print_or_read_does_not_touch_the_channel(folder):
    with PeerProcess(start(folder), command=script(*WORKER)) as peer:
        peer.wait()
        for _ in range(2):
            answer = peer.generate(greedy(IDS, max_tokens=3))
            assert answer == Answer([[1, 1, 1]], 1.0, 0.5, 1, None)


def test_a_dead_child_is_told_with_its_last_words(folder):
    dying = script("sys.stdin.readline()", "sys.exit('out of luck')")
    with (
        PeerProcess(start(folder), command=dying) as peer,
        pytest.raises(PeerFailed, match=r"(?s)transformers died with exit status 1.*out of luck"),
    ):
        peer.wait()


def test_a_child_that_dies_at_work_is_told_too(folder):
    dying = script("sys.stdin.readline()", "print('{}', flush=True)", "os.abort()")
    with PeerProcess(start(folder), command=dying) as peer:
        peer.wait()
        with pytest.raises(PeerFailed, match="died with exit status -6"):
            peer.generate(greedy(IDS))


@pytest.mark.parametrize("texts", [[[1, 2]], [[1] * 10, [1] * 10]])
def test_texts_of_other_lengths_or_numbers_than_asked_are_refused(folder, texts):
    answer = json.dumps(
        {"token_ids": texts, "seconds": 1, "first_seconds": 1, "first_tokens": 1, "peak_bytes": 1}
    )
    short = script("print('{}', flush=True)", f"print('''{answer}''', flush=True)", "input()")
    with PeerProcess(start(folder), command=short) as peer:
        peer.wait()
        with pytest.raises(PeerFailed, match="asked for 10 tokens of each of 1 prompts"):
            peer.generate(greedy(IDS))


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_no_child_outlives_an_error_even_one_that_will_not_leave(folder, monkeypatch, error):
    monkeypatch.setattr(process_module, "_GRACE_S", 0.05)
    stubborn = script("print('{}', flush=True)", "while True: time.sleep(60)")
    peer, pids = PeerProcess(start(folder), command=stubborn), []

    def interrupted():
        with peer:
            peer.wait()
            pids.append(peer.pid)
            raise error

    with pytest.raises(error):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
    assert peer.pid is None
