"""Real hangs under the keeper: what the ranks leave behind, and what is told of it."""

import json
import os
import pickle
import re
from pathlib import Path

import pytest
import runs
from stuck import OF_ONES_OWN, OF_OURS
from test_exit_codes import HANG

from entrypoint.hang import explain
from entrypoint.traces import explain_folder, hung_at_first_collective, read_places, read_trace, read_traces


def hang(tmp_path: Path, text: str, **variables: str) -> Path:
    script = runs.write_script(tmp_path, text, "stuck.py")
    code, output = runs.train(tmp_path, script, program=("-c", HANG), TRAIN_RESTARTS="1", **variables)
    assert code == 137, output
    last = [line for line in output.splitlines() if "hang: no new step for" in line][-1]
    logs = tmp_path / "runs" / "stuck" / "logs" / "attempt-0"
    assert last.endswith(f"; {explain_folder(logs)}")
    return tmp_path / "runs" / "stuck" / "logs" / "attempt-0"


@pytest.mark.slow
@pytest.mark.torch
def test_a_hang_of_a_recipe_names_the_rank_that_was_behind_and_the_collective(tmp_path):
    (tmp_path / "tmp").mkdir()
    logs = hang(tmp_path, OF_OURS, TMPDIR=str(tmp_path / "tmp"))
    told = explain_folder(logs)
    assert told is not None
    assert told.startswith(
        "rank 1 is behind: last in number 3 (gloo:all_reduce), while rank 0 waited in number 4 of group 0:default_pg "
        "(gloo:all_reduce [1000])"
    )
    assert re.search(r"rank 1 was at \S+stuck\.py:9 in lost_in_thought", told)
    assert not list((tmp_path / "tmp").glob("roundhouse-*-*"))


@pytest.mark.slow
@pytest.mark.torch
def test_a_script_of_ones_own_on_gloo_is_explained_by_its_stacks(tmp_path):
    logs = hang(tmp_path, OF_ONES_OWN)
    assert read_traces(logs) == ()
    told = explain_folder(logs)
    assert told is not None
    assert re.search(
        r"rank 1 was at \S+stuck\.py:7 in lost_in_thought, in no collective; "
        r"rank 0 waited for it at \S+stuck\.py:17 in work",
        told,
    )


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_that_ends_by_a_timeout_of_its_group_leaves_its_trace_and_so_do_the_others(tmp_path):
    short = OF_OURS.replace("import process_group\n", "import process_group\nprocess_group.TIMEOUT /= 60\n")
    script = runs.write_script(tmp_path, short, "stuck.py")
    code, output = runs.train(tmp_path, script, TRAIN_RESTARTS="1")
    assert code == 1, output
    assert "first to fail: node 0 rank 0, exit code 1; rank 1 is behind: last in number 3" in output.splitlines()[-1]
    logs = tmp_path / "runs" / "stuck" / "logs" / "attempt-0"
    assert sorted(trace.rank for trace in read_traces(logs)) == [0, 1]
    assert (explain_folder(logs) or "").startswith("rank 1 is behind")


@pytest.mark.torch
def test_torchs_own_pickle_and_json_say_the_same(tmp_path):
    """Both forms of one dump, made here: NCCL's process group writes the pickle, our recorder the JSON."""
    program = f"""
import torch, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(3, 4))
dist.broadcast(torch.ones(5), 0)
recorder = torch._C._distributed_c10d
open({str(tmp_path / "n0.trace-0")!r}, "wb").write(recorder._dump_fr_trace())
open({str(tmp_path / "n0.trace-1.gloo.json")!r}, "wb").write(recorder._dump_fr_trace_json())
dist.destroy_process_group()
"""
    runs_alone = runs.subprocess.run(
        [runs.sys.executable, "-c", program], env=os.environ | {"TORCH_FR_BUFFER_SIZE": "100"}, capture_output=True
    )
    assert runs_alone.returncode == 0, runs_alone.stderr
    pickled, written = read_traces(tmp_path)
    assert pickled.newest == written.newest
    (newest,) = pickled.newest.values()
    assert (newest.sequence, newest.operation, newest.sizes) == (4, "gloo:broadcast", "[5]")


class _Calls:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/roundhouse-was-here",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps({"entries": [_Calls()]}),
        pickle.dumps({"entries": []})[:-3],
        b"",
        b"{",
        b'{"entries": 3}',
        b'{"entries": [3]}',
        b'{"entries": [{"collective_seq_id": 1, "time_created_ns": "x"}]}',
        b"[1, 2]",
        b"\x80\x04\x95",
        os.urandom(300),
        pickle.dumps([1, 2]),
    ],
)
def test_a_trace_that_is_none_is_passed_over_and_calls_nothing(data, tmp_path):
    (tmp_path / "n0.trace-0").write_bytes(data)
    assert read_traces(tmp_path) in ((), read_traces(tmp_path)[:1])
    assert not any(trace.newest for trace in read_traces(tmp_path))
    assert explain_folder(tmp_path) is None
    assert not Path("/tmp/roundhouse-was-here").exists()


def test_a_trace_that_is_too_large_is_not_read(tmp_path):
    path = tmp_path / "n0.trace-0"
    with open(path, "wb") as stream:
        stream.truncate(65 << 20)
    assert read_trace(path) is None


