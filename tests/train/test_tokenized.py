"""Text, JSON lines, conversations and Parquet → the tokens that are trained on, and which of them are learnt."""

import copy
import dataclasses
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.torch
tokenized = pytest.importorskip("tokenized")
import chat  # noqa: E402
import documents  # noqa: E402
import samples  # noqa: E402
from options import Options, Problem  # noqa: E402

SENTENCES = [f"sentence {n} of a small corpus, which is long enough to be cut into windows\n" for n in range(100)]
TRAIN = Path(tokenized.__file__).parent
CHAT = [
    {"role": "user", "content": "2 times 2"},
    {"role": "assistant", "content": "is 4"},
    {"role": "user", "content": "and 3 times 3"},
    {"role": "assistant", "content": "is 9"},
]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def write_parquet(path, rows, **options):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, **options)
    return str(path)


def prepared(folder, *paths, seq_length=16, **options):
    tokenized.prepare(Options(data=paths, **options), folder)
    return samples.open_prepared(folder, seq_length)


def documents_of(split, tokenizer):
    text = tokenizer.decode(split.tokens)
    return [part for part in text.split("<|eos|>") if part]


def test_every_twentieth_record_is_validation_and_the_rest_is_one_stream(tmp_path, llama, tokenizer):
    path = write_lines(tmp_path / "a.jsonl", [{"text": sentence} for sentence in SENTENCES])
    found = prepared(tmp_path / "data", path, model=str(llama))
    assert documents_of(found.validation, tokenizer) == SENTENCES[19::20]
    assert documents_of(found.train, tokenizer) == [s for n, s in enumerate(SENTENCES) if n % 20 != 19]
    assert found.vocabulary == len(tokenizer)
    assert found.train.tokens.dtype == np.uint16
    assert (found.train.tokens == tokenizer.eos_token_id).sum() == 95


def test_parquet_gives_what_json_lines_give(tmp_path, llama):
    rows = [{"number": n, "body": sentence} for n, sentence in enumerate(SENTENCES)]
    lines = prepared(tmp_path / "1", write_lines(tmp_path / "a.jsonl", rows), text_field="body", model=str(llama))
    path = write_parquet(tmp_path / "a.parquet", rows, row_group_size=7)
    assert prepared(tmp_path / "2", path, text_field="body", model=str(llama)).fingerprint == lines.fingerprint


@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_records_are_trained_on_as_bytes_without_a_model(tmp_path, write):
    suffix = ".jsonl" if write is write_lines else ".parquet"
    path = write(tmp_path / f"a{suffix}", [{"text": sentence} for sentence in SENTENCES])
    found = prepared(tmp_path / "data", path)
    assert found.vocabulary == 256
    assert found.validation.tokens.tobytes().decode() == "".join(f"{sentence}\0" for sentence in SENTENCES[19::20])


def test_one_long_text_file_is_shared_out_by_blocks(tmp_path, llama, tokenizer):
    (tmp_path / "a.txt").write_text("".join(SENTENCES) * 5)
    found = prepared(tmp_path / "data", str(tmp_path / "a.txt"), model=str(llama))
    total = len(found.train.tokens) + len(found.validation.tokens)
    assert 0.04 < len(found.validation.tokens) / total < 0.06
    assert total == len(tokenizer("".join(SENTENCES) * 5).input_ids) + 1


def test_a_file_longer_than_a_block_has_one_end(tmp_path, llama, tokenizer):
    text = "".join(SENTENCES) * 60  # 430 kB: several blocks
    (tmp_path / "a.txt").write_text(text)
    pieces = list(documents.read_pieces([tmp_path / "a.txt"], "text"))
    assert len(pieces) > 4
    assert "".join(piece.content for piece in pieces) == text
    assert [piece.begins for piece in pieces] == [True] + [False] * (len(pieces) - 1)
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]


def test_a_document_begins_as_the_tokenizer_begins_a_text(tmp_path, llama, tokenizer, monkeypatch):
    from tokenizers import processors

    fast = tokenizer.__class__(tokenizer_object=tokenizer.backend_tokenizer, eos_token="<|eos|>", bos_token="<|user|>")
    first = ("<|user|>", fast.bos_token_id)
    fast.backend_tokenizer.post_processor = processors.TemplateProcessing("<|user|> $A", special_tokens=[first])
    monkeypatch.setattr(tokenized.pretrained, "load_tokenizer", lambda model: fast)
    wrapped = tokenized.Pretrained("any")
    (ids,) = wrapped.text([documents.Piece("a text", "here")])
    assert ids[0] == fast.bos_token_id
    assert ids[-1] == fast.eos_token_id
    assert fast.bos_token_id not in next(wrapped.text([documents.Piece("a text", "here", begins=False)]))


