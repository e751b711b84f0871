"""A run of ours as files that others read and `import` takes back.

In our own layout (safetensors and a JSON config), or in that of a published project.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from looped_jax import parallel
from looped_jax.config import RunConfig, resolve_json
from looped_jax.data.shards import TOKENIZER
from looped_jax.errors import UserError
from looped_jax.files import replacing_folder, write_json
from looped_jax.interchange import safetensors_files
from looped_jax.interchange.importing import EXPORT_CONFIG, OURS, PUBLISHED
from looped_jax.model.config import ModelConfig
from looped_jax.reading import opening
from looped_jax.reading.opening import Choice
from looped_jax.run_folder import RunFolder

ONE_DEVICE = "data:1,fsdp:1,tensor:1"


def export_run(
    workdir: Path,
    out: Path,
    shard_bytes: int,
    say: Callable[[str], None],
    layout: str = OURS,
    choice: Choice | None = None,
) -> list[Path]:
    """Writes a checkpoint of a run as a folder, whole or not at all; the run folder is only read.

    Args:
      shard_bytes: most bytes of a file, but for a single larger tensor (and for .pt files, which
        are not divided).
      layout: one of FORMATS. Our own: model.safetensors (or shards and an index) holds the
        parameters under their names in the tree, float32, joined by dots: kernels are (in, out),
        layers are stacked on axis 0; config.json holds the run's config, step and summary. A
        published project's: names, shapes and files as its own loader reads them. tokenizer.json
        lies beside in every layout, if there is one.
      choice: step, devices, and data whose tokenizer is written beside; None for the run's own.

    Returns:
      The files with tensors.

    Raises:
      UserError: no run there, `out` holds something, shard_bytes is not above 0, or the model is
        none that the layout can hold.
    """
    if shard_bytes < 1:
        raise UserError(f"shard_bytes = {shard_bytes}; allowed: 1 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already and is not empty: choose another --out")
    folder = RunFolder(workdir)
    config, choice = folder.read_config(), choice or Choice(mesh=ONE_DEVICE)
    run = resolve_json(config)
    if layout != OURS:
        check_fits(run.model, layout)
    mesh = opening.mesh_for(run, folder, choice.mesh)
    with parallel.active(mesh):
        restored = opening.read_params(folder, run, mesh, choice.step)
    params = jax.tree.map(np.asarray, restored.state)
    tokenizer = find_tokenizer(folder, run, choice)
    with replacing_folder(out) as aside:
        if layout == OURS:
            files = safetensors_files.write(aside, named(params), shard_bytes)
            content = {
                "format": OURS,
                "config": config,
                "step": restored.step,
                "summary": folder.read_summary() if folder.is_finished() else None,
                "end_of_text": tokenizer[1] if tokenizer else None,
            }
            write_json(aside / EXPORT_CONFIG, content)
        else:
            write = PUBLISHED[layout].export
            files = write(aside, run.model, of_vocabulary(run.model, params), restored.step,
                          shard_bytes)  # fmt: skip
        if tokenizer is not None:
            shutil.copyfile(tokenizer[0], aside / TOKENIZER)
    say(f"wrote step {restored.step} into {len(files)} files in {out}")
    return [out / file.name for file in files]


def of_vocabulary(model: ModelConfig, params: Any) -> Any:
    """The parameters without rows that fill the tables up: a layout pads in its own way."""
    cut = dict(params)
    cut["embed"] = {"embedding": params["embed"]["embedding"][: model.vocab_size]}
    if "head" in params:
        cut["head"] = {"kernel": params["head"]["kernel"][:, : model.vocab_size]}
    return cut


def check_fits(model: ModelConfig, layout: str) -> None:
    """Raises UserError if a published project's layout cannot hold the model."""
    for key, allowed in PUBLISHED[layout].required(model).items():
        choices = allowed if isinstance(allowed, tuple) else (allowed,)
        if getattr(model, key) not in choices:
            raise UserError(
                f"model.{key} = {getattr(model, key)!r}; allowed in layout {layout!r}: "
                f"{' or '.join(map(repr, choices))}"
            )


def find_tokenizer(folder: RunFolder, run: RunConfig, choice: Choice) -> tuple[Path, str] | None:
    """The run's own tokenizer or that of its data, if there is one, and what ends a document."""
    if choice.data is None and opening.tokenizer_digest(folder) is not None:
        return folder.tokenizer_path, opening.end_of_text(folder)
    if choice.data is None and not (Path(run.data.folder) / TOKENIZER).exists():
        return None
    data = opening.data_with_tokenizer(folder, run, choice)
    return data.tokenizer_path, data.manifest["tokenizer"]["end_of_text"]


def named(params: Any) -> dict[str, np.ndarray]:
    """{"core.attn.qkv.kernel": array, …} of a parameter tree."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
