"""Published weights become run folders that compute the published numbers."""

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from absl import flags
from safetensors.numpy import save_file

from looped_jax import generate
from looped_jax.config import resolve, resolve_json
from looped_jax.data.prepare import prepare
from looped_jax.errors import UserError
from looped_jax.files import read_json, write_json
from looped_jax.interchange import __main__ as command
from looped_jax.interchange import origin, safetensors_files
from looped_jax.interchange.exporting import export_run
from looped_jax.interchange.importing import Source, Text, import_run
from looped_jax.model.accounting import abstract_parameters
from looped_jax.model.boxes import unboxed
from looped_jax.model.lm import LoopedLM
from looped_jax.training.checkpoints import restore_params
from looped_jax.training.state import init_params
from tests.interchange import torch_zip
from tests.interchange.published_files import golden
from tests.model.tiny import READOUT, SANDWICH, tiny, with_injection
from tests.tiny_runs import tiny_config
from tests.untrained_runs import write_untrained_run

ISODEPTH = {"head_dim": 16, "max_length": 16}
READ = {"heads": 2, "recurrences": 4}

# file -> (format, what is stated, the model of the tests that it has to become)
PUBLISHED = {
    "isodepth_linear": (
        "looped_lm_scaling", ISODEPTH | {"recurrences": 3}, with_injection("linear"),
    ),
    "isodepth_additive": (
        "looped_lm_scaling", ISODEPTH | {"recurrences": 3, "injection": "additive"},
        with_injection("additive"),
    ),
    "isodepth_passthrough": (
        "looped_lm_scaling", ISODEPTH | {"recurrences": 3, "injection": "passthrough"},
        with_injection("passthrough"),
    ),
    "isodepth_hyperconnect": ("looped_lm_scaling", ISODEPTH, with_injection("hyperconnect")),
    "isodepth_noloop": (
        "looped_lm_scaling", ISODEPTH | {"recurrences": 1},
        with_injection(
            "passthrough", prelude_layers=0, core_layers=4, coda_layers=0, recurrences=1
        ),
    ),
    "huginn_elastic": (
        "huginn", {"max_length": 16, "recurrences": 8, "initial_state_std": 0.4},
        tiny(**SANDWICH | {"recurrences": 8, "embedding_scale": 32**0.5}),
    ),
    "readout_perloop_rmsnorm": ("readout", READ, tiny(**READOUT)),
    "readout_perloop_raw": ("readout", READ, tiny(**READOUT | {"readout_norm": "none"})),
    "readout_perloop_final_norm": (
        "readout", READ | {"readout_norm": "last"}, tiny(**READOUT | {"readout_norm": "last"}),
    ),
}  # fmt: skip

# What the tensors do not tell and inference does not need.
UNKNOWN = (
    "max_recurrences", "init", "init_std", "embedding_init_std", "head_init_std",
)  # fmt: skip


def write_sharded(weights, folder):
    files = safetensors_files.write(folder, weights, shard_bytes=20_000)
    assert len(files) > 2
    return files[-1]


def write(weights, kind, folder):
    if kind == "pt":
        return torch_zip.save(torch_zip.state_dict(weights), folder / "model.pt")
    if kind == "sharded":
        return write_sharded(weights, folder)
    save_file(weights, folder / "model.safetensors")
    return folder / "model.safetensors"


def imported(path, name, out, **text):
    format_name, stated, _ = PUBLISHED[name]
    return import_run(Source(path, format_name, stated), Text(**text), out, say=str)


def restored(folder):
    run = resolve_json(folder.read_config())
    params = restore_params(folder.checkpoints_path, abstract_parameters(run.model)).state
    return run.model, params


