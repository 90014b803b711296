"""Hostile contents of files, made from valid ones."""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable
from typing import Any

RAW = "@@raw@@"
NUMBERS = (
    "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 400, "-" + "9" * 400, "9" * 5000, "0", "-0.0", "-1", "1",
    "0.5", "1.5", "5e-324", "1e308", "-1e308", "1e12", "1000000000000", "1000000", "10000000", "2147483648",
    "9223372036854775807", "9223372036854775808", "18446744073709551616", "1" + "0" * 20,
)  # fmt: skip
OTHERS = (
    "null", "true", "false", '""', '"NaN"', '"inf"', '"1"', '"[/red]"', '"[bold"', '"\\u001b[31mred"', '"\\ud800"',
    '"\\u0000"', '"places/zero"', '"places/fifo"', '"places/folder"', '"places/missing"', f'"{"n" * 300}"',
    f'"{"x" * 200_000}"', "[]", "{}", "[[]]", "[null]", "[NaN]", "[[[1]]]", '{"a":1}', '{"":{}}', '["a",1,null]',
    "[" * 60 + "]" * 60, "[" * 5000 + "]" * 5000, "[" * 200_000, '{"a":' * 5000 + "1" + "}" * 5000,
    "[" + "0," * 100_000 + "0]", "{" + ",".join(f'"k{n}":0' for n in range(80_000)) + "}",
)  # fmt: skip
YAML = (
    "!!python/object/apply:os.system [id]", "!!python/name:os.system", "!!binary x", "!!binary 'a===='", "!!int abc",
    "!!int ''", "!!float x", "!!bool x", "!!null x", "!!timestamp x", "!!timestamp 2026-13-45", "!!set {a, b}",
    "!!omap [a: 1]", "!!seq {}", "!!map []", "!!str [a]", "!unknown x", "!<tag:yaml.org,2002:int> x", "&a [*a]",
    "&a {b: *a}", "*nowhere", "&a &b c", "<<: {a: 1}", "{<<: 1}", "{<<: [1]}", ".nan", ".inf", "-.INF", "2026-13-45",
    "2026-11-24", "2026-11-24T99:99:99Z", "190:20:30", "0o17", "0x_", "0b2", "1__0", "~", "yes", "|\n  text",
    ">\n  text", "? [a]\n: b", "{[a]: b}", "{{a: 1}: b}", "{? : 1}", "'unclosed", '"\\x"', '"\\ud800"', "@x", "`x`",
    "%x", "- - - -", "[a, b", "{a: b", "a: b: c", "\tx", "!!", "&", "*", "!!float '1e400'", "1e400", "9" * 5000,
    "[" * 5000, "- " * 5000 + "a", "{a: " * 3000, "? " * 3000, "!!int '1:1:1:1'", "!!int 0o9", "!!float .", "!!int -",
    "!!merge <<", "=", "!!value =", "!!python/tuple [1]", "\x85", "\u2028", "\ufeff",
)  # fmt: skip
METRICS = (
    "NaN", "+Inf", "-Inf", "1e400", "-1", "0", "9" * 400, "1e308", "5e-324", "x", "", "0x1", "1_0", "٣", "1e12", "1.5",
)  # fmt: skip
POSITIONS = (
    "10000000", "1000000000000", "-1", "0", "1", "NaN", "1.0", "", "x", "٣", "9" * 400, "9" * 5000, " 1", "[/red]",
)  # fmt: skip

Mutator = Callable[[bytes, random.Random], bytes]


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """Any file: flipped, cut, repeated, inserted, or something else altogether."""
    place = rng.randrange(len(content) + 1)
    end = min(len(content), place + rng.randint(1, 200))
    match rng.randrange(16):
        case 0 | 1:
            flipped = bytearray(content or b"\0")
            for _ in range(rng.choice([1, 1, 2, 8, 64])):
                flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            return bytes(flipped)
        case 2 | 3:
            return content[:place]
        case 4:
            return content[:place] + content[end:]
        case 5:
            return content[:end] + content[place:]
        case 6:
            return content[:place] + rng.randbytes(rng.randint(1, 30)) + content[place:]
        case 7:
            return content[:place] + rng.choice([b"\xff\xfe", b"\xc3(", b"\xed\xa0\x80", b"\x80"]) + content[place:]
        case 8:
            return (
                content[:place] + rng.choice([b"\0", b"\x1b[31m", b"\r", b"\x0b", "\u2028".encode()]) + content[place:]
            )
        case 9:
            return rng.choice([b"\xef\xbb\xbf", b"\xff\xfe", b"\x00\x00\xfe\xff"]) + content
        case 10:
            return content.decode("utf-8", "replace").encode(
                rng.choice(["utf-16", "utf-32", "utf-7", "cp037"]), "replace"
            )
        case 11:
            return rng.choice(
                [b"", b" ", b"\n", b"\n\n\n", b"\0" * 100, b"null", b"[]", b"{}", b"0", b'""', b"---\n...\n"]
            )
        case 12:
            return rng.choice(
                [b"\x89PNG\r\n\x1a\n", b"\x1f\x8b\x08\0", b"PK\x03\x04", b"\x80\x05]", b"%PDF-1.4", b"#!/bin/sh\n"]
            )
        case 13:
            return content.replace(b"\n", rng.choice([b"\r\n", b"\r", b"", b"\n\n"]))
        case 14:
            return content * rng.choice([2, 3]) if len(content) < 1_000_000 else content[::-1]
        case _:
            return rng.randbytes(rng.choice([1, 10, 1000]))


