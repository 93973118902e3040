import pytest

from geminga import errors
from geminga.errors import Result, result_of


def test_names_and_numbers_are_those_of_pulsar_client():
    witness = pytest.importorskip("_pulsar")
    assert {m.name: m.value for m in Result} == {n: int(v) for n, v in witness.Result.__members__.items()}


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, Result.Ok),
        (errors.Timeout("x"), Result.Timeout),
        (errors.ProducerQueueIsFull("x"), Result.ProducerQueueIsFull),
        (errors.ProducerFenced("x"), Result.ProducerFenced),
        (errors.BrokerInvalidTopicName("x"), Result.InvalidTopicName),
        (errors.ProtocolError("x"), Result.UnknownError),
        (KeyError("x"), Result.UnknownError),
    ],
)
def test_each_error_has_its_result(error, result):
    assert result_of(error) is result


def test_every_server_error_has_a_result_of_its_own():
    for cls in errors.SERVER_ERRORS.values():
        if cls is not errors.UnknownError:
            assert result_of(cls("x")) is not Result.UnknownError, cls
