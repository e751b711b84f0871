"""Writes text with a checkpoint of a run, at any depth.

    python -m looped_jax.generate --workdir=runs/one --prompt="It was"
    python -m looped_jax.generate --workdir=runs/one --prompt="It was" --recurrences=1,4,8
    python -m looped_jax.generate --workdir=runs/one --prompt=One --prompt=Two --temperature=0
    python -m looped_jax.generate --workdir=runs/one --prompts_file=prompts.txt --out=texts.jsonl \\
      --exit=change:0.02 --slots=32

One prompt at one depth is shown while it is written. With --exit every token stops looping when its
signal says so; with --slots texts take each other's places as they end. A call with --out that was
interrupted goes on when it is repeated. From Python: `load(workdir).generate(…)`.
"""

import contextlib
import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from looped_jax import cli, parallel
from looped_jax.adaptive.signals import SIGNALS
from looped_jax.data import tokenizer as tokenizers
from looped_jax.data.sources.pieces import END_OF_TEXT
from looped_jax.errors import UserError
from looped_jax.generation.caches import KINDS
from looped_jax.generation.costs import describe_cost
from looped_jax.generation.generator import Generator, Result, result_of
from looped_jax.generation.plan import DEFAULT_SLOTS, Plan
from looped_jax.generation.prompts_file import ResultsFile, read_prompts
from looped_jax.generation.sampling import Sampling
from looped_jax.model.config import ModelConfig
from looped_jax.progress import Display
from looped_jax.reading import opening
from looped_jax.reading.opening import Choice
from looped_jax.run_folder import RunFolder

ONE_DEVICE = "data:1,fsdp:1,tensor:1"


def load(
    workdir: Path | str,
    tokenizer: Path | str | None = None,
    end_of_text: str = END_OF_TEXT,
    step: int | None = None,
) -> Generator:
    """A generator with a checkpoint of a run folder, on one device.

    Args:
      workdir: the run folder; the run need not be finished.
      tokenizer: a tokenizer.json; None for the one of the run.
      end_of_text: the token of `tokenizer` that ends a document.
      step: of the checkpoint; None for the finished run's last, an unfinished one's newest.

    Raises:
      UserError: no checkpoint there, or a tokenizer that is missing or does not fit.
    """
    with opened(workdir, tokenizer, end_of_text, Choice(mesh=ONE_DEVICE, step=step)) as generator:
        return generator


@contextlib.contextmanager
def opened(
    workdir: Path | str,
    tokenizer: Path | str | None = None,
    end_of_text: str = END_OF_TEXT,
    choice: Choice | None = None,
) -> Iterator[Generator]:
    """A generator with its mesh active inside the block; arguments and errors as of `load`."""
    folder, choice = RunFolder(workdir), choice or Choice(mesh=ONE_DEVICE)
    run = opening.read_config(folder)
    mesh = opening.mesh_for(run, folder, choice.mesh)
    with parallel.active(mesh):
        restored = opening.read_params(folder, run, mesh, choice.step)
        if tokenizer is None:
            trained_on = restored.extra.get("data_digest")
            chosen = opening.read_tokenizer(folder, run, choice, trained_on)
        else:
            chosen = tokenizers.load(tokenizer, end_of_text)
        yield Generator(
            run.model, restored.state, chosen, most=run.depth.maximum, folder=folder.path
        )


def define_flags() -> None:
    default = Sampling()
    flags.DEFINE_string("workdir", None, "The run folder.", required=True)
    flags.DEFINE_multi_string(
        "prompt", [], "Text to go on from; repeat it for a batch. Empty: the start of a document."
    )
    flags.DEFINE_list("recurrences", [], "Depth, or several, one after another; default: config's.")
    flags.DEFINE_integer("max_tokens", 100, "Most tokens that are generated for each prompt.")
    flags.DEFINE_float("temperature", default.temperature, "Divides the logits; 0: greedy.")
    flags.DEFINE_integer("top_k", default.top_k, "Draw from the k most likely tokens; 0: all.")
    flags.DEFINE_float(
        "top_p", default.top_p, "Draw from the most likely tokens that reach this probability."
    )
    flags.DEFINE_integer("seed", default.seed, "Row i of a batch draws as seed + i alone would.")
    flags.DEFINE_multi_string("stop", [], "A string that ends the text; repeat it for more.")
    flags.DEFINE_enum(
        "cache", KINDS[0], KINDS,
        "Keys and values that are kept: of every recurrence (exact), or of the last one "
        "(an r-th of the memory, an approximation).",
    )  # fmt: skip
    flags.DEFINE_string(
        "exit", None,
        "When a token stops looping: SIGNAL:THRESHOLD[,every=N][,first=N][,most=N], such as "
        "change:0.02, or auto:0.005 (the cheapest one within so many nats of full depth, chosen by "
        f"what the exits suite measured); signals: {', '.join(SIGNALS)}. --recurrences is then the "
        "most loops; default: the most that training drew.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "slots", None,
        "Texts written at a time, each at a loop of its own; default with --exit: as many as "
        f"prompts, up to {DEFAULT_SLOTS}. Changes speed and memory, no text.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "boundary", None,
        "Slots that go through the head together; default: by measured times.",
    )  # fmt: skip
    flags.DEFINE_string(
        "prompts_file", None, "Prompts, one a line; .jsonl: objects with a \"prompt\"."
    )  # fmt: skip
    flags.DEFINE_string("out", None, "Of --prompts_file: results in its order, as JSON lines.")
    flags.DEFINE_string("tokenizer", None, "A tokenizer.json; default: the run's.")
    flags.DEFINE_string("end_of_text", END_OF_TEXT, "Token of --tokenizer that ends a document.")
    opening.define_flags(ONE_DEVICE)


