"""Prompts that the audit decodes: short, long, repetitive, code, and more than ASCII."""

from __future__ import annotations

_STORY = (
    "The lighthouse keeper wrote down the weather every evening. On Monday the wind came from the "
    "north and the sea was grey. On Tuesday the wind turned west and brought rain. On Wednesday "
    "nothing moved, and he wrote a single word. On Thursday three ships passed before noon. "
)

AUDIT_PROMPTS: dict[str, str] = {
    "short": "The",
    "question": "What is the capital of France, and which river runs through it?",
    "long": _STORY * 6 + "On Friday",
    "repetitive": "one two three four, one two three four, one two three four, one two",
    "list": "Shopping list:\n1. apples\n2. bread\n3. cheese\n4.",
    "code": (
        "def fibonacci(n):\n    if n < 2:\n        return n\n"
        "    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\ndef factorial(n):\n"
    ),
    "json": (
        '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"]}\n{"name": "Alan",'
    ),
    "accents": "Où se trouve la gare, s'il vous plaît ? Elle se trouve près de l'hôtel,",
    "cjk": "東京は日本の首都です。大阪は",
    "emoji": "Weather today: ☀️🌤️🌧️ and tomorrow: 🌈",
}
