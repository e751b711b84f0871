"""Brings in checkpoints of the published projects, and takes ours out.

    python -m looped_jax.interchange import theirs/s20 --format=looped_lm_scaling --out=runs/s20
    python -m looped_jax.interchange export runs/one --out=exported
    python -m looped_jax.interchange export runs/one --out=theirs --format=looped_lm_scaling

An imported run folder is one like any other for generate and evaluate. The config that a project
keeps with its checkpoint is read: meta_STEP.json (looped_lm_scaling), config.json (huginn), the
file's own entry (readout). What neither it nor the tensors tell is stated with --model=KEY=VALUE,
KEY being a key of the model section of configs/base.py. --data is prepared data: what evaluate
measures an imported run on, or whose tokenizer an export takes along.
"""

import sys
from pathlib import Path

from absl import flags

from looped_jax import cli
from looped_jax.data.sources.pieces import END_OF_TEXT
from looped_jax.errors import UserError
from looped_jax.interchange import exporting
from looped_jax.interchange.architecture import parse_stated
from looped_jax.interchange.exporting import export_run
from looped_jax.interchange.importing import FORMATS, OURS, Source, Text, import_run
from looped_jax.reading import opening

SHARD_BYTES = 5_000_000_000
OF_IMPORT = ("model", "entry", "tokenizer", "end_of_text")
OF_EXPORT = ("mesh", "step", "shard_bytes")


def define_flags() -> None:
    flags.DEFINE_string("out", None, "The folder to make; it must not hold anything yet.")
    flags.DEFINE_enum(
        "format", None, FORMATS, "Whose names, shapes and files; export without it: our own."
    )
    flags.DEFINE_multi_string(
        "model", [], "import: what no file tells, KEY=VALUE; repeat it for more."
    )
    flags.DEFINE_string("entry", None, "import: entry of a .pt file with more than a state dict.")
    flags.DEFINE_string("tokenizer", None, "import: a tokenizer.json to copy into the run.")
    flags.DEFINE_string("end_of_text", END_OF_TEXT, "import: its token that ends a document.")
    opening.define_flags(exporting.ONE_DEVICE)
    flags.DEFINE_integer("shard_bytes", SHARD_BYTES, "export: most bytes of one safetensors file.")
    flags.mark_flag_as_required("out")


def main(arguments: list[str]) -> None:
    values = flags.FLAGS
    if len(arguments) != 3 or arguments[1] not in ("import", "export"):
        raise UserError("allowed: import FILE --format=… --out=…, or export RUNDIR --out=…")
    action, path, out = arguments[1], Path(arguments[2]), Path(values.out)
    say = lambda line: print(line, file=sys.stderr)
    if action == "export":
        if stray := [name for name in OF_IMPORT if values[name].present]:
            raise UserError(f"--{stray[0]} was given; allowed with import only")
        choice = opening.choice_from_flags()
        export_run(path, out, values.shard_bytes, say, values.format or OURS, choice)
    else:
        if stray := [name for name in OF_EXPORT if values[name].present]:
            raise UserError(f"--{stray[0]} was given; allowed with export only")
        if values.format is None:
            raise UserError(f"--format is missing; allowed: {', '.join(FORMATS)}")
        source = Source(path, values.format, parse_stated(values.model), values.entry)
        optional = lambda path: Path(path) if path else None
        text = Text(optional(values.tokenizer), values.end_of_text, optional(values.data))
        import_run(source, text, out, say)
    print(out)


if __name__ == "__main__":
    define_flags()
    cli.run(main, takes_arguments=True)