# ---- conversations ----

GENERATION = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# Earlier answers lose their thoughts, as in templates of reasoning models.
FORGETFUL = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['role'] == 'assistant' and loop.last %}(thinking) {% endif %}"
    "{{ message['content'] }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def learnt_texts(tokenizer, template, messages, monkeypatch, tools=None):
    """Of each sample: its whole text, and the runs of it that are learnt."""
    monkeypatch.setattr(tokenizer, "chat_template", template)
    found = []
    for ids, learn in chat.tokenize(tokenizer, documents.Piece(messages, "a.jsonl:1", tools=tools)):
        assert len(ids) == len(learn)
        runs, before = [], 0
        for token, learnt in zip(ids, learn, strict=True):
            if learnt:
                runs = [*runs[:-1], [*runs[-1], token]] if before else [*runs, [token]]
            before = learnt
        found.append((tokenizer.decode(ids), [tokenizer.decode(run) for run in runs]))
    return found


@pytest.mark.parametrize("marked", [True, False])
def test_only_the_answers_are_learnt_with_the_token_that_ends_them(tokenizer, monkeypatch, marked):
    template = GENERATION if marked else tokenizer.chat_template
    assert learnt_texts(tokenizer, template, CHAT, monkeypatch) == [
        (
            "<|user|>2 times 2<|end|><|assistant|>is 4<|end|><|user|>and 3 times 3<|end|><|assistant|>is 9<|end|>",
            ["is 4<|end|>", "is 9<|end|>"],
        )
    ]


BOS = "<|system|>{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"


@pytest.mark.parametrize("template", [None, BOS + PROMPT, FORGETFUL])
def test_the_header_of_an_answer_that_comes_first_is_not_learnt(tokenizer, monkeypatch, template):
    chat = [{"role": "assistant", "content": "how can I help"}, *CHAT[:2]]
    found = learnt_texts(tokenizer, template or tokenizer.chat_template, chat, monkeypatch)
    first = "(thinking) how can I help<|end|>" if template == FORGETFUL else "how can I help<|end|>"
    assert found[0][1][0] == first
    assert found[-1][1][-1].endswith("is 4<|end|>")


def test_a_header_that_is_not_that_of_the_prompt_is_told_of_the_first_answer_too(tokenizer, monkeypatch):
    with pytest.raises(Problem, match="does not begin an answer as it begins the prompt"):
        learnt_texts(tokenizer, BOS + PROMPT.replace("|>", "|>(think)"), CHAT[1:], monkeypatch)


TOOLS = [
    {"type": "function", "function": {"name": "multiply", "parameters": {"type": "object", "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "now", "description": "the time"}},
]
NAMES = "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }} {% endfor %}<|end|>{% endif %}"


@pytest.mark.parametrize("rest", ["GENERATION", "FORGETFUL", None])
def test_the_tools_of_a_conversation_are_shown_and_not_learnt(tokenizer, monkeypatch, rest):
    template = NAMES + (globals()[rest] if rest else tokenizer.chat_template)
    plain = learnt_texts(tokenizer, template, CHAT, monkeypatch)
    found = learnt_texts(tokenizer, template, CHAT, monkeypatch, tools=TOOLS)
    shown = f"<|system|>{''.join(json.dumps(tool) + ' ' for tool in TOOLS)}<|end|>"
    assert found == [(shown + text, learnt) for text, learnt in plain]


@pytest.mark.parametrize("write", [write_lines, write_parquet])
@pytest.mark.parametrize("form", [list, json.dumps])
def test_tools_are_read_as_a_list_or_as_its_json(tmp_path, write, form):
    path = tmp_path / ("a.jsonl" if write is write_lines else "a.parquet")
    rows = [{"messages": CHAT, "tools": form(TOOLS)}, {"messages": CHAT, "tools": form([])}, {"messages": CHAT}]
    write(path, rows)
    assert [piece.tools for piece in documents.read_pieces([path], "text")] == [TOOLS, None, None]


def test_tools_that_the_template_does_not_show_are_refused(tmp_path, llama):
    path = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}, {"messages": CHAT, "tools": TOOLS}])
    with pytest.raises(Problem, match=r"a\.jsonl:2: 2 tools, which the chat template does not show"):
        prepared(tmp_path / "data", path, model=str(llama))


