"""Hostile and broken documents: mutated examples, and documents drawn from the CRD's schema.

Drawn with `random` from one seed, not with hypothesis: ten thousand of them are tried once and not shrunk, and a mutated text has no
smaller form. A failing document is small already; the test prints it.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [path.read_text() for path in sorted(ROOT.glob("examples/**/*.yaml")) if "IdempotentJob" in path.read_text()]
SCHEMA = yaml.safe_load((ROOT / "crds" / "idempotentjobs.yaml").read_text())["spec"]["versions"][0]["schema"][
    "openAPIV3Schema"
]

TEXTS = [
    *("", "a", "=", "a=b", "\0", "a\0b", "\x1b[2J", "\x9b", "\u202e", "\ud800", "\udcff", "\U0010ffff", "é", "\u2028", "\ufeff", "~"),
    *("null", "true", "on", "1", "1e999", ".nan", "0x_", "0b", "2013-01-01", "12:30", "<<", "${params.a}", "${params.", "$${"),
    *("{revision}", "..", "/", "/dev/zero", "/dev/stdin", "/proc/self/mem", "job.py", "file://[x", "file:/a%00b", "s3://", "s3://b/k"),
    *("gopher://x", "://", "a://b:c", "SPARKONCE_X", "spark.sparkonce.x", "spark.master", "99999999999d", "1s" * 40, "-1s"),
    *("x" * 300, "x" * 70_000, "a/b@1", "--a", "--a=b"),
]  # fmt: skip
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
NUMBERS: list[Any] = [0, -1, 1, 2**31, 2**63, 2**64, 10**19, 10**307, 10**308, 10**400]
NUMBERS += [0.5, -0.0, 1e300, float("inf"), float("nan")]
TOKENS = [
    *("\n", "\t", " ", ":", ": ", "- ", "? ", "! ", "!!binary ", "!!set ", "!!omap ", "!!int ", "!!timestamp ", "#", "'", '"', "[", "]"),
    *("!!python/object:os.system ", "&a ", "*a", "<<: *a", "<<: [*a, *a]", "|", ">", "%YAML 1.1\n", "%TAG ! x\n", "---\n", "...\n"),
    *("{", "}", ",", '"\\ud800"', '"\\U00110000"', '"\\xZZ"', '"\\0"', "\x07", "\x80", "\ufffe", "[" * 200, "{a: " * 50, "- " * 200),
    *("9" * 5000, "0x" + "f" * 5000, "${params.x}", "=", "~", "null", ".inf", "1e5", "0o17", "1_000", "yes", "\r", "\u2028", "\ufeff"),
    *("x: &a {<<: *a}\n", "\x00"),
]  # fmt: skip
ALIASES = [
    "[*a{0}, *a{0}]",
    "{{<<: [*a{0}, *a{0}], k{1}: 1}}",
    "{{<<: *a{0}, k{1}: {{<<: *a{0}}}}}",
    "{{k: *a{0}, l: *a{0}}}",
]


def _filled(text: str) -> str:
    return re.sub(r"\$\{params\.[^}]*\}", "r1", text)


FILLED = [_filled(text) for text in EXAMPLES]
TREES = [yaml.safe_load(text) for text in FILLED]


def documents(random: Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        kind = random.random()
        if kind < 0.4:
            yield mutated_text(random, random.choice(FILLED))
        elif kind < 0.7:
            yield written(random, mutated_tree(random, random.choice(TREES)))
        elif kind < 0.97:
            yield written(random, drawn_job(random))
        else:
            yield expanding(random)


_VALUE = re.compile(r"(?m)(?<=: )\S+$")


def mutated_text(random: Random, text: str) -> bytes:
    """Cuts, swaps, repeats and inserts text at random places."""
    for _ in range(random.choice([1, 1, 1, 1, 2, 4])):
        at = random.randrange(len(text) + 1)
        end = min(len(text), at + random.choice([1, 2, 8, 64]))
        lines = text.splitlines(keepends=True)
        match random.randrange(9):  # half of the cases replace one value
            case 0:
                text = text[:at] + text[end:]
            case 1:
                text = text[:at] + random.choice(TOKENS) + text[at:]
            case 2:
                text = text[:at] + random.choice(TOKENS) + text[end:]
            case 3:
                text = text[:at] + text[at:end] * random.choice([2, 3, 50]) + text[end:]
            case 4 if lines:
                random.shuffle(lines) if random.random() < 0.2 else lines.insert(
                    random.randrange(len(lines)), random.choice(lines)
                )
                text = "".join(lines)
            case _:
                found = random.choice(list(_VALUE.finditer(text)) or [None])
                if found is not None:
                    text = text[: found.start()] + random.choice(TOKENS) + text[found.end() :]
    octets = text[: 1 << 21].encode(errors="surrogatepass")
    if random.random() < 0.03 and octets:
        where = random.randrange(len(octets))
        octets = octets[:where] + random.randbytes(random.choice([1, 4])) + octets[where + 1 :]
    return octets


def mutated_tree(random: Random, tree: Any) -> Any:
    """Replaces, removes, renames and nests values of a valid job."""
    tree = copy.deepcopy(tree)
    repeated = False  # at most once: repeating a repeated list would exhaust the memory
    for _ in range(random.choice([1, 1, 2, 5])):
        places = list(_places(tree))
        if not places:  # everything has been removed
            break
        holder, name = random.choice(places)
        match random.randrange(5):
            case 0 if isinstance(holder, dict):
                del holder[name]
            case 1 if isinstance(holder, dict):
                holder[random.choice(TEXTS)] = holder.pop(name)
            case 2:
                holder[name] = nested(random, holder[name])
            case 3 if isinstance(holder[name], list) and not repeated:
                repeated = True
                holder[name] = holder[name] * random.choice([0, 2, 30])
            case _:
                holder[name] = anything(random)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for name, each in pairs:
        yield tree, name
        yield from _places(each)


def nested(random: Random, value: Any) -> Any:
    for _ in range(random.choice([1, 3, 30, 90])):
        value = [value] if random.random() < 0.5 else {random.choice(TEXTS): value}
    return value


def anything(random: Random) -> Any:
    match random.randrange(8):
        case 0 | 1 | 2:
            return random.choice(TEXTS)
        case 3:
            return random.choice(NUMBERS)
        case 4:
            return random.choice([None, True, False, [], {}])
        case 5:
            return [anything(random) for _ in range(random.randrange(4))]
        case 6:
            return {random.choice(TEXTS): anything(random) for _ in range(random.randrange(4))}
    return [random.choice(TEXTS)[:80]] * random.choice([10, 1000])


def drawn(random: Random, schema: dict[str, Any]) -> Any:
    """A value of this schema or, once in two hundred draws, an arbitrary one."""
    if random.random() < 0.005:
        return anything(random)
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object" if "properties" in schema:
            required = schema.get("required", [])
            fields = {
                name: each for name, each in schema["properties"].items() if name in required or random.random() < 0.3
            }
            return {name: drawn(random, each) for name, each in fields.items()}
        case "object":
            some = schema.get("additionalProperties")
            if isinstance(some, dict):
                return {random.choice(TEXTS): drawn(random, some) for _ in range(random.randrange(3))}
            return _template(random)
        case "array":
            return [drawn(random, schema["items"]) for _ in range(random.choice([0, 1, 2, schema.get("maxItems", 3)]))]
        case "string":
            return random.choice(
                [*TEXTS, "a", "b-1", "30d", "5m", "1"] if random.random() < 0.05 else ["a", "b-1", "5m"]
            )
        case "integer" | "number":
            return random.choice(NUMBERS) if random.random() < 0.05 else random.randrange(1, 100)
        case "boolean":
            return random.random() < 0.5
    return anything(random)


def drawn_job(random: Random) -> dict[str, Any]:
    """A job of the schema with the fields that every job needs but a schema cannot require, so that most documents get past the first
    checks."""
    spec = drawn(random, SCHEMA["properties"]["spec"])
    job = {"apiVersion": "sparkonce.dev/v1alpha1", "kind": "IdempotentJob", "metadata": {"name": "drawn"}, "spec": spec}
    if not isinstance(spec, dict) or random.random() < 0.1:
        return job
    for name in ("idempotencyKey", "operation", "resource", "revision", "keyFrom", "bind", "tunableArguments"):
        spec.pop(name, None)
    spec |= {"idempotencyKey": "k"} if random.random() < 0.5 else {"operation": "load", "resource": "r"}
    kind = {"apiVersion": "sparkoperator.k8s.io/v1beta2", "kind": "SparkApplication", "spec": _template(random)}
    spec["template"] = kind
    outputs = spec.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():  # now and then something else is drawn
        if isinstance(output, dict):
            kinds = {name: output.pop(name) for name in ("slotLog", "delta", "iceberg") if name in output}
            output.update(dict(list(kinds.items())[:1]) or {"slotLog": {"path": "lake/a"}})
    return job


def _template(random: Random) -> dict[str, Any]:
    """The spec of a SparkApplication, which the CRD leaves open."""
    spec: dict[str, Any] = {"mainApplicationFile": "job.py"}
    parts: dict[str, Any] = {
        "arguments": [anything(random) for _ in range(3)],
        "sparkConf": {random.choice(TEXTS): anything(random) for _ in range(3)},
        "hadoopConf": {random.choice(TEXTS): random.choice(TEXTS)},
        "driver": {
            "env": [{"name": random.choice(TEXTS), "value": anything(random)}],
            "javaOptions": random.choice(TEXTS),
        },
        "executor": {"envVars": {random.choice(TEXTS): anything(random)}},
        "deps": {random.choice(["pyFiles", "jars", "files", "packages"]): [random.choice(TEXTS)]},
        "mainApplicationFile": random.choice(TEXTS),
        "volumes": anything(random),
        random.choice(TEXTS): anything(random),
    }
    for name in random.sample(list(parts), random.randrange(4)):
        spec[name] = parts[name]
    return spec


def written(random: Random, tree: Any) -> bytes:
    """As JSON or as YAML."""
    if random.random() < 0.5:
        return json.dumps(tree, ensure_ascii=random.random() < 0.5).encode(errors="surrogatepass")
    unicode = random.random() < 0.5
    try:
        return yaml.dump(tree, Dumper=DUMPER, allow_unicode=unicode, sort_keys=False).encode()
    except UnicodeEncodeError:  # libyaml cannot write lone surrogates
        return yaml.safe_dump(tree, allow_unicode=unicode, sort_keys=False).encode(errors="surrogatepass")


def expanding(random: Random) -> bytes:
    """Small texts that expand to huge values, and large texts without content."""
    size, depth = random.choice([10, 200, 3000]), random.randrange(1, 400)
    alias = random.choice(ALIASES)
    chain = ["a0: &a0 {k: 1}", *(f"a{n}: &a{n} {alias.format(n - 1, n)}" for n in range(1, depth))]
    return random.choice(
        [
            "\n".join(chain),
            "- " * size,
            "[" * size * 100,
            "---\n" * size * 10,
            "".join(f"%TAG !a{n}! b\n" for n in range(size)),
            "spec: {" + ",".join(f"k{n}: 1" for n in range(size)) + "}",
            "\n".join(" " * n + "a:" for n in range(min(size, 1000))),
            "#\n" * size * 100,
            FILLED[0] + "\n" * size * 100,
        ]
    ).encode()  # fmt: skip
