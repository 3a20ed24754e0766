import math
import os

import numpy as np
import pytest

pytestmark = pytest.mark.torch
samples = pytest.importorskip("samples")

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
    assert [str(path) for path in samples.find_files(paths)] == found


def test_without_a_name_the_text_is_the_python_librarys_own_sources():
    found = samples.find_files([])
    assert "argparse.py" in {path.name for path in found}
    assert sum(path.stat().st_size for path in found) > 5_000_000


def test_a_path_that_is_not_there_is_quoted():
    with pytest.raises(samples.Problem, match="--data nowhere/at/all"):
        samples.find_files(["nowhere/at/all"])


def test_a_corpus_is_written_once_and_again_when_a_file_changes(files, tmp_path):
    folder = tmp_path / "corpus"
    samples.prepare_bytes([str(files / "a.txt")], folder)
    first = samples.open_prepared(folder, 64)
    written = (folder / "train.bin").stat().st_mtime_ns
    samples.prepare_bytes([str(files / "a.txt")], folder)
    assert (folder / "train.bin").stat().st_mtime_ns == written
    (files / "a.txt").write_text(TEXT + "more\n")
    samples.prepare_bytes([str(files / "a.txt")], folder)
    assert samples.open_prepared(folder, 64).fingerprint != first.fingerprint


def test_train_and_validation_share_out_the_text_and_leave_binary_files_out(files, tmp_path):
    samples.prepare_bytes([str(files / "deep")], tmp_path / "corpus")
    corpus = samples.open_prepared(tmp_path / "corpus", 64)
    train, validation = corpus.train.tokens, corpus.validation.tokens
    assert len(train) + len(validation) == len(TEXT) + 1
    assert 0.04 < len(validation) / len(TEXT) < 0.06
    assert b"ELF" not in train.tobytes()


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(samples.Problem, match="6 bytes"):
        samples.prepare_bytes([str(tmp_path / "short.txt")], tmp_path / "corpus")


def test_windows_cover_the_text_and_share_their_end_byte():
    split = samples.Split(np.arange(101, dtype=np.uint8), 10)
    inputs, targets = split.rows(range(len(split)))
    assert len(split) == 10
    assert inputs.shape == targets.shape == (10, 10)
    assert inputs.flatten().tolist() == list(range(100))
    assert targets.flatten().tolist() == list(range(1, 101))


def test_documents_are_cut_or_padded_and_only_what_is_to_be_learnt_is_a_target():
    tokens = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], np.uint16)
    learn = np.array([0, 0, 1, 0, 1, 1, 1, 1, 1], np.uint8)
    split = samples.Split(tokens, 4, learn, starts=np.array([0, 3, 9]))
    inputs, targets = split.rows([0, 1])
    assert inputs.tolist() == [[1, 2, 0, 0], [4, 5, 6, 7]]
    assert targets.tolist() == [[-100, 3, -100, -100], [5, 6, 7, 8]]


def test_the_bigram_of_a_text_of_known_chances_has_its_entropy():
    # After each byte one of four follows with equal chance: ln 4 nats.
    text = np.random.default_rng(0).integers(0, 4, 400_000).astype(np.uint8)
    inputs, targets = samples.Split(text, 100).rows(range(1000))
    assert samples.bigram_loss(text, inputs, targets) == pytest.approx(math.log(4), abs=0.005)


def test_what_a_model_writes_cannot_steer_a_terminal():
    assert "\x1b" not in samples.printable("\x1b[2Jok\n")
    assert samples.printable("ok\n") == "ok\n"


@pytest.mark.parametrize(("end", "left"), [(OSError("full"), []), (KeyboardInterrupt(), ["train.partial"])])
def test_a_preparation_that_fails_or_is_killed_leaves_nothing_that_looks_whole(end, left, files, tmp_path, monkeypatch):
    folder = tmp_path / "corpus"

    def ends(*_):
        raise end

    monkeypatch.setattr(samples.os, "replace", ends)
    with pytest.raises(type(end)):
        samples.prepare_bytes([str(files / "a.txt")], folder)
    monkeypatch.undo()
    assert os.listdir(folder) == left
    samples.prepare_bytes([str(files / "a.txt")], folder)
    assert samples.open_prepared(folder, 64).files == 1


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(samples.Problem, match="pipe: neither a file nor a folder"):
        samples.find_files([str(tmp_path / "pipe")])


def test_a_file_that_cannot_be_read_is_one_line_that_names_it(files, tmp_path, monkeypatch):
    import tokenized
    from options import Options

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(samples.Path, "read_bytes", refuse)
    with pytest.raises(samples.Problem, match=r"a\.txt: Permission denied"):
        tokenized.prepare(Options(data=(str(files / "a.txt"),)), tmp_path / "corpus")
