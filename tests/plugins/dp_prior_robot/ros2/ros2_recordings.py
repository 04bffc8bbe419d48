"""Bags as ROS 2 records them, written by the package's own writer."""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

HEADER = """std_msgs/Header header
"""
PARTS = {
    "std_msgs/Header": "builtin_interfaces/Time stamp\nstring frame_id",
    "builtin_interfaces/Time": "int32 sec\nuint32 nanosec",
    "builtin_interfaces/Duration": "int32 sec\nuint32 nanosec",
    "trajectory_msgs/JointTrajectoryPoint": (
        "float64[] positions\nfloat64[] velocities\nbuiltin_interfaces/Duration time_from_start"
    ),
    "geometry_msgs/Pose": "geometry_msgs/Point position\ngeometry_msgs/Quaternion orientation",
    "geometry_msgs/Transform": "geometry_msgs/Vector3 translation\ngeometry_msgs/Quaternion rotation",
    "geometry_msgs/Twist": "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular",
    "geometry_msgs/Wrench": "geometry_msgs/Vector3 force\ngeometry_msgs/Vector3 torque",
    "geometry_msgs/Point": "float64 x\nfloat64 y\nfloat64 z",
    "geometry_msgs/Vector3": "float64 x\nfloat64 y\nfloat64 z",
    "geometry_msgs/Quaternion": "float64 x\nfloat64 y\nfloat64 z\nfloat64 w",
    "std_msgs/MultiArrayLayout": "std_msgs/MultiArrayDimension[] dim\nuint32 data_offset",
    "std_msgs/MultiArrayDimension": "string label\nuint32 size\nuint32 stride",
}
TYPES = {
    "sensor_msgs/msg/JointState": f"{HEADER}string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort",
    "sensor_msgs/msg/Image": (
        f"{HEADER}uint32 height\nuint32 width\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data"
    ),
    "sensor_msgs/msg/CompressedImage": f"{HEADER}string format\nuint8[] data",
    "geometry_msgs/msg/PoseStamped": f"{HEADER}geometry_msgs/Pose pose",
    "geometry_msgs/msg/TransformStamped": f"{HEADER}string child_frame_id\ngeometry_msgs/Transform transform",
    "geometry_msgs/msg/TwistStamped": f"{HEADER}geometry_msgs/Twist twist",
    "geometry_msgs/msg/Twist": "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular",
    "geometry_msgs/msg/WrenchStamped": f"{HEADER}geometry_msgs/Wrench wrench",
    "std_msgs/msg/Float64MultiArray": "std_msgs/MultiArrayLayout layout\nfloat64[] data",
    "std_msgs/msg/Bool": "bool data",
    "std_msgs/msg/Int32": "int32 data",
    "trajectory_msgs/msg/JointTrajectory": (
        f"{HEADER}string[] joint_names\ntrajectory_msgs/JointTrajectoryPoint[] points"
    ),
    "std_msgs/msg/Float32": "float32 data",
    "std_msgs/msg/Float64": "float64 data",
    "std_msgs/msg/String": "string data",
    "mine_msgs/msg/Tool": f"{HEADER}mine_msgs/Finger[] fingers\nint32 grasps",
}
PARTS["mine_msgs/Finger"] = "string label\nfloat32 width\nfloat32[2] forces"

Message = tuple[float, str, str, dict[str, Any]]
"""Seconds, topic, type without `/msg`, and fields; a header gets the seconds as its stamp."""


