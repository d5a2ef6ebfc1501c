"""A lake that cannot be read is a sentence that names it and says what to do."""

from __future__ import annotations

import socket

import pyarrow.fs
import pytest

from tidegate.pipeline.lake import LakeFolder, LakeUnreachable, check_there


@pytest.mark.parametrize("location", ["foo://x/y", "s3://two words/lake", "file://relative"])
def test_an_address_that_nobody_knows(location: str) -> None:
    with pytest.raises(LakeUnreachable) as refused:
        LakeFolder.of(location)
    assert str(refused.value).startswith(f"{location} is not a place")
    assert "--lake" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_password_in_it_is_not_told() -> None:
    with pytest.raises(LakeUnreachable) as refused:
        LakeFolder.of("foo://user:hush@x/y")
    assert "hush" not in str(refused.value)


def test_a_server_that_does_not_answer() -> None:
    with socket.socket() as nobody:
        # Bound and not listened on: whoever connects is refused.
        nobody.bind(("127.0.0.1", 0))
        files = pyarrow.fs.S3FileSystem(
            anonymous=True,
            region="nowhere",
            scheme="http",
            endpoint_override=f"127.0.0.1:{nobody.getsockname()[1]}",
            retry_strategy=pyarrow.fs.AwsStandardS3RetryStrategy(max_attempts=1),
        )
        with pytest.raises(LakeUnreachable) as refused:
            check_there(LakeFolder(files, "bucket/lake", "s3a://"))
    assert str(refused.value).startswith("the lake at s3://bucket/lake cannot be reached (")
    assert "--lake" in str(refused.value)
