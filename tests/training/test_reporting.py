"""metrics.jsonl is the truth, whatever happened to the run; nothing waits for the device."""

import json
import struct
import time

import jax
import jax.numpy as jnp
import pytest
from tensorboardX.proto.event_pb2 import Event

from looped_jax.errors import UserError
from looped_jax.training.reporting import Clock, DeferredMetrics, Diverged, MetricsWriter

# Deferred metrics.


def test_metrics_are_handed_on_one_push_late():
    seen = []
    deferred = DeferredMetrics(lambda step, m: seen.append((step, m)), 0, watched=["loss"])
    deferred.push(1, {"loss": jnp.float32(2.5), "per_loop": jnp.arange(2.0), "lr": 0.1})
    assert seen == []
    deferred.push(2, {"loss": jnp.bfloat16(1.5)})
    assert seen == [(1, {"loss": 2.5, "per_loop": [0.0, 1.0], "lr": 0.1})]
    deferred.flush()
    deferred.flush()
    assert seen[1:] == [(2, {"loss": 1.5})]


def test_push_does_not_wait_for_the_step():
    x = jnp.ones((1000, 1000))
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda i, x: x @ x * 1e-3, x).sum())
    slow = slow.lower(x).compile()
    deferred = DeferredMetrics(lambda step, m: None, 0, watched=["loss"])
    loss = slow(x)
    deferred.push(1, {"loss": loss})
    assert not loss.is_ready()
    deferred.flush()
    assert loss.is_ready()


def test_metrics_keep_their_float32_value():
    seen = []
    deferred = DeferredMetrics(lambda step, m: seen.append(m["loss"]), 0, watched=["loss"])
    deferred.push(1, {"loss": jnp.float32(0.1)})
    deferred.flush()
    assert jnp.float32(seen[0]) == jnp.float32(0.1)
    assert seen[0] != 0.1


@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, jnp.array([1.0, -jnp.inf])])
def test_diverged_names_the_steps(bad):
    seen = []
    deferred = DeferredMetrics(lambda step, m: seen.append(step), 40, watched=["loss"])
    deferred.push(50, {"loss": jnp.float32(1.0), "other": jnp.nan})
    deferred.push(60, {"loss": bad})
    with pytest.raises(Diverged, match=r"loss is .*(nan|inf).* in steps 51 to 60") as diverged:
        deferred.push(70, {"loss": bad})
    assert (diverged.value.first_step, diverged.value.last_step) == (51, 60)
    assert seen == [50, 60]


def test_diverged_in_the_first_steps_after_a_resume():
    deferred = DeferredMetrics(lambda step, m: None, 40, watched=["loss"])
    deferred.push(50, {"loss": jnp.nan})
    with pytest.raises(Diverged, match="loss is nan in steps 41 to 50"):
        deferred.flush()


# metrics.jsonl.


def write(folder, start_step, steps):
    with MetricsWriter(folder, start_step) as writer:
        for step in steps:
            writer.write(step, {"loss": 1 / step, "per_loop": [1.0, step]})


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_log_equals_a_straight_one(tmp_path):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    straight.mkdir()
    resumed.mkdir()
    write(straight, 0, range(1, 31))
    write(resumed, 0, range(1, 26))
    with open(resumed / "metrics.jsonl", "a") as file:
        file.write('{"step": 26, "lo')
    write(resumed, 20, range(21, 31))
    expected = (straight / "metrics.jsonl").read_bytes()
    assert (resumed / "metrics.jsonl").read_bytes() == expected
    assert lines(straight)[1] == {"step": 2, "loss": 0.5, "per_loop": [1.0, 2]}


def test_a_new_run_empties_the_log(tmp_path):
    write(tmp_path, 0, [1, 2])
    write(tmp_path, 0, [])
    assert lines(tmp_path) == []


def test_lines_are_on_disk_at_once(tmp_path):
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write(1, {"loss": 1.0})
        assert lines(tmp_path) == [{"step": 1, "loss": 1.0}]


def test_what_is_not_finite_becomes_null(tmp_path):
    with MetricsWriter(tmp_path, 0) as writer:
        writer.write(1, {"loss": float("nan"), "per_loop": [1.0, float("inf")]})
    assert lines(tmp_path) == [{"step": 1, "loss": None, "per_loop": [1.0, None]}]


@pytest.mark.parametrize("damaged", ["\0\0\0", '{"step": 2, "loss', "[1]", '{"loss": 1}'])
def test_a_damaged_line_is_named_unless_it_is_the_last(tmp_path, damaged):
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{damaged}\n')
    MetricsWriter(tmp_path, 5).close()
    assert path.read_text() == '{"step": 1}\n'
    path.write_text(f'{{"step": 1}}\n{damaged}\n{{"step": 3}}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl line 2 is damaged"):
        MetricsWriter(tmp_path, 5)
    assert path.read_text().endswith('{"step": 3}\n')


# TensorBoard.


def events(folder):
    """Events of all files, oldest file first: records of (length, crc, data, crc)."""
    for path in sorted(folder.glob("events.*")):
        content = path.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            yield Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]


def test_tensorboard_gets_the_same_numbers_and_forgets_what_is_repeated(tmp_path):
    write(tmp_path, 0, [1, 2, 3])
    first = [e for e in events(tmp_path) if e.summary.value]
    scalars = {(e.step, v.tag): v.simple_value for e in first for v in e.summary.value}
    assert scalars[2, "loss"] == 0.5
    assert scalars[3, "per_loop/1"] == 3.0
    for path in tmp_path.glob("events.*"):
        path.unlink()
    write(tmp_path, 2, [3])
    restarts = [e.step for e in events(tmp_path) if e.HasField("session_log")]
    assert restarts == [3]


# The clock.


class FakeTime:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_clock_survives_a_resume():
    now = FakeTime()
    clock = Clock(now=now)
    now.now += 5
    state = json.loads(json.dumps(clock.state_dict()))
    now.now = 0.0  # another machine
    clock = Clock.from_state_dict(state, now)
    now.now += 2
    assert clock.seconds == 7


def test_clock_does_not_count_pauses():
    now = FakeTime()
    clock = Clock(now=now)
    now.now += 1
    with clock.paused():
        now.now += 10
        assert clock.seconds == 1
    now.now += 1
    assert clock.seconds == 2


def test_clock_ignores_the_wall_clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: 0.0)
    before = clock.seconds
    assert 0 <= before <= clock.seconds < 60


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "victim").write_text("{}\n")
    (tmp_path / "run" / "metrics.jsonl").symlink_to(tmp_path / "victim")
    with pytest.raises(UserError, match=r"metrics\.jsonl is a symbolic link; allowed: a plain"):
        MetricsWriter(tmp_path / "run", 0)
    assert (tmp_path / "victim").read_text() == "{}\n"