def definition(kind: str) -> str:
    """With those of the types inside, as bags store it."""
    text, found = TYPES[kind], []
    queue = [text]
    while queue:
        words = {word.partition("[")[0] for word in queue.pop().split()}
        for part in sorted(words & PARTS.keys() - {*found}):
            found.append(part)
            queue.append(PARTS[part])
    return "".join([text, *(f"\n{'=' * 80}\nMSG: {part}\n{PARTS[part]}" for part in found)])


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def stamp(time: int) -> dict[str, int]:
    return {"sec": time // 10**9, "nanosec": time % 10**9}


def write_bag(path: Path, messages: Iterable[Message], delay: float = 0.0, **how: Any) -> Path:
    """Args: delay: seconds from stamp to recording; how: of the writer, such as compression."""
    from mcap_ros2.writer import Writer

    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as stream, Writer(stream, **how) as writer:
        schemas: dict[str, Any] = {}
        for seconds, topic, kind, fields in messages:
            full, time = kind.replace("/", "/msg/"), nanoseconds(seconds)
            if full not in schemas:
                schemas[full] = writer.register_msgdef(full, definition(full))
            if TYPES[full].startswith(HEADER):
                fields = {"header": {"stamp": stamp(time), "frame_id": "base"}, **fields}
            writer.write_message(topic, schemas[full], fields, time + nanoseconds(delay))
    return path


def write_split(folder: Path, messages: list[Message], count: int, with_metadata: bool = True) -> Path:
    """One bag of several files, as `ros2 bag record --max-bag-size` leaves it."""
    names = [f"{folder.name}_{number}.mcap" for number in range(count)]
    for name, part in zip(names, np.array_split(np.arange(len(messages)), count), strict=True):
        write_bag(folder / name, [messages[number] for number in part])
    if with_metadata:
        listed = "".join(f"    - {name}\n" for name in names)
        head = "rosbag2_bagfile_information:\n  version: 9\n  storage_identifier: mcap\n  compression_mode: ''\n"
        (folder / "metadata.yaml").write_text(f"{head}  relative_file_paths:\n{listed}")
    return folder


def by_time(*sequences: Iterable[Message]) -> list[Message]:
    return sorted((each for sequence in sequences for each in sequence), key=lambda each: each[0])


def joints(
    rate: float, seconds: float, names: list[str], topic: str = "/joint_states", start: float = 100.0
) -> Iterator[Message]:
    """Joint k is at k + t, its velocity is k, at t seconds."""
    for t in np.arange(round(rate * seconds) + 1) / rate:
        positions = [int(name[1:]) + t for name in names]
        fields = {"name": names, "position": positions, "velocity": [float(name[1:]) for name in names]}
        yield start + t, topic, "sensor_msgs/JointState", fields


def picture(number: int, size: tuple[int, int] = (12, 16)) -> np.ndarray:
    """(H, W, 3) uint8 of soft colours, which JPEG keeps, and no two alike."""
    rows, columns = np.indices(size)
    return np.stack([rows * 8 + number, columns * 8, np.full(size, 5 * number)], -1).astype(np.uint8)


def raw(pixels: np.ndarray, encoding: str, padding: int = 0, is_bigendian: bool = False) -> dict[str, Any]:
    """Fields of sensor_msgs/Image. Args: padding: bytes after each row."""
    stored = pixels.astype(pixels.dtype.newbyteorder(">" if is_bigendian else "<"))
    rows = np.ascontiguousarray(stored).view(np.uint8).reshape(len(pixels), -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=99)
    size = {"height": pixels.shape[0], "width": pixels.shape[1], "step": rows.shape[1]}
    return {**size, "encoding": encoding, "is_bigendian": int(is_bigendian), "data": rows.tobytes()}


def compressed(pixels: np.ndarray, how: str = "png") -> dict[str, Any]:
    """Fields of sensor_msgs/CompressedImage."""
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, how, **({"quality": 95} if how == "jpeg" else {}))
    return {"format": f"rgb8; {how} compressed bgr8", "data": stream.getvalue()}


def film(rate: float, seconds: float, topic: str = "/front/image_raw", start: float = 100.0) -> Iterator[Message]:
    """Picture n at n / rate seconds."""
    for number in range(round(rate * seconds) + 1):
        yield start + number / rate, topic, "sensor_msgs/Image", raw(picture(number), "rgb8")


def compressed_film(rate: float, seconds: float, topic: str, start: float = 100.0) -> Iterator[Message]:
    for number in range(round(rate * seconds) + 1):
        yield start + number / rate, topic, "sensor_msgs/CompressedImage", compressed(picture(number))