def assert_close(actual, expected):
    assert actual.shape == expected.shape
    assert np.abs(np.asarray(actual) - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (name, kind)
        for name, kind in zip(PUBLISHED, ["pt", "safetensors", "sharded"] * 3, strict=True)
    ],
)
def test_published_numbers(name, kind, tmp_path):
    arrays, weights = golden(name)
    folder = imported(write(weights, kind, tmp_path), name, tmp_path / "run")
    model, params = restored(folder)
    expected = PUBLISHED[name][2]
    differing = [f for f in UNKNOWN if getattr(model, f) != getattr(expected, f)]
    fields = expected.__dataclass_fields__
    assert {f for f in fields if getattr(model, f) != getattr(expected, f)} == set(differing)

    tokens, lm = arrays["tokens"][:, :-1], LoopedLM(model)
    if name.startswith("isodepth"):
        logits = jax.jit(lambda params: lm.apply({"params": params}, tokens))(params)
        assert_close(logits, arrays["logits"])
    elif name == "huginn_elastic":
        run = jax.jit(lambda params, state, r: lm.apply({"params": params}, tokens, r, state))
        for recurrences in (1, 4, 8):
            logits = run(params, arrays["initial_state"], jnp.int32(recurrences))
            assert_close(logits, arrays[f"logits/steps{recurrences}"])
    else:
        logits = jax.jit(lambda params: lm.apply({"params": params}, tokens))(params)
        assert_close(logits, arrays["loop_logits"][-1])


def test_what_else_a_huginn_checkpoint_may_hold(tmp_path):
    """The tied head and the table of rotary angles; a head of its own; wrapped names; bfloat16."""
    _, weights = golden("huginn_elastic")
    angle = np.arange(16)[:, None] * 50_000.0 ** (-np.arange(8) / 8)
    table = np.stack([np.cos(angle), np.sin(angle)], -1)[None, :, None].astype(np.float32)
    more = {"lm_head.weight": weights["transformer.wte.weight"], "freqs_cis": table}
    wrapped = {f"_orig_mod.{name}": value for name, value in (weights | more).items()}
    path = write(wrapped, "pt", tmp_path)
    model, params = restored(imported(path, "huginn_elastic", tmp_path / "tied"))
    assert (model.tied_head, model.max_length) == (True, 16)

    own = weights | {"lm_head.weight": np.ones((40, 32), np.float32)}
    path = write(
        {name: value.astype(ml_dtypes.bfloat16) for name, value in own.items()},
        "safetensors",
        tmp_path,
    )
    model, rounded = restored(imported(path, "huginn_elastic", tmp_path / "untied"))
    assert not model.tied_head
    assert rounded["head"]["kernel"].shape == (32, 40)
    kernel = params["core"]["mlp"]["down"]["kernel"]
    expected = np.asarray(kernel).astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(rounded["core"]["mlp"]["down"]["kernel"], expected)

    path = write(weights | {"freqs_cis": table[:, :, :, ::-1]}, "pt", tmp_path)
    with pytest.raises(UserError, match=r"freqs_cis is not the table of --model=rope_base=50000"):
        imported(path, "huginn_elastic", tmp_path / "other")