def mutated_json(content: bytes, rng: random.Random) -> bytes:
    """A JSON document with one or two of its values, keys or members changed."""
    try:
        document = json.loads(content)
    except ValueError:
        return mutated_bytes(content, rng)
    text = ""
    for _ in range(rng.choice([1, 1, 2])):
        document, text = _mutated(document, rng)
        if text is not None:
            break
    return (text or json.dumps(document)).encode("utf-8", "surrogatepass")


def mutated_lines(content: bytes, rng: random.Random) -> bytes:
    """JSON lines with one of them changed."""
    lines = content.splitlines()
    if not lines:
        return mutated_bytes(content, rng)
    place = rng.randrange(len(lines))
    change = mutated_json if rng.random() < 0.8 else mutated_bytes
    lines[place] = change(lines[place], rng).replace(b"\n", b" ")
    kept = lines if rng.random() < 0.7 else lines[place : place + 1]
    if rng.random() < 0.1:
        kept = [*kept, *kept[::-1]]
    return b"\n".join(kept) + b"\n"


def mutated_yaml(content: bytes, rng: random.Random) -> bytes:
    """A YAML file with one value, line or mark of structure changed."""
    lines = content.decode().splitlines()
    settings = [place for place, line in enumerate(lines) if ":" in line and not line.lstrip().startswith("#")]
    kind = rng.randrange(10)
    if not settings or kind == 0:
        return mutated_bytes(content, rng)
    place = rng.choice(settings)
    name, _, value = lines[place].partition(":")
    if kind <= 4:
        lines[place] = f"{name}: {rng.choice([*YAML, *NUMBERS, *OTHERS])}"
    elif kind == 5:
        lines.insert(
            place,
            rng.choice([lines[place], f"{name}x: 1", "? a", "---", "...", "%YAML 9.9", "\t", "- 1", "<<: {a: 1}"]),
        )
    elif kind == 6:
        del lines[place]
    elif kind == 7:
        lines[place] = rng.choice(["  ", " ", "- ", "? ", "!!int ", "&a ", "'", "["]) + lines[place]
    elif kind == 8:
        lines += [f"key{number}: 0" for number in range(80_000)]
    else:
        lines[place] = (
            f"{name}: {value.replace(rng.choice('0123456789.[]{},'), rng.choice(['-', '9', '[', '}', ',', 'e']))}"
        )
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def mutated_csv(content: bytes, rng: random.Random) -> bytes:
    """A table with a column, a field or its quotes changed."""
    rows = [line.split(",") for line in content.decode().splitlines()]
    row = rng.choice(rows)
    fields = (
        *NUMBERS,
        "",
        "x",
        '"',
        '"a',
        "a" * 140_000,
        "\0",
        "[/red]",
        "\x1b[31m",
        " 1",
        "1;2",
        "-1",
        "1e400",
        "inf",
        "é",
        "٣",
    )
    match rng.randrange(8):
        case 0:
            return mutated_bytes(content, rng)
        case 1 | 2 | 3:
            row[rng.randrange(len(row))] = rng.choice(fields)
        case 4:
            rows[0][rng.randrange(len(rows[0]))] = rng.choice(
                ["", rows[0][0], "request_rate", "policy", "x" * 300, "[bold"]
            )
        case 5:
            row += [rng.choice(fields)] * rng.choice([1, 2, 50])
        case 6:
            del row[rng.randrange(len(row))]
        case _:
            rows = rng.choice([rows[:1], rows[1:], rows[:1] + rows[:1], []])
    return ("\n".join(",".join(row) for row in rows) + "\n").encode("utf-8", "surrogatepass")


