import pytest
import schedule
from options import Interval, Options
from schedule import Cadence, learning_rate


@pytest.mark.parametrize(
    ("kind", "step", "share"),
    [
        ("cosine", 0, 0.1),
        ("cosine", 9, 1.0),
        ("cosine", 10, 1.0),
        ("cosine", 55, 0.55),
        ("cosine", 99, 0.1),
        ("linear", 55, 0.55),
        ("linear", 99, 0.11),
        ("constant", 55, 1.0),
        ("constant", 99, 1.0),
    ],
)
def test_the_rate_warms_up_and_decays_to_a_tenth(kind, step, share):
    options = Options(lr=2.0, warmup=10, steps=100, schedule=kind)
    assert learning_rate(options, step) == pytest.approx(2.0 * share, rel=0.02)


def test_a_run_of_warm_up_alone_does_not_divide_by_zero():
    assert learning_rate(Options(lr=1.0, warmup=0, steps=1), 0) == 1.0
    assert learning_rate(Options(lr=1.0, warmup=5, steps=5), 4) == 1.0


def test_steps_or_seconds_make_a_save_due(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(schedule.time, "monotonic", lambda: now[0])
    assert [Cadence(Interval(steps=3)).due(step) for step in (1, 2, 3, 4, 6)] == [False, False, True, False, True]
    clock = Cadence(Interval(seconds=60))
    assert not clock.due(1)
    now[0] = 60.0
    assert clock.due(2)
    clock.done()
    assert not clock.due(3)
