"""Tiny configurations of the model families, for tests."""

from typing import Any

import jax
import numpy as np

from looped_jax.model.accounting import abstract_parameters
from looped_jax.model.config import ModelConfig

# The iso-depth family (arXiv:2604.21106), linear injection: 1 - 2 x 3 - 1.
BASE: dict[str, Any] = {
    "vocab_size": 40,
    "vocab_multiple": 1,
    "width": 32,
    "heads": 2,
    "head_dim": 16,
    "mlp_hidden": 128,
    "prelude_layers": 1,
    "core_layers": 2,
    "coda_layers": 1,
    "recurrences": 3,
    "max_recurrences": 8,
    "backprop_recurrences": 0,
    "layer": "pre_norm",
    "mlp": "relu2",
    "qk_norm": True,
    "qk_bias": False,
    "positions": "rope_half",
    "rope_base": 10_000.0,
    "max_length": 16,
    "embedding_scale": 1.0,
    "embedding_norm": True,
    "injection": "linear",
    "injection_order": "input_first",
    "lanes": 0,
    "initial_state": "input",
    "initial_state_std": 0.0,
    "state_norm": "every",
    "share_state_and_final_norm": False,
    "readout_norm": "every",
    "softcap": 15.0,
    "tied_head": False,
    "norm_epsilon": 1e-6,
    "dropout": 0.0,
    "init": "uniform_fan_in",
    "init_std": 0.0,
    "embedding_init_std": 1.0,
    "head_init_std": 0.001,
    "remat": "none",
    "attention": "xla",
    "compute_dtype": "float32",
}

# The depth-recurrent family with sandwich norms (arXiv:2502.05171).
SANDWICH: dict[str, Any] = {
    "mlp_hidden": 48,
    "layer": "sandwich",
    "mlp": "gated_silu",
    "qk_norm": False,
    "qk_bias": True,
    "positions": "rope_interleaved",
    "rope_base": 50_000.0,
    "embedding_norm": False,
    "injection_order": "state_first",
    "initial_state": "noise",
    "initial_state_std": 0.4,
    "state_norm": "last",
    "share_state_and_final_norm": True,
    "softcap": 0.0,
    "tied_head": True,
    "head_init_std": 0.0,
}

# The whole stack looped, nothing around it (arXiv:2606.24898).
READOUT: dict[str, Any] = {
    "prelude_layers": 0,
    "coda_layers": 0,
    "recurrences": 4,
    "mlp": "gated_silu",
    "qk_norm": False,
    "positions": "learned",
    "embedding_norm": False,
    "injection": "passthrough",
    "state_norm": "none",
    "softcap": 0.0,
    "tied_head": True,
    "init": "normal",
    "init_std": 0.02,
    "embedding_init_std": 0.02,
    "head_init_std": 0.0,
}

# What each injection needs beside its name.
INJECTIONS: dict[str, dict[str, Any]] = {
    "passthrough": {},
    "additive": {"initial_state": "zeros"},
    "linear": {},
    "diagonal": {"initial_state": "zeros"},
    "hyperconnect": {"lanes": 2},
}


def tiny(**changes: Any) -> ModelConfig:
    """The iso-depth base with the given keys changed."""
    return ModelConfig.from_tree(BASE | changes)


def with_injection(injection: str, **changes: Any) -> ModelConfig:
    """The iso-depth base with another injection and what it needs."""
    return tiny(injection=injection, **INJECTIONS[injection] | changes)


def random_params(config: ModelConfig, seed: int = 0) -> dict:
    """Every parameter random, so that no initial zero, one or identity hides a term."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        noise = rng.standard_normal(leaf.shape, np.float32)
        if path[-1].key == "scale":
            return 1 + np.float32(0.25) * noise
        fan_in = config.mlp_hidden if path[-2].key == "down" else config.width
        return noise / np.float32(fan_in**0.5)

    return jax.tree_util.tree_map_with_path(draw, abstract_parameters(config))
