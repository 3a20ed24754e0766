import math
import os

import numpy as np
import pytest

pytestmark = pytest.mark.torch
data = pytest.importorskip("data")

TEXT = "the quick brown fox jumps over the lazy dog\n" * 400


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "b.py").write_text(TEXT)
    (tmp_path / "deep" / "c.bin").write_bytes(b"\x7fELF\0" + bytes(1000))
    return tmp_path


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["a.txt"], ["a.txt"]),
        (["deep"], ["deep/b.py", "deep/c.bin"]),
        (["*.txt", "deep/b.py"], ["a.txt", "deep/b.py"]),
        (["**/*.py"], ["deep/b.py"]),
        (["a.txt", "a.txt"], ["a.txt"]),
    ],
)
def test_files_folders_and_globs_name_files(files, monkeypatch, paths, found):
    monkeypatch.chdir(files)
    assert [str(path) for path in data.find_files(paths)] == found


def test_without_a_name_the_text_is_the_python_librarys_own_sources():
    found = data.find_files([])
    assert "argparse.py" in {path.name for path in found}
    assert sum(path.stat().st_size for path in found) > 5_000_000


def test_a_path_that_is_not_there_is_quoted():
    with pytest.raises(data.Problem, match="--data nowhere/at/all"):
        data.find_files(["nowhere/at/all"])


def test_a_corpus_is_written_once_and_again_when_a_file_changes(files, tmp_path):
    folder = tmp_path / "corpus"
    data.prepare([str(files / "a.txt")], folder)
    first = data.open_corpus(folder)
    written = (folder / "train.bin").stat().st_mtime_ns
    data.prepare([str(files / "a.txt")], folder)
    assert (folder / "train.bin").stat().st_mtime_ns == written
    (files / "a.txt").write_text(TEXT + "more\n")
    data.prepare([str(files / "a.txt")], folder)
    assert data.open_corpus(folder).fingerprint != first.fingerprint


def test_train_and_validation_share_out_the_text_and_leave_binary_files_out(files, tmp_path):
    data.prepare([str(files / "deep")], tmp_path / "corpus")
    corpus = data.open_corpus(tmp_path / "corpus")
    assert len(corpus.train) + len(corpus.validation) == len(TEXT) + 1
    assert 0.04 < len(corpus.validation) / len(TEXT) < 0.06
    assert b"ELF" not in corpus.train.tobytes()


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(data.Problem, match="6 bytes"):
        data.prepare([str(tmp_path / "short.txt")], tmp_path / "corpus")


def test_windows_cover_the_text_and_share_their_end_byte():
    text = np.arange(101, dtype=np.uint8)
    count = data.windows(text, 10)
    rows = data.batch(text, 10, range(count))
    assert count == 10
    assert rows.shape == (10, 11)
    assert rows[:, :-1].flatten().tolist() == list(range(100))
    assert rows[3, -1] == rows[4, 0]


def test_the_bigram_of_a_text_of_known_chances_has_its_entropy():
    # After each byte one of four follows with equal chance: ln 4 nats.
    text = np.random.default_rng(0).integers(0, 4, 400_000).astype(np.uint8)
    rows = data.batch(text, 100, range(1000))
    assert data.bigram_loss(text, rows) == pytest.approx(math.log(4), abs=0.005)


def test_what_a_model_writes_cannot_steer_a_terminal():
    assert "\x1b" not in data.printable(b"\x1b[2Jok\n\xff")
    assert data.printable(b"ok\n") == "ok\n"


def test_a_killed_preparation_leaves_nothing_that_looks_whole(files, tmp_path, monkeypatch):
    folder = tmp_path / "corpus"
    monkeypatch.setattr(data.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("killed")))
    with pytest.raises(OSError, match="killed"):
        data.prepare([str(files / "a.txt")], folder)
    monkeypatch.undo()
    assert os.listdir(folder) == ["train.partial"]
    data.prepare([str(files / "a.txt")], folder)
    assert data.open_corpus(folder).files == 1
