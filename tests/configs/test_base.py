import pytest

from configs import base


def test_an_argument_is_typed_as_its_defaults_are():
    parse = lambda arg: base.parse_arg(arg, r=4, flops=6e11, size="cpu", fixed=False, loops=int)
    defaults = {"r": 4, "flops": 6e11, "size": "cpu", "fixed": False, "loops": None}
    assert parse("") == defaults
    given = parse("r=8,flops=1e12,loops=3,fixed=true,size=44m")
    assert given == {"r": 8, "flops": 1e12, "size": "44m", "fixed": True, "loops": 3}


@pytest.mark.parametrize(
    ("arg", "message"),
    [
        ("depth=3", "'depth=3' in the argument 'depth=3'; allowed: KEY=VALUE with r, size"),
        ("r", "'r' in the argument 'r'; allowed: KEY=VALUE with r, size"),
        ("r=1,r=2", "'r=2' in the argument 'r=1,r=2'; twice"),
        ("r=two", "r = 'two'; allowed: a whole number"),
        ("fixed=yes", "fixed = 'yes'; allowed: true or false"),
    ],
)
def test_another_key_or_value_is_refused(arg, message):
    with pytest.raises(ValueError, match=message):
        base.parse_arg(arg, r=4, size="cpu", fixed=False)


def test_a_study_has_two_scales():
    assert (base.parse_scale(""), base.parse_scale("scale=laptop")) == ("published", "laptop")
    with pytest.raises(ValueError, match="scale = 'pod'; allowed: published, laptop"):
        base.parse_scale("scale=pod")
