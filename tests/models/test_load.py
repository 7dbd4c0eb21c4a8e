"""What a user gives becomes a model, or an error that says what to do."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.utils import logging

from draftproof.errors import InvalidSetting, MissingExtra, ModelNotFound, UnsupportedModel
from draftproof.models import load as load_module
from draftproof.models import store
from draftproof.models.load import LoadedModel, convert_gguf, load

WORDS = ["<unk>", "<s>", "</s>", "the", "cat", "sat"]
SHAPE = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def _tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama in bfloat16, with a tokenizer."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    LlamaForCausalLM(LlamaConfig(**SHAPE)).to(torch.bfloat16).save_pretrained(path)
    _tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose matrices are packed as Q8_0, with tokenizer and chat template."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(96)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    letters = ["<unk>", "<s>", "</s>", *"abcdefgh", "ab"]
    writer.add_vocab_size(len(letters))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(letters)
    writer.add_token_types([3, 3, 3] + [1] * (len(letters) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    rng = np.random.default_rng(0)
    sizes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64)}
    sizes |= {"ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    matrices = {f"blk.0.{name}.weight": size for name, size in sizes.items()}
    matrices["token_embd.weight"] = (len(letters), 64)
    packed = gguf.GGMLQuantizationType.Q8_0
    for name, size in matrices.items():
        values = rng.normal(size=size).astype(np.float32)
        writer.add_tensor(name, gguf.quants.quantize(values, packed), raw_dtype=packed)
    for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"):
        writer.add_tensor(name, np.ones(64, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail("the network was asked")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


def _saved(path: Path, model: object, **config: object) -> Path:
    """A folder with only the configuration of `model`, as some checkpoint has it."""
    model.config.save_pretrained(path)  # type: ignore[attr-defined]
    values = json.loads((path / "config.json").read_text()) | config
    (path / "config.json").write_text(json.dumps(values))
    return path


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("kind", [str, Path])
def test_a_folder_loads_without_network_in_float32_on_a_cpu(folder: Path, kind: type) -> None:
    loaded = load(kind(folder), device="cpu")
    assert isinstance(loaded, LoadedModel)
    assert loaded.name == "tiny-llama"
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("the cat sat").input_ids == [3, 4, 5]


@pytest.mark.parametrize("dtype", ["bfloat16", "torch.bfloat16", torch.bfloat16])
def test_a_dtype_may_be_asked_for(folder: Path, dtype: torch.dtype | str) -> None:
    assert load(folder, dtype=dtype, device="cpu").model.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["int8", "float33", "nn", torch.int64])
def test_a_dtype_that_is_no_float_is_refused(folder: Path, dtype: torch.dtype | str) -> None:
    with pytest.raises(InvalidSetting, match="bfloat16"):
        load(folder, dtype=dtype)


@pytest.mark.parametrize("device", ["cuda:99", "toaster"])
def test_a_device_that_is_not_there_is_refused(folder: Path, device: str) -> None:
    with pytest.raises(InvalidSetting, match=device):
        load(folder, device=device)


@pytest.mark.gpu
def test_auto_on_a_gpu_keeps_the_checkpoints_dtype(folder: Path) -> None:
    model = load(folder).model
    assert model.device.type == "cuda"
    assert model.dtype == torch.bfloat16


def test_a_loaded_model_is_taken_as_it_is() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    loaded = load(model)
    assert loaded.model is model
    assert loaded.tokenizer is None
    assert loaded.name == "LlamaForCausalLM"
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_pair_and_a_tokenizer_of_ones_own(folder: Path) -> None:
    model, words = LlamaForCausalLM(LlamaConfig(**SHAPE)), _tokenizer()
    assert load((model, words)).tokenizer is words
    assert load((model, None)).tokenizer is None
    assert load(model, tokenizer=words).tokenizer is words
    assert load(folder, tokenizer=words, device="cpu").tokenizer is words
    read = load(model, tokenizer=folder).tokenizer
    assert read is not None
    assert read.get_vocab() == words.get_vocab()


@pytest.mark.parametrize("given", [{"dtype": "float32"}, {"device": "cpu"}])
def test_a_loaded_model_is_not_moved_or_cast(given: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match="loaded model"):
        load(LlamaForCausalLM(LlamaConfig(**SHAPE)), **given)  # type: ignore[arg-type]


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="Linear"):
        load(torch.nn.Linear(2, 2))  # type: ignore[arg-type]


def test_a_folder_without_tokenizer_has_none(folder: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "bare")
    assert load(tmp_path / "bare", device="cpu").tokenizer is None
    with pytest.raises(ModelNotFound, match="no tokenizer"):
        load(folder, tokenizer=tmp_path / "bare")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("text", ["./nothing", "/nothing/at/all", "nothing.gguf", "a b", ""])
def test_a_path_to_nothing_names_what_there_is(text: str) -> None:
    with pytest.raises(ModelNotFound, match="smollm2-135m") as caught:
        load(text)
    assert repr(text) in str(caught.value)


def test_files_and_folders_that_hold_no_model(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_text("no model")
    with pytest.raises(ModelNotFound, match=r"\*\.gguf"):
        load(tmp_path / "weights.bin")
    with pytest.raises(ModelNotFound, match=r"no config\.json"):
        load(tmp_path)
    _saved(tmp_path, LlamaForCausalLM(LlamaConfig(**SHAPE)))
    with pytest.raises(ModelNotFound, match="weights of"):
        load(tmp_path, device="cpu")


def test_an_unreachable_hub_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "_hub_answers", lambda: False)
    with pytest.raises(ModelNotFound, match="no hub can be reached") as caught:
        load("no-such/model-anywhere", device="cpu")
    assert "smollm2-135m" in str(caught.value)


def test_a_hub_is_not_asked_without_name_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise socket.gaierror("no such host")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(load_module.urllib.request, "getproxies", dict)
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert not load_module._hub_answers()
    monkeypatch.setattr(load_module.urllib.request, "getproxies", lambda: {"https": "proxy"})
    assert load_module._hub_answers()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert not load_module._hub_answers()


def test_a_named_model_is_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "fetch", lambda _name: folder)
    loaded = load("smollm2-135m", device="cpu")
    assert loaded.name == "smollm2-135m"
    assert loaded.model.config.hidden_size == SHAPE["hidden_size"]


T5 = T5ForConditionalGeneration(
    T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
)
BERT = BertForMaskedLM(
    BertConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_attention_heads=2)
)


@pytest.mark.parametrize(
    ("model", "cause"), [(T5, "T5ForConditionalGeneration"), (BERT, "BertForMaskedLM")]
)
def test_a_loaded_model_that_is_not_causal_is_refused(model: object, cause: str) -> None:
    with pytest.raises(UnsupportedModel, match=cause):
        load(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "config", "cause"),
    [
        (T5, {}, "encoder-decoder"),
        (BERT, {"architectures": ["BertForMaskedLM"]}, "both directions"),
        (BERT, {"architectures": ["BertForMaskedLM"], "is_decoder": True}, "BertForMaskedLM"),
        (LlamaModel(LlamaConfig(**SHAPE)), {"architectures": ["LlamaModel"]}, "LlamaModel"),
        (T5, {"model_type": "vit"}, "no causal model for 'vit'"),
        (T5, {"model_type": "of-tomorrow"}, "of-tomorrow"),
    ],
)
def test_a_checkpoint_is_judged_before_its_weights_are_read(
    tmp_path: Path, model: object, config: dict[str, object], cause: str
) -> None:
    if config.get("model_type"):
        config = {**config, "is_encoder_decoder": False}
    with pytest.raises(UnsupportedModel, match=cause):
        load(_saved(tmp_path, model, **config), device="cpu")


def test_gpt_neox_is_causal_although_it_is_no_is_decoder(tmp_path: Path) -> None:
    config = GPTNeoXConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
    )
    GPTNeoXForCausalLM(config).save_pretrained(tmp_path)
    assert isinstance(load(tmp_path, device="cpu").model, GPTNeoXForCausalLM)


def test_a_checkpoint_that_lacks_weights_is_refused_not_made_up(
    folder: Path, tmp_path: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    state = {name: value for name, value in model.state_dict().items() if "lm_head" not in name}
    model.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(UnsupportedModel, match=r"lacks 1 tensors: lm_head\.weight"):
        load(tmp_path, device="cpu")


@pytest.mark.usefixtures("no_network")
def test_damaged_weights_are_named(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:1000])
    with pytest.raises(UnsupportedModel, match="weights"):
        load(tmp_path, tokenizer=_tokenizer(), device="cpu")


@pytest.mark.usefixtures("no_network")
def test_a_gguf_file_is_unpacked_with_tokenizer_and_template(gguf_file: Path) -> None:
    loaded = load(gguf_file, device="cpu")
    assert loaded.name == "tiny"
    assert loaded.model.dtype == torch.float32
    assert all(value.is_floating_point() for value in loaded.model.parameters())
    assert not hasattr(loaded.model.config, "quantization_config")
    assert loaded.tokenizer is not None
    assert loaded.tokenizer("abc", add_special_tokens=False).input_ids == [11, 5]
    assert loaded.tokenizer.chat_template


@pytest.mark.usefixtures("no_network")
def test_a_converted_gguf_file_is_an_ordinary_folder(gguf_file: Path, tmp_path: Path) -> None:
    convert_gguf(gguf_file, tmp_path / "plain")
    ids = torch.tensor([[3, 4, 5, 6]])
    packed = load(gguf_file, device="cpu")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "plain", local_files_only=True)
    assert model.dtype == torch.bfloat16
    for name, value in packed.model.state_dict().items():
        assert torch.equal(value.to(torch.bfloat16), model.state_dict()[name])
    assert model(ids).logits.shape == packed.model(ids).logits.shape
    words = AutoTokenizer.from_pretrained(tmp_path / "plain", local_files_only=True)
    assert packed.tokenizer is not None
    assert words.get_vocab() == packed.tokenizer.get_vocab()
    assert words.chat_template == packed.tokenizer.chat_template
    files = {path.name: path for path in (tmp_path / "plain").iterdir()}
    assert "quantization_config" not in files["config.json"].read_text()
    for name in ("config.json", "tokenizer_config.json"):
        assert str(gguf_file.parent) not in files[name].read_text()


def test_a_damaged_gguf_file_is_named(tmp_path: Path, gguf_file: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(gguf_file.read_bytes()[:200])
    with pytest.raises((UnsupportedModel, ModelNotFound), match="cut"):
        load(tmp_path / "cut.gguf", device="cpu")


def test_a_gguf_file_needs_its_extra(gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = SimpleNamespace(util=SimpleNamespace(find_spec=lambda _name: None))
    monkeypatch.setattr(store, "importlib", there)
    with pytest.raises(MissingExtra, match=r"draftproof\[gguf\]"):
        load(gguf_file)


@pytest.mark.parametrize("wanted", [True, False])
def test_progress_bars_are_silent_off_a_terminal_and_restored(
    folder: Path, gguf_file: Path, wanted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    before = logging.is_progress_bar_enabled()
    try:
        (logging.enable_progress_bar if wanted else logging.disable_progress_bar)()
        capfd.readouterr()
        load(folder, device="cpu")
        load(gguf_file, device="cpu")
        assert capfd.readouterr() == ("", "")
        assert not sys.stderr.isatty()
        assert logging.is_progress_bar_enabled() == wanted
    finally:
        (logging.enable_progress_bar if before else logging.disable_progress_bar)()
