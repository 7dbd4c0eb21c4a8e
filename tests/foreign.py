"""Two small tokenizers of different make, trained on one text, and pairs of vocabularies."""

from __future__ import annotations

import functools
import json

import transformers as tf
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE

from draftproof.drafters.foreign import ForeignPair
from draftproof.models.lexicon import Lexicon
from draftproof.models.vocab import overlap

CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "def count(words):\n    total = 0\n    for word in words:\n        total += 1\n    return 1\n",
    "A plant makes sugar from light, water and air; that is photosynthesis.",
    "Über den Wolken, naïve café, señor, 日本語の文章, 😀 and 😃 and 12345 things.",
] * 4


@functools.cache
def byte_level(size: int = 330):
    """GPT-2's make: every byte a letter, words split first."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=alphabet,
        special_tokens=["<|pad|>", "<|end|>", "<|turn|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|turn|>"],
    )


@functools.cache
def sentencepiece(size: int = 420):
    """Llama 2's make: U+2581 for spaces, one before every text, and bytes for what is unknown."""
    learnt = Tokenizer(BPE())
    learnt.pre_tokenizer = pre_tokenizers.Metaspace()
    known = [line for line in CORPUS if line.isascii() and line.isprintable()]
    trainer = trainers.BpeTrainer(vocab_size=size - 259, show_progress=False)
    learnt.train_from_iterator(known, trainer)
    pieces = json.loads(learnt.to_str())["model"]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += sorted(pieces["vocab"], key=pieces["vocab"].get)
    tokenizer = Tokenizer(
        BPE(
            vocab={name: i for i, name in enumerate(names)},
            merges=[tuple(merge) for merge in pieces["merges"]],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )


def lexicon(tokenizer) -> Lexicon:
    return Lexicon(tokenizer, 1 + max(tokenizer.get_vocab().values()))


def foreign_pair(target, drafter, model, vocab_size: int) -> ForeignPair:
    """Of two tokenizers and the drafter's model; `vocab_size` is the target's V."""
    own, its = Lexicon(target, vocab_size), Lexicon(drafter, model.vocab_size)
    return ForeignPair(model, own, its, overlap(own, its), vocab_size, prefill_chunk=4)
