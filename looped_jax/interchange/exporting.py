"""A run of ours as safetensors and a JSON config, which others read and `import` takes back."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from looped_jax import parallel
from looped_jax.config import RunConfig, resolve_json
from looped_jax.data.shards import TOKENIZER, TokenData
from looped_jax.errors import UserError
from looped_jax.files import UNFINISHED, write_json
from looped_jax.interchange import origin, safetensors_files
from looped_jax.interchange.importing import EXPORT_CONFIG, OURS
from looped_jax.run_folder import RunFolder
from looped_jax.training import state as states
from looped_jax.training.checkpoints import restore_params


def export_run(
    workdir: Path, out: Path, shard_bytes: int, say: Callable[[str], None]
) -> list[Path]:
    """Writes the newest checkpoint of a run as a folder, whole or not at all.

    model.safetensors (or shards and an index) holds the parameters under their names in the tree,
    float32, joined by dots: kernels are (in, out), layers are stacked on axis 0. config.json holds
    the run's config, step and summary; tokenizer.json lies beside if there is one.

    Args:
      shard_bytes: most bytes of a file, but for a single larger tensor.

    Returns:
      The files with tensors.

    Raises:
      UserError: no run there, `out` holds something, or shard_bytes is not above 0.
    """
    if shard_bytes < 1:
        raise UserError(f"shard_bytes = {shard_bytes}; allowed: 1 or more")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already and is not empty: choose another --out")
    folder = RunFolder(workdir)
    config = folder.read_config()
    run = resolve_json(config)
    mesh = parallel.mesh_from_text("data:1,fsdp:1,tensor:1")
    with parallel.active(mesh):
        restored = restore_params(folder.checkpoints_path, states.abstract_params(run.model, mesh))
    tensors = named(restored.state)
    content: dict[str, Any] = {
        "format": OURS,
        "config": config,
        "step": restored.step,
        "summary": folder.read_summary() if folder.is_finished() else None,
        "end_of_text": None,
    }
    tokenizer = find_tokenizer(folder, run)
    if tokenizer is not None:
        path, content["end_of_text"] = tokenizer
    aside = out.with_name(f"{out.name}{UNFINISHED}{os.getpid()}")
    try:
        aside.mkdir(parents=True)
        files = safetensors_files.write(aside, tensors, shard_bytes)
        write_json(aside / EXPORT_CONFIG, content)
        if tokenizer is not None:
            shutil.copyfile(path, aside / TOKENIZER)
        os.replace(aside, out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    say(f"wrote {len(tensors)} tensors of step {restored.step} into {len(files)} files in {out}")
    return [out / file.name for file in files]


def find_tokenizer(folder: RunFolder, run: RunConfig) -> tuple[Path, str] | None:
    """The run's own tokenizer or that of its data, if there is one, and what ends a document."""
    own = folder.path / TOKENIZER
    if own.exists():
        return own, origin.end_of_text(folder.path)
    if not (Path(run.data.folder) / TOKENIZER).exists():
        return None
    data = TokenData.open(run.data.folder)
    return data.folder / TOKENIZER, data.manifest["tokenizer"]["end_of_text"]


def named(params: Any) -> dict[str, np.ndarray]:
    """{"core.attn.qkv.kernel": array, …} of a parameter tree."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
