import json

import pytest

from turbospec import UserError
from turbospec.interface import MAX_DRAFT_LENGTH
from turbospec.policy import json_schema, read_policy, registered, schema

HEAD = "version: 1\npolicy: static\n"
EMA = "version: 1\npolicy: ema_tiers\n"
KINDS = (
    "acceptance_gate, adaptive, bandit, batch_table, confidence, ema_tiers, goodput, heuristic, lookup_first, off, "
    "static, vllm_adaptive_verification"
)


@pytest.fixture(autouse=True)
def no_registered_policies(monkeypatch):
    """Whatever the environment has installed, only the built-in policies are known here."""
    monkeypatch.setattr(registered, "entry_points", lambda group: ())


@pytest.fixture
def error_of(tmp_path, monkeypatch):
    """Writes x.yaml, reads it as a policy, and returns the error that this must give."""
    monkeypatch.chdir(tmp_path)

    def read(text):
        path = tmp_path / "x.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(UserError) as error:
            read_policy(path.relative_to(tmp_path))
        return str(error.value)

    return read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        # Values.
        (HEAD + "# one\ndraft_length: -1\n", "4: draft_length: input should be greater than or equal to 0 (got -1)"),
        (HEAD + "draft_length: yes\n", '3: draft_length: input should be a valid integer (got "yes")'),
        (HEAD + "draft_length: true\n", "3: draft_length: input should be a valid integer (got true)"),
        (HEAD + 'draft_length: "3"\n', '3: draft_length: input should be a valid integer (got "3")'),
        (HEAD + "draft_length: 2.5\n", "3: draft_length: input should be a valid integer (got 2.5)"),
        (HEAD + "draft_length:\n", "3: draft_length: input should be a valid integer (got null)"),
        (
            HEAD + "draft_length: 3\nguard:\n  cooldown_steps: -5\n",
            "5: guard.cooldown_steps: input should be greater than or equal to 0 (got -5)",
        ),
        (HEAD + "draft_length: 3\nguard: 4\n", "4: guard: input should be an object (got 4)"),
        (
            EMA + "slots:\n  1: {candidates: [1]}\n  8:\n    candidates: [3, 1]\n",
            "6: slots.8.candidates: draft lengths must be 0 or more and rise from one to the next",
        ),
        (
            EMA + "slots:\n  1:\n    candidates:\n      - 1\n      - x\n",
            '7: slots.1.candidates.1: input should be a valid integer (got "x")',
        ),
        (
            "version: 1\npolicy: batch_table\ntable:\n  - {first: 2, last: 4, draft_length: 1}\n",
            "3: table: the first entry must start at batch size 1, not 2",
        ),
        # Fields.
        (HEAD + "draft_lenght: 3\n", "3: draft_lenght: unknown field; did you mean `draft_length`?"),
        (
            HEAD + "draft_length: 3\nzzz: 1\n",
            "4: zzz: unknown field; known: description, draft_length, guard, policy, version",
        ),
        (
            HEAD + "draft_length: 3\nguard:\n  cooldown: 3\n",
            "5: guard.cooldown: unknown field; did you mean `cooldown_steps`?",
        ),
        (
            "version: 1\npolicy: batch_table\ntable:\n  - first: 1\n    last: 4\n    draftlength: 1\n",
            "6: table.0.draftlength: unknown field; did you mean `draft_length`?",
        ),
        (
            EMA + "slots:\n  1:\n    candidate: [1]\n",
            "5: slots.1.candidate: unknown field; did you mean `candidates`?",
        ),
        (HEAD, "1: draft_length: missing; add `draft_length: <integer>`"),
        ("policy: off\n", "1: version: missing; add `version: 1`"),
        ("version: 2\npolicy: off\n", "1: version: input should be 1 (got 2)"),
        (HEAD + "draft_length: 3\ndraft_length: 4\n", "4: draft_length: given twice (first on line 3); keep one"),
        (HEAD + "guard:\n  a: 1\n  a: 2\n", "5: a: given twice (first on line 4); keep one"),
        # Kinds.
        ("version: 1\npolicy: statik\n", "2: policy: unknown policy `statik`; did you mean `static`?"),
        ("version: 1\npolicy: magic\n", f"2: policy: unknown policy `magic`; known: {KINDS}"),
        ("# a comment\nversion: 1\n", f"2: policy: missing; add it (known: {KINDS})"),
        # YAML.
        ("", "1: the file is empty; start it with `policy: <kind>`"),
        ("# only a comment\n", "1: the file is empty; start it with `policy: <kind>`"),
        ("- off\n", "1: this is a list; a policy file holds `field: value` lines"),
        ("off\n", "1: this is a single value; a policy file holds `field: value` lines"),
        ("version: 1\npolicy: [off\n", "3: not valid YAML (expected ',' or ']', but got '<stream end>')"),
        ("version: 1\npolicy: off\n---\n", "3: not valid YAML (but found another document)"),
        (
            "a: &x {b: 1}\nc: *x\n",
            "2: not valid YAML (aliases (*name) are not supported; write the value out)",
        ),
        ("a: !!python/name:os.system\n", "1: not valid YAML (could not determine a constructor for the tag "),
        ("a: \x00\n", "1: not valid YAML (unacceptable character #x0000"),
        ("version: 1\n? {a: b}\n: 1\n", "2: the name of a field must be plain text"),
        ("null: 1\n", "1: the name of a field must be plain text"),
    ],
)
def test_errors_name_file_line_and_field(error_of, text, message):
    error = error_of(text)
    assert error.startswith(f"x.yaml:{message}")
    assert "\n" not in error