def mutated_metrics(content: bytes, rng: random.Random) -> bytes:
    """A page of Prometheus metrics with a value, a label or a line changed."""
    lines = content.decode().splitlines()
    place = rng.choice([number for number, line in enumerate(lines) if not line.startswith("#")])
    name, _, value = lines[place].rpartition(" ")
    match rng.randrange(8):
        case 0:
            return mutated_bytes(content, rng)
        case 1 | 2 | 3:
            lines[place] = f"{name} {rng.choice(METRICS)}"
        case 4 | 5:
            lines.append(
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{rng.choice(POSITIONS)}"}} 1.0'
            )
        case 6:
            lines[place] = rng.choice(
                [f"{name}{{ {value}", f"{name} {value} x", f'{name}{{a="b {value}', f"{{}} {value}", "#", "# TYPE"]
            )
        case _:
            del lines[place]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def mutated_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Weights with a header, a tensor or a length changed."""
    length = struct.unpack("<Q", content[:8])[0]
    header, data = content[8 : 8 + length], content[8 + length :]
    tensors: dict[str, Any] = json.loads(header)
    names = [name for name in tensors if name != "__metadata__"]
    one = rng.choice(names)
    match rng.randrange(12):
        case 0:
            return mutated_bytes(content, rng)
        case 1:
            return content[: rng.choice([0, 4, 8, 8 + length // 2, 8 + length, len(content) - 1])]
        case 2:
            return struct.pack("<Q", rng.choice([0, 1, length + 1, 2**31, 2**63, 2**64 - 1])) + header + data
        case 3 | 4:
            header = mutated_json(header, rng)
            return struct.pack("<Q", len(header)) + header + data
        case 5:
            tensors[one]["dtype"] = rng.choice(["F64", "F16", "BF16", "I64", "BOOL", "U8", "F8_E4M3", "X"])
        case 6:
            tensors[one]["shape"] = rng.choice(
                [[], [1], [0], [-1], [2**40, 2**40], tensors[one]["shape"][::-1], [1, *tensors[one]["shape"]]]
            )
        case 7:
            tensors[rng.choice(["", "x", one + ".x", "model.layers.99.mlp.up_proj.weight"])] = tensors.pop(one)
        case 8:
            return struct.pack("<Q", length) + header + rng.choice([b"", b"\xff" * len(data), data[::-1]])
        case 9:
            tensors[one]["data_offsets"] = rng.choice(
                [[0, 0], [0, 2**40], [-1, 5], tensors[rng.choice(names)]["data_offsets"]]
            )
        case 10:
            return without_tensors(content, [one])
        case _:
            tensors["__metadata__"] = rng.choice([{"format": "tf"}, {"format": "x"}, {}, {"a": 1}])
    return _weights(tensors, data)


def without_tensors(content: bytes, names: list[str]) -> bytes:
    """Weights that lack some tensors, and are whole otherwise."""
    length = struct.unpack("<Q", content[:8])[0]
    tensors, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    kept: dict[str, Any] = {}
    left = b""
    for name, tensor in tensors.items():
        if name == "__metadata__":
            kept[name] = tensor
        elif name not in names:
            begin, end = tensor["data_offsets"]
            kept[name] = tensor | {"data_offsets": [len(left), len(left) + end - begin]}
            left += data[begin:end]
    return _weights(kept, left)


def _weights(tensors: dict[str, Any], data: bytes) -> bytes:
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + data


MUTATORS: dict[str, Mutator] = {
    ".json": mutated_json,
    ".jsonl": mutated_lines,
    ".yaml": mutated_yaml,
    ".csv": mutated_csv,
    ".txt": mutated_metrics,
    ".safetensors": mutated_safetensors,
}


def _mutated(document: Any, rng: random.Random) -> tuple[Any, str | None]:
    """The document changed in one place; its text too, where the change is not one that `json.dumps` can write."""
    document = copy.deepcopy(document)
    nodes = _members(document)
    if not nodes:
        return document, rng.choice([*NUMBERS, *OTHERS])
    parent, key = rng.choice(nodes)
    kind = rng.randrange(10)
    if kind <= 5:
        numeric = isinstance(parent[key], int | float) and rng.random() < 0.6
        parent[key] = RAW
        return document, json.dumps(document).replace(
            f'"{RAW}"', rng.choice(NUMBERS if numeric else [*NUMBERS, *OTHERS])
        )
    if kind == 6:
        del parent[key]
    elif kind == 7 and isinstance(parent, dict):
        parent[RAW] = 1
        name = rng.choice(["new", "", "[/red]", "\\u0000", "\\ud800", "x" * 300, str(key)])
        return document, json.dumps(document).replace(f'"{RAW}"', f'"{name}"')
    elif kind == 8:
        other, place = rng.choice(nodes)
        parent[key] = copy.deepcopy(other[place])
    else:
        return document, rng.choice(["[%s]", '{"rows":%s}', "%s,", "%s%s", "%s x", "\ufeff%s"]).replace(
            "%s", json.dumps(document)
        )
    return document, None


def _members(node: Any) -> list[tuple[Any, Any]]:
    """Parent and key of everything in a document; at most some thousands."""
    found: list[tuple[Any, Any]] = []
    waiting = [node]
    while waiting and len(found) < 5000:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            found.append((one, key))
            waiting.append(one[key])
    return found