def test_evaluate_and_generate_take_an_imported_run(tmp_path):
    for name, times in (("a", 60), ("b", 20)):
        text = "It is a truth universally acknowledged, that depth. " * times
        (tmp_path / f"{name}.txt").write_text(text)
    data = prepare(
        str(tmp_path / "a.txt"), tmp_path / "data", validation=str(tmp_path / "b.txt"),
        vocab_size=270, say=str,
    )  # fmt: skip
    _, weights = golden("readout_perloop_rmsnorm")
    table = np.random.default_rng(0).standard_normal((280, 32), np.float32)
    path = write(weights | {"token_embedding.weight": table}, "pt", tmp_path)
    tokenizer = data.folder / "tokenizer.json"
    folder = imported(path, "readout_perloop_rmsnorm", tmp_path / "run", tokenizer=tokenizer)
    assert folder.is_finished()
    text = generate.load(folder.path).generate(["It was"], max_tokens=5)[0]
    assert text.tokens == 5

    call = [
        sys.executable, "-m", "looped_jax.evaluate", f"--workdir={folder.path}", "--suites=loss",
    ]  # fmt: skip
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "give --data=DIR" in last
    done = subprocess.run([*call, f"--data={data.folder}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = read_json(folder.summary_path)
    assert summary["loss"] > 1
    assert summary["r"] == 4
    # An imported run may be measured on any data.
    assert summary["data_digest"] is None


def test_exports_come_back_exactly(data, tmp_path):
    folder = write_untrained_run(tmp_path / "one", tiny_config(data.folder))
    said = []
    whole = export_run(folder.path, tmp_path / "whole", 5_000_000, said.append)
    assert [path.name for path in whole] == ["model.safetensors"]
    sharded = export_run(folder.path, tmp_path / "sharded", 20_000, said.append)
    assert sharded[0].name == f"model-00001-of-{len(sharded) - 1:05d}.safetensors"
    assert sharded[-1].name == "model.safetensors.index.json"
    _, params = restored(folder)
    kernel = params["core"]["attn"]["qkv"]["kernel"]
    largest = max(leaf.nbytes for leaf in jax.tree.leaves(params))
    assert all(path.stat().st_size < max(largest, 20_000) + 2_000 for path in sharded[:-1])
    assert kernel.shape == (2, 16, 3, 16)
    for source in (tmp_path / "whole", sharded[-1]):
        out = tmp_path / f"back_{Path(source).name}"
        back = import_run(Source(source, "looped_jax"), Text(), out, say=str)
        assert back.read_config() == folder.read_config()
        assert back.read_summary() == folder.read_summary()
        jax.tree.map(np.testing.assert_array_equal, restored(back)[1], params)
        assert restore_params(back.checkpoints_path, params).step == 2
        assert (back.path / "tokenizer.json").exists()
        assert generate.load(back.path).generate([""], max_tokens=2)[0].tokens == 2


def refused(message, tmp_path, path, name="isodepth_linear", stated=None, **text):
    """The import says so, and leaves nothing behind."""
    format_name, usual, _ = PUBLISHED[name]
    before = sorted(tmp_path.iterdir())
    source = Source(path, format_name, usual if stated is None else stated)
    with pytest.raises(UserError, match=message) as raised:
        import_run(source, Text(**text), tmp_path / "run", say=str)
    assert "\n" not in str(raised.value)
    assert sorted(tmp_path.iterdir()) == before


def test_tensors_that_are_missing_surplus_or_of_another_shape(tmp_path):
    _, weights = golden("isodepth_linear")
    missing = dict(weights)
    del missing["transformer.recur.1.attn.c_k.weight"]
    path = write(missing, "pt", tmp_path)
    refused(r"has no tensor 'transformer\.recur\.1\.attn\.c_k\.weight'", tmp_path, path)
    path = write(weights | {"extra.bias": np.ones(3, np.float32)}, "pt", tmp_path)
    refused(r"tensors that format 'looped_lm_scaling' does not know: extra\.bias$", tmp_path, path)
    narrow = weights | {"lm_head.weight": np.ones((41, 32), np.float32)}
    path = write(narrow, "pt", tmp_path)
    message = r"parameter head\.kernel has shape \(32, 41\); .* describe has \(32, 40\)"
    refused(message, tmp_path, path)
    path = write(weights | {"norm_emb.weight": np.ones(32, np.int64)}, "pt", tmp_path)
    refused("tensor norm_emb.weight is int64; allowed: floating-point", tmp_path, path)
    gap = {name.replace("recur.1", "recur.2"): value for name, value in weights.items()}
    path = write(gap, "pt", tmp_path)
    refused(r"has no tensor 'transformer\.recur\.1\.n1\.weight'", tmp_path, path)


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (
            {"head_dim": 16},
            "model.recurrences cannot be told .* state it with --model=recurrences=…",
        ),
        ({"recurrences": 3}, "model.heads cannot be told from the tensors"),
        ({"recurrences": 3, "head_dim": 12}, "--model=head_dim=12; allowed: a divisor of .* = 32"),
        ({"recurrences": 3, "head_dim": 16, "width": 64}, "--model=width=64 is stated; .* has 32"),
        ({"recurrences": 3, "head_dim": 16, "injection": "additive"}, "injection=additive is stat"),
    ],
)
def test_statements_that_are_missing_or_contradict(tmp_path, stated, message):
    path = write(golden("isodepth_linear")[1], "pt", tmp_path)
    refused(message, tmp_path, path, stated=stated)


def test_an_injection_that_cannot_be_told(tmp_path):
    path = write(golden("isodepth_additive")[1], "pt", tmp_path)
    stated = ISODEPTH | {"recurrences": 3}
    refused("model.injection cannot be told from", tmp_path, path, "isodepth_additive", stated)


def test_a_readout_norm_without_its_scale(tmp_path):
    path = write(golden("readout_perloop_raw")[1], "pt", tmp_path)
    stated = READ | {"readout_norm": "last"}
    message = "readout_norm=last; allowed for .*, which has no tensor decode_norm.weight: none"
    refused(message, tmp_path, path, "readout_perloop_raw", stated)