def test_errors_of_the_file_itself(tmp_path):
    missing = tmp_path / "none.yaml"
    with pytest.raises(UserError, match=r"none\.yaml: no such policy file$"):
        read_policy(missing)
    with pytest.raises(UserError, match=r"this is a folder; name a policy file in it$"):
        read_policy(tmp_path)


def test_binary_is_no_policy(error_of):
    assert error_of(b"\xff\xfe\x00") == "x.yaml: not a text file in UTF-8 (byte 0)"


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        (HEAD + "x" * 300 + ": 1\n", f"3: {'x' * 60}…: unknown field; known: ", ""),
        (f"version: 1\npolicy: {'x' * 300}\n", f"2: policy: unknown policy `{'x' * 60}…`; known: ", ""),
        (f"version: 1\npolicy: [{'x' * 300}]\n", '2: policy: unknown policy `["xxx', ""),
        (HEAD + f"draft_length: {'x' * 300}\n", '3: draft_length: input should be a valid integer (got "xxx', ""),
        (HEAD + "draft_length: [!!binary aGk=, 2020-01-01, !!set {a}]\n", "3: draft_length: input should be", ""),
        (HEAD + f"draft_length: 0x{'f' * 5000}\n", "3: not valid YAML (the number 0xfff", " is out of range)"),
        (HEAD + f"draft_length: {10**19}\n", "3: not valid YAML (the number 1000", " is out of range)"),
    ],
)
def test_long_and_odd_values_make_short_errors(error_of, text, start, end):
    error = error_of(text)
    assert error.startswith(f"x.yaml:{start}")
    assert error.endswith(end)
    assert len(error) < 300


def test_one_of_many_problems_is_explained(error_of, monkeypatch):
    explained = []
    monkeypatch.setattr(schema, "_explain", lambda settings, problem: explained.append(problem["loc"]) or "wrong")
    unknown = "".join(f"k{number}: 1\n" for number in range(2000))
    assert error_of(HEAD + unknown) == "x.yaml:3: k0: wrong"
    assert explained == [("k0",)]


@pytest.mark.parametrize("word", ["off", '"off"', "'off'"])
def test_off_is_a_word_here_and_not_false_as_in_yaml_1_1(tmp_path, word):
    path = tmp_path / "p.yaml"
    path.write_text(f"version: 1\npolicy: {word}\n")
    assert read_policy(path).model_dump()["policy"] == "off"


