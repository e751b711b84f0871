"""Checkpoints as the published projects write them need no statement, and no guess is made."""

from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from looped_jax.config import resolve_json
from looped_jax.errors import UserError
from looped_jax.files import read_json
from looped_jax.interchange import huginn, looped_lm_scaling, readout
from looped_jax.interchange.importing import Source, Text, import_run
from looped_jax.interchange.tensors import Tensors, open_tensors
from looped_jax.model.lm import LoopedLM
from tests.golden.readout_numpy import loop_logits
from tests.interchange import published_files
from tests.interchange.published_files import golden

FORMATS = {module.NAME: module for module in (looped_lm_scaling, huginn, readout)}


def convert(format_name, path, **stated):
    """(model, parameters, names that were left out), nothing written."""
    of_format = FORMATS[format_name]
    tensors = open_tensors(Path(path), None, of_format.ENTRY)
    model, params = of_format.convert(tensors, stated)
    tensors.finish(format_name)
    return model, params, tensors.dropped


def refused(message, format_name, path, **stated):
    with pytest.raises(UserError, match=message) as raised:
        convert(format_name, path, **stated)
    assert "\n" not in str(raised.value)


def logits(model, params, tokens, *args):
    run = jax.jit(lambda params: LoopedLM(model).apply({"params": params}, tokens, *args))
    return np.asarray(run(params))


def assert_close(actual, expected):
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= 1e-5 * np.abs(expected).max()


def test_isodepth_with_its_meta_file(tmp_path):
    """Padded tables are cut, the alias and the optimiser's file are no obstacle."""
    folder = published_files.isodepth(tmp_path / "s20")
    arrays, _ = golden("isodepth_linear")
    said = []
    run = import_run(Source(folder, "looped_lm_scaling"), Text(), tmp_path / "run", said.append)
    model = resolve_json(run.read_config()).model
    assert (model.vocab_size, model.heads, model.max_length) == (40, 2, 16)
    assert (model.recurrences, model.backprop_recurrences) == (3, 2)
    origin = read_json(run.path / "imported.json")
    assert list(origin["files"]) == ["model_000120.pt", "meta_000120.json"]
    model, params, _ = convert("looped_lm_scaling", folder / "model_000120.pt")
    assert_close(logits(model, params, arrays["tokens"][:, :-1]), arrays["logits"])


def test_padded_tables_without_a_meta_file(tmp_path):
    path = published_files.isodepth(tmp_path) / "model_000120.pt"
    (tmp_path / "meta_000120.json").unlink()
    usual = {"head_dim": 16, "max_length": 16, "recurrences": 3}
    model, params, _ = convert("looped_lm_scaling", path, vocab_size=40, **usual)
    assert (model.vocab_size, params["head"]["kernel"].shape) == (40, (32, 40))
    assert convert("looped_lm_scaling", path, **usual)[0].vocab_size == 64
    message = r"model\.vocab_size = 65; allowed for .*\.pt: 2 to 64, the rows of its tables"
    refused(message, "looped_lm_scaling", path, vocab_size=65, **usual)


@pytest.mark.parametrize(
    ("changes", "stated", "message"),
    [
        ({}, {"head_dim": 64}, r"--model=head_dim=64 is stated; .*meta_000120\.json has 16"),
        ({}, {"recurrences": 4}, r"--model=recurrences=4 is stated; .*meta_000120\.json has 3"),
        ({"n_coda": 2}, {}, r"meta_000120\.json says coda_layers = 2; .*model_000120\.pt has 1"),
        ({"input_injection": "additive"}, {}, r"says injection = additive; .*\.pt has linear"),
        ({"input_injection": "gated"}, {}, r"input_injection = 'gated'; allowed: inject_init_pre"),
        ({"n_kv_head": 1}, {}, r"model_config: n_kv_head = 1 is not supported; allowed: 2"),
        ({"n_head": 3}, {}, r"n_head = 3; allowed: a divisor of n_embd = 32"),
        ({"sandwich_norm": True}, {}, r"sandwich_norm = True is not supported; allowed: False"),
        ({"window_pattern": "SSL"}, {}, r"model_config: key 'window_pattern' is not known"),
        ({"num_recur": None}, {}, r"model_config has no key 'train_recur_mean'"),
        ({"num_recur": "3"}, {}, r"num_recur is of type str; allowed: a whole number"),
        ({"vocab_size": 65}, {}, r"model\.vocab_size = 65; allowed for .*: 2 to 64"),
    ],
)
def test_isodepth_contradictions(tmp_path, changes, stated, message):
    refused(message, "looped_lm_scaling", published_files.isodepth(tmp_path, **changes), **stated)


