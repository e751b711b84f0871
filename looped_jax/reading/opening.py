"""A run folder opened to be read: its config, the parameters of a checkpoint, the data, the mesh.

Nothing in the folder is changed, so it may be read-only, and its run may be at work. What is read
is what was asked for or an error: a damaged checkpoint is not replaced by an older one, and data is
compared with its digests, as far as it is read.
"""

import dataclasses
from pathlib import Path
from typing import Any

from absl import flags
from jax.sharding import Mesh

from looped_jax import parallel, processes
from looped_jax.config import RunConfig, resolve_json
from looped_jax.cpu_devices import mesh_of_run
from looped_jax.data import tokenizer as tokenizers
from looped_jax.data.shards import TokenData
from looped_jax.data.tokenizer import Tokenizer
from looped_jax.errors import UserError
from looped_jax.files import read_json, sha256_of_file
from looped_jax.interchange import origin
from looped_jax.run_folder import RunFolder
from looped_jax.training import state as states
from looped_jax.training.checkpoints import Restored, newest_step, restore_params

# The streams of a data folder that hold the held-out text.
HELD_OUT = ("validation", "validation-bytes", "validation-targets")
ALL_DEVICES = "data:-1,fsdp:1,tensor:1"


@dataclasses.dataclass(frozen=True)
class Choice:
    """What of a run is read, and on which devices.

    Attributes:
      data: a folder of prepared data; None for where the run's config says it lies.
      mesh: devices, as in a config; None for the run's own mesh if it is for as many devices as
        there are here, else copies of the parameters on all that are here.
      step: of the checkpoint; None for the one that the result tells of, or an unfinished run's
        newest.
    """

    data: str | None = None
    mesh: str | None = None
    step: int | None = None


def define_flags(mesh: str | None = None) -> None:
    """Defines --data, --mesh (with this default) and --step."""
    flags.DEFINE_string(
        "data", None,
        "Folder of prepared data with the run's tokenizer; default: where its config says.",
    )  # fmt: skip
    flags.DEFINE_string(
        "mesh", mesh,
        "Devices, as in a config; tensor:N splits heads and vocabulary. Without: the run's mesh if "
        "it fits the devices that are here, else copies of the parameters on all.",
    )  # fmt: skip
    flags.DEFINE_integer(
        "step", None,
        "Checkpoint of this step; default: the finished run's last, an unfinished one's newest.",
    )  # fmt: skip


def choice_from_flags() -> Choice:
    values = flags.FLAGS
    return Choice(values.data, values.mesh, values.step)


def mesh_for(run: RunConfig, folder: RunFolder, text: str | None) -> Mesh:
    """The mesh to read a run on; see `Choice.mesh`.

    Raises:
      UserError: `text` is not for the devices that are here.
    """
    if text is not None:
        return parallel.mesh_from_text(text)
    try:
        return mesh_of_run(run, folder.started_on())
    except UserError:
        return mesh_of_run(dataclasses.replace(run, mesh=ALL_DEVICES))


def on_mesh(run: RunConfig, mesh: Mesh) -> RunConfig:
    """The run with its evaluation batch rounded up to what the mesh divides."""
    batch_size = parallel.filled_up(mesh, run.evaluation.batch_size)
    evaluation = dataclasses.replace(run.evaluation, batch_size=batch_size)
    return dataclasses.replace(run, evaluation=evaluation)


def read_config(folder: RunFolder) -> RunConfig:
    """The run's config. Raises UserError if there is none, or it is broken."""
    return resolve_json(folder.read_config())


def read_params(folder: RunFolder, run: RunConfig, mesh: Mesh, step: int | None) -> Restored:
    """The parameters of a checkpoint; see `Choice.step`. The mesh is active.

    Raises:
      UserError: there is no such checkpoint, or it is damaged or not of this model.
    """
    if step is None and folder.is_finished():
        step = processes.on_process_0(lambda: final_step(folder))
    abstract = states.abstract_params(run.model, mesh)
    return restore_params(folder.checkpoints_path, abstract, step)


def final_step(folder: RunFolder) -> int:
    """The step that a finished run's result tells of; of a model from elsewhere its only one."""
    summary = folder.read_summary()
    if "steps" in summary:
        return summary["steps"]
    newest = newest_step(folder.checkpoints_path)
    if newest is None:
        raise UserError(f"{folder.checkpoints_path} holds no checkpoint")
    return newest


