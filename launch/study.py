"""A study: a Python file with `get_runs() -> list[ConfigDict]`, planned as runs with folders.

`get_runs(arg)` may take what stands after the colon of `configs/studies/NAME.py:size=44m`. Every
config has a `name` of its own and the same `study`. A run lies in OUT/runs/NAME-ID, where ID is a
digest of the config: a changed config is another run, and the same one is always found again.
"""

import importlib.util
import inspect
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from launch import overrides
from looped_jax.config import MAY_CHANGE, RunConfig, resolve, to_json
from looped_jax.errors import UserError
from looped_jax.files import read_json, sha256_of_json, write_json
from looped_jax.model.accounting import count_parameters
from looped_jax.run_folder import RunFolder

RUNS = "runs"
PLAN = "study.json"
ID_DIGITS = 8
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")
_MAX_FOLDERS_NAMED = 3


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One run of a study.

    Attributes:
      config: the whole tree as JSON values.
      resolved: the same, checked.
      folder: where it lies or will lie.
    """

    config: dict[str, Any]
    resolved: RunConfig
    folder: RunFolder

    @property
    def name(self) -> str:
        return self.resolved.name

    @property
    def tokens(self) -> int:
        """Training tokens."""
        return self.resolved.steps * self.resolved.batch_tokens

    @cached_property
    def flops(self) -> float:
        """Training FLOPs by the analytic count."""
        return self.resolved.flops_per_token * self.tokens

    @cached_property
    def parameters(self) -> int:
        """All parameters, embeddings included."""
        return count_parameters(self.resolved.model).total

    @property
    def shape(self) -> Hashable:
        """Runs with equal shapes use the same compiled programs within one process."""
        run = self.resolved
        return (
            run.model, run.loss, run.depth, run.optimizer.rule, run.mesh,
            run.data.sequence_length, run.data.batch_size, run.evaluation.batch_size,
        )  # fmt: skip


@dataclass(frozen=True)
class Study:
    """The runs of a study, as they stand in its file."""

    name: str
    runs: list[PlannedRun]

    @property
    def flops(self) -> float:
        return sum(run.flops for run in self.runs)


def load_study(
    path: Path, out: Path, data: str | None = None, changes: Sequence[str] = ()
) -> Study:
    """Plans the study in the file `path`, with run folders below `out`.

    Args:
      path: a Python file with `get_runs()`, or FILE.py:ARGUMENT for its `get_runs(ARGUMENT)`.
      out: the study's folder; nothing is made there.
      data: takes the place of every run's `data.folder`.
      changes: `--config.key=value` items, applied to every run.

    Raises:
      UserError: no such file, an argument that it does not take, no list of configs in it, a config
        that does not resolve, names that are double or cannot name a folder.
    """
    configs = _configs_of(path)
    if not isinstance(configs, Sequence) or not all(isinstance(c, ConfigDict) for c in configs):
        raise UserError(f"study {path}: get_runs() returned no list of ConfigDict")
    if not configs:
        raise UserError(f"study {path}: get_runs() returned no run")
    runs = []
    for number, config in enumerate(configs, 1):
        if data is not None:
            config.data.folder = data
        try:
            overrides.apply(config, changes)
            resolved = resolve(config)
            _ = resolved.steps  # a budget below one step is refused here, before any run starts
        except UserError as error:
            name = config.get("name", f"run {number}")
            raise UserError(f"study {path}: {name}: {error}") from error
        if not _NAME.fullmatch(resolved.name):
            raise UserError(
                f"study {path}: name = {resolved.name!r}; allowed: letters, digits and . _ + = -"
            )
        tree = to_json(config)
        runs.append(PlannedRun(tree, resolved, RunFolder(out / RUNS / run_id(tree))))
    names = [run.name for run in runs]
    if double := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(
            f"study {path}: name = {double[0]!r} of two runs; allowed: one of its own each"
        )
    studies = sorted({run.resolved.study for run in runs})
    if len(studies) > 1 or not studies[0]:
        raise UserError(
            f"study {path}: study = {studies}; allowed: one and the same name in every run"
        )
    return Study(studies[0], runs)


def run_id(config: dict[str, Any]) -> str:
    """NAME-ID, the name of the run's folder. Keys that may change during a run do not count."""
    return f"{config['name']}-{sha256_of_json(_without(config, MAY_CHANGE))[:ID_DIGITS]}"


def group_by_shape(runs: Iterable[PlannedRun]) -> list[list[PlannedRun]]:
    """Groups of runs that share compiled programs; the most FLOPs first, in each group too."""
    groups: dict[Hashable, list[PlannedRun]] = {}
    for run in sorted(runs, key=lambda run: -run.flops):
        groups.setdefault(run.shape, []).append(run)
    return sorted(groups.values(), key=lambda group: -sum(run.flops for run in group))


def refuse_strangers(study: Study, out: Path) -> None:
    """Raises UserError if `out` holds runs of this study that its file no longer has.

    An analysis of `out` would take them in without a word.
    """
    planned = {run.folder.path.name for run in study.runs}
    strangers = [
        folder.name
        for folder in sorted((out / RUNS).glob("*"))
        if folder.name not in planned and _study_of(folder) == study.name
    ]
    if strangers:
        named = ", ".join(strangers[:_MAX_FOLDERS_NAMED])
        more = len(strangers) - _MAX_FOLDERS_NAMED
        raise UserError(
            f"{out / RUNS} holds {len(strangers)} run(s) that study {study.name!r} no longer has "
            f"({named}{f' and {more} more' if more > 0 else ''}): its configs have changed; "
            "move them away or choose another --out"
        )


def write_plan(study: Study, out: Path) -> None:
    """Writes OUT/study.json, from which an analysis tells how much of a study is done."""
    runs = [
        {"name": run.name, "folder": str(run.folder.path.relative_to(out))} for run in study.runs
    ]
    write_json(out / PLAN, {"study": study.name, "runs": runs})


def _configs_of(path: Path) -> Any:
    """What `get_runs` of a file returns."""
    file, colon, arg = str(path).partition(".py:")
    get_runs = _get_runs(Path(f"{file}.py") if colon else path)
    if not colon:
        return get_runs()
    if not inspect.signature(get_runs).parameters:
        raise UserError(f"study {path}: {file}.py takes no argument; allowed: {file}.py")
    try:
        return get_runs(arg)
    except ValueError as error:
        raise UserError(f"study {path}: {error}") from error


def _get_runs(path: Path) -> Callable[..., Any]:
    if not path.is_file():
        raise UserError(f"study {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"study_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"study {path}: not a Python file (*.py)")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    get_runs = getattr(module, "get_runs", None)
    if not callable(get_runs):
        raise UserError(f"study {path}: has no function get_runs()")
    return get_runs


def _without(tree: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """The tree without these dotted keys."""
    tree = dict(tree)
    for key in keys:
        head, _, rest = key.partition(".")
        if rest and isinstance(tree.get(head), dict):
            tree[head] = _without(tree[head], [rest])
        elif not rest:
            tree.pop(head, None)
    return tree


def _study_of(folder: Path) -> str | None:
    """The study that a folder's run was started for; None for what is not a run folder."""
    config = RunFolder(folder).config_path
    return read_json(config)["config"].get("study") if config.exists() else None
