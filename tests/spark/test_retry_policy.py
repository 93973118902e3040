import pytest
from doubles import raising
from scripted_cluster import Outage

from geminga.errors import ConnectError, ConsumerBusy, TopicNotFound
from geminga.spark.retry_policy import RetryPolicy


@pytest.mark.parametrize("failures", [0, 1, 7])
def test_temporary_failures_are_retried(failures):
    outage = Outage(failures)
    RetryPolicy(30, outage.clock, outage.sleep).call("asking", outage)
    assert outage.left == 0


def test_retries_end_after_the_timeout():
    outage = Outage(1 << 30)
    with pytest.raises(ConnectError) as caught:
        RetryPolicy(30, outage.clock, outage.sleep).call("asking", outage)
    assert 25 < outage.now <= 30
    assert caught.value.__notes__ == ["asking failed for 30 s (option operationTimeoutMs)"]

    def slow() -> None:
        outage.now += 31
        outage()

    left = outage.left
    with pytest.raises(ConnectError):
        RetryPolicy(30, outage.clock, outage.sleep).call("asking", slow)
    assert outage.left == left - 1, "what took all the time is not begun again"


def test_a_subscription_in_use_is_awaited_for_a_third_of_the_timeout():
    outage = Outage(0)
    with pytest.raises(ConsumerBusy) as caught:
        RetryPolicy(30, outage.clock, outage.sleep).call(
            "opening", raising(ConsumerBusy("it has a consumer"))
        )
    assert 5 < outage.now <= 10
    assert "each source of a query needs a predefinedSubscription of its own" in caught.value.__notes__[0]


def test_other_failures_are_raised_at_once():
    outage = Outage(0)
    with pytest.raises(TopicNotFound):
        RetryPolicy(30, outage.clock, outage.sleep).call("asking", raising(TopicNotFound("no topic t")))
    assert outage.now == 0
