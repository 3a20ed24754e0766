from entrypoint.failure import Ended, describe, first_to_fail, sentence, traceback_of

LOST = ("Traceback (most recent call last):", "RuntimeError: [gloo/tcp/pair.cc:534] Connection closed by peer [::1]")


def ended(rank, code=1, at=0.0, **more):
    return Ended(0, rank, rank, code, failed_at=at, **more)


def test_who_complains_of_another_was_not_the_first_even_if_it_ended_first():
    cause = ended(1, at=2.0, lines=("ValueError: bad data",))
    assert first_to_fail([ended(0, at=1.9, lines=LOST), cause], fine=(0, 143)) == cause


def test_who_was_killed_for_another_was_not_the_first():
    cause = ended(1, 42, at=2.0)
    assert first_to_fail([ended(0, 137, at=1.0, after_fault=True), cause], fine=(0, 143)) == cause


def test_the_earliest_of_those_that_are_left_is_the_first():
    assert first_to_fail([ended(0, at=3.0), ended(1, at=2.0), ended(2, 0), ended(3, 143)], fine=(0, 143)).rank == 1
    assert first_to_fail([ended(0, 0), ended(1, 143)], fine=(0, 143)) is None


def test_if_all_complain_the_earliest_is_told():
    assert first_to_fail([ended(0, at=3.0, lines=LOST), ended(1, at=2.0, lines=LOST)], fine=(0,)).rank == 1


def test_a_signal_has_its_name_and_a_code_above_128_none():
    assert sentence(ended(3, 139, by_itself=False)) == "first to fail: node 0 rank 3, exit code 139 (SIGSEGV)"
    assert sentence(ended(3, 139)) == "first to fail: node 0 rank 3, exit code 139"
    assert describe(ended(0, 137, by_itself=False), 2)["signal"] == "SIGKILL"


def test_the_last_traceback_is_the_one_that_counts():
    lines = ("Traceback (most recent call last):", "KeyError: handled", "on", *LOST)
    assert traceback_of(lines) == "\n".join(LOST)
    assert traceback_of(("no such thing",)) is None