@pytest.mark.parametrize("tools", ["multiply", 1, ["multiply"], {"name": "multiply"}])
def test_tools_that_are_no_schemas_are_told(tmp_path, tools):
    path = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT, "tools": tools}])
    with pytest.raises(Problem, match=r"a\.jsonl:1: 'tools' is not a list of JSON schemas"):
        list(documents.read_pieces([Path(path)], "text"))


def test_each_answer_is_a_sample_where_the_template_rewrites_earlier_turns(tokenizer, monkeypatch):
    assert learnt_texts(tokenizer, FORGETFUL, CHAT, monkeypatch) == [
        ("<|user|>2 times 2<|end|><|assistant|>(thinking) is 4<|end|>", ["(thinking) is 4<|end|>"]),
        (
            "<|user|>2 times 2<|end|><|assistant|>is 4<|end|><|user|>and 3 times 3<|end|>"
            "<|assistant|>(thinking) is 9<|end|>",
            ["(thinking) is 9<|end|>"],
        ),
    ]


def test_the_samples_of_one_conversation_are_never_on_both_sides(tmp_path, own_llama, tokenizer):
    other = copy.deepcopy(tokenizer)
    other.chat_template = FORGETFUL
    other.save_pretrained(own_llama)
    chats = [
        [
            {"role": role, "content": f"number {n}"}
            for role in ("user", "assistant", "user", "assistant", "user", "assistant")
        ]
        for n in range(40)
    ]
    path = write_lines(tmp_path / "a.jsonl", [{"messages": chat} for chat in chats])
    found = prepared(tmp_path / "data", path, model=str(own_llama))
    validated = set(re.findall(r"number \d+", tokenizer.decode(found.validation.tokens)))
    assert validated == {"number 19", "number 39"}
    assert not validated & set(re.findall(r"number \d+", tokenizer.decode(found.train.tokens)))


@pytest.mark.parametrize("count", [3, 40])
@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_a_conversation_is_a_sample_and_its_questions_are_no_targets(tmp_path, llama, tokenizer, write, count):
    path = tmp_path / ("a.jsonl" if write is write_lines else "a.parquet")
    found = prepared(tmp_path / "data", write(path, [{"messages": CHAT}] * count), seq_length=60, model=str(llama))
    assert (len(found.train), len(found.validation)) == ((2, 1) if count == 3 else (38, 2))
    inputs, targets = found.validation.rows([0])
    assert tokenizer.decode(targets[targets != -100]) == "is 4<|end|>is 9<|end|>"
    assert inputs[0].tolist()[:3] == tokenizer("<|user|>2 times 2<|end|>").input_ids[:3]
    assert found.train.inputs(np.array([0, 1, 1])) == 3 * (len(tokenizer.apply_chat_template(CHAT)["input_ids"]) - 1)
    assert dataclasses.replace(found.train, seq_length=5).inputs(np.array([0, 1])) == 10
    assert found.train.learnt([0, 1]) == 2 * int((targets != -100).sum())


# ---- what is refused ----


@pytest.mark.parametrize(
    ("lines", "options", "said"),
    [
        ('{"text": "good"}\n{"text": "cut', {}, "a.jsonl:2: not JSON"),
        ('{"text": "good"}\n\n[1]\n', {}, "a.jsonl:3: a list, not an object"),
        (
            '{"text": "good"}\n{"body": "x", "id": 1}\n',
            {},
            "a.jsonl:2: neither a field 'text' nor 'messages'",
        ),
        ('{"text": null}\n', {}, "a.jsonl:1: 'text' is not a text: None"),
        ('{"text": "good"}\n', {"text_field": "body"}, "neither a field 'body'"),
        ('{"text": "good"}\n', {}, "5 tokens of text are too few"),
        ("", {}, "0 tokens of text are too few"),
        ('{"messages": []}\n', {}, "a.jsonl:1: 'messages' is not a list of messages with a role"),
        ('{"messages": [{"content": "x"}]}\n', {}, "a.jsonl:1: 'messages' is not a list of messages with a role"),
        ('{"messages": [{"role": "user", "content": "x"}]}\n', {}, "a.jsonl:1: a conversation needs a chat template"),
    ],
)
def test_what_cannot_be_trained_on_is_told_with_file_and_line(tmp_path, lines, options, said):
    (tmp_path / "a.jsonl").write_text(lines)
    with pytest.raises(Problem) as caught:
        prepared(tmp_path / "data", str(tmp_path / "a.jsonl"), **options)
    assert said in caught.value.problem
    assert caught.value.exit_code == 78
    assert not (tmp_path / "data" / "data.json").exists()


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([{"messages": CHAT}], "1 conversations are too few"),
        ([{"messages": CHAT[:1]}], "a.jsonl:1: no message of the role 'assistant'"),
        ([{"messages": CHAT}, {"text": "a text"}], "a.jsonl:2: text, where what came before it is a conversation"),
        ([{"text": "a text"}, {"messages": CHAT}], "a.jsonl:2: a conversation, where what came before it is text"),
    ],
)
def test_conversations_that_cannot_be_learnt_from_are_told(tmp_path, llama, records, said):
    path = write_lines(tmp_path / "a.jsonl", records)
    with pytest.raises(Problem) as caught:
        prepared(tmp_path / "data", path, model=str(llama))
    assert said in caught.value.problem


