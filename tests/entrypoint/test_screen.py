import io
import json

import pytest

from entrypoint.screen import LogTail, Screen


def test_only_new_and_whole_lines_are_given_out(tmp_path):
    log = tmp_path / "n0r0.log"
    log.write_text("of an earlier start\n")
    tail = LogTail(tmp_path)
    with open(log, "a") as stream:
        stream.write("first\nsec")
        stream.flush()
        assert list(tail.lines()) == [("n0r0", "first")]
        stream.write("ond\r\nlast without an end")
        stream.flush()
        assert list(tail.lines()) == [("n0r0", "second")]
    assert list(tail.drain()) == [("n0r0", "last without an end")]
    assert list(tail.drain()) == []


def test_a_log_that_appears_later_is_read_from_its_start(tmp_path):
    tail = LogTail(tmp_path)
    assert list(tail.lines()) == []
    (tmp_path / "n1r7.log").write_bytes(b"\xff\xfe bytes\n")
    (tmp_path / "outcome.json").write_text("{}\n")
    assert list(tail.lines()) == [("n1r7", "\N{REPLACEMENT CHARACTER}" * 2 + " bytes")]


def test_a_node_shows_its_own_agent_and_processes_only(tmp_path):
    tail = LogTail(tmp_path, node=1)
    for name in ("agent", "n0r0", "agent-n1", "n1r0", "n1r1", "agent-n11", "n11r0"):
        (tmp_path / f"{name}.log").write_text(f"{name} says\n")
    assert [log for log, _ in tail.lines()] == ["agent-n1", "n1r0", "n1r1"]


def test_more_than_a_chunk_is_drained_to_the_end(tmp_path):
    tail = LogTail(tmp_path)
    (tmp_path / "n0r0.log").write_text("x" * 99 + "\n" + ("y" * 99 + "\n") * 30_000)
    assert len(list(tail.drain())) == 30_001


@pytest.mark.parametrize("content", ["", "{", '{"step": 1}\n', '{"step": 1, "steps": 2'])
def test_half_a_record_moves_no_bar(tmp_path, content):
    metrics = tmp_path / "metrics.jsonl"
    with Screen(io.StringIO(), metrics) as screen:
        metrics.write_text(content)
        assert screen._newest() is None


def test_a_line_is_shown_as_it_is(tmp_path):
    stream = io.StringIO()
    with Screen(stream, tmp_path / "metrics.jsonl") as screen:
        screen.line("[bold]no markup[/bold] " + "x" * 200)
        screen.tick()
    assert stream.getvalue() == "[bold]no markup[/bold] " + "x" * 200 + "\n"


def test_the_newest_whole_record_is_the_one_that_counts(tmp_path):
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text(json.dumps({"step": 1, "steps": 9, "loss": 3.0}) + "\n")
    screen = Screen(io.StringIO(), metrics)
    with open(metrics, "a") as stream:
        for step in (2, 3):
            stream.write(json.dumps({"step": step, "steps": 9, "loss": 2.0}) + "\n")
        stream.write('{"step": 4')
    newest = screen._newest()
    assert newest is not None
    assert newest["step"] == 3