def test_files_that_are_damaged_or_of_no_kind(tmp_path):
    _, weights = golden("isodepth_linear")
    path = write(weights, "safetensors", tmp_path)
    path.write_bytes(path.read_bytes()[:-7])
    refused("is damaged, cut off or no safetensors file", tmp_path, path)
    path.unlink()
    refused("model.safetensors: No such file", tmp_path, path)
    refused("holds no checkpoint", tmp_path, tmp_path)
    (tmp_path / "model.h5").write_bytes(b"x")
    refused(r"model\.h5 is of no known kind; allowed: \.pt, ", tmp_path, tmp_path / "model.h5")


def test_shards_that_do_not_belong_together(tmp_path):
    index = write_sharded(golden("isodepth_linear")[1], tmp_path)
    content = read_json(index)
    places = content["weight_map"]
    first = places["norm_emb.weight"]
    other = next(place for place in places.values() if place != first)
    write_json(index, {"weight_map": places | {"norm_emb.weight": other}})
    refused("disagree on tensor 'norm_emb.weight'", tmp_path, index)
    write_json(index, {"weight_map": places | {"norm_emb.weight": "../x.safetensors"}})
    refused("names shard '../x.safetensors'; allowed: files beside it", tmp_path, index)
    write_json(index, {"weights": 1})
    refused("is no index of safetensors", tmp_path, index)
    write_json(index, content)
    (tmp_path / first).unlink()
    refused(f"cannot read .*{first}: No such file", tmp_path, index)


def test_tokenizer_and_data_that_do_not_fit(data, tmp_path):
    path = write(golden("isodepth_linear")[1], "pt", tmp_path)
    tokenizer = data.folder / "tokenizer.json"
    message = "has 300 ids; allowed: up to model.vocab_size = 40"
    refused(message, tmp_path, path, tokenizer=tokenizer)
    refused(message, tmp_path, path, data=data.folder)
    refused("has no token '<eos>'", tmp_path, path, tokenizer=tokenizer, end_of_text="<eos>")


def test_nothing_is_overwritten_and_nothing_half_written(data, tmp_path, monkeypatch):
    path = write(golden("isodepth_linear")[1], "pt", tmp_path)
    folder = write_untrained_run(tmp_path / "run", tiny_config(data.folder))
    refused("run exists already and is not empty: choose another --out", tmp_path, path)
    with pytest.raises(UserError, match=r"exists already and is not empty"):
        export_run(folder.path, folder.path, 100, say=str)
    with pytest.raises(UserError, match=r"shard_bytes = 0; allowed: 1 or more"):
        export_run(folder.path, tmp_path / "out", 0, say=str)
    shutil.rmtree(folder.path)
    monkeypatch.setattr(
        "looped_jax.interchange.importing.RunFolder.write_summary", lambda *_: 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        imported(path, "isodepth_linear", tmp_path / "run")
    assert sorted(tmp_path.iterdir()) == [path]


def test_the_command_line(tmp_path):
    path = write(golden("isodepth_linear")[1], "pt", tmp_path)
    call = lambda *arguments: subprocess.run(
        [sys.executable, "-m", "looped_jax.interchange", *map(str, arguments)],
        capture_output=True, text=True,
    )  # fmt: skip
    out = tmp_path / "run"
    done = call(
        "import", path, "--format=looped_lm_scaling", f"--out={out}", "--model=recurrences=3",
        "--model=head_dim=16", "--model=max_length=16",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    written = read_json(out / "imported.json")
    assert written["stated"] == {"recurrences": 3, "head_dim": 16, "max_length": 16}
    assert list(written["files"]) == ["model.pt"]
    done = call("export", out, f"--out={tmp_path / 'exported'}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "exported" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["import", "x.pt", "--format=readout", "--model=recurrences"],
            "--model=recurrences; allow",
        ),
        (["import", "x.pt", "--format=readout", "--model=recurences=2"], "such as recurrences=…"),
        (["import", "x.pt", "--format=readout", "--model=heads=two"], "--model=heads=two; allowed"),
        (
            ["import", "x.pt"],
            "--format is missing; allowed: looped_lm_scaling, huginn, readout, lo",
        ),
        (["export", "runs", "--entry=model"], "--entry was given; allowed with import only"),
        (["imprt", "x.pt"], "allowed: import FILE --format=… --out=…, or export RUNDIR --out=…"),
    ],
)
def test_wrong_calls(arguments, message, monkeypatch, capsys, tmp_path):
    values = flags.FlagValues()
    for name in ("string", "enum", "multi_string", "integer"):
        define = getattr(flags, f"DEFINE_{name}")
        monkeypatch.setattr(
            flags, f"DEFINE_{name}",
            lambda *a, define=define, **k: define(*a, **k, flag_values=values),
        )  # fmt: skip
    monkeypatch.setattr(flags, "mark_flag_as_required", lambda name: None)
    command.define_flags()
    monkeypatch.setattr(flags, "FLAGS", values)
    positional = values(["interchange", *arguments, f"--out={tmp_path / 'out'}"])
    with pytest.raises(UserError) as raised:
        command.main(positional)
    assert message in str(raised.value)


