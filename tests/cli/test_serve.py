"""`draftproof serve`: what its options become, and what is told before a model is loaded."""

from __future__ import annotations

import socket
import sys

import pytest

from draftproof.config import ServerSettings, ServiceSettings

pytest.importorskip("fastapi")

lifecycle = pytest.importorskip("draftproof.server.lifecycle")


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    monkeypatch.delenv("DRAFTPROOF_API_KEYS", raising=False)


@pytest.fixture
def serve(call, folder, monkeypatch):
    """Run the command up to where it would listen; the application and the result."""

    def run(*options):
        made = []

        class Caught(lifecycle.Server):
            def run(self, sockets):
                made.append(self)
                sockets[0].close()

        monkeypatch.setattr(lifecycle, "Server", Caught)
        result = call("serve", "--target", folder, "--port", "0", "--drafter", "ngram", *options)
        return (made[0] if made else None), result

    return run


def parts(server):
    """The limits, the service's settings and the engine's."""
    (door,) = [one for one in server.config.app.user_middleware if one.cls.__name__ == "Door"]
    service = server._service
    return door.kwargs["settings"], service._settings, service._speculator.settings


def test_the_defaults_are_those_of_the_settings(serve):
    server, result = serve()
    assert result.code == 0
    limits, queue, engine = parts(server)
    assert limits == ServerSettings()
    assert queue == ServiceSettings()
    assert (engine.depth, engine.max_batch) == ("auto", 32)
    assert "tiny at http://127.0.0.1:" in result.err, "a folder is told by its name alone"


def test_options_reach_what_they_are_for(serve, tmp_path):
    (tmp_path / "keys").write_text("three\nfour\n")
    numbers = {
        "--max-running": 2,
        "--max-body-bytes": 3,
        "--max-prompts": 4,
        "--max-prompt-tokens": 5,
        "--max-tokens-limit": 6,
        "--max-depth": 7,
        "--max-stops": 8,
        "--max-seconds": 9,
        "--drain-seconds": 10,
        "--max-waiting": 11,
        "--max-length": 300,
        "--max-samples": 13,
        "--max-batch": 14,
        "--max-cache-bytes": 1 << 24,
        "--depth": 3,
        "--width": 1,
        "--nodes": 2,
    }
    server, result = serve(
        *(word for pair in numbers.items() for word in pair),
        *("--api-key", "one", "--api-key", "two", "--api-key-file", tmp_path / "keys"),
        *("--drafter", "none", "--log-prompts", "--no-keep-prefixes"),
    )
    assert result.code == 0, result.err
    limits, queue, engine = parts(server)
    told = {f"--{name.replace('_', '-')}" for name in ServerSettings.__dataclass_fields__}
    assert told - numbers.keys() == {"--keys", "--log-prompts"}
    for option, number in numbers.items():
        name = option.removeprefix("--").replace("-", "_")
        (holder,) = [one for one in (limits, queue, engine) if hasattr(one, name)]
        assert getattr(holder, name) == number
    assert limits.keys == {"one", "two", "three", "four"}
    assert limits.log_prompts
    assert not queue.keep_prefixes
    assert server._service.drafters[0] == "ngram"
    assert not any(key in result.err for key in limits.keys)


def test_keys_come_from_the_environment(serve, monkeypatch):
    monkeypatch.setenv("DRAFTPROOF_API_KEYS", "one,two")
    server, _ = serve()
    assert parts(server)[0].keys == {"one", "two"}


def test_a_settings_file_names_the_pair(serve, tmp_path):
    path = tmp_path / "tuned.json"
    path.write_text('{"target": "nowhere", "drafter": "suffix", "depth": 5}')
    server, result = serve("--settings", path)
    assert result.code == 0, result.err
    _, _, engine = parts(server)
    assert engine.depth == 5
    assert server._service.drafters[0] == "ngram", "what is given beside the file wins"


@pytest.mark.parametrize(("keys", "warned"), [((), True), (("--api-key", "one"), False)])
def test_whoever_serves_all_the_world_is_warned(serve, keys, warned):
    _, result = serve("--host", "0.0.0.0", *keys)
    assert result.code == 0
    assert ("--api-key keeps others out" in result.err) == warned


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--host", "nowhere.invalid"), "nowhere.invalid"),
        (("--port", "99999"), "'--port'"),
        (("--drafter", "magic"), "magic"),
        (("--verifier", "magic"), "magic"),
        (("--depth", "99"), "depth is 99"),
        (("--max-depth", "65"), "max_depth is 65"),
        (("--max-seconds", "0"), "max_seconds is 0"),
        (("--max-waiting", "0"), "max_waiting is 0"),
        (("--max-length", "1"), "max_length is 1"),
        (("--api-key", ""), "an API key is empty"),
        (("--api-key-file", "missing"), "missing cannot be read"),
    ],
)
def test_bad_input_is_told_before_a_model_is_loaded(call, options, told):
    result = call("serve", "--target", "no-such-model", "--port", "0", *options)
    assert result.code == 2
    assert told in result.err
    assert "no-such-model" not in result.err


def test_an_empty_file_of_keys_does_not_open_the_door(call, tmp_path):
    (tmp_path / "keys").write_text("\n")
    result = call("serve", "--target", "no-such-model", "--api-key-file", tmp_path / "keys")
    assert result.code == 2
    assert "holds no key" in result.err


def test_a_port_that_is_taken_is_told(call):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = call("serve", "--target", "no-such-model", "--port", port)
    assert result.code == 2
    assert f"127.0.0.1:{port} cannot be listened at" in result.err


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "prometheus_client"])
def test_a_missing_extra_is_named(call, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    result = call("serve")
    assert result.code == 2
    assert "pip install 'draftproof[serve]'" in result.err
