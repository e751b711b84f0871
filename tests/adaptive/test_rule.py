"""Rules as text, and what is refused."""

import pytest

from looped_jax.adaptive.rule import Rule, check_model
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.errors import UserError
from tests.model.tiny import with_injection


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("change:0.02", Rule("change", 0.02)),
        ("change:0.02,every=2,first=2,most=32", Rule("change", 0.02, 2, 2, 32)),
        ("head_kl:1e-05", Rule("head_kl", 1e-5, first=2)),
        ("probe:-1.5,share=0.95", Rule("probe", -1.5, share=0.95)),
    ],
)
def test_a_rule_is_read_and_written(text, rule):
    assert Rule.parse(text) == rule
    assert str(rule) == text


def test_a_threshold_survives_its_text():
    third = Rule("change", float(1 / 3))
    assert Rule.parse(str(third)).threshold == pytest.approx(1 / 3, rel=1e-8)


def test_programs_are_told_apart_by_what_they_compile_not_by_thresholds():
    looks = Rule.parse("change:0.02,most=8").looks
    assert looks == Rule.parse("change:0.5,most=4").looks
    assert looks != Rule.parse("change:0.02,every=2").looks
    assert hash(looks) == hash(Rule("change", 1.0).looks)


def test_a_signal_is_first_looked_at_when_it_has_a_meaning():
    assert Rule.parse("change:1").first == 1
    assert Rule.parse("accel:1").first == Rule.parse("head_kl:1").first == 2


ALLOWED = "allowed: " + ", ".join(SIGNALS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chnage:0.1", f"exit 'chnage'; {ALLOWED}"),
        ("kl:0.1", f"how far its neighbours are; {ALLOWED}"),
        ("change", "exit 'change' has no threshold; allowed: SIGNAL:THRESHOLD"),
        ("change:much", "'much' in exit 'change:much'; allowed: a number"),
        ("change:nan", "threshold of exit 'change' is nan"),
        ("change:1,every=0", "every = 0 of exit 'change'; allowed: 1 or more"),
        ("change:1,every=a", "'a' in exit 'change:1,every=a'; allowed: a whole number"),
        ("head_kl:1,first=1", "first = 1 of exit 'head_kl'; allowed: 2 or more"),
        ("change:1,most=0", "most = 0 of exit 'change'; allowed: 1 or more"),
        ("change:1,share=1.5", "share = 1.5; allowed: above 0, at most 1"),
        ("change:1,evry=2", "'evry=2' in exit 'change:1,evry=2'; allowed, once each: every="),
        ("change:1,every=2,every=2", "'every=2' in exit"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(UserError) as error:
        Rule.parse(text)
    assert message in str(error.value)


def test_tokens_of_lanes_cannot_exit_one_by_one():
    with pytest.raises(UserError, match="exit with injection 'hyperconnect'; allowed: linear"):
        check_model(with_injection("hyperconnect"))
    check_model(with_injection("diagonal"))
