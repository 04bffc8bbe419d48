"""A local imitation of S3 by moto, with an empty bucket `bucket` and credentials of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def s3_bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A boto3 client of the imitation, to which environment variables lead all other clients."""
    moto = pytest.importorskip("moto.server", reason="NOT CHECKED: needs moto[server]")
    import boto3

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ALLOW_HTTP": "true",
    }.items():
        monkeypatch.setenv(name, value)
    if find_spec("s3fs") is not None:
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()  # of an imitation that has ended
    try:
        client = boto3.client("s3", region_name="us-east-1")
        client.create_bucket(Bucket="bucket")
        yield client
    finally:
        server.stop()


def upload_folder(client: Any, folder: Path, name: str) -> str:
    """Put the files of a folder into the bucket; returns their URL."""
    for file in filter(lambda path: path.is_file(), folder.rglob("*")):
        client.upload_file(str(file), "bucket", f"{name}/{file.relative_to(folder).as_posix()}")
    return f"s3://bucket/{name}"
