"""`geminga.Admin` and `geminga.asyncio.Admin` against our broker: the checks of ``tests/suites``."""

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

import geminga
import geminga.asyncio
from geminga.broker.serving.embedded import embedded

sys.path.insert(0, str(Path(__file__).parents[2] / "suites"))
suite: Any = importlib.import_module("administration")


@pytest.fixture(scope="module")
def broker():
    with embedded() as running:
        yield running


@pytest.fixture(scope="module", params=["threads", "asyncio"])
def admin(broker, request):
    if request.param == "threads":
        with geminga.Admin(broker.admin_url) as one:
            yield one
        return
    loop = asyncio.new_event_loop()
    other = geminga.asyncio.Admin(broker.admin_url)
    yield suite.Waited(other, loop)
    loop.run_until_complete(other.close())
    loop.close()


@pytest.mark.parametrize("check", suite.CHECKS)
def test_each_check_of_the_admin_suite_passes(admin, broker, check):
    suite.CHECKS[check](admin, broker)


def test_one_admin_on_two_loops_and_a_closed_one(broker):
    admin = geminga.asyncio.Admin(broker.admin_url)
    assert asyncio.run(admin.tenants.list()) == asyncio.run(admin.tenants.list())
    asyncio.run(admin.close())
    with pytest.raises(geminga.AlreadyClosed):
        asyncio.run(admin.tenants.list())
    assert repr(admin) == f"<geminga.asyncio.Admin {broker.admin_url} closed>"


def test_a_text_as_a_position_is_refused_by_name(broker):
    with (
        geminga.Admin(broker.admin_url) as admin,
        pytest.raises(geminga.InvalidConfiguration, match=r"message_id='earliest' .* MessageId\.earliest"),
    ):
        admin.subscriptions.create("t", "s", position="earliest")
