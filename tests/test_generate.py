"""looped_jax.generate on run folders: what it prints, and what it refuses."""

import json
import shutil
import subprocess
import sys

import pytest

from looped_jax import generate as command
from looped_jax.config import resolve_json
from looped_jax.data import tokenizer as tokenizers
from looped_jax.errors import UserError
from looped_jax.files import write_json
from looped_jax.generation.sampling import Sampling
from looped_jax.reading import opening
from tests.tiny_runs import tiny_config
from tests.untrained_runs import write_untrained_run


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    config = tiny_config(data.folder, ends=1)
    return write_untrained_run(tmp_path_factory.mktemp("run") / "one", config)


@pytest.fixture
def call():
    def call(*arguments):
        command = [sys.executable, "-m", "looped_jax.generate", *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    return call


def test_one_prompt_is_streamed(run, call):
    done = call(f"--workdir={run.path}", "--prompt=It was", "--max_tokens=5", "--seed=2")
    assert done.returncode == 0, done.stderr
    expected = command.load(run.path).generate(["It was"], max_tokens=5, sampling=Sampling(seed=2))[
        0
    ]
    assert done.stdout == f"It was{expected.text}\n"
    first, last = done.stderr.splitlines()[-2:]
    assert first.startswith("cache every_recurrence: 2 recurrences of 2 layers + 2 layers once, ")
    assert last.startswith("r = 2: 5 tokens in ")


def test_several_prompts_and_depths(run, call):
    done = call(
        f"--workdir={run.path}", "--prompt=It", "--prompt=", "--recurrences=1,3", "--max_tokens=3",
        "--cache=last_recurrence",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if line.startswith("── r = ")]
    assert [head.split(",")[0] for head in heads] == ["── r = 1"] * 2 + ["── r = 3"] * 2
    assert "cache last_recurrence: 1 recurrence of 2 layers" in done.stderr


def test_many_prompts_through_slots_into_a_file(run, call, tmp_path):
    prompts, out = tmp_path / "prompts.txt", tmp_path / "texts.jsonl"
    prompts.write_text("It\na\nIt was\n")
    done = call(
        f"--workdir={run.path}", f"--prompts_file={prompts}", f"--out={out}", "--max_tokens=3",
        "--exit=change:0.5", "--slots=2", "--recurrences=3",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert [result["prompt"] for result in results] == ["It", "a", "It was"]
    assert all(len(result["loops"]) == result["tokens"] == 3 for result in results)
    assert done.stdout == f"{out}\n"
    assert "cache every_recurrence: 3 recurrences of 2 layers" in done.stderr
    assert "warning: trained at one depth (r = 2)" in done.stderr
    *_, rate, cost = done.stderr.splitlines()
    assert rate.startswith("r = 3: 9 tokens in ")
    assert "loops in the mean of at most 3, " in cost
    assert cost.endswith("of uniform depth at as many loops")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out=texts.jsonl"], "error: --prompts_file and --out are given together"),
        (["--prompt=" + "ab " * 40], "error: prompt 'ab ab ab ab ab ab ab…' has "),
        pytest.param(
            ["--recurrences=2,many"],
            "error: --recurrences=2,many; allowed: whole numbers",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["--temperature=-1"],
            "error: temperature = -1.0; allowed: 0 (greedy) or more",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_wrong_call_is_a_line_and_status_2(run, call, arguments, message):
    done = call(f"--workdir={run.path}", *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(message)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_tokenizer_of_another_vocabulary(run, tmp_path):
    path = tmp_path / "tokenizer.json"
    words = [f"word{i} and{i * 7} other{i * 13}" for i in range(300)]
    path.write_text(tokenizers.train(words, 600).to_json())
    with pytest.raises(UserError, match=r"the tokenizer has 600 ids; allowed: up to .* = 300"):
        command.load(run.path, path)


def test_folders_without_tokenizer_or_run(run, tmp_path):
    with pytest.raises(UserError, match=r"holds no config\.json: not a run folder"):
        command.load(tmp_path)
    own = tmp_path / "own"
    shutil.copytree(run.path, own)
    config = resolve_json(run.read_config())
    assert opening.read_tokenizer(run, config, opening.Choice(), None).vocab_size == 300
    with pytest.raises(UserError, match=r"has digest .*; allowed for .* holds no tokenizer: 123, "):
        opening.read_tokenizer(run, config, opening.Choice(), "123")
    # An imported run has a tokenizer of its own, and says which token ends a document.
    shutil.copy(config.data.folder + "/tokenizer.json", own)
    write_json(own / "imported.json", {"end_of_text": "!"})
    generator = command.load(own)
    assert generator.tokenizer.end_of_text_id == generator.tokenizer.encode("!")[0]