@pytest.fixture(scope="module")
def export(data, tmp_path_factory):
    """A run of ours, exported."""
    root = tmp_path_factory.mktemp("export")
    folder = write_untrained_run(root / "one", tiny_config(data.folder))
    return export_run(folder.path, root / "out", 5_000_000, say=str)[0].parent


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "2"}, "step is of type str; allowed: a whole number"),
        ({"step": True}, "step is of type bool; allowed: a whole number"),
        ({"step": -1}, "step = -1; allowed: 0 to 9007199254740992"),
        ({"step": 10**40}, "step = 1000.*; allowed: 0 to 9007199254740992"),
        ({"step": None}, "step is of type NoneType; allowed: a whole number"),
        ({"config": 3}, "config is of type int; allowed: a table"),
        ({"config": {"model": []}}, "model"),
        ({"summary": []}, "summary is of type list; allowed: a table"),
        ({"end_of_text": 7}, "end_of_text is of type int; allowed: a text"),
        ({"end_of_text": "<none>"}, "has no token '<none>'"),
        ({"format": "theirs"}, "is no config of an export of format 'looped_jax'"),
    ],
)
def test_exports_with_false_keys(export, tmp_path, change, message):
    shutil.copytree(export, tmp_path / "copy")
    content = read_json(export / "config.json")
    write_json(tmp_path / "copy" / "config.json", content | change)
    with pytest.raises(UserError, match=message) as raised:
        import_run(Source(tmp_path / "copy", "looped_jax"), Text(), tmp_path / "run", say=str)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["format", "config", "step", "end_of_text"])
def test_exports_that_lack_a_key(export, tmp_path, key):
    shutil.copytree(export, tmp_path / "copy")
    content = read_json(export / "config.json")
    del content[key]
    write_json(tmp_path / "copy" / "config.json", content)
    with pytest.raises(UserError, match=rf"has no key '{key}'|is no config of an export"):
        import_run(Source(tmp_path / "copy", "looped_jax"), Text(), tmp_path / "run", say=str)


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", "{", '{"format": "looped_jax"}'])
def test_exports_whose_config_is_none(export, tmp_path, content):
    shutil.copytree(export, tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json") as raised:
        import_run(Source(tmp_path / "copy", "looped_jax"), Text(), tmp_path / "run", say=str)
    assert "\n" not in str(raised.value)


def test_a_run_whose_parameters_are_not_finite_is_refused_by_whoever_loads_it(data, tmp_path):
    config = tiny_config(data.folder)
    params = jax.jit(lambda: unboxed(init_params(resolve(config).model, 0)))()
    kernel = params["core"]["mlp"]["up"]["kernel"]
    params["core"]["mlp"]["up"]["kernel"] = kernel.at[0, 1, 2].set(jnp.nan)
    folder = write_untrained_run(tmp_path / "one", config, params)
    message = r"holds numbers that are not finite: core/mlp/up/kernel \(1\); allowed: finite"
    for load in (
        lambda: generate.load(folder.path),
        lambda: export_run(folder.path, tmp_path / "out", 1_000_000, say=str),
    ):
        with pytest.raises(UserError, match=message):
            load()


@pytest.mark.parametrize("content", ["{}", "[]", '{"end_of_text": 3}'])
def test_the_origin_of_a_run_with_false_keys(tmp_path, content):
    (tmp_path / "imported.json").write_text(content)
    with pytest.raises(UserError, match=r"imported\.json"):
        origin.end_of_text(tmp_path)
