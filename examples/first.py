"""The first thing to run: the same text, plainly and with drafts."""

import draftproof as dp

spec = dp.Speculator.from_pretrained("smollm2-135m", drafter="self-int8")
prompt = [{"role": "user", "content": "Name three uses of a paper clip."}]
params = dp.SamplingParams(max_tokens=48)

for piece in spec.stream(prompt, params):
    print(piece, end="", flush=True)
print()

drafted, plain = spec.generate(prompt, params), spec.plain(prompt, params)
print("identical:", drafted.token_ids == plain.token_ids)
print(f"target calls: {drafted.stats.target_calls} instead of {plain.stats.target_calls}")
