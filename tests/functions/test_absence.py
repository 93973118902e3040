"""Topics that are away, and topics that are gone for good: no message is to blame for either."""

import asyncio
import json
import urllib.request
from types import SimpleNamespace
from typing import Any

import pytest
from waiting import eventually, never_async

import geminga
from geminga.asyncio import Client
from geminga.client.cluster import Cluster
from geminga.functions import FunctionRunner, FunctionSettings, Output
from geminga.functions.metrics import Metrics
from geminga.functions.sending import PendingResults
from tests.broker.admin.test_permissions import SECRET, token


def same(value: Any) -> Any:
    return value


def marked(value: str) -> Output:
    return Output(value, properties={"a": "b"})


def counted(value: str, context: Any) -> str:
    context.incr_counter("n", 1)
    return str(context.get_counter("n"))


KINDS: dict[str, dict[str, Any]] = {
    "plain": {"function": same},
    "marked": {"function": marked},
    "once": {"function": same, "guarantee": "EFFECTIVELY_ONCE"},
    "tables": {"function": same, "arrow": True},
}


@pytest.fixture(params=KINDS)
def kind(request):
    if request.param == "tables":
        pytest.importorskip("pyarrow")
    return KINDS[request.param]


def admin(base: str, method: str, path: str, body: Any = None, role: str | None = None) -> None:
    headers = {"Content-Type": "application/json"}
    if role is not None:
        headers["Authorization"] = f"Bearer {token(role)}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}/admin/v2/{path}", data, headers, method=method)
    urllib.request.urlopen(request, timeout=30).close()


def away(monkeypatch: pytest.MonkeyPatch, method: str, ending: str, times: int) -> list[str]:
    """Make a method of the client fail N times for topics with a suffix; return the requested topics."""
    opened, asked = getattr(Client, method), list[str]()

    async def fails(self: Any, topic: str, *arguments: Any, **options: Any) -> Any:
        if topic.endswith(ending):
            asked.append(topic)
            if len(asked) <= times:
                raise geminga.ConnectError("away")
        return await opened(self, topic, *arguments, **options)

    monkeypatch.setattr(Client, method, fails)
    return asked


@pytest.mark.parametrize("method", ["create_producer", "get_topic_partitions"])
def test_an_unavailable_output_is_waited_for(place, monkeypatch, kind, method):
    asked = away(monkeypatch, method, "-out", 3)
    with FunctionRunner(place.dead_lettering(**kind)) as runner:
        place.send("a", "b")
        assert place.values(2) == ["a", "b"]
        if asked:
            assert len(asked) == 4 + ("guarantee" in kind and method == "create_producer")
            assert 2 <= runner.metrics.system_exceptions <= 3


@pytest.mark.parametrize("is_short", [True, False])
def test_an_unavailable_topic_chosen_by_a_call_is_waited_for(place, monkeypatch, is_short):
    away(monkeypatch, "create_producer", "-chosen", 4)
    topic = place.topic + "-chosen"
    name = topic.rpartition("/")[2] if is_short else topic

    def publishes(value: str, context: Any) -> None:
        context.publish(name, value)

    with FunctionRunner(place.dead_lettering(publishes)):
        place.send("a", "b")
        assert place.values(2, "-chosen") == ["a", "b"]


@pytest.mark.parametrize("method", ["subscribe", "create_producer", "create_reader"])
def test_unavailable_state_topics_are_awaited(place, monkeypatch, method):
    away(monkeypatch, method, "-state", 4)
    settings = place.dead_lettering(counted)
    with FunctionRunner(settings) as runner:
        place.send("a", "b")
        assert place.values(2) == ["1", "2"]
        assert runner.metrics.user_exceptions == 0
        topic = f"persistent/{settings.tenant}/{settings.namespace}/{settings.name}-state"
        names = [each["producerName"] for each in place.admin("GET", topic, "stats")["publishers"]]
    assert names == [f"{settings.full_name}-state-0"]  # none is left of what failed


