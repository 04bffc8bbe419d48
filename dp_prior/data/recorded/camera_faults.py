"""Contradictions between the cameras of a `RecordedConfig`: depth beside its camera, and mirror images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dp_prior.config import Config
from dp_prior.data.columns.mirrored import flipped_region
from dp_prior.tensors.pixels.resize import WHOLE

if TYPE_CHECKING:
    from dp_prior.data.recorded.camera import FramesConfig


def depth_faults(record: Config) -> Iterator[str]:
    """Depth whose camera is unknown or shows another region."""
    for name, depth in record.depth.items():
        if depth.camera is not None and depth.camera not in record.images:
            yield f"depth.{name}.camera is {depth.camera!r}; expected one of images, {sorted(record.images)}, or null"
        elif depth.camera is not None:
            camera = record.images[depth.camera]
            region, of_camera = (list(frames.region or WHOLE) for frames in (depth, camera))
            if region != of_camera:
                finding = f"depth.{name}.region is {region}, that of camera {depth.camera!r} {of_camera}"
                yield f"{finding}; give both the same"


def mirror_faults(record: Config) -> Iterator[str]:
    """Cameras and vectors that do not say how they read in the mirror, and mirrors that contradict each other."""
    mirrored = [name for name, image in record.cameras.items() if image.mirror is not None]
    if not record.mirror:
        for name in mirrored:
            where = f"{_where(record, name)}.{name}.mirror"
            yield f"{where} is given, but mirror is empty; it says how action and obs read there"
        return
    if unmirrored := [*record.embeddings, *record.language, *record.points]:
        finding = f"mirror is given, but {unmirrored} are embeddings or points"
        yield f"{finding}, which have no mirror image; remove them or mirror"
    for name in sorted(record.cameras.keys() - mirrored):
        finding = f"{_where(record, name)}.{name} does not say how its frames read there"
        yield f'mirror is given, but {finding}; give it a "mirror"'
    for name in mirrored:
        yield from _camera_faults(record, name)
    vectors = [*record.obs, "action"]
    if "action" in record.obs:
        yield "mirror cannot tell the observation 'action' from the action; give the observation another name"
    elif sorted(record.mirror) != sorted(vectors):
        yield f"mirror has {sorted(record.mirror)}; expected an entry for each of {vectors}"


def _where(record: Config, name: str) -> str:
    """The field that has this camera."""
    return "images" if name in record.images else "depth"


def _camera_faults(record: Config, name: str) -> Iterator[str]:
    """Why the frames of a camera, mirrored twice, would not be the frames again."""
    alike: Mapping[str, FramesConfig] = record.images if name in record.images else record.depth
    image, called = alike[name], f"{_where(record, name)}.{name}"
    where = f"{called}.mirror"
    flip, other = image.mirror.flip, image.mirror.camera or name
    if flip.endswith("diagonal") and image.size[0] != image.size[1]:
        yield f"{where}.flip is {flip!r}, which needs a square; size is {list(image.size)}"
    if other not in alike:
        yield f"{where}.camera is {other!r}; expected one of {sorted(alike)}"
        return
    back = alike[other].mirror
    if back is not None and (back.camera or other, back.flip) != (name, flip):
        there, again = f"{other!r}, flip {flip!r}", f"{back.camera or other!r}, flip {back.flip!r}"
        yield f"mirrored twice, camera {name!r} is another one: it takes {there}, and {other!r} takes {again}"
    for field in ("size", "fit"):
        setting, mirrored = getattr(image, field), getattr(alike[other], field)
        if setting != mirrored:
            yield f"{where}.camera is {other!r}, whose {field} is {mirrored}; give it that of {called}, {setting}"
    region, expected = image.region or WHOLE, flipped_region(alike[other].region or WHOLE, flip)
    if [round(share, 6) for share in region] != expected:
        finding = f"the region of {called} is {list(region)}"
        yield f"{where}: {finding}; expected that of {other!r} in the mirror, {expected}"
