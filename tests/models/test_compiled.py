"""The compiled step computes what the stock modules compute, and each row by itself."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
import torch

pytest.importorskip("numba")

import numba

from draftproof.core import Draft, Proposal, TargetOutput, TreeBatch
from draftproof.models.cache import KVCache
from draftproof.models.compiled import CompiledStep
from draftproof.models.hf import HFModel
from draftproof.models.pack import pack
from tests.tiny import WINDOW, committed, prompt, tiny_model

SHAPES = {
    "llama": {},
    "llama-biased": {"attention_bias": True, "mlp_bias": True},
    "llama-grouped": {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48},
    "mistral": {},
    "qwen2": {},
    "qwen3": {},
}


def model(name: str) -> HFModel:
    changes = SHAPES[name]
    changes = {**changes, "max_position_embeddings": 256}
    source = tiny_model(name.split("-")[0], dtype=torch.float32, **changes)
    made = HFModel(source, name)
    assert isinstance(made._step, CompiledStep)
    return made


def stock(made: HFModel, batch, cache, columns=None) -> torch.Tensor:
    """The same pass through the modules."""
    step, made._step = made._step, None
    try:
        return made.forward(batch, cache, columns).logits
    finally:
        made._step = step


def filled(made: HFModel, lengths: list[int]) -> KVCache:
    cache = KVCache(rows=len(lengths), capacity=80)
    for row, length in enumerate(lengths):
        made.prefill(prompt(length, seed=row), cache, row, chunk=32)
    return cache


TREE = Draft((7, 9, 11, 13, 17), (-1, 0, 0, 1, -1), None, Proposal.POINT)


@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_the_modules(name: str) -> None:
    """Ragged rows, a tree and a chain, beyond the window of Mistral; 1e-4 of the largest logit."""
    made = model(name)
    lengths = [3, WINDOW + 5, 30]
    drafts = [TREE, Draft.chain((5, 6), Proposal.POINT), Draft.chain((), Proposal.POINT)]
    batch = pack([4, 5, 6], drafts, lengths, made.device)
    found = made.forward(batch, filled(made, lengths)).logits
    expected = stock(made, batch, filled(made, lengths))
    for b, draft in enumerate(drafts):
        columns = slice(0, 1 + len(draft.tokens))
        difference = (found[b, columns] - expected[b, columns]).abs().max()
        assert difference <= 1e-4 * expected[b, columns].abs().max()


@pytest.mark.parametrize("name", SHAPES)
def test_argmax_is_that_of_the_modules_on_a_thousand_positions(name: str) -> None:
    made = model(name)
    compared = 0
    for text in range(8):
        tokens = prompt(130, seed=100 + text)
        caches = [KVCache(rows=1, capacity=140), KVCache(rows=1, capacity=140)]
        for cache in caches:
            made.prefill(tokens[:4], cache, 0, 8)
        for start in range(4, 130, 63):
            fed = tokens[start : start + 63]
            chain = Draft.chain(fed[1:], Proposal.POINT)
            batch = pack(fed[:1], [chain], caches[0].lengths, made.device)
            found = made.forward(batch, caches[0]).logits.argmax(dim=-1)
            expected = stock(made, batch, caches[1]).argmax(dim=-1)
            assert torch.equal(found, expected)
            compared += found.numel()
            for cache in caches:
                cache.keep(0, range(len(fed)))
    assert compared >= 1000


@pytest.mark.parametrize("name", SHAPES)
def test_cache_holds_what_the_modules_would_have_stored(name: str) -> None:
    made = model(name)
    batch = pack([4], [Draft.chain((5, 6, 7), Proposal.POINT)], [9], made.device)
    caches = [filled(made, [9]), filled(made, [9])]
    made.forward(batch, caches[0])
    stock(made, batch, caches[1])
    for cache in caches:
        cache.keep(0, range(4))
    for found, expected in zip(committed(caches[0], 0), committed(caches[1], 0), strict=True):
        for a, b in zip(found, expected, strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
@pytest.mark.parametrize("int8", [False, True])
def test_a_row_has_the_same_bits_in_any_company(name: str, int8: bool) -> None:
    made = model(name)
    made = made.int8_copy() if int8 else made
    tokens = prompt(8, seed=5)
    alone = KVCache(rows=1, capacity=200)
    # Long enough for the block to cross from one chunk of attention into the next.
    long = [*prompt(70), *prompt(54, seed=1)]
    made.prefill(long, alone, 0, 32)
    together = KVCache(rows=3, capacity=200)
    made.prefill(long, together, 0, 32)
    made.prefill(prompt(11, 3), together, 1, 32)
    together.copy(0, 2)
    one_by_one = []
    for token in tokens:
        empty = Draft.chain((), Proposal.POINT)
        batch = pack([token], [empty], alone.lengths, made.device)
        one_by_one.append(made.forward(batch, alone).logits[0, 0].clone())
        alone.keep(0, [0])
    chain = Draft.chain(tokens[1:], Proposal.POINT)
    other = Draft.chain((8, 9), Proposal.POINT)
    batch = pack([3, 4, tokens[0]], [other, other, chain], together.lengths, made.device)
    block = made.forward(batch, together).logits[2]
    assert torch.equal(block, torch.stack(one_by_one))


@pytest.mark.parametrize("name", SHAPES)
def test_logits_can_be_asked_of_one_column_per_row(name: str) -> None:
    """Ragged rows: the last column of each, with the bits that all columns have."""
    made = model(name)
    lengths, feeds = [3, 20, 9], [(5, 6, 7), (5,), (5, 6)]
    chains = [Draft.chain(feed[1:], Proposal.POINT) for feed in feeds]
    batch = pack([feed[0] for feed in feeds], chains, lengths, made.device)
    columns = [len(feed) - 1 for feed in feeds]
    for run in (made.forward, lambda *a: TargetOutput(stock(made, *a))):
        every = run(batch, filled(made, lengths)).logits
        one = run(batch, filled(made, lengths), columns).logits
        assert one.shape == (3, 1, made.vocab_size)
        for row, column in enumerate(columns):
            assert torch.equal(one[row, 0], every[row, column])


@pytest.mark.parametrize("name", ["llama-grouped", "mistral"])
def test_number_of_threads_changes_no_bit(name: str) -> None:
    made = model(name)
    # Beyond two chunks of attention, so that threads share one row's heads and chunks.
    long = prompt(200, seed=3)
    batch = pack([4, 4], [TREE, Draft.chain((5,), Proposal.POINT)], [len(long), 9], made.device)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 2, 2):
            torch.set_num_threads(threads)
            cache = KVCache(rows=2, capacity=220)
            made.prefill(long, cache, 0, 300)
            made.prefill(prompt(9, seed=4), cache, 1, 300)
            for row in range(2):  # prefill is torch's, and may differ
                for stores, layer in product((cache._keys, cache._values), range(2)):
                    generator = torch.Generator().manual_seed(row)
                    with torch.inference_mode():
                        held = cache._row(stores, layer, row)
                        held.copy_(torch.randn(held.shape, generator=generator))
            found.append(made.forward(batch, cache).logits)
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(other[0], found[0][0])
        assert torch.equal(other[1, :2], found[0][1, :2])


def test_one_thread_gets_through_the_work_of_a_team(monkeypatch) -> None:
    """More workers than threads: whoever runs takes what the others would have taken."""
    made = model("llama")
    batch = pack([4], [TREE], [30], made.device)
    expected = made.forward(batch, filled(made, [30])).logits
    cache = filled(made, [30])
    before = numba.get_num_threads()
    monkeypatch.setattr(numba, "get_num_threads", lambda: 5)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    numba.set_num_threads(1)
    try:
        assert torch.equal(made.forward(batch, cache).logits, expected)
    finally:
        numba.set_num_threads(before)


def test_teams_of_several_callers_do_not_disturb_each_other() -> None:
    made = model("llama")
    batches = [pack([4 + i], [TREE], [20 + i], made.device) for i in range(4)]
    caches = [filled(made, [20 + i]) for i in range(4)]
    alone = [made.forward(*each).logits for each in zip(batches, caches, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            runs = pool.map(lambda i: made.forward(batches[i], caches[i]).logits, range(4))
            for found, expected in zip(runs, alone, strict=True):
                assert torch.equal(found, expected)


def test_what_is_not_of_this_shape_keeps_its_modules() -> None:
    for name, dtype in [
        ("gpt2", torch.float32),
        ("gemma2", torch.float32),
        ("llama", torch.float64),
    ]:
        assert HFModel(tiny_model(name, dtype=dtype), name)._step is None
    hooked = tiny_model("llama", dtype=torch.float32)
    hooked.model.layers[0].mlp.register_forward_hook(lambda *_: None)
    assert HFModel(hooked, "hooked")._step is None


def changed(change) -> HFModel:
    source = tiny_model("llama", dtype=torch.float32)
    change(source)
    return HFModel(source, "changed")


def narrow(model) -> None:
    """One layer's MLP is smaller than the others', as after pruning; the config does not tell."""
    mlp = model.model.layers[1].mlp
    for name in ("gate_proj", "up_proj"):
        layer = getattr(mlp, name)
        layer.weight = torch.nn.Parameter(layer.weight.detach()[:8].clone())
        layer.out_features = 8
    mlp.down_proj.weight = torch.nn.Parameter(mlp.down_proj.weight.detach()[:, :8].clone())
    mlp.down_proj.in_features = 8


def patched(model) -> None:
    mlp = model.model.layers[0].mlp
    plain = mlp.forward
    mlp.forward = lambda x: 2 * plain(x)


def subclassed(model) -> None:
    class Louder(type(model.model.norm)):
        def forward(self, hidden):
            return 2 * super().forward(hidden)

    model.model.norm.__class__ = Louder


@pytest.mark.parametrize("change", [narrow, patched, subclassed])
def test_a_model_that_computes_something_else_keeps_its_modules(change) -> None:
    made = changed(change)
    assert made._step is None
    tokens = prompt(6)
    batch = pack(tokens[:1], [Draft.chain(tokens[1:], Proposal.POINT)], [0], made.device)
    logits = made.forward(batch, KVCache(rows=1, capacity=8)).logits
    expected = made._source(torch.tensor([tokens])).logits
    assert torch.allclose(logits, expected, rtol=1e-3, atol=1e-4)


def test_a_step_that_says_something_else_than_the_modules_is_dropped(monkeypatch) -> None:
    monkeypatch.setattr(
        CompiledStep, "_rotary_table", lambda _self, n: (np.ones((n, 8), np.float32),) * 2
    )
    assert HFModel(tiny_model("llama", dtype=torch.float32), "wrong")._step is None


def test_converting_the_users_model_later_changes_nothing() -> None:
    source = tiny_model("llama", dtype=torch.float32)
    made = HFModel(source, "llama")
    batch = pack([4], [TREE], [0], made.device)
    before = made.forward(batch, KVCache(rows=1, capacity=8)).logits
    source.half()
    junk = [torch.full((64, 64), 7.0) for _ in range(50)]  # takes the place of what was freed
    assert torch.equal(made.forward(batch, KVCache(rows=1, capacity=8)).logits, before)
    del junk


def test_a_row_that_is_not_a_number_stays_alone_and_nothing_hangs() -> None:
    source = tiny_model("llama", dtype=torch.float32)
    with torch.no_grad():
        source.model.embed_tokens.weight[9] = torch.nan
    made = HFModel(source, "llama")
    assert made._step is not None
    chains = [Draft.chain((9, 5), Proposal.POINT), Draft.chain((6,), Proposal.POINT)]
    batch = pack([4, 9], chains, [0, 0], made.device)
    logits = made.forward(batch, KVCache(rows=2, capacity=8)).logits
    nan = logits.isnan().any(dim=-1)
    # Whoever sees the token is not a number either: it, and what stands behind it.
    assert nan[0].tolist() == [False, True, True]
    assert nan[1, :2].tolist() == [True, True]


def test_a_wide_batch_keeps_the_bits_of_its_rows() -> None:
    """More rows than one call takes, as in a large batch of deep drafts."""
    made = model("llama")
    lengths = [5 + i for i in range(20)]
    chains = [Draft.chain(prompt(4, seed=i), Proposal.POINT) for i in range(20)]
    cache = filled(made, lengths)
    batch = pack(list(range(4, 24)), chains, lengths, made.device)
    together = made.forward(batch, cache).logits
    last = made.forward(batch, cache, [4] * 20).logits
    for row in range(20):
        alone = KVCache(rows=1, capacity=80)
        made.prefill(prompt(lengths[row], seed=row), alone, 0, chunk=32)
        single = pack([4 + row], [chains[row]], [lengths[row]], made.device)
        assert torch.equal(made.forward(single, alone).logits[0], together[row])
        assert torch.equal(last[row, 0], together[row, -1])


def test_a_branch_has_the_bits_of_plain_decoding() -> None:
    """Its keys are gathered from between those of other branches."""
    made = model("llama-grouped")
    long = prompt(126, seed=8)  # the branch crosses into the second chunk
    tree = Draft((7, 8, 9, 10, 11, 12), (-1, -1, 0, 1, 2, 4), None, Proposal.POINT)
    cache = KVCache(rows=1, capacity=200)
    made.prefill(long, cache, 0, 32)
    logits = made.forward(pack([4], [tree], [126], made.device), cache).logits[0]
    plain = KVCache(rows=1, capacity=200)
    made.prefill(long, plain, 0, 32)
    for token, column in [(4, 0), (7, 1), (9, 3), (11, 5), (12, 6)]:
        batch = pack([token], [Draft.chain((), Proposal.POINT)], plain.lengths, made.device)
        assert torch.equal(made.forward(batch, plain).logits[0, 0], logits[column])
        plain.keep(0, [0])


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("by_modules", [False, True])
def test_a_tree_fed_level_by_level_has_the_logits_of_one_pass(name: str, by_modules: bool) -> None:
    """Ragged rows over two chunks of attention; the step to the bit, the modules to rounding."""
    made = model(name)
    made._step = None if by_modules else made._step
    lengths = [126, 9]
    tree = Draft((7, 9, 11, 13, 17, 19), (-1, -1, 0, 1, 1, 3), None, Proposal.POINT)
    cache = KVCache(rows=2, capacity=160)
    for row, length in enumerate(lengths):
        made.prefill(prompt(length, seed=row), cache, row, chunk=32)
    whole = made.forward(pack([4, 5], [tree, tree], lengths, made.device), cache).logits
    first = pack([4, 5], [Draft.chain((), Proposal.POINT)] * 2, lengths, made.device)
    parts = [made.forward(first, cache).logits]
    for row in range(2):
        cache.keep(row, [0])
    earlier: list[int] = []
    for level in ([0, 1], [2, 3, 4], [5]):
        batch = level_of(tree, level, earlier, [length + 1 for length in lengths])
        parts.append(made.forward(batch, cache).logits)
        earlier += level
    found = torch.cat(parts, dim=1)
    if by_modules:
        assert (found - whole).abs().max() <= 1e-4 * whole.abs().max()
    else:
        assert torch.equal(found, whole)


def level_of(tree: Draft, nodes: list[int], earlier: list[int], starts: list[int]) -> TreeBatch:
    """The `nodes` of a tree behind its `earlier` ones, which a cache holds already."""
    columns = [*earlier, *nodes]
    mask = [[column in tree.path(node) for column in columns] for node in nodes]
    depths = {node: len(tree.path(node)) - 1 for node in columns}
    return TreeBatch(
        torch.tensor([[tree.tokens[node] for node in nodes] for _ in starts]),
        torch.tensor([[start + depths[node] for node in nodes] for start in starts]),
        torch.tensor([mask for _ in starts]),
        torch.tensor([[start + depths[node] for node in earlier] for start in starts]).long(),
        (len(nodes),) * len(starts),
    )
