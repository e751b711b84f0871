"""Export into the published projects' own layouts, read back by readers that are not ours."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from looped_jax.errors import UserError
from looped_jax.files import read_json
from looped_jax.interchange.exporting import check_fits
from looped_jax.interchange.importing import PUBLISHED
from looped_jax.interchange.tensors import open_tensors
from tests.golden.readout_numpy import loop_logits
from tests.interchange import published_files, torch_zip
from tests.interchange.published_files import golden
from tests.model.tiny import READOUT, SANDWICH, tiny, with_injection


def read_safetensors(path):
    """The tensors of a file, by the format's own description: a length, a header, the numbers."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, numbers = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__")
    return {
        name: np.frombuffer(numbers[slice(*each["data_offsets"])], "<f4").reshape(each["shape"])
        for name, each in header.items()
        if each["dtype"] == "F32"
    }


def converted(path, layout, **stated):
    """(model, parameters) of a published file."""
    tensors = open_tensors(path, None, PUBLISHED[layout].ENTRY)
    return PUBLISHED[layout].convert(tensors, stated)


def exported(model, params, out, layout):
    """The file with the tensors of step 120."""
    check_fits(model, layout)
    out.mkdir()
    return PUBLISHED[layout].export(out, model, params, 120, 5_000_000)[0]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_isodepth(tmp_path):
    """model_STEP.pt with tables padded to a multiple of 64, and a meta file that describes it."""
    folder = published_files.isodepth(tmp_path / "theirs")
    model, params = converted(folder, "looped_lm_scaling")
    path = exported(model, params, tmp_path / "out", "looped_lm_scaling")
    assert path.name == "model_000120.pt"
    _, weights = golden("isodepth_linear")
    for name in ("transformer.wte.weight", "lm_head.weight"):
        weights[name] = np.concatenate([weights[name], np.zeros((24, 32), np.float32)])
    assert_same(torch_zip.load(path), weights)
    theirs = read_json(folder / "meta_000120.json")["model_config"]
    ours = read_json(tmp_path / "out" / "meta_000120.json")["model_config"]
    assert ours | {"size": 20} == theirs
    assert converted(path.parent, "looped_lm_scaling")[0] == model


def test_isodepth_lanes(tmp_path):
    _, weights = golden("isodepth_hyperconnect")
    path = torch_zip.save(torch_zip.state_dict(weights), tmp_path / "lanes.pt")
    model, params = converted(path, "looped_lm_scaling", head_dim=16, max_length=16)
    found = torch_zip.load(exported(model, params, tmp_path / "out", "looped_lm_scaling"))
    for name in ("lane_alpha", "lane_mixing", "lane_beta", "transformer.recur.1.attn.c_v.weight"):
        np.testing.assert_array_equal(found[name], weights[name])


def test_huginn(tmp_path):
    folder = published_files.huginn(tmp_path / "theirs")
    model, params = converted(folder, "huginn")
    path = exported(model, params, tmp_path / "out", "huginn")
    found = read_safetensors(path)
    angle = np.arange(16)[:, None] * 50_000.0 ** (-np.arange(8) / 8)
    table = found.pop("freqs_cis")
    np.testing.assert_allclose(table[0, :, 0, :, 0], np.cos(angle), atol=1e-6)
    np.testing.assert_allclose(table[0, :, 0, :, 1], np.sin(angle), atol=1e-6)
    assert_same(found, golden("huginn_elastic")[1])
    ours, theirs = (read_json(each / "config.json") for each in (path.parent, folder))
    init = ours.pop("init_values")
    assert init == pytest.approx({key: theirs["init_values"][key] for key in init})
    same = ours.keys() & theirs.keys() - {"torch_dtype"}
    assert {key: ours[key] for key in same} == {key: theirs[key] for key in same}
    assert converted(path.parent, "huginn")[0] == model


@pytest.mark.parametrize("between", [False, True])
def test_readout(tmp_path, between):
    """last.pt holds all that the project's loader asks for; NumPy computes its golden logits."""
    scale_D = np.linspace(0.5, 1.5, 32, dtype=np.float32) if between else np.ones(32, np.float32)
    theirs = published_files.readout(
        tmp_path / "theirs.pt", {"inter_loop_norm": between}, loop_norm__weight=scale_D
    )
    model, params = converted(theirs, "readout")
    path = exported(model, params, tmp_path / "out", "readout")
    found, before = torch_zip.load(path), torch_zip.load(theirs)
    state = found["model_state"]
    unused = {"exit_gate.weight": np.zeros((1, 32), np.float32)}
    assert_same(state, before["model_state"] | unused)
    config = before["config"]["model"]
    assert {key: found["config"]["model"][key] for key in config} == config
    arrays, _ = golden("readout_perloop_rmsnorm")
    tokens = arrays["tokens"][:, :-1]
    used = {name: array for name, array in state.items() if between or name != "loop_norm.weight"}
    logits = loop_logits(used, tokens, heads=2, loops=4)
    np.testing.assert_allclose(logits[0], arrays["loop_logits"][0], atol=1e-4)
    assert (np.abs(logits[-1] - arrays["loop_logits"][-1]).max() > 0.1) == between


@pytest.mark.parametrize(
    ("layout", "model", "message"),
    [
        ("looped_lm_scaling", tiny(**SANDWICH), "model.layer = 'sandwich'; allowed in layout 'loo"),
        ("looped_lm_scaling", tiny(mlp_hidden=48), "model.mlp_hidden = 48; allowed .*: 128"),
        ("looped_lm_scaling", with_injection("diagonal"), "'linear' or 'additive' or 'passthro"),
        ("huginn", tiny(), "model.layer = 'pre_norm'; allowed in layout 'huginn': 'sandwich'"),
        ("readout", tiny(**READOUT | {"state_norm": "every"}), "allowed .*: 'none' or 'between'"),
    ],
)  # fmt: skip
def test_models_that_a_layout_cannot_hold(layout, model, message):
    with pytest.raises(UserError, match=message):
        check_fits(model, layout)


def test_files_have_the_permissions_that_the_umask_says(tmp_path):
    path = published_files.readout(tmp_path / "last.pt", {})
    program = """
import os, sys
os.umask(0o007)
from pathlib import Path
from looped_jax.interchange.exporting import export_run
from looped_jax.interchange.importing import Source, Text, import_run
run = import_run(Source(Path(sys.argv[1]), "readout"), Text(), Path("run"), str)
for layout in ("looped_jax", "readout"):
    export_run(run.path, Path(layout), 5_000_000, str, layout)
"""
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", program, path], cwd=tmp_path, env=environment, check=True)
    made = [
        each
        for name in ("run", "looped_jax", "readout")
        for each in [tmp_path / name, *(tmp_path / name).rglob("*")]
    ]
    assert len(made) > 12
    modes = {str(each.relative_to(tmp_path)): each.stat().st_mode & 0o777 for each in made}
    expected = lambda name: 0o770 if (tmp_path / name).is_dir() else 0o660
    assert {name: oct(mode) for name, mode in modes.items() if mode != expected(name)} == {}
