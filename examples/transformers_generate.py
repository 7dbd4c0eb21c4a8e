"""Speculation inside transformers' own generate: one argument more."""

from transformers import AutoModelForCausalLM, AutoTokenizer

import draftproof as dp
from draftproof.models.store import fetch

folder = fetch("smollm2-135m")
model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(folder)
inputs = tokenizer("def add(a, b):\n    return", return_tensors="pt")

speculate = dp.custom_generate(drafter="ngram")
options = {"max_new_tokens": 24, "do_sample": False}
drafted = model.generate(**inputs, **options, custom_generate=speculate)
print(tokenizer.decode(drafted[0]))