def nccl_entry(sequence: int, state: str, operation: str = "nccl:all_reduce", **told: object) -> dict[str, object]:
    """In the form of torch's documentation of the recorder, version 2.5 of the format and later."""
    entry: dict[str, object] = {
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "profiling_name": operation,
        "time_created_ns": 1724779239936775119 + sequence,
        "input_sizes": [[3, 4]],
        "state": state,
        "is_p2p": False,
    }
    return entry | told


def write_nccl(folder: Path, rank: int, *entries: dict[str, object]) -> None:
    document = {"version": "2.10", "pg_config": {"0": {"name": "0", "ranks": "[0, 1]"}}, "entries": list(entries)}
    (folder / f"n{rank // 2}.trace-{rank}").write_bytes(pickle.dumps(document, protocol=2))
    for kind in ("started", "ended"):
        (folder / f"n{rank // 2}r{rank % 2}.{kind}.json").write_text(json.dumps({"pid": 1, "script": 2, "rank": rank}))


STACKS = """thread 7: S (sleeping), in the kernel at do_epoll_wait
Fatal Python error: Aborted

Thread 0x00007f23fd6e0040 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/home/ada/own.py", line 99 in prefetch

Current thread 0x00007f23fd6e0041 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/ada/own.py", line 3 in step
  File "/home/ada/own.py", line 9 in <module>

Extension modules: numpy._core._multiarray_umath (total: 1)
"""
DONE, NOW = "completed", "started"


@pytest.mark.parametrize(
    ("ranks", "told", "first"),
    [
        (
            [[nccl_entry(7, DONE), nccl_entry(8, NOW)]] * 3 + [[nccl_entry(7, DONE)]],
            "rank 3 is behind: last in number 7 (nccl:all_reduce), while ranks 0, 1, 2 waited in number 8 of group "
            "0:default_pg (nccl:all_reduce [3, 4])",
            False,
        ),
        (
            [[nccl_entry(1, NOW)]] * 4,
            "all ranks were in number 1 of group 0:default_pg (nccl:all_reduce [3, 4]): the network or a GPU",
            True,
        ),
        (
            [[nccl_entry(5, NOW)]] * 3 + [[nccl_entry(5, NOW, "nccl:broadcast")]],
            "the ranks do not agree on number 5 of group 0:default_pg: ranks 0, 1, 2 called nccl:all_reduce [3, 4], "
            "rank 3 called nccl:broadcast [3, 4]",
            True,
        ),
        (
            [[nccl_entry(5, NOW)]] * 3 + [[nccl_entry(5, NOW, input_sizes=[[3, 5]])]],
            "rank 3 called nccl:all_reduce [3, 5]",
            True,
        ),
        ([[nccl_entry(5, DONE)]] * 4, "all ranks had completed number 5", False),
        (
            [[nccl_entry(9, DONE), nccl_entry(2, NOW, process_group=("1", "tp"), time_created_ns=2 * 10**18)]] * 2
            + [[nccl_entry(9, DONE), nccl_entry(1, DONE, process_group=("1", "tp"))]] * 2,
            "ranks 2, 3 are behind: last in number 1 (nccl:all_reduce), while ranks 0, 1 waited in number 2 of group "
            "1:tp",
            False,
        ),
        (
            [[nccl_entry(4, NOW), nccl_entry(90, NOW, is_p2p=True)]] * 2 + [[nccl_entry(3, DONE)]] * 2,
            "ranks 2, 3 are behind: last in number 3",
            False,
        ),
    ],
)
def test_dumps_of_nccl_tell_who_was_behind(ranks, told, first, tmp_path):
    for rank, entries in enumerate(ranks):
        write_nccl(tmp_path, rank, *entries)
    assert told in (explain_folder(tmp_path) or "")
    assert hung_at_first_collective(tmp_path) is first


def test_a_rank_without_a_trace_is_named(tmp_path):
    for rank in range(4):
        write_nccl(tmp_path, rank, nccl_entry(5, NOW))
    (tmp_path / "n1.trace-3").unlink()
    assert (explain_folder(tmp_path) or "").startswith("rank 3 left no trace; ranks 0, 1, 2 waited in number 5")


def test_a_rank_that_could_write_nothing_is_named(tmp_path):
    """As one that was stopped: of two, the other's trace is the only one; without a recorder, its stack."""
    for rank in range(2):
        write_nccl(tmp_path, rank, nccl_entry(5, NOW))
    (tmp_path / "n0.trace-1").unlink()
    assert (explain_folder(tmp_path) or "").startswith("rank 1 left no trace; rank 0 waited in number 5")
    (tmp_path / "n0.trace-0").unlink()
    (tmp_path / "n0r0.stacks").write_text(STACKS)
    told = "rank 1 left no stack (stopped?); rank 0 waited at /home/ada/own.py:3 in step"
    assert explain_folder(tmp_path) == told


def test_what_nccl_and_gloo_wrote_of_one_rank_is_put_together(tmp_path):
    for rank in range(2):
        write_nccl(tmp_path, rank, nccl_entry(5, DONE))
        late = nccl_entry(
            7 - rank, "scheduled", "gloo:barrier", process_group=["2", "saving"], time_created_ns=2 * 10**18
        )
        (tmp_path / f"n0.trace-{rank}.gloo.json").write_text(json.dumps({"entries": [late]}))
    assert "rank 1 is behind: last in number 6 (gloo:barrier)" in (explain_folder(tmp_path) or "")


def test_one_trace_alone_tells_nothing(tmp_path):
    write_nccl(tmp_path, 0, nccl_entry(5, NOW))
    assert explain_folder(tmp_path) is None
    assert explain((), {}, ()) is None
    assert read_places(tmp_path) == {}
