"""Prompts from a file, and results that are kept as they come."""

import dataclasses
import json

import pytest

from looped_jax.errors import UserError
from looped_jax.generation.generator import Result
from looped_jax.generation.prompts_file import ResultsFile, read_prompts

PROMPTS = ["one", "two", "three"]
RESULTS = [Result(prompt, f" of {prompt}", 2, "max_tokens", (1, 3)) for prompt in PROMPTS]


def test_prompts_are_lines_or_objects(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    assert read_prompts(tmp_path / "a.txt") == ["one", "", "two"]
    lines = [json.dumps({"prompt": text, "id": 1}) for text in ("one\ntwo", "é")]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert read_prompts(tmp_path / "a.jsonl") == ["one\ntwo", "é"]


def test_an_interrupted_call_goes_on_with_what_is_missing(tmp_path):
    out = tmp_path / "out.jsonl"
    first = ResultsFile(out, PROMPTS, {"seed": 0})
    assert first.missing == [0, 1, 2]

    def interrupted():
        yield 2, RESULTS[2]
        yield 0, RESULTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(first.add(interrupted()))
    assert not out.exists()
    part = out.with_name("out.jsonl.part")
    part.write_text(part.read_text()[:-9])  # a kill cut off the last line
    second = ResultsFile(out, PROMPTS, {"seed": 0})
    assert second.missing == [0, 1]
    added = [(0, RESULTS[0]), (1, RESULTS[1])]
    assert list(second.add(iter(added))) == RESULTS[:2]
    second.finish()
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert found == json.loads(json.dumps([dataclasses.asdict(result) for result in RESULTS]))
    assert not part.exists()


def test_what_is_refused(tmp_path):
    out = tmp_path / "out.jsonl"
    list(ResultsFile(out, PROMPTS, {"seed": 0}).add(iter([])))
    with pytest.raises(UserError, match=r"out\.jsonl\.part holds results of another call"):
        ResultsFile(out, PROMPTS, {"seed": 1})
    with pytest.raises(UserError, match=r"cannot read prompts from .*none\.txt"):
        read_prompts(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(UserError, match=r"empty\.txt has no line"):
        read_prompts(tmp_path / "empty.txt")
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}\n{"text": "b"}\n')
    with pytest.raises(UserError, match=r'bad\.jsonl, line 2: allowed: an object with "prompt"'):
        read_prompts(tmp_path / "bad.jsonl")
