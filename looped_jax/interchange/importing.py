"""A checkpoint of another project, or an export of ours, as a run folder."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from configs import base
from looped_jax.config import resolve_json, to_json
from looped_jax.data import tokenizer as tokenizers
from looped_jax.data.shards import TOKENIZER, TokenData
from looped_jax.data.sources.pieces import END_OF_TEXT
from looped_jax.described import Description
from looped_jax.errors import UserError
from looped_jax.files import read_json, replacing_folder, sha256_of_file
from looped_jax.interchange import huginn, looped_lm_scaling, origin, readout
from looped_jax.interchange.tensors import Tensors, open_tensors
from looped_jax.model.accounting import abstract_parameters, count_parameters
from looped_jax.model.config import ModelConfig
from looped_jax.run_folder import RunFolder
from looped_jax.training.checkpoints import Checkpoints

OURS = "looped_jax"
PUBLISHED = {module.NAME: module for module in (looped_lm_scaling, huginn, readout)}
FORMATS = (*PUBLISHED, OURS)

# Tokens that evaluate runs at a time.
EVALUATION_TOKENS = 8192

MOST_STEPS = 1 << 53

# Beside the tensors of an export of ours: {"format", "config", "step", "summary", "end_of_text"}.
EXPORT_CONFIG = "config.json"


@dataclasses.dataclass(frozen=True)
class Source:
    """What to import.

    Attributes:
      path: a .pt or .safetensors file, an index of shards, or a folder with one of these.
      format: one of FORMATS.
      stated: model keys that the tensors cannot tell.
      entry: of a .pt file that holds more than a state dict, the entry to take.
    """

    path: Path
    format: str
    stated: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    entry: str | None = None


@dataclasses.dataclass(frozen=True)
class Text:
    """The text that goes with an imported model, as far as it is known.

    Attributes:
      tokenizer: a tokenizer.json, copied into the run folder.
      end_of_text: its token that ends a document.
      data: a folder of data prepared with that tokenizer, which `evaluate` measures on.
    """

    tokenizer: Path | None = None
    end_of_text: str = END_OF_TEXT
    data: Path | None = None


class _Imported(NamedTuple):
    """What a checkpoint becomes."""

    config: dict[str, Any]
    params: dict
    step: int
    summary: dict[str, Any]
    text: Text


def import_run(source: Source, text: Text, out: Path, say: Callable[[str], None]) -> RunFolder:
    """Makes a run folder, whole or not at all.

    Raises:
      UserError: `out` holds something; the source cannot be read, lacks tensors or has some that
        are not understood; or tokenizer or data do not fit the model.
    """
    if source.format not in FORMATS:
        raise UserError(f"format {source.format!r}; allowed: {', '.join(FORMATS)}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists already and is not empty: choose another --out")
    of_format = PUBLISHED.get(source.format)
    usual_entry = of_format.ENTRY if of_format else None
    tensors = open_tensors(source.path, source.entry, usual_entry)
    say(f"read {len(tensors)} tensors from {tensors.source}")
    if of_format is None:
        imported = _ours(tensors, source, text, out)
    else:
        model, params = of_format.convert(tensors, source.stated)
        imported = _Imported(_config(model, text, out), params, 0, _summary(model, out), text)
    tensors.finish(source.format)
    if tensors.dropped:
        say(f"left out what no logit depends on: {', '.join(tensors.dropped)}")
    for note in tensors.notes:
        say(note)
    model = resolve_json(imported.config).model
    check_parameters(model, imported.params, tensors.source)
    _check_text(model, imported.text)
    of_origin = {
        "format": source.format,
        "files": {file.name: sha256_of_file(file) for file in tensors.files},
        "stated": dict(source.stated),
        "end_of_text": imported.text.end_of_text,
    }
    with replacing_folder(out) as aside:
        _write(RunFolder(aside), imported, of_origin)
    return RunFolder(out)


def _write(folder: RunFolder, imported: "_Imported", of_origin: dict[str, Any]) -> None:
    with folder.lock():
        folder.write_config(imported.config)
        with Checkpoints(folder.checkpoints_path, keep=1) as checkpoints:
            state, extra = {"params": imported.params}, {"imported": of_origin["format"]}
            checkpoints.save(imported.step, state, extra)
            checkpoints.wait()
        if imported.text.tokenizer is not None:
            shutil.copyfile(imported.text.tokenizer, folder.path / TOKENIZER)
        origin.write(folder.path, of_origin)
        folder.write_summary(imported.summary)


def check_parameters(model: ModelConfig, params: Any, source: Path) -> None:
    """Raises UserError if the parameters are not those of the model, shapes included."""
    shapes = lambda tree: {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }
    have, want = shapes(params), shapes(abstract_parameters(model))
    for name in sorted(have.keys() | want.keys()):
        if have.get(name) != want.get(name):
            raise UserError(
                f"{source}: parameter {name} has shape {have.get(name, 'none')}; the model that "
                f"the other tensors describe has {want.get(name, 'none')}"
            )


def _config(model: ModelConfig, text: Text, out: Path) -> dict[str, Any]:
    """The base config around an imported model: how to measure it, not how it was trained."""
    c = base.get_config()
    c.name = out.name
    c.model = ConfigDict(dataclasses.asdict(model))
    c.data.folder = str(text.data or "")
    c.data.sequence_length = model.max_length
    c.evaluation.batch_size = max(1, EVALUATION_TOKENS // model.max_length)
    c.depth = base.fixed_depth()
    c.budget.tokens, c.budget.steps = 0.0, 1  # not known; a budget has to stand there
    return to_json(c)


def _summary(model: ModelConfig, out: Path) -> dict[str, Any]:
    n = count_parameters(model)
    return {
        "run": out.name,
        "study": "",
        "r": model.recurrences,
        "d_model": model.width,
        "n_once": n.n_once,
        "n_rec": n.n_rec,
        "n_inject": n.n_inject,
        "n_total": n.total,
        "injection": model.injection,
        "data_digest": None,  # what it was trained on is not known
    }


def _ours(tensors: Tensors, source: Source, text: Text, out: Path) -> _Imported:
    """An export of ours.

    Raises:
      UserError: a key is stated, or the config beside the tensors lacks a key or has a false one.
    """
    if source.stated:
        key = next(iter(source.stated))
        raise UserError(f"--model={key}=…; allowed with format {OURS!r}: none, its config says all")
    path = tensors.source.parent / EXPORT_CONFIG
    content = Description(read_json(path), str(path))
    if content.table.get("format") != OURS:
        raise UserError(f"{path} is no config of an export of format {OURS!r}")
    config, step = dict(content.section("config").table), content.get("step", int)
    if not 0 <= step <= MOST_STEPS:
        raise UserError(f"{path}: step = {step}; allowed: 0 to {MOST_STEPS}")
    summary: dict[str, Any] = {"run": out.name, "data_digest": None}
    if content.table.get("summary") is not None:
        summary = dict(content.section("summary").table)
    params: dict = {}
    for path_to, _ in jax.tree_util.tree_leaves_with_path(
        abstract_parameters(resolve_json(config).model)
    ):
        keys = [entry.key for entry in path_to]
        branch = params
        for key in keys[:-1]:
            branch = branch.setdefault(key, {})
        branch[keys[-1]] = tensors.take(".".join(keys))
    if text.data is not None:
        config = json.loads(json.dumps(config))
        config["data"]["folder"] = str(text.data)
    tokenizer = tensors.source.parent / TOKENIZER
    if text.tokenizer is None and tokenizer.exists():
        end_of_text = content.get("end_of_text", str)
        text = dataclasses.replace(text, tokenizer=tokenizer, end_of_text=end_of_text)
    return _Imported(config, params, step, summary, text)


def _check_text(model: ModelConfig, text: Text) -> None:
    """Raises UserError if the tokenizer or the data need more ids than the model has."""
    sizes = {}
    if text.tokenizer is not None:
        tokenizer = tokenizers.load(text.tokenizer, text.end_of_text)
        sizes[str(text.tokenizer)] = tokenizer.vocab_size
    if text.data is not None:
        sizes[str(text.data)] = TokenData.open(text.data).vocab_size
    for name, size in sizes.items():
        if size > model.vocab_size:
            raise UserError(
                f"the tokenizer of {name} has {size} ids; allowed: up to model.vocab_size = "
                f"{model.vocab_size}"
            )