def test_a_tokenizer_without_a_chat_template_is_told(tmp_path, llama, tokenizer, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}] * 2)
    monkeypatch.setattr(tokenizer, "chat_template", None)
    monkeypatch.setattr(tokenized.pretrained, "load_tokenizer", lambda model: tokenizer)
    with pytest.raises(Problem, match=r"a\.jsonl:1: a conversation, but the tokenizer of .* has no chat template"):
        prepared(tmp_path / "data", path, model=str(llama))


def test_a_template_that_refuses_a_conversation_is_quoted(tokenizer, monkeypatch):
    with pytest.raises(Problem, match=r"a\.jsonl:1: the chat template refuses it \(roles must alternate\)"):
        learnt_texts(tokenizer, "{{ raise_exception('roles must alternate') }}", CHAT, monkeypatch)


def test_answers_that_are_all_cut_off_are_told(tmp_path, llama):
    path = write_lines(tmp_path / "a.jsonl", [{"messages": CHAT}] * 2)
    with pytest.raises(Problem, match="--seq-length 4: the conversations have no answer within so many tokens"):
        prepared(tmp_path / "data", path, model=str(llama), seq_length=4)


def test_a_broken_parquet_file_is_told(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and then something else")
    with pytest.raises(Problem, match=r"a\.parquet: not a readable Parquet file"):
        prepared(tmp_path / "data", str(tmp_path / "a.parquet"))


# ---- written once ----


def test_tokens_are_made_again_when_the_tokenizer_or_the_field_is_another(tmp_path, llama, tokenizer, monkeypatch):
    records = [{"text": sentence, "other": sentence.upper()} for sentence in SENTENCES]
    path, folder = write_lines(tmp_path / "a.jsonl", records), tmp_path / "data"
    first = prepared(folder, path, model=str(llama)).fingerprint
    written = (folder / "train.bin").stat().st_mtime_ns
    assert prepared(folder, path, model=str(llama)).fingerprint == first
    assert (folder / "train.bin").stat().st_mtime_ns == written
    assert prepared(folder, path, model=str(llama), text_field="other").fingerprint != first
    assert prepared(folder, path).vocabulary == 256
    monkeypatch.setattr(tokenizer, "chat_template", "{{ messages }}")
    assert tokenized.pretrained.tokenizer_identity(tokenizer) != tokenized.Pretrained(str(llama)).identity


def test_what_takes_long_says_so(monkeypatch):
    now, said = [0.0], []
    monkeypatch.setattr(tokenized.time, "monotonic", lambda: now[0])
    progress = tokenized.Progress(said.append)
    for now[0] in (1.0, 2.0, 3.0, 11.9, 12.0):
        progress.told(10, 2000)
    assert said == [
        "data  10 documents, 2,000 tokens prepared in 2 s",
        "data  10 documents, 2,000 tokens prepared in 12 s",
    ]


WAITS = """
import datetime, sys, time
sys.path.insert(0, TRAIN)
import process_group

process_group.TIMEOUT = datetime.timedelta(seconds=1)
process_group.start()

def works():
    time.sleep(4)
    return "done"

def fails():
    raise process_group.Problem("wrong", fix="right")

assert process_group.first_does(works) == "done"
try:
    process_group.first_does(fails)
except process_group.Problem as problem:
    assert problem.fix == "right"
else:
    raise AssertionError("the others did not hear of it")
process_group.stop()
"""


def test_the_others_wait_for_rank_0_longer_than_a_collective_may_take(tmp_path):
    (tmp_path / "waits.py").write_text(f"TRAIN = {str(TRAIN)!r}\n{WAITS}")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    began = time.monotonic()
    subprocess.run([*command, str(tmp_path / "waits.py")], check=True, timeout=120)
    assert time.monotonic() - began > 4
