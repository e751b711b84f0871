"""Generator: batches, depths, ends of a row, streams, compilations and refusals."""

import jax
import numpy as np
import pytest

from looped_jax import parallel
from looped_jax.adaptive import memory
from looped_jax.adaptive.calibration import Calibration, Measured
from looped_jax.data import tokenizer as tokenizers
from looped_jax.errors import UserError
from looped_jax.generation import decoding
from looped_jax.generation.generator import Generator
from looped_jax.generation.sampling import Sampling
from looped_jax.model.boxes import unboxed
from looped_jax.training.state import init_params
from tests.model.tiny import random_params, tiny, with_injection

SMALL = {"prelude_layers": 0, "coda_layers": 0, "core_layers": 1}
GREEDY = Sampling(temperature=0.0)
PROMPTS = ["It was", "a", "truth universally"]


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train(["It is a truth universally acknowledged. " * 20], 270)


@pytest.fixture(scope="module")
def generator(tokenizer):
    """A model with more ids than its tokenizer and a context of 40 tokens."""
    model = tiny(vocab_size=tokenizer.vocab_size + 150, max_length=40, **SMALL)
    return Generator(model, random_params(model), tokenizer)


def test_a_batch_generates_what_its_rows_generate_alone(generator):
    for sampling in (GREEDY, Sampling(seed=5, temperature=0.7, top_k=40)):
        together = generator.generate(PROMPTS, max_tokens=8, sampling=sampling)
        for row, prompt in enumerate(PROMPTS):
            own = Sampling(sampling.temperature, sampling.top_k, seed=sampling.seed + row)
            alone = generator.generate([prompt], max_tokens=8, sampling=own)
            assert alone == [together[row]]


def test_seeds_and_depths_make_a_difference(generator):
    text = lambda **how: generator.generate(["It was"], max_tokens=12, **how)[0].text
    assert text() == text()
    assert text(sampling=Sampling(seed=1)) != text()
    assert text(sampling=GREEDY, recurrences=2, deepest=3) != text(sampling=GREEDY)
    # Room for more recurrences than are run changes nothing.
    assert text(recurrences=2, deepest=3) == text(recurrences=2)


def test_ids_beyond_the_tokenizer_are_never_drawn(generator):
    hot = Sampling(temperature=50.0)
    rows = generator.generate(PROMPTS, max_tokens=24, sampling=hot)
    # A third of the model's ids are none of the tokenizer, and decoding one is an error.
    assert sum(result.tokens for result in rows) > 40


def test_streams_add_up_and_end_once(generator):
    pieces = list(generator.stream(PROMPTS, max_tokens=8))
    results = generator.generate(PROMPTS, max_tokens=8)
    for row, result in enumerate(results):
        of_row = [piece for piece in pieces if piece.row == row]
        assert "".join(piece.text for piece in of_row) == result.text
        assert [piece.finish for piece in of_row[:-1]] == [None] * (len(of_row) - 1)
        assert of_row[-1].finish == result.finish


def test_how_rows_end(generator, tokenizer):
    few, many = (generator.generate(["It was"], max_tokens=n, sampling=GREEDY)[0] for n in (4, 99))
    assert (few.tokens, few.finish) == (4, "max_tokens")
    assert many.text.startswith(few.text)
    assert (many.tokens, many.finish) == (40 - len(tokenizer.encode("It was")), "context")
    stop = few.text[1:3]
    stopped = generator.generate(["It was"], max_tokens=99, sampling=GREEDY, stop=[stop])[0]
    assert stopped.finish == "stop"
    assert few.text.startswith(stopped.text)
    assert stop not in stopped.text


def test_the_end_of_text_token_ends_a_row(generator, monkeypatch):
    token = generator.tokenizer.encode(generator.generate(["It"], sampling=GREEDY)[0].text)[0]
    monkeypatch.setattr(generator.tokenizer, "end_of_text_id", int(token))
    result = generator.generate(["It"], sampling=GREEDY)[0]
    assert (result.text, result.tokens, result.finish) == ("", 1, "end_of_text")


