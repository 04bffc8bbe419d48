"""Faults in the record of a policy: one function for each kind of fault, which yields messages.

`contradictions` are faults of the record alone, `data_faults` and `observation_faults` those beside a spec of the data.
"""

from __future__ import annotations

from collections.abc import Iterator

from dp_prior.tasks.policy_record import PolicyRecord
from dp_prior.tensors.actions import arm_faults
from dp_prior.tensors.batch import NORMALISED, Spec, X
from dp_prior.tensors.normalizer import Slices
from dp_prior.tensors.slices import slice_faults


def contradictions(record: PolicyRecord) -> Iterator[str]:
    """Yield the faults of the record alone."""
    yield from action_steps(record)
    yield from prefix_delay(record)
    yield from record.backbone.horizon_faults(record.horizon)
    yield from sampled_timesteps(record)
    yield from relative_twice(record)
    yield from statistics_of_data_units(record)
    yield from shared_owners(record)


def data_faults(record: PolicyRecord, spec: Spec, n_obs_steps: int) -> Iterator[str]:
    """Yield the faults of lengths, keys, arms and slices beside data of which `n_obs_steps` steps are read."""
    yield from lengths(record, spec, n_obs_steps)
    yield from relative_key(record, spec)
    yield from arm_faults(record.arms, spec)
    for key in [X, *spec.cond_shapes]:
        yield from normalized_slices(record, spec, key)
        yield from rotations_in_data_units(record, spec, key)
    yield from unknown_keys(record, spec)
    yield from undropped_conditions(record, spec)


def observation_faults(record: PolicyRecord, spec: Spec) -> Iterator[str]:
    """Yield the faults of encoders and normalizers beside the kinds of the observations."""
    yield from depth_beside_colours(record, spec)
    yield from shared_frames(record, spec)
    for key in spec.cond_shapes:
        yield from encoder_kind(record, spec, key)
        yield from normalized_kind(record, spec, key)


def action_steps(record: PolicyRecord) -> Iterator[str]:
    """More executed actions than a chunk has room for."""
    if record.n_action_steps > record.room:
        yield (
            f"n_action_steps is {record.n_action_steps}, but horizon {record.horizon} and n_obs_steps "
            f"{record.n_obs_steps} leave room for {max(record.room, 0)} actions; lower n_action_steps or raise horizon"
        )


def prefix_delay(record: PolicyRecord) -> Iterator[str]:
    """A prefix that leaves no action to predict."""
    if record.prefix is not None and record.prefix.max_delay >= record.room:
        yield (
            f"prefix.max_delay is {record.prefix.max_delay}, but horizon {record.horizon} and n_obs_steps "
            f"{record.n_obs_steps} leave room for {max(record.room, 0)} actions, so none would be left to predict; "
            f"lower it"
        )


def sampled_timesteps(record: PolicyRecord) -> Iterator[str]:
    """A sampler that visits timesteps outside the noise schedule, or untrained ones."""
    for fault in record.diffusion.sampler_faults(record.sampler):
        yield f"sampler does not fit diffusion.schedule: {fault}"


def relative_twice(record: PolicyRecord) -> Iterator[str]:
    """Actions that are relative both as a whole and by slice."""
    if record.relative_to is not None and record.arms:
        yield "relative_to makes the whole action relative and arms make slices of it relative; remove one of them"


def statistics_of_data_units(record: PolicyRecord) -> Iterator[str]:
    """A normalizer of an observation whose encoder reads data units."""
    for key, encoder in record.encoders.items():
        if encoder.needs_data_units and key in record.normalizer and record.normalizer[key].type != "identity":
            yield (
                f"normalizer.{key} is {record.normalizer[key].type!r}, but the {encoder.type} encoder reads data "
                f"units; remove it or use identity"
            )


def shared_owners(record: PolicyRecord) -> Iterator[str]:
    """Cameras that share an encoder and have their own, or share one that is shared itself or reads depth."""
    for key, owner in record.shared_encoders.items():
        where = f"shared_encoders.{key} is {owner!r}"
        if key in record.encoders:
            yield f"{where}, but encoders.{key} is given too; remove one of both"
        if owner in record.shared_encoders:
            yield f"{where}, which has no encoder of its own; name a camera that is not in shared_encoders"
        if owner in record.depths_beside():
            yield f"{where}, whose encoder reads depth too; give {key!r} an encoder of its own"


def lengths(record: PolicyRecord, spec: Spec, n_obs_steps: int) -> Iterator[str]:
    """Chunks and observations of other lengths than the record's."""
    if len(spec.x_shape) != 2:
        yield f"a policy predicts chunks (horizon, action_dim), but these data have shape {spec.x_shape}"
    elif spec.x_shape[0] != record.horizon:
        yield f"task.horizon is {record.horizon}, but a chunk of these data has {spec.x_shape[0]} actions"
    steps = {key: shape[0] if shape else 0 for key, shape in spec.cond_shapes.items()}
    other_steps = {key: length for key, length in steps.items() if length != n_obs_steps}
    if other_steps:
        yield f"{n_obs_steps} steps of each observation are read, but these data have {other_steps}"


