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
        (("--user", "1234", "--mount", "type=tmpfs,destination=/workspace,tmpfs-mode=0555"), ("train", "ddp")),
    ],
    ids=["full", "read-only", "of another user"],
)
def test_a_volume_that_takes_nothing_is_refused_before_the_training(engine, options, words):
    result = engine.run(*words, options=options)
    assert result.code == 69, result
    error = result.errors.splitlines()[-2]
    assert error.startswith("error: /workspace")
    assert "fix:" in result.errors
    assert "Traceback" not in result.errors
    assert "step 1/" not in result.output


def test_a_volume_that_is_full_at_the_checkpoint_ends_the_run_with_a_code_and_its_cause(engine):
    result = engine.run("train", "ddp", "--steps", "3", "--seq-length", "32", options=tmpfs("4m"))
    assert result.code not in (0, 70), result
    assert "No space left on device" in result.output + result.errors
    assert "Traceback" not in result.errors