def main(_: list[str]) -> None:
    values = flags.FLAGS
    depths = _depths(values.recurrences)
    prompts = _prompts(values)
    sampling = Sampling(values.temperature, values.top_k, values.top_p, values.seed)
    where = (values.workdir, values.tokenizer, values.end_of_text, opening.choice_from_flags())
    with opened(*where) as generator:
        common = {
            "max_tokens": values.max_tokens, "cache": values.cache, "exit": values.exit,
            "slots": values.slots, "boundary": values.boundary,
        }  # fmt: skip
        # All depths are checked, and one program is compiled for them, before the first is run.
        if len(depths) > 1 and values.cache == KINDS[0]:
            common["deepest"] = max(depths)
        asked: list[int | None] = [*depths] or [None]
        plans = [generator.plan(prompts, recurrences=depth, **common) for depth in asked]
        print(generator.describe(plans[0]), file=sys.stderr, flush=True)
        _warn_of_fixed_depth(values)
        common |= {"sampling": sampling, "stop": values.stop}
        for plan in plans:
            common["recurrences"] = plan.recurrences
            start = time.monotonic()
            if values.out is not None:
                results = write_results(generator, Path(values.out), prompts, plan, common)
            elif len(prompts) > 1 or len(depths) > 1:
                results = generator.generate(prompts, **common)
                for result in results:
                    _show(plan.recurrences, result)
            else:
                results = [_show_while_written(generator, prompts[0], common)]
            seconds = time.monotonic() - start
            print(_cost_line(generator.model, plan, results, seconds), file=sys.stderr)


def write_results(
    generator: Generator, out: Path, prompts: list[str], plan: Plan, arguments: dict[str, Any]
) -> list[Result]:
    """Writes the results of all prompts; returns those that a call before has not made already."""
    call = {name: value for name, value in arguments.items() if name not in ("slots", "boundary")}
    call["sampling"] = dataclasses.asdict(arguments["sampling"])
    file = ResultsFile(out, prompts, call)
    missing, made = file.missing, []
    if missing:
        with (
            Display() as display,
            display.track(
                out.name, len(prompts), unit="texts", start=len(prompts) - len(missing)
            ) as progress,
        ):
            texts = generator.texts([prompts[i] for i in missing], rows=missing, **arguments)
            for result in file.add((missing[i], result) for i, result in texts):
                made.append(result)
                progress.update(len(prompts) - len(missing) + len(made))
    file.finish()
    print(out, flush=True)
    return made


def _prompts(values: Any) -> list[str]:
    if (values.prompts_file is None) != (values.out is None):
        raise UserError("--prompts_file and --out are given together or not at all")
    if values.prompts_file is None:
        return values.prompt or [""]
    if values.prompt or len(values.recurrences) > 1:
        raise UserError("--prompts_file; allowed with it: no --prompt, one depth")
    return read_prompts(Path(values.prompts_file))


def _warn_of_fixed_depth(values: Any) -> None:
    depth = opening.read_config(RunFolder(values.workdir)).depth
    if values.exit is not None and depth.kind == "fixed":
        print(
            f"warning: trained at one depth (r = {depth.maximum}): the model has never been "
            "trained to exit elsewhere",
            file=sys.stderr,
        )


def _show_while_written(generator: Generator, prompt: str, arguments: dict[str, Any]) -> Result:
    print(prompt, end="", flush=True)
    pieces = []
    for piece in generator.stream([prompt], **arguments):
        print(piece.text, end="", flush=True)
        pieces.append(piece)
    print(flush=True)
    return result_of(prompt, pieces)


def _cost_line(model: ModelConfig, plan: Plan, results: list[Result], seconds: float) -> str:
    tokens = sum(result.tokens for result in results)
    line = (
        f"r = {plan.recurrences}: {tokens} tokens in {seconds:.1f} s "
        f"({tokens / seconds:.3g} a second), compilation included"
    )
    if plan.rule is None or not tokens:
        return line
    loops = [n for result in results for n in result.loops]
    length = statistics.mean(
        len(ids) + new for ids, new in zip(plan.prompts, plan.max_tokens, strict=True)
    )
    cost = describe_cost(
        model, loops, length, plan.rule, plan.recurrences, equal_depth=plan.equal_depth
    )
    return f"{line}\n{cost}"


def _show(depth: int, result: Result) -> None:
    print(f"── r = {depth}, {result.tokens} tokens, ended by {result.finish}")
    print(result.prompt + result.text, flush=True)


def _depths(texts: list[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise UserError(
            f"--recurrences={','.join(texts)}; allowed: whole numbers with commas"
        ) from None


if __name__ == "__main__":
    define_flags()
    cli.run(main)
