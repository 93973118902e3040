"""Topics are created in the target with their policies; the source is queried only for what it supports."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import geminga
from geminga.asyncio import Admin
from geminga.client.admin.aio.calls import AdminCalls
from geminga.client.admin.exchange import AdminResponse, Request
from geminga.errors import AdminNotAllowed, AdminNotFound
from geminga.mirror import topics
from geminga.mirror.patterns import MirrorPattern
from geminga.mirror.topics import ASKED_AT_ONCE, TopicMaker, find_topics

TOPICS = 40
NAMES = [f"t{number:03}" for number in range(TOPICS)]


class Asked:
    """Record an admin client's requests, and how many ran concurrently."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, admin_url: str) -> None:
        self.calls: Counter[str] = Counter()
        self.at_once_max = 0
        self.refusal: Exception | None = None
        """Record the requests for topic policies."""
        self.tells = True
        now = [0]
        send = AdminCalls.send

        async def counted(calls: AdminCalls, request: Request) -> AdminResponse:
            if calls.sender.settings.admin_url != admin_url:
                return await send(calls, request)
            last = request.path.rpartition("/")[2]
            self.calls[last] += 1
            if last == "policiesSet" and not self.tells:
                raise AdminNotFound("no such path", status=404)
            if self.refusal is not None and "/public/default/t" in request.path and last.startswith("max"):
                raise self.refusal
            now[0] += last != "partitions"
            self.at_once_max = max(self.at_once_max, now[0])
            try:
                return await send(calls, request)
            finally:
                now[0] -= last != "partitions"

        monkeypatch.setattr(AdminCalls, "send", counted)


@pytest.fixture
def two():
    with geminga.embedded() as source, geminga.embedded() as target:
        yield source, target


async def some_at_once(call: Callable[[Any], Awaitable[object]], things: list[Any]) -> None:
    """As the mirror does."""
    opening = asyncio.Semaphore(32)

    async def one(thing: Any) -> None:
        async with opening:
            await call(thing)

    await asyncio.gather(*map(one, things))


async def prepare(admin: Admin, count: int) -> None:
    await some_at_once(admin.topics.create, NAMES[:count])
    await admin.topic_policies.retention.set("t003", geminga.admin.Retention(minutes=60, megabytes=-1))
    await admin.topic_policies.message_ttl.set("t003", 77)
    await admin.topic_policies.dispatch_rate.set("t004", geminga.admin.DispatchRate(messages=5))
    await admin.topic_policies.set_backlog_quota("t005", geminga.admin.BacklogQuota(limit_bytes=12345))


async def make_all(source: Any, target: Any) -> tuple[Admin, Admin]:
    ends = Admin(source.admin_url), Admin(target.admin_url)
    maker = TopicMaker(*ends, policies=True)
    found = await find_topics(ends[0], [MirrorPattern.parse("t[0-9]+")])
    await some_at_once(maker.make, found)
    return ends


async def compare(source: Admin, target: Admin) -> None:
    for name in NAMES[:8]:
        for policy in ("retention", "message_ttl", "dispatch_rate", "max_consumers"):
            was = await getattr(source.topic_policies, policy).get(name)
            assert await getattr(target.topic_policies, policy).get(name) == was
        quotas = await source.topic_policies.backlog_quotas(name)
        assert await target.topic_policies.backlog_quotas(name) == quotas
    assert (await target.topic_policies.message_ttl.get("t003")) == 77
    await source.close()
    await target.close()


@pytest.fixture
def made(two, monkeypatch):
    """A function that copies topics with policies, and returns the source's calls and both ends."""

    async def make(count: int, refusal: Exception | None = None, *, tells: bool = True) -> Any:
        async with Admin(two[0].admin_url) as admin:
            await prepare(admin, count)
        with monkeypatch.context() as patched:
            asked = Asked(patched, two[0].admin_url)
            asked.tells, asked.refusal = tells, refusal
            return asked, await make_all(*two)

    return make


async def test_only_policies_in_use_are_requested(made):
    asked, ends = await made(TOPICS)
    assert asked.calls["policiesSet"] == TOPICS
    assert asked.calls["properties"] == TOPICS
    assert sum(asked.calls.values()) <= 2 * TOPICS + 10
    assert asked.calls["retention"] == asked.calls["messageTTL"] == asked.calls["dispatchRate"] == 1
    await compare(*ends)


async def test_without_a_list_of_set_policies_each_policy_is_requested(made):
    asked, ends = await made(8, tells=False)
    assert asked.calls["retention"] == 8
    assert asked.calls["policiesSet"] <= 8
    assert asked.at_once_max <= ASKED_AT_ONCE + 2 * 8  # properties, quotas
    await compare(*ends)


async def test_a_source_whose_topics_have_no_policies_is_asked_once(made, monkeypatch, caplog):
    monkeypatch.setattr(topics, "NOT_COPIED", _all_but("max_consumers", "max_producers"))
    disabled = "Topic level policies is disabled, to enable the topic level policy and retry."
    asked, ends = await made(TOPICS, AdminNotAllowed(disabled, status=405), tells=False)
    for end in ends:
        await end.close()
    assert asked.calls["maxConsumers"] + asked.calls["maxProducers"] <= ASKED_AT_ONCE
    assert "is not copied" not in caplog.text


def _all_but(*names: str) -> frozenset[str]:
    from geminga.client.admin.aio.policies import TopicPolicies

    return frozenset(each.name for each in TopicPolicies.policies_known()) - {*names}