def test_an_empty_prompt_starts_a_document(generator):
    assert generator.plan([""]).prompts[0].tolist() == [generator.tokenizer.end_of_text_id]
    assert generator.generate([""], max_tokens=2)[0].tokens == 2


def test_one_compilation_for_a_length_bucket(tokenizer):
    """Lengths, depths and sampling change within one program; a longer bucket is another."""
    model = tiny(vocab_size=300, max_length=64, **SMALL)
    generator = Generator(model, random_params(model), tokenizer)
    call = lambda prompt, **how: generator.generate([prompt], deepest=4, max_tokens=4, **how)
    call("a")
    call("It was a", recurrences=2)
    call("It was", recurrences=4, sampling=Sampling(seed=7, top_p=0.5))
    call("It", sampling=GREEDY)
    fill, step = decoding.prefill(model, 4, 16), decoding.decode(model, 4)
    assert (fill._cache_size(), step._cache_size()) == (1, 1)
    assert generator._choose._cache_size() == 1
    call("abcdefghijklmnopqrst")  # 20 tokens and 4 more: the bucket of 32
    assert decoding.prefill(model, 4, 32)._cache_size() == 1
    assert (fill._cache_size(), step._cache_size()) == (1, 2)


def test_a_split_model_generates_the_same(generator):
    mesh = parallel.mesh_from_text("data:2,fsdp:2,tensor:2")
    boxed = jax.eval_shape(lambda: init_params(generator.model, 0))
    shardings = parallel.parameter_shardings(boxed, mesh)
    assert jax.tree.structure(unboxed(boxed)) == jax.tree.structure(generator.params)
    expected = generator.generate(PROMPTS[:1], max_tokens=6, sampling=GREEDY)
    with parallel.active(mesh):
        split = Generator(
            generator.model, jax.device_put(generator.params, shardings), generator.tokenizer
        )
        assert split.generate(PROMPTS[:1], max_tokens=6, sampling=GREEDY) == expected


def test_slots_write_what_rows_in_step_write(generator):
    """A rule that never fires, and no rule: any number of slots, stop strings, ends."""
    how = {"max_tokens": 8, "sampling": Sampling(seed=5)}
    in_slots = how | {"slots": 2, "boundary": 1}
    expected = generator.generate(PROMPTS, **how)
    assert generator.generate(PROMPTS, exit="change:-1", **in_slots) == expected
    assert expected[0].loops == (3,) * expected[0].tokens
    stop = expected[0].text[1:3]
    stopped = generator.generate(PROMPTS, stop=[stop], **in_slots)
    assert stopped == generator.generate(PROMPTS, stop=[stop], **how)
    assert stopped[0].finish == "stop"


def test_loops_of_every_token_and_a_cap(generator):
    how = {"slots": 2, "boundary": 1, "max_tokens": 8, "sampling": GREEDY}
    first = generator.generate(PROMPTS, exit="change:9", **how)
    assert {loop for row in first for loop in row.loops} == {1}
    capped = generator.generate(PROMPTS, exit="change:-1,most=2", **how)
    assert {loop for row in capped for loop in row.loops} == {2}
    # Where every token exits after its first loop, the last recurrence is the only one.
    assert generator.generate(PROMPTS, exit="change:9", cache="last_recurrence", **how) == first