async def test_permanent_errors_are_not_waited_for():
    shared: Any = SimpleNamespace(
        settings=SimpleNamespace(guarantee="ATLEAST_ONCE"), metrics=Metrics({}), failed=None
    )
    settling = PendingResults(shared, None)

    async def ask() -> None:
        raise geminga.Timeout("away")

    waiting = asyncio.ensure_future(settling.patiently("it", ask))
    await never_async(waiting.done, 0.4)
    settling.end(ValueError("the state"))
    with pytest.raises(ValueError, match="the state"):
        await asyncio.wait_for(waiting, 30)
    assert shared.metrics.system_exceptions > 1


def test_a_deleted_output_sends_no_message_to_the_dead_letters(place, kind):
    settings = place.dead_lettering(**kind)
    runner = FunctionRunner(settings).start()
    place.send("a")
    assert place.values(1) == ["a"]
    place.terminate(settings.output)
    place.send(*range(5))
    with pytest.raises(geminga.PulsarException, match=r"terminated|TopicTerminated"):
        runner.wait(30)
    assert place.backlog(settings.subscription_name) == 5


def test_an_output_that_requires_encryption_ends_the_function(place, monkeypatch):
    """Brokers say so with the code of a passing trouble."""
    arguments = Cluster.client_arguments
    monkeypatch.setattr(
        Cluster, "client_arguments", lambda self: {**arguments(self), "operation_timeout_seconds": 1}
    )
    namespace = f"public/{place.topic.rpartition('/')[2]}"
    admin(place.broker.admin_url, "PUT", f"namespaces/{namespace}")
    admin(place.broker.admin_url, "POST", f"namespaces/{namespace}/encryptionRequired", True)
    settings = place.dead_lettering(same, output=f"{namespace}/out")
    runner = FunctionRunner(settings).start()
    place.send("a")
    with pytest.raises(geminga.PulsarException, match="Encryption is required"):
        runner.wait(30)


@pytest.mark.parametrize("kind", [each for each in KINDS if each != "once"], indirect=True)
def test_a_backlog_quota_of_the_output_sends_no_message_to_the_dead_letters(place, kind):
    base, name = place.broker.admin_url, place.topic.rpartition("/")[2]
    admin(base, "PUT", f"namespaces/public/{name}")
    quota = f"namespaces/public/{name}/backlogQuota?backlogQuotaType=destination_storage"
    output = f"persistent://public/{name}/out"
    holder = place.client.subscribe(output, "s", initial_position=geminga.InitialPosition.Earliest)
    settings = place.dead_lettering(**kind, output=output)
    with FunctionRunner(settings) as runner:
        place.send("x" * 2000)
        holder.receive(30_000)
        admin(base, "POST", quota, {"limitSize": 10, "limitTime": -1, "policy": "producer_exception"})
        admin(base, "GET", "brokers/backlog-quota-check")
        place.send(*range(20))
        eventually(lambda: runner.metrics.system_exceptions > 2)
        admin(base, "DELETE", quota)
        admin(base, "GET", "brokers/backlog-quota-check")
        assert [holder.receive(30_000).data() for _ in range(20)] == [b"%d" % n for n in range(20)]
    assert place.backlog(settings.subscription_name) == 0


@pytest.mark.parametrize("kind", KINDS, indirect=True)
def test_losing_the_permission_to_publish_ends_the_function(kind):
    with (
        geminga.embedded(token_secret_key=SECRET, super_user_roles=("super",), deduplication=True) as broker,
        geminga.Client(
            broker.service_url, authentication=geminga.AuthenticationToken(token("super"))
        ) as client,
    ):
        for name in ("inputs", "outputs"):
            admin(broker.admin_url, "PUT", f"namespaces/public/{name}", role="super")
            path = f"namespaces/public/{name}/permissions/function"
            admin(broker.admin_url, "POST", path, ["produce", "consume"], role="super")
        settings = FunctionSettings(
            **kind, inputs=("public/inputs/in",), output="public/outputs/out", name="f",
            service_url=broker.service_url,
            connection={"auth_plugin": "token", "auth_params": f"token:{token('function')}"},
        )  # fmt: skip
        producer = client.create_producer("public/inputs/in")
        runner = FunctionRunner(settings).start()
        producer.send(b"1")
        eventually(lambda: runner.metrics.published == 1)
        admin(broker.admin_url, "DELETE", path, role="super")
        producer.send(b"2")
        with pytest.raises(geminga.AuthorizationError):
            runner.wait(30)
