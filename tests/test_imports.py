"""The arrows of the design: which package may import which, and who owns which library."""

import ast
import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("looped_jax", "analysis", "launch", "configs")
OURS = (*PACKAGES, "tests")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

BASE = (
    "looped_jax.config", "looped_jax.errors", "looped_jax.files", "looped_jax.parallel",
    "looped_jax.lock", "looped_jax.processes", "looped_jax.cpu_devices", "looped_jax.peers",
    "looped_jax.topology", "looped_jax.version",
)  # fmt: skip
OF_RUNS = ("looped_jax.run_folder", "looped_jax.progress", "looped_jax.interruption")

# Folder or file -> what of ours it may import besides itself; the longest match counts.
MAY_IMPORT = {
    "looped_jax/errors.py": (),
    "looped_jax/missing_package.py": (),
    "looped_jax/files.py": ("looped_jax.errors",),
    "looped_jax/cli.py": ("looped_jax.errors", "looped_jax.files"),
    "looped_jax/parallel.py": ("looped_jax.errors", "looped_jax.model.boxes"),
    "looped_jax/topology.py": ("looped_jax.errors", "looped_jax.parallel"),
    "looped_jax/lock.py": ("looped_jax.errors",),
    "looped_jax/cpu_devices.py": ("looped_jax.config", "looped_jax.parallel"),
    "looped_jax/version.py": (),
    "looped_jax/processes.py": ("looped_jax.errors",),
    "looped_jax/peers.py": ("looped_jax.errors", "looped_jax.processes"),
    "looped_jax/config.py": (
        "looped_jax.errors", "looped_jax.model", "looped_jax.training.depth",
        "looped_jax.training.transfer",
    ),
    "looped_jax/model": (),
    "looped_jax/described.py": ("looped_jax.errors",),
    "looped_jax/data": (
        "looped_jax.described", "looped_jax.errors", "looped_jax.files", "looped_jax.lock",
    ),
    "looped_jax/data/mix.py": (
        "looped_jax.cli", "looped_jax.data", "looped_jax.errors", "looped_jax.files",
    ),
    "looped_jax/data/prepare.py": (
        "looped_jax.cli", "looped_jax.data", "looped_jax.described", "looped_jax.errors",
        "looped_jax.files", "looped_jax.lock",
    ),
    "looped_jax/run_folder.py": ("looped_jax.errors", "looped_jax.files", "looped_jax.lock"),
    "looped_jax/progress.py": (),
    "looped_jax/interruption.py": ("looped_jax.processes",),
    "looped_jax/training": (*BASE, *OF_RUNS, "looped_jax.data", "looped_jax.model"),
    "looped_jax/adaptive": (*BASE, "looped_jax.data", "looped_jax.model"),
    "looped_jax/evaluation": (
        *BASE, *OF_RUNS, "looped_jax.adaptive", "looped_jax.data", "looped_jax.model",
        "looped_jax.training.losses", "looped_jax.training.validation",
    ),
    "looped_jax/generation": (
        "looped_jax.adaptive", "looped_jax.data", "looped_jax.errors", "looped_jax.files",
        "looped_jax.model",
    ),
    "looped_jax/inspection": (
        "looped_jax.evaluation", "looped_jax.generation", "looped_jax.model", "looped_jax.parallel",
    ),
    # The config of an imported run is the base config around its model.
    "looped_jax/interchange": ("looped_jax", "configs.base"),
    "looped_jax/evaluate.py": ("looped_jax", "launch"),
    "looped_jax": ("looped_jax",),  # the other entry points
    "analysis": (),
    "configs": ("looped_jax.model", "looped_jax.training.transfer"),
    "launch": ("looped_jax", "analysis"),
}  # fmt: skip

# Library -> the modules that own it, as path prefixes.
OWNERS = {
    "grain": ("looped_jax/data/pipeline.py",),
    "orbax": ("looped_jax/training/checkpoint",),
    "tensorboardX": ("looped_jax/training/reporting.py",),
    "tokenizers": ("looped_jax/data/tokenizer.py",),
    "safetensors": ("looped_jax/interchange/safetensors_files.py",),
    "submitit": ("launch/",),
}
OF_ANALYSIS = {"numpy", "scipy", "pandas", "matplotlib"}


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports, wherever in it; `from a import b` gives a.b."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def is_within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def stray_imports(path: Path) -> list[str]:
    """What of ours a file imports against the arrows."""
    home = max((place for place in MAY_IMPORT if name_of(path).startswith(place)), key=len)
    allowed = (home.removesuffix(".py").replace("/", "."), *MAY_IMPORT[home])
    return [
        f"{name_of(path)} imports {name}"
        for name in imports(path)
        if name.split(".")[0] in OURS and not any(is_within(name, each) for each in allowed)
    ]


def test_there_are_files_to_look_at():
    assert {name_of(path).split("/")[0] for path in FILES} == set(PACKAGES)


def test_ours_is_imported_along_the_arrows():
    assert [stray for path in FILES for stray in stray_imports(path)] == []


def test_libraries_are_imported_by_their_owners_alone():
    assert [
        f"{name_of(path)} imports {library}"
        for path in FILES
        for library, owners in OWNERS.items()
        if not name_of(path).startswith(owners)
        and any(is_within(name, library) for name in imports(path))
    ] == []


@pytest.mark.parametrize(
    ("place", "allowed"),
    [("analysis/", OF_ANALYSIS | {"analysis"}), ("looped_jax/lock.py", {"looped_jax"})],
)
def test_what_runs_where_nothing_else_is_installed(place, allowed):
    of_place = [path for path in FILES if name_of(path).startswith(place)]
    roots = {name.split(".")[0] for path in of_place for name in imports(path)}
    assert roots - sys.stdlib_module_names <= allowed


def test_no_module_is_a_grab_bag():
    bags = {"utils", "util", "helpers", "helper", "common", "misc"}
    assert not [name_of(path) for path in FILES if {path.stem, path.parent.name} & bags]


def test_a_stray_import_is_found_wherever_it_stands(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    file = tmp_path / "looped_jax" / "model" / "stray.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import grain\ndef f():\n  from looped_jax import training\n"
        "from ..data import pipeline\nfrom . import lm\nimport looped_jax.model.block\n"
    )
    assert "grain" in set(imports(file))
    assert sorted(stray_imports(file)) == [
        "looped_jax/model/stray.py imports looped_jax.data.pipeline",
        "looped_jax/model/stray.py imports looped_jax.training",
    ]
