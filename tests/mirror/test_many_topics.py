"""Two thousand topics, both ways: mostly quiet, some new, and a mirror that is killed."""

from typing import Any

import pytest
from waiting import eventually

import geminga
from tests.mirror.test_kills import MirrorProcess

TOPICS = 2_000
NAMESPACE = "public/default"


def name(number: int) -> str:
    return f"t-{number:05}"


def publish(broker: Any, numbers: range, text: bytes) -> None:
    with broker.client(operation_timeout_seconds=120) as client:
        for number in numbers:
            client.create_producer(name(number)).send(text)


def entries(admin: geminga.Admin, numbers: range) -> list[int]:
    return [admin.topics.internal_stats(name(number)).number_of_entries for number in numbers]


def has_topics(admin: geminga.Admin, count: int) -> bool:
    return sum("/t-" in topic for topic in admin.topics.list(NAMESPACE)) >= count


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_two_thousand_topics_both_ways(tmp_path):
    with (
        geminga.embedded(tmp_path / "one", cluster="one") as one,
        geminga.embedded(tmp_path / "other", cluster="other") as other,
        geminga.Admin(one.admin_url) as here,
        geminga.Admin(other.admin_url) as there,
    ):
        with one.client() as client:
            for number in range(0, TOPICS, 100):
                client.subscribe(name(number), "s").close()
        publish(one, range(TOPICS), b"one")
        with MirrorProcess(one, other, "t-.*") as forth, MirrorProcess(other, one, "t-.*") as back:
            eventually(lambda: has_topics(there, TOPICS), 600)
            eventually(lambda: min(entries(there, range(TOPICS))) >= 1, 600)
            # New ones on either side while both run, and messages of the other side in some that are quiet.
            publish(one, range(TOPICS, TOPICS + 10), b"one")
            publish(other, range(TOPICS + 10, TOPICS + 20), b"other")
            eventually(lambda: has_topics(there, TOPICS + 20) and has_topics(here, TOPICS + 20), 300)
            for process in (forth, back):
                process.kill()
            publish(other, range(200), b"other")
            publish(one, range(100, 300), b"one again")
            publish(one, range(TOPICS + 20, TOPICS + 30), b"one")
            forth.start()
            back.start()
            expected = [1 + (n < 200) + (100 <= n < 300) for n in range(TOPICS)] + [1] * 30
            for admin in (here, there):
                eventually(lambda admin=admin: has_topics(admin, TOPICS + 30), 600)
                eventually(lambda admin=admin: entries(admin, range(len(expected))) >= expected, 600)
            # Nothing goes round, and nothing comes twice.
            with one.client() as client:
                client.create_producer(name(0)).send(b"the last")
            eventually(lambda: entries(there, range(1)) == [3], 300)
            for admin in (here, there):
                assert entries(admin, range(len(expected))) == [3, *expected[1:]]
        for admin in (here, there):
            assert admin.topics.stats(name(100)).subscriptions["s"].messages_in_backlog == 3
