"""Progress says done, total, rate and time left, and is quiet where nobody watches."""

import errno
import io

import pytest
from rich.console import Console

from looped_jax.progress import Display, format_count, format_seconds


class FakeTime:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def now():
    return FakeTime()


def plain(now):
    return Display(Console(file=io.StringIO(), width=40), interval_s=30.0, now=now)


def printed(display):
    return display._console.file.getvalue().splitlines()


def train(display, now, steps, seconds_a_step):
    with display.track(
        "train", 100, unit="steps", start=10, rate_unit="tokens", rate_scale=512
    ) as progress:
        for step in range(11, 11 + steps):
            now.now += seconds_a_step
            progress.update(step, loss=40 / step)
    return progress


def test_plain_lines_come_at_intervals_and_at_the_end(now):
    with plain(now) as display:
        train(display, now, steps=90, seconds_a_step=1.0)
    assert printed(display) == [
        "train: 40/100 steps (40 %), 512 tokens/s, loss 1.0000, 1:00 left",
        "train: 70/100 steps (70 %), 512 tokens/s, loss 0.5714, 0:30 left",
        "train: 100/100 steps (100 %), 512 tokens/s, loss 0.4000, took 1:30",
    ]


def test_what_is_done_before_the_first_step_is_said_once(now):
    with plain(now) as display:
        display.say("train goes on after step 10")
        progress = display.track("train", 100, unit="steps", start=10)
        progress.say("compiling")
        progress.say("compiling")
        progress.say("")
        now.now += 30.0
        progress.update(20)
    assert printed(display) == [
        "train goes on after step 10",
        "train: 10/100 steps (10 %), compiling",
        "train: 20/100 steps (20 %)",
    ]


def test_a_terminal_shows_what_is_done(now):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Display(console, now=now) as display:
        progress = display.track("train", 100, unit="steps")
        progress.say("compiling")
        display._live.refresh()
        assert out.getvalue().count("train: 0/100 steps (0 %), compiling") == 1
        progress.say("")
        display._live.refresh()
        assert progress.line() == "train: 0/100 steps (0 %)"


def test_rate_leaves_out_compilation_and_forgets(now):
    with plain(now) as display:
        progress = display.track("train", 1000, unit="steps")
        now.now += 500.0
        progress.update(1)
        assert progress.rate is None
        assert progress.seconds_left is None
        now.now += 2.0
        progress.update(5)
        assert progress.rate == 2.0
        for step in range(6, 100):
            now.now += 1.0
            progress.update(step)
        assert progress.rate == 1.0
        assert progress.seconds_left == 901


def test_live_display_shows_all_work_and_leaves_the_last_state(now):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Display(console, now=now) as display, display.track("study", 3, unit="runs") as study:
        study.update(1)
        train(display, now, steps=90, seconds_a_step=1.0)
        display._live.refresh()
        study.update(2)
    text = out.getvalue()
    assert "train: 100/100 steps (100 %), 512 tokens/s, loss 0.4000, took 1:30" in text
    assert "study: 1/3 runs (33 %)" in text
    assert "study: 2/3 runs (67 %)" in text


def test_quiet_console_shows_nothing(now):
    console = Console(file=io.StringIO(), quiet=True)
    with Display(console, now=now) as display:
        train(display, now, steps=90, seconds_a_step=1.0)
    assert printed(display) == []


def test_work_without_units_and_clocks_that_stand_still(now):
    with plain(now) as display:
        progress = display.track("nothing", 0, unit="steps")
        progress.update(0)
        progress.update(0)
        assert progress.line() == "nothing: 0/0 steps, took 0:00"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (41.2, "0:42"), (3600, "1:00:00"), (3723, "1:02:03"), (183845, "2 d 03:04:05")],
)
def test_format_seconds(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0.5, "0.5"), (950, "950"), (999.7, "1k"), (34_512, "34.5k"), (1.2e6, "1.2M"), (3e17, "300P")],
)
def test_format_count(count, text):
    assert format_count(count) == text


class Gone(io.StringIO):
    """A pipe or terminal that somebody closed."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.EIO, "Input/output error")])
@pytest.mark.parametrize("terminal", [False, True])
def test_work_goes_on_when_nobody_looks_any_more(error, terminal):
    console = Console(file=Gone(error), force_terminal=terminal)
    with Display(console, interval_s=0.0) as display:
        display.say("begun")
        with display.track("run", 3, unit="steps") as progress:
            for step in (1, 2, 3):
                progress.update(step)
    assert progress.done == 3
