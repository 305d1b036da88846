"""The fixture `testbed`: two real hosts for the whole session, or a reason why there are none."""

import os
from collections.abc import Iterator

import pytest

from tests.testbed import image
from tests.testbed.host import Host
from tests.testbed.hosts import Testbed
from tests.testbed.packages import missing

ENABLE = "as root: python -m tests.testbed.hosts install"


def demanded() -> bool:
    """Where a testbed is promised (CI=true, or TESTBED=1), its absence is a failure, not a skip."""
    return os.environ.get("CI") == "true" or os.environ.get("TESTBED") == "1"


@pytest.fixture(scope="session")
def testbed() -> Iterator[Testbed]:
    """Two hosts with docker. One that is up already is used and left up."""
    lacks = missing(docker=True)
    if lacks:
        reason = f"no testbed here: {'; '.join(lacks)}. To enable it, {ENABLE}"
        if demanded():
            pytest.fail(reason)
        pytest.skip(reason)
    with Testbed(hosts=2) as bed:
        yield bed


@pytest.fixture
def hosts(testbed: Testbed) -> tuple[Host, ...]:
    return testbed.hosts


@pytest.fixture
def with_image(hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """Both hosts, each with the image deb:1."""
    for host in hosts:
        image.load(host)
    return hosts
