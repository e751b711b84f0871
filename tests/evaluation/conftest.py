"""A little prepared text, and small models with random parameters on it."""

import dataclasses
import lzma
from collections.abc import Callable

import jax
import numpy as np
import pytest
from rich.console import Console

from configs import elastic_depth
from looped_jax import parallel
from looped_jax.config import RunConfig, resolve
from looped_jax.data.prepare import prepare
from looped_jax.data.shards import TokenData
from looped_jax.data.sources import source as sources
from looped_jax.evaluation.settings import Settings
from looped_jax.evaluation.trained import Trained
from looped_jax.model.config import ModelConfig
from looped_jax.progress import Display
from looped_jax.run_folder import RunFolder
from tests.model.tiny import SANDWICH, random_params, tiny

T = 8
WHOLE = {"prelude_layers": 1, "coda_layers": 1}


def elastic(**changes) -> ModelConfig:
    """The depth-recurrent family, tiny, from a start without noise; bare, it compiles faster."""
    zeros = {"initial_state": "zeros", "initial_state_std": 0.0, "vocab_size": 300}
    bare = {"prelude_layers": 0, "coda_layers": 0}
    return tiny(**SANDWICH | zeros | bare | changes)


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> TokenData:
    """Part of a novel as 300 token ids; the validation text has three documents."""
    path = sources.CORPUS / sources.BUNDLED_VALIDATION
    with lzma.open(path, "rt", encoding="utf-8") as file:
        novel = file.read(60_000)
    folder = tmp_path_factory.mktemp("text")
    (folder / "train.txt").write_text(novel[:20_000], "utf-8")
    parts = (novel[30_000:30_100], novel[40_000:40_200], novel[50_000:50_300])
    (folder / "held_out.txt").write_text("<|endoftext|>".join(parts), "utf-8")
    return prepare(
        str(folder / "train.txt"), folder / "data", validation=str(folder / "held_out.txt"),
        vocab_size=300, say=str,
    )  # fmt: skip


@pytest.fixture
def trained(data, tmp_path) -> Callable[..., Trained]:
    """Makes a Trained of a model with random parameters; its mesh is active until the test ends."""
    mesh = parallel.mesh_from_text("data:-1,fsdp:1,tensor:1", jax.devices()[:1])

    def make(model: ModelConfig, **settings) -> Trained:
        return Trained(
            run_of(model), 0, random_params(model), data, mesh, RunFolder(tmp_path),
            tmp_path,
            Display(Console(quiet=True)), Settings(**{"resamples": 50} | settings),
        )  # fmt: skip

    with parallel.active(mesh):
        yield make


def run_of(model: ModelConfig) -> RunConfig:
    """A run around a model, evaluated 8 windows of 8 tokens at a time."""
    config = elastic_depth.get_config("depth=fixed")
    config.data.sequence_length = T
    config.evaluation.batch_size = 8
    config.loss.chunk = 24
    return dataclasses.replace(resolve(config), model=model)


def some_tokens(model: ModelConfig, shape=(2, 9), seed=0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, model.vocab_size, shape).astype(np.int32)
