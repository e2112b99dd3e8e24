"""What each field of a manifest.json may be: anything else is named before it is used."""

from collections.abc import Callable, Iterator
from typing import Any

from eagle3.data.layout import DTYPES

Test = Callable[[Any], bool]


def _whole(least: int) -> Test:
    return lambda x: isinstance(x, int) and not isinstance(x, bool) and x >= least


def _number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool)


def _text(x: Any) -> bool:
    return isinstance(x, str)


def _list_of(each: Test) -> Test:
    """Not empty, each once."""
    return lambda x: isinstance(x, list) and bool(x) and all(map(each, x)) and len(set(x)) == len(x)


def _table(value: Test, key: Test = _text) -> Test:
    return lambda x: isinstance(x, dict) and all(key(k) and value(v) for k, v in x.items())


def _file_name(x: Any) -> bool:
    return isinstance(x, str) and x not in ("", ".", "..") and "/" not in x and "\0" not in x


def _sample_id(x: Any) -> bool:
    return isinstance(x, str) and x.isascii() and x.isdecimal() and len(x) < 19


COUNT, SIZE = (_whole(0), "a whole number, 0 or more"), (_whole(1), "a whole number, 1 or more")
TEXT, TEXTS = (_text, "a text"), (_table(_text), "an object of texts")
FIELDS: dict[str, tuple[Test, str]] = {
    "states": (_list_of(_text), "a list of names, each once"),
    "boundaries": (_list_of(_whole(1)), "a list of whole numbers from 1 on, each once"),
    "dtype": (lambda x: x in tuple(DTYPES), f"one of {', '.join(DTYPES)}"),
    "hidden_size": SIZE,
    "vocab_size": COUNT,
    "num_layers": COUNT,
    "target": TEXTS,
    "prompts_fingerprint": TEXT,
    "placement": (_table(lambda x: _number(x) or _text(x)), "an object"),
    "tokenizer_sha256": TEXT,
    "template_sha256": TEXT,
    "sglang_version": TEXT,
    "server_flags": (_table(lambda _: True), "an object"),
    "plugin_sha256": TEXT,
    "nccl_env": TEXTS,
    "sequences": COUNT,
    "tokens": COUNT,
    "bytes": COUNT,
    "shards": (lambda x: isinstance(x, list), "a list"),
    "quarantined": (_table(_text, _sample_id), "an object of sample ids and reasons"),
    "skipped": (_table(_whole(0)), "an object of reasons and how many"),
    "proof": (_table(_table(_number)), "an object of rounds and their figures"),
    "complete": (lambda x: isinstance(x, bool), "true or false"),
    "final_norm": TEXT,
    "format_version": SIZE,
}
OPTIONAL: dict[str, tuple[Test, str]] = {"quantisation": (lambda x: isinstance(x, dict), "an object")}
PLACEMENT: dict[str, tuple[Test, str]] = {"sequences": COUNT, "tokens": COUNT, "shards": COUNT, "sha256": TEXT}
SHARD: dict[str, tuple[Test, str]] = {
    "file": (_file_name, "a file's name"),
    "sequences": SIZE,
    "tokens": SIZE,
    "bytes": SIZE,
    "sha256": TEXT,
}
BY_STATE = (_table(_number), "an object of states and numbers")
QUANTISATION: dict[str, tuple[Test, str]] = {
    "relative_rms": BY_STATE,
    "max_relative_row": BY_STATE,
    "kl_divergence": (_number, "a number"),
    "top1_agreement": (_number, "a number"),
    "positions": COUNT,
}


def odd_fields(raw: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a manifest's content, e.g. "'tokens' is -1, and should be a whole number, 0 or more"."""
    there = {**FIELDS, **{name: test for name, test in OPTIONAL.items() if raw.get(name)}}
    wrong = list(_odd(raw, there, ""))
    yield from wrong
    if wrong:
        return
    yield from _odd(raw["placement"], PLACEMENT, "placement.")
    gib = raw["placement"].get("shard_gib", 1)
    if not _number(gib) or not gib > 0:
        yield f"'placement.shard_gib' is {_shown(gib)}, and should be a number above 0"
    if raw.get("quantisation"):
        yield from _odd(raw["quantisation"], QUANTISATION, "quantisation.")
        if not raw["quantisation"].get("max_relative_row"):
            yield "'quantisation.max_relative_row' is empty"
    if raw["num_layers"] and max(raw["boundaries"]) > raw["num_layers"]:
        yield f"'boundaries' are {raw['boundaries']}, and the model has {raw['num_layers']} layers"
    files: set[str] = set()
    for number, shard in enumerate(raw["shards"]):
        if not isinstance(shard, dict):
            yield f"'shards[{number}]' is {_shown(shard)}, and should be an object"
            continue
        if unknown := sorted(shard.keys() - SHARD.keys()):
            yield f"'shards[{number}]' has {unknown[0]!r}, which this version does not know"
        odd = list(_odd(shard, SHARD, f"shards[{number}]."))
        yield from odd
        if odd:
            continue
        if shard["tokens"] < shard["sequences"]:
            yield f"'shards[{number}]' has {shard['tokens']} tokens in {shard['sequences']} sequences"
        if shard["file"] in files:
            yield f"'shards' lists {shard['file']} twice"
        files.add(shard["file"])


def _odd(raw: dict[str, Any], fields: dict[str, tuple[Test, str]], prefix: str) -> Iterator[str]:
    for name, (right, wanted) in fields.items():
        if name not in raw:
            yield f"{prefix + name!r} is missing"
        elif not right(raw[name]):
            yield f"{prefix + name!r} is {_shown(raw[name])}, and should be {wanted}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