def test_numbers_may_have_an_exponent_and_whole_ones_serve_as_floats(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\npolicy: bandit\ndiscount: 1\nexploration: 1e-1\n")
    settings = read_policy(path).model_dump()
    assert (settings["discount"], settings["exploration"]) == (1.0, 0.1)


@pytest.mark.parametrize(
    ("kind", "field", "allowed", "refused"),
    [
        ("acceptance_gate", "draft_length", [0], [-1, 10**15]),
        ("acceptance_gate", "window", [1], [0, 10**9]),
        ("acceptance_gate", "threshold", [0], [-0.01, 1e300, ".inf"]),
        ("adaptive", "max_draft", [0, MAX_DRAFT_LENGTH], [-1, MAX_DRAFT_LENGTH + 1]),
        ("adaptive", "probe_share", [0, 0.2], [-0.01, 0.21]),
        ("adaptive", "first_token_weight", [0], [-0.01, 1e300, ".inf"]),
        ("adaptive", "tpot_slo_ms", [0.01], [0, 1e300, ".inf"]),
        ("adaptive", "ttft_slo_ms", [0.01], [0, 1e300, ".inf"]),
        ("bandit", "discount", [0.01, 1], [0, 1.01]),
        ("bandit", "exploration", [0], [-0.01, 1e300]),
        ("bandit", "draft_lengths", [[0], [0, 15]], [[], [1, 1], [-1], [0, 10**15]]),
        ("batch_table", "table", [], ["[{first: 1, last: 9, draft_length: 129}]"]),
        ("batch_table", "table", [], ["[{first: 1, last: 10000000000, draft_length: 3}]"]),
        ("confidence", "threshold", [0.01, 0.99], [0, 1]),
        ("confidence", "window", [6], [5, 10**9]),
        ("ema_tiers", "slots", [], ["{1: {candidates: [129]}}", "{10000000: {candidates: [1]}}"]),
        ("ema_tiers", "slots", [], ["{1: {candidates: [1], up_hysteresis: 1.0e+300}}"]),
        ("ema_tiers", "start", [0], [-1, 10**15]),
        ("ema_tiers", "ema_weight", [0.01, 1], [0, 1.01]),
        ("ema_tiers", "warmup_steps", [0], [-1, 10**15]),
        ("ema_tiers", "decision_interval", [1], [0, 10**15]),
        ("goodput", "initial_acceptance", [0, 1], [-0.01, 1.01]),
        ("goodput", "acceptance_weight", [0.01, 1], [0, 1.01]),
        ("goodput", "warmup_steps", [1, 4096], [0, 4097]),
        ("heuristic", "start", [1], [0, 10**15]),
        ("lookup_first", "min_score", [0], [-0.01, 1e300, ".inf"]),
        ("lookup_first", "draft_length", [0, MAX_DRAFT_LENGTH], [-1, MAX_DRAFT_LENGTH + 1]),
        ("lookup_first", "lookup_length", [0, MAX_DRAFT_LENGTH], [-1, MAX_DRAFT_LENGTH + 1]),
        ("static", "draft_length", [0, MAX_DRAFT_LENGTH], [-1, MAX_DRAFT_LENGTH + 1, 10**15]),
        ("vllm_adaptive_verification", "profile_context_tokens", [1], [0, 10**15]),
        ("vllm_adaptive_verification", "max_logits", [1], [0, 10**15]),
        ("vllm_adaptive_verification", "warmup_steps", [5, 4096], [4, 4097]),
    ],
)
def test_bounds(tmp_path, kind, field, allowed, refused):
    path = tmp_path / "p.yaml"
    for value in allowed:
        path.write_text(f"version: 1\npolicy: {kind}\n{field}: {value}\n")
        read_policy(path)
    for value in refused:
        path.write_text(f"version: 1\npolicy: {kind}\n{field}: {value}\n")
        with pytest.raises(UserError, match=f"3: {field}[.:]"):
            read_policy(path)


@pytest.mark.parametrize(
    ("kind", "defaults"),
    [
        ("acceptance_gate", {"draft_length": 3, "window": 32, "threshold": 0.6}),
        ("bandit", {"draft_lengths": (0, 1, 2, 3, 5, 8, 15), "discount": 0.99, "exploration": 0.1}),
        ("confidence", {"threshold": 0.4, "window": 512}),  # 0.4 as in transformers
        ("ema_tiers", {"start": 3, "ema_weight": 0.2, "warmup_steps": 10, "decision_interval": 5}),  # as in SGLang
        ("goodput", {"initial_acceptance": 0.7, "acceptance_weight": 0.15, "warmup_steps": 64}),  # as the authors
        ("heuristic", {"start": 20}),  # as in transformers
        ("lookup_first", {"min_score": 4, "draft_length": 3, "lookup_length": None}),  # as in TensorRT-LLM
    ],
)
def test_defaults(tmp_path, kind, defaults):
    path = tmp_path / "p.yaml"
    path.write_text(f"version: 1\npolicy: {kind}\n")
    settings = read_policy(path).model_dump()
    assert {field: settings[field] for field in defaults} == defaults
    assert settings.keys() - defaults.keys() - {"slots"} == {"version", "policy", "description", "guard"}


def test_default_tiers(tmp_path):
    path = tmp_path / "p.yaml"
    path.write_text("version: 1\npolicy: ema_tiers\n")
    slots = read_policy(path).model_dump()["slots"]
    assert {size: tuple(slot.values()) for size, slot in slots.items()} == {
        1: ((1, 3, 5, 7), 0.0, -0.25),
        8: ((0, 1, 3), 0.0, 0.0),
        32: ((0, 1), 0.0, 0.0),
        64: ((0,), 0.0, 0.0),
    }


def test_json_schema_says_what_each_policy_takes():
    document = json.loads(json.dumps(json_schema()))
    assert set(document["discriminator"]["mapping"]) == set(KINDS.split(", "))
    static = document["$defs"]["StaticConfig"]
    assert static["required"] == ["version", "policy", "draft_length"]
    assert static["additionalProperties"] is False
    assert static["properties"]["draft_length"]["minimum"] == 0
    undescribed = [
        f"{name}.{field}"
        for name, model in document["$defs"].items()
        for field, property_ in model["properties"].items()
        if field != "policy" and "description" not in property_
    ]
    assert undescribed == []