def test_a_rule_that_was_chosen_by_measurement(generator, tokenizer, tmp_path):
    """A prior by which every token takes two loops, as the run folder keeps it."""
    loops_V = np.full(generator.model.vocab_size, 2.0, np.float32)
    cheap = Measured("prior", 1.0, 2.0, 10.0, 3.0, 0.001, 0.002)
    Calibration(3, 3.0, 15.0, [3.2, 3.0, 3.0], 64, [cheap], {"prior": loops_V}).write(tmp_path)
    own = Generator(generator.model, generator.params, tokenizer, folder=tmp_path)
    how = {"slots": 2, "boundary": 1, "max_tokens": 8, "sampling": GREEDY}
    found = own.generate(PROMPTS, exit="auto:0.005", **how)
    assert own.plan(PROMPTS, exit="auto:0.005", slots=2).equal_depth == 2
    assert {loop for row in found for loop in row.loops} == {2}
    assert found == generator.generate(PROMPTS, exit="change:-1,most=2", **how)


def test_a_row_has_the_seed_of_its_number(generator):
    how = {"max_tokens": 5, "sampling": Sampling(seed=5)}
    assert (
        generator.generate(PROMPTS[2:], rows=[2], **how) == generator.generate(PROMPTS, **how)[2:]
    )


def test_a_cache_that_does_not_fit_is_refused(generator, monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**14)
    with pytest.raises(
        UserError, match=r"cache of 3 x 2 x 16 tokens = .* GiB; free .*: .* or --cache=last"
    ):
        generator.generate(PROMPTS, exit="change:0.1", slots=2, max_tokens=4)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**18)
    with pytest.raises(UserError, match=r"exit 'head_kl' remembers .* GiB; allowed: up to a quar"):
        generator.generate(PROMPTS, exit="head_kl:0.1", slots=2, max_tokens=4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"boundary": 1}, "boundary = 1 without slots; allowed: with slots or an exit"),
        ({"slots": 3, "boundary": 4}, "slots = 3 with boundary 4; allowed: 1 to slots"),
        ({"slots": 0}, "slots = 0; allowed: 1 or more"),
        ({"exit": "change:1,most=40"}, "most = 40 recurrences; allowed: up to 3, which slots hold"),
        ({"exit": "change:1,share=0.9"}, "tokens exit one by one; allowed: a rule without share"),
        ({"exit": "probe:0"}, "its signal is fitted on text; allowed: as text, of a run that"),
        ({"exit": "kl:0.1"}, "exit 'kl': read through a coda"),
        ({"recurrences": 0}, "recurrences = 0; allowed: 1 or more"),
        ({"cache": "none"}, "cache 'none'; allowed: every_recurrence, last_recurrence"),
        ({"max_tokens": 0}, "max_tokens = 0; allowed: 1 or more"),
        ({"deepest": 2}, "deepest = 2; allowed with every_recurrence: 3 recurrences or more"),
        ({"stop": ["a", ""]}, "stop = ''; allowed: strings of one character or more"),
    ],
)
def test_arguments_that_are_not_allowed(generator, arguments, message):
    with pytest.raises(UserError, match=message):
        generator.generate(["It"], **arguments)


def test_hyperconnections_have_no_slots(tokenizer):
    lanes = Generator(with_injection("hyperconnect", vocab_size=300), {}, tokenizer)
    with pytest.raises(UserError, match="exit with injection 'hyperconnect'; allowed: linear"):
        lanes.plan(["It"], exit="change:0.1")


def test_prompts_that_are_not_allowed(generator):
    with pytest.raises(UserError, match="no prompt was given"):
        generator.generate([])
    with pytest.raises(
        UserError,
        match=r"prompt '(ab){10}…' has 60 tokens; allowed: up to 39 \(model",
    ):
        generator.generate(["It", "ab" * 30])


def test_models_that_do_not_fit(tokenizer):
    with pytest.raises(UserError, match=r"the tokenizer has 2\d\d ids; allowed: up to"):
        Generator(tiny(), {}, tokenizer)
    model = with_injection("hyperconnect", vocab_size=300)
    with pytest.raises(UserError, match=r"recurrences = 4; allowed: 1 to 3 \(rows of the"):
        Generator(model, {}, tokenizer).plan(["It"], recurrences=4)
