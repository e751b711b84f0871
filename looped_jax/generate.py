"""Writes text with the newest checkpoint of a run, at any depth.

    python -m looped_jax.generate --workdir=runs/one --prompt="It was"
    python -m looped_jax.generate --workdir=runs/one --prompt="It was" --recurrences=1,4,8
    python -m looped_jax.generate --workdir=runs/one --prompt=One --prompt=Two --temperature=0

One prompt at one depth is shown while it is written. From Python: `load(workdir).generate(…)`.
"""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from looped_jax import cli, parallel
from looped_jax.config import RunConfig, resolve_json
from looped_jax.data import tokenizer as tokenizers
from looped_jax.data.shards import TOKENIZER, TokenData
from looped_jax.data.sources import END_OF_TEXT
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.generation.caches import KINDS
from looped_jax.generation.generator import Generator, Result
from looped_jax.generation.sampling import Sampling
from looped_jax.interchange import origin
from looped_jax.run_folder import RunFolder
from looped_jax.training import state as states
from looped_jax.training.checkpoints import restore_params

ONE_DEVICE = "data:1,fsdp:1,tensor:1"


def load(
    workdir: Path | str, tokenizer: Path | str | None = None, end_of_text: str = END_OF_TEXT
) -> Generator:
    """A generator with the newest checkpoint of a run folder, on one device.

    Args:
      workdir: the run folder; the run need not be finished.
      tokenizer: a tokenizer.json; None for the one of the run.
      end_of_text: the token of `tokenizer` that ends a document.

    Raises:
      UserError: no checkpoint there, or a tokenizer that is missing or does not fit.
    """
    with opened(workdir, tokenizer, end_of_text) as generator:
        return generator


@contextlib.contextmanager
def opened(
    workdir: Path | str,
    tokenizer: Path | str | None = None,
    end_of_text: str = END_OF_TEXT,
    mesh: str = ONE_DEVICE,
) -> Iterator[Generator]:
    """A generator with its mesh active inside the block; arguments and errors as of `load`."""
    folder = RunFolder(workdir)
    run = resolve_json(folder.read_config())
    on_mesh = parallel.mesh_from_text(mesh)
    with parallel.active(on_mesh):
        abstract = states.abstract_params(run.model, on_mesh)
        restored = restore_params(folder.checkpoints_path, abstract)
        if tokenizer is None:
            chosen = run_tokenizer(folder, run, restored.extra.get("data_digest"))
        else:
            chosen = tokenizers.load(tokenizer, end_of_text)
        yield Generator(run.model, restored.state, chosen)


def run_tokenizer(folder: RunFolder, run: RunConfig, data_digest: str | None) -> Tokenizer:
    """The tokenizer that lies in the run folder (of an imported run), or that of its data.

    Args:
      data_digest: of the data that the model was trained on; None where it is not known.

    Raises:
      UserError: there is neither, or the data is not what the model was trained on.
    """
    own = folder.path / TOKENIZER
    if own.exists():
        return tokenizers.load(own, origin.end_of_text(folder.path))
    if not run.data.folder:
        raise UserError(f"{folder.path} has neither a tokenizer nor data: give --tokenizer=FILE")
    data = TokenData.open(run.data.folder)
    if data_digest is not None and data.digest != data_digest:
        raise UserError(
            f"data in {data.folder} has digest {data.digest[:12]}; allowed for the tokenizer of "
            f"{folder.path}: {data_digest[:12]}, the data it was trained on"
        )
    return data.tokenizer()


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
    flags.DEFINE_string("tokenizer", None, "A tokenizer.json; default: the run's.")
    flags.DEFINE_string("end_of_text", END_OF_TEXT, "Token of --tokenizer that ends a document.")
    flags.DEFINE_string("mesh", ONE_DEVICE, "Devices; tensor:N splits heads and vocabulary.")


def main(_: list[str]) -> None:
    values = flags.FLAGS
    depths = _depths(values.recurrences)
    sampling = Sampling(values.temperature, values.top_k, values.top_p, values.seed)
    prompts = values.prompt or [""]
    where = (values.workdir, values.tokenizer, values.end_of_text, values.mesh)
    with opened(*where) as generator:
        depths = depths or [generator.model.recurrences]
        several = len(prompts) > 1 or len(depths) > 1
        # All depths are checked, and one program is compiled for them, before the first is run.
        slots = max(depths) if len(depths) > 1 and values.cache == KINDS[0] else None
        common = {"max_tokens": values.max_tokens, "cache": values.cache, "slots": slots}
        plans = [generator.plan(prompts, recurrences=depth, **common) for depth in depths]
        print(generator.describe(plans[0]), file=sys.stderr)
        common |= {"sampling": sampling, "stop": values.stop}
        for depth in depths:
            start = time.monotonic()
            if several:
                results = generator.generate(prompts, recurrences=depth, **common)
                tokens = sum(result.tokens for result in results)
                for result in results:
                    _show(depth, result)
            else:
                tokens = 0
                print(prompts[0], end="", flush=True)
                for piece in generator.stream(prompts, recurrences=depth, **common):
                    print(piece.text, end="", flush=True)
                    tokens += 1
                print(flush=True)
            seconds = time.monotonic() - start
            print(
                f"r = {depth}: {tokens} tokens in {seconds:.1f} s, compilation included",
                file=sys.stderr,
            )


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