def relative_key(record: PolicyRecord, spec: Spec) -> Iterator[str]:
    """An observation that actions cannot be subtracted from as a whole."""
    if record.relative_to is None:
        return
    shape = spec.cond_shapes.get(record.relative_to, ())[1:]
    if shape != spec.x_shape[1:]:
        finding = f"has shape {shape}" if shape else f"is not among the observations {list(spec.cond_shapes)}"
        yield f"task.relative_to is {record.relative_to!r}, which {finding}; an action is {spec.x_shape[1:]}"
    if {X, record.relative_to} & set(spec.rotations):
        yield "task.relative_to subtracts all numbers, but data names rotations among them; use task.arms"


def normalized_slices(record: PolicyRecord, spec: Spec, key: str) -> Iterator[str]:
    """Slices of a normalizer outside the vector, or on its rotations."""
    name = "action" if key == X else key
    mode = record.normalizer.get(name)
    if not isinstance(mode, Slices):
        return
    shape, slices = spec.feature_shape(key), [part.slice for part in mode.slices]
    if len(shape) != 1:
        yield f"task.normalizer.{name} has slices, but {name!r} has shape {shape}; expected a vector"
        return
    yield from (f"task.normalizer.{name}: {fault}" for fault in slice_faults(slices, *shape))
    for fault in slice_faults([*slices, *(rotation.slice for rotation in spec.rotations.get(key, ()))]):
        yield f"task.normalizer.{name}: {fault}; rotations of the data are not normalised, leave them out"


def rotations_in_data_units(record: PolicyRecord, spec: Spec, key: str) -> Iterator[str]:
    """Rotations, which are read as 6D, for an encoder of data units."""
    if key != X and spec.rotations.get(key) and record.encoder_of(key, spec.kind(key)).needs_data_units:
        yield f"task.encoders.{key} reads data units, but gets the rotations of {key!r} as 6D; use another encoder"


def unknown_keys(record: PolicyRecord, spec: Spec) -> Iterator[str]:
    """Settings of observations that the data do not have."""
    keys = list(spec.cond_shapes)
    for field, settings, data_keys in (
        ("encoders", record.encoders, keys),
        ("cond_dropout", record.cond_dropout, keys),
        ("normalizer", record.normalizer, ["action", *keys]),
    ):
        unknown = sorted(set(settings) - set(data_keys))
        if unknown:
            yield f"task.{field} names {unknown}, which the data do not have; known: {data_keys}"


def undropped_conditions(record: PolicyRecord, spec: Spec) -> Iterator[str]:
    """Guidance without training on samples whose observations are dropped."""
    never_dropped = [key for key in spec.cond_shapes if not record.cond_dropout.get(key)]
    if record.diffusion.guidance is not None and never_dropped:
        yield (
            f"task.diffusion.guidance needs an unconditional model, but training never drops "
            f"{never_dropped}; give these keys a probability in task.cond_dropout, for example 0.1"
        )


def depth_beside_colours(record: PolicyRecord, spec: Spec) -> Iterator[str]:
    """Depth read beside colours that the data lack, of another size, or read twice."""
    depths = record.depths_beside()
    for key, depth in depths.items():
        where, size = f"task.encoders.{key}.depth is {depth!r}", spec.cond_shapes.get(key, ())[-3:-1]
        if depth not in spec.depths:
            yield f"{where}; the data have depth under {sorted(spec.depths)}"
        elif spec.cond_shapes[depth][-3:-1] != size and spec.kind(key) == "image":
            depth_size = spec.cond_shapes[depth][-3:-1]
            yield f"{where}, whose frames are {depth_size}; those of {key!r} are {size}: give both the same data size"
        elif depth in record.encoders or [*depths.values()].count(depth) > 1:
            second_reader = "which has an encoder too" if depth in record.encoders else "as another encoder's is"
            yield f"{where}, {second_reader}; depth is read once, so remove one of both"


def shared_frames(record: PolicyRecord, spec: Spec) -> Iterator[str]:
    """A shared encoder of observations that are no cameras, or whose frames differ in size."""
    cameras = [key for key in spec.cond_shapes if spec.kind(key) == "image"]
    for key, owner in record.shared_encoders.items():
        unknown = sorted({key, owner} - {*cameras})
        if unknown:
            yield f"task.shared_encoders names {unknown}, which are no cameras of the data; these are {cameras}"
        elif spec.cond_shapes[key] != spec.cond_shapes[owner]:
            sizes = " and ".join(str(spec.cond_shapes[name][1:3]) for name in (key, owner))
            yield f"task.shared_encoders: frames of {key!r} and {owner!r} are {sizes}; give both one `size` in data"


def encoder_kind(record: PolicyRecord, spec: Spec, key: str) -> Iterator[str]:
    """An encoder that does not read the kind of its observation."""
    kind = spec.kind(key)
    encoder = record.encoder_of(key, kind)
    if kind not in encoder.reads:
        setting = f"task.encoders.{key} is {encoder.type!r}" if key in record.encoders else "task.encoders omits it"
        yield (
            f"observation {key!r} is of kind {kind!r}, but {setting}, and the {encoder.type} encoder reads "
            f"{' and '.join(encoder.reads)}; name an encoder of this kind, or leave the observation out"
        )


def normalized_kind(record: PolicyRecord, spec: Spec, key: str) -> Iterator[str]:
    """A normalizer of an observation that has no statistics."""
    kind = spec.kind(key)
    if kind not in NORMALISED and key in record.normalizer:
        yield (
            f"task.normalizer names {key!r}, which is of kind {kind!r}; only vectors and texts are normalised "
            f"by statistics, so remove it"
        )
