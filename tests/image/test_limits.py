"""Volumes that cannot take what a run writes: a clear error and an honest code, before or during the training."""

import pytest

FILL = (
    "head -c {size} /dev/zero > /workspace/ballast; exec roundhouse train ddp --steps 3 --seq-length 32 --log-every 1"
)


def tmpfs(size):
    return ("--mount", f"type=tmpfs,destination=/workspace,tmpfs-size={size}")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (tmpfs("1m"), ("bash", "-c", FILL.format(size="2m"))),
        (("--read-only",), ("train", "ddp", "--steps", "3")),
    ],
    ids=["full", "read-only"],
)
def test_a_volume_that_takes_nothing_is_refused_before_the_training(engine, options, words):
    result = engine.run(*words, options=options)
    assert result.code == 69, result
    error = result.errors.splitlines()[-2]
    assert error.startswith("error: /workspace")
    assert "fix:" in result.errors
    assert "Traceback" not in result.errors
    assert "step 1/" not in result.output


def test_a_volume_of_another_user_is_refused_before_the_training(engine):
    volume = ("-v", f"{engine.volume(some_txt='')}:/workspace")  # an empty one would get the mode of the image's folder
    engine.run("chmod", "755", "/workspace", options=volume)
    result = engine.run("train", "ddp", "--steps", "3", options=("--user", "1234", *volume))
    assert result.code == 69, result
    assert "error: /workspace is not writable" in result.errors
    assert "fix:" in result.errors


def test_a_volume_too_small_for_the_checkpoints_is_refused_with_the_arithmetic(engine):
    result = engine.run("train", "ddp", "--steps", "3", "--seq-length", "32", options=tmpfs("4m"))
    assert result.code == 69, result
    assert "4 MiB free of 4 MiB; a checkpoint takes about" in result.errors


FILLS = """cat > /workspace/fills.py << 'END'
import os
with open(os.environ["TRAIN_CHECKPOINT_DIR"] + "/huge", "wb", buffering=0) as stream:
    while stream.write(bytes(1 << 16)):
        pass
END
exec roundhouse train /workspace/fills.py
"""


def test_a_script_that_fills_the_volume_fails_with_its_own_code_and_the_cause_is_told(engine):
    result = engine.run("bash", "-c", FILLS, options=tmpfs("4m"), variables={"TRAIN_RESTARTS": "1"})
    assert result.code == 1, result
    assert "No space left on device" in result.errors.splitlines()[-1]
    assert "Traceback" not in result.errors
