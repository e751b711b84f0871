"""Which attention a run takes, before it starts: the kernel, and why."""

import flax.linen as nn
from jax.sharding import AbstractMesh, Mesh

from looped_jax import parallel
from looped_jax.config import RunConfig
from looped_jax.errors import UserError
from looped_jax.model import kernels


def attention_of(run: RunConfig, mesh: Mesh | AbstractMesh) -> tuple[str, str]:
    """(The kernel of the run's steps on a mesh, a line that says so and why).

    Raises:
      UserError: `model.attention` is a kernel that cannot do this model or batch there.
    """
    model = run.model
    rows = run.data.batch_size // run.data.microbatches
    shape_BTHd = (rows, run.data.sequence_length, model.heads, model.head_dim)
    with nn.logical_axis_rules(tuple(parallel.LOGICAL_AXES.items())):
        place = kernels.place_of(mesh)
        try:
            kernel = kernels.choose(model.attention, shape_BTHd, model.compute_dtype, place)
        except ValueError as error:
            raise UserError(str(error)) from None
        own = kernels.OF_PLATFORM.get(place.platform)
        why = f"model.attention = {model.attention!r}, platform {place.platform!r}"
        if own and own != kernel:
            what = kernels.obstacle(own, shape_BTHd, model.compute_dtype, place)
            why += f"; {own} {what}" if what else f"; {own!r} or 'auto' would not write the scores"
    return kernel, f"attention: {kernel} ({why})"