def test_huginn_with_its_config(tmp_path):
    folder = published_files.huginn(tmp_path / "huginn")
    arrays, _ = golden("huginn_elastic")
    model, params, _ = convert("huginn", folder)
    assert (model.recurrences, model.max_length, model.rope_base) == (4, 16, 50_000)
    assert model.initial_state_std == pytest.approx(0.4)
    found = logits(model, params, arrays["tokens"][:, :-1], 4, arrays["initial_state"])
    assert_close(found, arrays["logits/steps4"])


@pytest.mark.parametrize(
    ("changes", "stated", "message"),
    [
        ({}, {"rope_base": 1e4}, r"--model=rope_base=10000\.0 is stated; .*config\.json has 50000"),
        ({"n_layers_in_coda": 2}, {}, r"config\.json says coda_layers = 2; .*safetensors has 1"),
        ({"num_key_value_heads": 1}, {}, r"num_key_value_heads = 1 is not supported; allowed: 2"),
        ({"test_time_noise": 0.1}, {}, r"test_time_noise = 0\.1 is not supported; allowed: 0"),
        ({"model_type": "llama"}, {}, r"model_type = 'llama' is not supported; allowed: 'huginn"),
        ({"rope_scaling": {"factor": 8}}, {}, r"rope_scaling = .* is not supported"),
        ({"init_values": 3}, {}, r"init_values is of type int; allowed: a table"),
    ],
)
def test_huginn_contradictions(tmp_path, changes, stated, message):
    refused(message, "huginn", published_files.huginn(tmp_path, **changes), **stated)


UNUSED = ["raw_alpha", "exit_gate.weight", "exit_gate.bias", "loop_norm.weight", "lm_head.weight"]


@pytest.mark.parametrize("config", [{}, None], ids=["with its config", "the state dict alone"])
def test_readout_leaves_out_what_no_logit_depends_on(tmp_path, config):
    path = published_files.readout(tmp_path / "last.pt", config)
    stated = {} if config is not None else {"heads": 2, "recurrences": 4}
    model, params, dropped = convert("readout", path, **stated)
    assert dropped == UNUSED
    assert (model.state_norm, model.tied_head, model.recurrences) == ("none", True, 4)
    arrays, _ = golden("readout_perloop_rmsnorm")
    assert_close(logits(model, params, arrays["tokens"][:, :-1]), arrays["loop_logits"][-1])


def test_readout_with_a_norm_between_the_loops(tmp_path):
    scale_D = np.linspace(0.5, 1.5, 32, dtype=np.float32)
    arrays, weights = golden("readout_perloop_rmsnorm")
    tokens = arrays["tokens"][:, :-1]
    expected = loop_logits(weights | {"loop_norm.weight": scale_D}, tokens, heads=2, loops=4)
    path = tmp_path / "last.pt"
    published_files.readout(path, {"inter_loop_norm": True}, loop_norm__weight=scale_D)
    model, params, dropped = convert("readout", path)
    assert model.state_norm == "between"
    assert "loop_norm.weight" not in dropped
    assert_close(logits(model, params, tokens), expected[-1].astype(np.float32))

    published_files.readout(path, None, loop_norm__weight=scale_D)
    usual = {"heads": 2, "recurrences": 4}
    refused("loop_norm.weight is trained, .* --model=state_norm=between", "readout", path, **usual)
    assert convert("readout", path, state_norm="between", **usual)[0].state_norm == "between"


def test_readout_models_that_are_read_otherwise(tmp_path):
    path = tmp_path / "last.pt"
    published_files.readout(path, {"decode_norm_final_only": True})
    assert convert("readout", path)[0].readout_norm == "last"
    published_files.readout(path, {"use_decode_norm": False}, "perloop_raw")
    assert convert("readout", path)[0].readout_norm == "none"
    other = np.ones((40, 32), np.float32)
    published_files.readout(path, {"tie_weights": False}, lm_head__weight=other)
    model, params, _ = convert("readout", path)
    assert not model.tied_head
    assert params["head"]["kernel"].shape == (32, 40)


