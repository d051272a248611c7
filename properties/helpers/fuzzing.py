"""Mutate texts and documents, and require that a decoder accepts or refuses each of them."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any, TypeVar

Input = TypeVar("Input", str, bytes)

# Replacements for a number or a quoted word, in a line or in JSON.
VALUES = [
    *("0", "-1", "1e400", "2.5", "NaN", "1099511627775", "9" * 25, "8" * 5000, "null", "true"),
    *('""', '"<i8"', '"\\ud800"', "[]", "[1]", "{}", "[[[[2]]]]", "[0,549755813888,549755813888]"),
]
# Replacements for a value in a document.
DOCUMENT_VALUES: list[Any] = [
    *(None, True, 0, -1, 3, 0.5, 1e400, 10**30, "", "x", "\ud800", "\x1b[2J", [], [[]], {}),
    *({"": 0}, ["x"], [1, 2]),
]
# Patterns of values, and of what holds values: mutations that respect them get further into a
# decoder than others.
WORDS = [re.compile(r'"[^"]*"|\[[^][]*\]|[0-9]+'), re.compile(r"\{[^{}]*\}|[a-z]+=[^ ]*")]


def mutate(text: str, other: str, random: Random) -> str:
    """Make a few small changes to a text; some insert pieces of `other`."""
    for _ in range(random.choice((1, 1, 2, 3))):
        start = random.randint(0, len(text))
        stop = min(len(text), start + random.randint(1, 8))
        words, lent = text.split(" "), other.split(" ")
        word = random.randrange(len(words))
        places = list(random.choice(WORDS).finditer(text))
        kind = random.randrange(9)
        if kind == 0:
            text = text[:start] + chr(random.randrange(256)) + text[start + 1 :]
        elif kind == 1:
            text = text[:start] + random.choice(f"\0\n ,:=[]{{}}\xff{other}") + text[start:]
        elif kind == 2:
            text = text[:start] + text[stop:]
        elif kind == 3:
            text = text[:stop] + text[start:stop] + text[stop:]
        elif kind == 4:
            text = text[:start] + other[random.randint(0, len(other)) :]
        elif kind == 5:
            text = " ".join(words[:word] + words[word + 1 :])
        elif kind == 6:
            text = " ".join([*words[:word], random.choice(lent), *words[word + 1 :]])
        elif places:
            place = random.choice(places)
            value = random.choice(VALUES) if kind == 7 else str(random.randint(0, 9))
            text = text[: place.start()] + value + text[place.end() :]
    return text


def one_value_else(text: str, random: Random) -> str:
    """Replace, delete or duplicate one value of a document, at any depth."""
    document = json.loads(text)
    inside = document
    while True:
        places = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        if not places:
            break
        place = random.choice(places)
        deeper = inside[place]
        if isinstance(deeper, (dict, list)) and random.random() < 0.8:
            inside = deeper
            continue
        kind = random.random()
        if kind < 0.1:
            del inside[place]
        elif kind < 0.2 and isinstance(inside, list):
            inside.append(deeper)
        else:
            inside[place] = random.choice(DOCUMENT_VALUES)
        break
    return json.dumps(document)


def mutants(document: str, random: Random) -> Iterator[bytes]:
    """Yield mutants of a JSON document without end; most of them are still JSON."""
    while True:
        is_json = random.random() < 0.7
        changed = (
            one_value_else(document, random) if is_json else mutate(document, document, random)
        )
        yield changed.encode("utf-8", "surrogatepass")


def fuzz(
    decode: Callable[[Input], object],
    inputs: Iterable[Input],
    refusal: type[Exception],
    count: int,
) -> Counter[str]:
    """Count accepted and refused inputs; any other exception gets its input as a note."""
    counts: Counter[str] = Counter()
    for _, data in zip(range(count), inputs, strict=False):
        try:
            decode(data)
        except refusal:
            counts["refused"] += 1
        except Exception as error:
            error.add_note(f"on {data!r}")
            raise
        else:
            counts["accepted"] += 1
    return counts