def held_out_data(folder: RunFolder, run: RunConfig, choice: Choice) -> TokenData:
    """The held-out text to measure a run on, compared with its digests.

    Raises:
      UserError: no data there, it is damaged, or it has another tokenizer than the run.
    """
    if choice.data is None and not run.data.folder:
        raise UserError(f"run {run.name} has no data of its own: give --data=DIR")
    data = TokenData.open(choice.data or run.data.folder, HELD_OUT)
    data.verify()
    _check_tokenizer(folder, data)
    if data.vocab_size > run.model.vocab_size:
        raise UserError(
            f"data in {data.folder} has {data.vocab_size} token ids; allowed for {folder.path}: "
            f"up to model.vocab_size = {run.model.vocab_size}"
        )
    return data


def _check_tokenizer(folder: RunFolder, data: TokenData) -> None:
    """Raises UserError if the run folder holds another tokenizer than the data."""
    wanted, found = tokenizer_digest(folder), data.manifest["tokenizer"]["sha256"]
    if wanted not in (None, found):
        raise UserError(
            f"data in {data.folder} has tokenizer {found[:12]}; allowed for {folder.path}: "
            f"{wanted[:12]}, the tokenizer it was trained with"
        )


def check_trained_on(folder: RunFolder, data: TokenData, trained_on: str | None) -> None:
    """Raises UserError if nothing says that the data has the tokenizer of the run.

    A run folder without a tokenizer goes with the very data that its model was trained on; its
    digest is `trained_on`, None where that is not known.
    """
    if tokenizer_digest(folder) is None and trained_on not in (None, data.digest):
        raise UserError(
            f"data in {data.folder} has digest {data.digest[:12]}; allowed for {folder.path}, "
            f"which holds no tokenizer: {trained_on[:12]}, the data it was trained on"
        )


def tokenizer_digest(folder: RunFolder) -> str | None:
    """SHA-256 of the tokenizer that the run folder holds; None if it holds none.

    Raises:
      UserError: it is not the one that the manifest beside it names.
    """
    if not folder.tokenizer_path.exists():
        return None
    digest = sha256_of_file(folder.tokenizer_path)
    began_with = digest
    if folder.data_manifest_path.exists():
        began_with = _manifest(folder)["tokenizer"]["sha256"]
    if digest != began_with:
        raise UserError(f"{folder.tokenizer_path} is not the tokenizer that the run began with")
    return digest


def read_tokenizer(
    folder: RunFolder, run: RunConfig, choice: Choice, trained_on: str | None
) -> Tokenizer:
    """The run's tokenizer: of the data that was chosen, in its folder, or of its data.

    Args:
      trained_on: digest of the data that the model was trained on; None where it is not known.

    Raises:
      UserError: there is none, or that of the chosen data is another.
    """
    own = tokenizer_digest(folder)
    if choice.data is None and own is not None:
        return tokenizers.load(folder.tokenizer_path, end_of_text(folder))
    if choice.data is None and not run.data.folder:
        raise UserError(f"{folder.path} has neither a tokenizer nor data: give --tokenizer=FILE")
    data = data_with_tokenizer(folder, run, choice)
    check_trained_on(folder, data, trained_on)
    return data.tokenizer()


def data_with_tokenizer(folder: RunFolder, run: RunConfig, choice: Choice) -> TokenData:
    """The chosen data or the run's, of which the tokenizer alone is opened and verified.

    Raises:
      UserError: no data there, or its tokenizer is not the one in the run folder.
    """
    data = TokenData.open(choice.data or run.data.folder, ())
    data.verify()
    _check_tokenizer(folder, data)
    return data


def end_of_text(folder: RunFolder) -> str:
    """The token of the folder's own tokenizer that ends a document."""
    if folder.data_manifest_path.exists():
        return _manifest(folder)["tokenizer"]["end_of_text"]
    return origin.end_of_text(folder.path)


def _manifest(folder: RunFolder) -> dict[str, Any]:
    content = read_json(folder.data_manifest_path)
    tokenizer = content.get("tokenizer") if isinstance(content, dict) else None
    if not (isinstance(tokenizer, dict) and {"sha256", "end_of_text"} <= set(tokenizer)):
        raise UserError(f"{folder.data_manifest_path} is broken: it describes no tokenizer")
    return content


def run_folders(workdir: Path) -> list[Path]:
    """The run folder itself, or every finished one inside a folder, by path.

    What lies inside a run folder is not searched.

    Raises:
      UserError: there is none.
    """
    if RunFolder(workdir).config_path.exists():
        return [workdir]
    found, to_search = [], [workdir]
    while to_search:
        folder = to_search.pop()
        if RunFolder(folder).config_path.exists():
            if RunFolder(folder).is_finished():
                found.append(folder)
        elif folder.is_dir():
            to_search += [inside for inside in folder.iterdir() if inside.is_dir()]
    if not found:
        raise UserError(f"{workdir} is no run folder and holds no finished run")
    return sorted(found)