@pytest.mark.parametrize(
    ("config", "tensors", "message"),
    [
        ({"use_spectral_damping": True}, {}, r"use_spectral_damping = True is not supported"),
        ({"decode_norm_type": "alpha_readout"}, {}, r"decode_norm_type = 'alpha_readout' is not s"),
        ({"num_heads": 0}, {}, r"--model=heads=0; allowed: a divisor of model.width = 32"),
        ({}, {"raw_alpha": np.ones(3, np.float32)}, r"raw_alpha has shape \(3,\); allowed: \(\)"),
        ({}, {"exit_gate__weight": np.ones((1, 31), np.float32)}, r"allowed: \(1, 32\)"),
        ({}, {"exit_gate__bias": np.array([np.nan], np.float32)}, r"exit_gate\.bias has 1 of 1 n"),
        ({}, {"lm_head__weight": np.ones((40, 32), np.float32)}, r"tied_head = False; .* has True"),
        ({}, {"decode_norm__weight": None}, r"readout_norm=every; allowed for .*: none"),
        (None, {"raw_alpha": np.array(1.5, np.float32)}, r"raw_alpha = 1\.5 is trained"),
        ({"inter_loop_norm": True}, {"loop_norm__weight": None}, r"parameter state_norm|no tensor"),
    ],
)  # fmt: skip
def test_readout_contradictions(tmp_path, config, tensors, message):
    path = published_files.readout(tmp_path / "last.pt", config, **tensors)
    stated = {"heads": 2, "recurrences": 4} if config is None else {}
    with pytest.raises(UserError, match=message) as raised:
        import_run(Source(path, "readout", stated), Text(), tmp_path / "run", say=str)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wrap",
    [
        "module._orig_mod.{}", "_orig_mod.module.{}", "module.module.{}", "_orig_mod.{}",
        "module._fsdp_wrapped_module._orig_mod.{}",
    ],
)  # fmt: skip
def test_wrappers_come_off_in_any_order(wrap):
    names = ["transformer.recur.0.n1.weight", "lm_head.weight"]
    tensors = Tensors({wrap.format(name): np.ones(1, np.float32) for name in names}, Path("x.pt"))
    assert all(name in tensors for name in names)


def test_wrappers_within_names_come_off():
    name = "layers.0._checkpoint_wrapped_module._orig_mod.attn.qkv.weight"
    assert "layers.0.attn.qkv.weight" in Tensors({name: np.ones(1)}, Path("x.pt"))
    twice = {"a.weight": np.ones(1), "_orig_mod.a.weight": np.ones(1)}
    with pytest.raises(UserError, match="holds a tensor twice, once wrapped and once not"):
        Tensors(twice, Path("x.pt"))


USUAL = {"head_dim": 16, "max_length": 16, "recurrences": 3}


def test_grouped_heads_are_named(tmp_path):
    _, weights = golden("isodepth_linear")
    fewer = {name: w[:16] if "attn.c_k" in name or "attn.c_v" in name else w
             for name, w in weights.items()}  # fmt: skip
    save_file({name: w.copy() for name, w in fewer.items()}, tmp_path / "gqa.safetensors")
    message = r"c_k\.weight has 16 rows .* need 32; grouped key and value heads \(GQA\) are not"
    refused(message, "looped_lm_scaling", tmp_path / "gqa.safetensors", **USUAL)
    for name, key in (("huginn", "huginn_elastic"), ("readout", "readout_perloop_raw")):
        _, weights = golden(key)
        fewer = {n: w[:64].copy() if "qkv" in n else w for n, w in weights.items()}
        save_file(fewer, tmp_path / "x.safetensors")
        message = r"has 64 rows .* need 96; grouped key and value heads \(GQA\) are not supp"
        with pytest.raises(UserError, match=message):
            convert(name, tmp_path / "x.safetensors")


def test_fp8_is_named(tmp_path):
    _, weights = golden("isodepth_linear")
    eight = {name: w.astype(ml_dtypes.float8_e4m3fn) for name, w in weights.items()}
    save_file(eight, tmp_path / "fp8.safetensors")
    message = r"tensor transformer\.wte\.weight is F8_E4M3; allowed: floating-point numbers \(flo"
    refused(message, "looped_lm_scaling", tmp_path / "fp8.safetensors", **USUAL)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value):
    _, weights = golden("isodepth_linear")
    weights["transformer.recur.1.mlp.c_fc.weight"][3, 4] = value
    save_file(weights, tmp_path / "nan.safetensors")
    message = r"recur\.1\.mlp\.c_fc\.weight has 1 of 4096 numbers that are not finite"
    refused(message, "looped_lm_scaling", tmp_path / "nan.safetensors", **USUAL)


def test_a_stated_width_of_the_heads_is_said_to_be_unconfirmed(tmp_path):
    path = published_files.isodepth(tmp_path / "s20") / "model_000120.pt"
    said = []
    import_run(Source(path, "looped_lm_scaling"), Text(), tmp_path / "described", said.append)
    assert not any("head_dim" in line for line in said)
    path.with_name("meta_000120.json").unlink()
    stated = USUAL | {"vocab_size": 40}
    import_run(Source(path, "looped_lm_scaling", stated), Text(), tmp_path / "run", said.append)
    assert said[-1] == (
        "head_dim = 16 is as stated, no file confirms it: the published models have 128"
    )
