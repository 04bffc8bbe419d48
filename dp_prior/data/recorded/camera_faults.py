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
            yield f"{_place(record, name)}.mirror is given, but mirror is empty; it says how action and obs read there"
        return
    if unmirrored := [*record.embeddings, *record.language, *record.points]:
        finding = f"mirror is given, but {unmirrored} are embeddings or points"
        yield f"{finding}, which have no mirror image; remove them or mirror"
    for name in sorted(record.cameras.keys() - mirrored):
        finding = f"{_place(record, name)} does not say how its frames read there"
        yield f'mirror is given, but {finding}; give it a "mirror"'
    for name in mirrored:
        yield from _camera_faults(record, name)
    vectors = [*record.obs, "action"]
    if "action" in record.obs:
        yield "mirror cannot tell the observation 'action' from the action; give the observation another name"
    elif sorted(record.mirror) != sorted(vectors):
        yield f"mirror has {sorted(record.mirror)}; expected an entry for each of {vectors}"


def _camera_faults(record: Config, name: str) -> Iterator[str]:
    """Why the frames of a camera, mirrored twice, would not be the frames again."""
    cameras: Mapping[str, FramesConfig] = record.images if name in record.images else record.depth
    camera, mirror = cameras[name], cameras[name].mirror
    setting = f"{_place(record, name)}.mirror"
    if mirror.flip.endswith("diagonal") and camera.size[0] != camera.size[1]:
        yield f"{setting}.flip is {mirror.flip!r}, which needs a square; size is {list(camera.size)}"
    partner_name = mirror.camera or name
    if partner_name not in cameras:
        yield f"{setting}.camera is {partner_name!r}; expected one of {sorted(cameras)}"
        return
    partner = cameras[partner_name]
    if partner.mirror is not None:
        there = (partner_name, mirror.flip)
        back = (partner.mirror.camera or partner_name, partner.mirror.flip)
        if back != (name, mirror.flip):
            takes = (
                f"it takes {there[0]!r}, flip {there[1]!r}, and {partner_name!r} takes {back[0]!r}, flip {back[1]!r}"
            )
            yield f"mirrored twice, camera {name!r} is another one: {takes}"
    yield from _partner_faults(_place(record, name), camera, partner_name, partner)


def _partner_faults(place: str, camera: FramesConfig, partner_name: str, partner: FramesConfig) -> Iterator[str]:
    """Settings in which a camera differs from its partner, whose frames are taken in the mirror."""
    for field in ("size", "fit"):
        own_value, partner_value = getattr(camera, field), getattr(partner, field)
        if own_value != partner_value:
            finding = f"{place}.mirror.camera is {partner_name!r}, whose {field} is {partner_value}"
            yield f"{finding}; give it that of {place}, {own_value}"
    region = camera.region or WHOLE
    expected = flipped_region(partner.region or WHOLE, camera.mirror.flip)
    if [round(share, 6) for share in region] != expected:
        finding = f"the region of {place} is {list(region)}"
        yield f"{place}.mirror: {finding}; expected that of {partner_name!r} in the mirror, {expected}"


def _place(record: Config, name: str) -> str:
    """The path of a camera in the configuration of the data, such as images.front."""
    return f"images.{name}" if name in record.images else f"depth.{name}"
