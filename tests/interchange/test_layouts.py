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
from looped_jax.interchange.exporting import check_fits, export_run
from looped_jax.interchange.importing import Source, Text, import_run
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


def exported(run, out, layout):
    files = export_run(run.path, out, 5_000_000, str, layout)
    return files[0]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_isodepth(tmp_path):
    """model_STEP.pt with tables padded to a multiple of 64, and a meta file that describes it."""
    folder = published_files.isodepth(tmp_path / "theirs")
    source = Source(folder, "looped_lm_scaling")
    run = import_run(source, Text(), tmp_path / "run", say=str)
    path = exported(run, tmp_path / "out", "looped_lm_scaling")
    assert path.name == "model_000000.pt"
    _, weights = golden("isodepth_linear")
    for name in ("transformer.wte.weight", "lm_head.weight"):
        weights[name] = np.concatenate([weights[name], np.zeros((24, 32), np.float32)])
    assert_same(torch_zip.load(path), weights)
    theirs = read_json(folder / "meta_000120.json")["model_config"]
    ours = read_json(tmp_path / "out" / "meta_000000.json")["model_config"]
    assert ours | {"size": 20} == theirs
    again = import_run(Source(path.parent, "looped_lm_scaling"), Text(), tmp_path / "again", str)
    assert again.read_config()["model"] == run.read_config()["model"]


def test_isodepth_lanes(tmp_path):
    _, weights = golden("isodepth_hyperconnect")
    path = torch_zip.save(torch_zip.state_dict(weights), tmp_path / "lanes.pt")
    source = Source(path, "looped_lm_scaling", {"head_dim": 16, "max_length": 16})
    run = import_run(source, Text(), tmp_path / "run", say=str)
    found = torch_zip.load(exported(run, tmp_path / "out", "looped_lm_scaling"))
    for name in ("lane_alpha", "lane_mixing", "lane_beta", "transformer.recur.1.attn.c_v.weight"):
        np.testing.assert_array_equal(found[name], weights[name])


def test_huginn(tmp_path):
    folder = published_files.huginn(tmp_path / "theirs")
    run = import_run(Source(folder, "huginn"), Text(), tmp_path / "run", say=str)
    path = exported(run, tmp_path / "out", "huginn")
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
    again = import_run(Source(path.parent, "huginn"), Text(), tmp_path / "again", say=str)
    assert again.read_config()["model"] == run.read_config()["model"]


@pytest.mark.parametrize("between", [False, True])
def test_readout(tmp_path, between):
    """last.pt holds all that the project's loader asks for; NumPy computes its golden logits."""
    scale_D = np.linspace(0.5, 1.5, 32, dtype=np.float32) if between else np.ones(32, np.float32)
    theirs = published_files.readout(
        tmp_path / "theirs.pt", {"inter_loop_norm": between}, loop_norm__weight=scale_D
    )
    run = import_run(Source(theirs, "readout"), Text(), tmp_path / "run", say=str)
    path = exported(run, tmp_path / "out", "readout")
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


@pytest.mark.parametrize(
    ("mask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o007, 0o660, 0o770)]
)
def test_files_have_the_permissions_that_the_umask_says(tmp_path, mask, file_mode, folder_mode):
    path = published_files.readout(tmp_path / "last.pt", {})
    program = f"""
import os, sys
os.umask({mask})
from pathlib import Path
from looped_jax.interchange.exporting import export_run
from looped_jax.interchange.importing import Source, Text, import_run
run = import_run(Source(Path(sys.argv[1]), "readout"), Text(), Path("run"), str)
for layout in ("looped_jax", "readout"):
    export_run(run.path, Path(layout), 5_000_000, str, layout)
"""
    environment = os.environ | {"PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, "-c", program, path], cwd=tmp_path, env=environment, check=True)
    modes = {
        each.relative_to(tmp_path).as_posix(): each.stat().st_mode & 0o777
        for name in ("run", "looped_jax", "readout")
        for each in [tmp_path / name, *(tmp_path / name).rglob("*")]
    }
    wrong = {
        name: oct(mode)
        for name, mode in modes.items()
        if mode != (folder_mode if (tmp_path / name).is_dir() else file_mode)
        # Who may write into the folder may hold its lock.
        and not (name.endswith(".lock") and mode == folder_mode & 0o666)
    }
    assert not wrong
