"""Objects in any S3-compatible store. Needs the extra `headrace[s3]`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.errors import DownloadError
from headrace.modeling.weights.sources.transfer import CHUNK_BYTES, Reply, TransientError

MAX_OBJECTS: Final = 10_000


@dataclass(frozen=True, slots=True)
class S3Object:
    """One object."""

    client: Any
    bucket: str
    key: str

    @property
    def label(self) -> str:
        return f"s3://{self.bucket}/{self.key}"

    @contextmanager
    def open(self, start: int, version: str | None) -> Iterator[Reply]:
        """Bytes from `start` on; anew from 0 when the object is another one by now."""
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            head = self.client.head_object(Bucket=self.bucket, Key=self.key)
            total, tag = int(head["ContentLength"]), str(head["ETag"])
            if version != tag or start > total:
                start = 0
            if start == total:
                yield Reply(start, total, tag, iter(()))
                return
            body = self.client.get_object(
                Bucket=self.bucket, Key=self.key, Range=f"bytes={start}-", IfMatch=tag
            )["Body"]
            with body:
                yield Reply(start, total, tag, body.iter_chunks(CHUNK_BYTES))
        except ClientError as error:
            raise explain(error, self.label) from error
        except (BotoCoreError, HTTPError, OSError) as error:
            raise TransientError(str(error)) from error


def connect() -> Any:
    """A client; endpoint, region and credentials are those of boto3's usual places."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise DownloadError("s3:// needs boto3: pip install 'headrace[s3]'.") from error
    try:
        return boto3.client("s3")
    except (BotoCoreError, ValueError) as error:
        raise DownloadError(f"The S3 client cannot be set up: {error}") from error


def list_keys(client: Any, bucket: str, prefix: str) -> list[str]:
    """Keys that start with `prefix`, at most MAX_OBJECTS. Raises DownloadError."""
    from botocore.exceptions import BotoCoreError, ClientError

    label = f"s3://{bucket}/{prefix}"
    keys: list[str] = []
    try:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            keys += [str(item["Key"]) for item in page.get("Contents", [])]
            if len(keys) > MAX_OBJECTS:
                raise DownloadError(f"{label} holds more than {MAX_OBJECTS} objects.")
    except ClientError as error:
        found = explain(error, label)
        raise DownloadError(f"{label} cannot be listed: {found}") from error
    except BotoCoreError as error:
        raise DownloadError(f"{label} cannot be listed: {error}") from error
    return keys


def explain(error: Any, label: str) -> Exception:
    """Whether trying again may help."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = error.response.get("Error", {}).get("Code", "unknown")
    if status >= 500 or status in (409, 412, 429) or code in ("SlowDown", "RequestTimeout"):
        return TransientError(f"the store answered {status} {code}")
    return DownloadError(f"{label} could not be fetched: the store answered {status} {code}.")
