import pytest

from geminga.connection.requests import ANSWERS, RequestTable, error_of, explained, is_interim, request_id_of
from geminga.errors import AuthorizationError, ServiceUnitNotReady, TopicNotFound, UnknownError
from geminga.wire.proto import pulsar_wire_pb2 as pb

INFINITY = float("inf")


def filled(type_: int) -> pb.BaseCommand:
    """An answer with request id 77 and nothing else."""
    command = pb.BaseCommand(type=type_)
    getattr(command, ANSWERS[type_].name).request_id = 77
    return command


@pytest.mark.parametrize("type_", ANSWERS, ids=lambda t: pb.BaseCommand.Type.Name(t))
def test_every_answer_has_its_request_id(type_):
    assert request_id_of(filled(type_)) == 77


@pytest.mark.parametrize(
    "type_",
    [t for t, shape in ANSWERS.items() if shape.error_field],
    ids=lambda t: pb.BaseCommand.Type.Name(t),
)
def test_every_error_becomes_its_class(type_):
    command = filled(type_)
    shape = ANSWERS[type_]
    body = getattr(command, shape.name)
    setattr(body, shape.error_field, pb.AuthorizationError)
    setattr(body, shape.message_field, "not yours")
    error = error_of(command)
    assert type(error) is AuthorizationError
    assert str(error) == "not yours"


def test_an_error_names_the_topic_that_was_asked_about():
    request = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
    request.lookupTopic.topic = "persistent://a/b/c"
    request.lookupTopic.request_id = 1
    error = explained(TopicNotFound("Namespace not found"), request)
    assert type(error) is TopicNotFound
    assert str(error) == "persistent://a/b/c: Namespace not found"
    known = AuthorizationError("no access to persistent://a/b/c")
    assert explained(known, request) is known


def test_an_error_about_no_topic_stays_as_it_is():
    request = pb.BaseCommand(type=pb.BaseCommand.SEEK)
    error = AuthorizationError("not yours")
    assert explained(error, request) is error


def test_success_has_no_error():
    for type_ in ANSWERS:
        if type_ != pb.BaseCommand.ERROR:
            assert error_of(filled(type_)) is None


def test_a_failed_lookup_without_a_code_is_an_error():
    command = filled(pb.BaseCommand.LOOKUP_RESPONSE)
    command.lookupTopicResponse.response = pb.CommandLookupTopicResponse.Failed
    assert type(error_of(command)) is UnknownError
    command = filled(pb.BaseCommand.PARTITIONED_METADATA_RESPONSE)
    command.partitionMetadataResponse.response = pb.CommandPartitionedTopicMetadataResponse.Failed
    assert type(error_of(command)) is UnknownError
    command.partitionMetadataResponse.error = pb.TopicNotFound
    assert type(error_of(command)) is TopicNotFound


def test_errors_are_retriable_or_not():
    command = filled(pb.BaseCommand.ERROR)
    command.error.error = pb.ServiceNotReady
    error = error_of(command)
    assert isinstance(error, ServiceUnitNotReady)
    assert error.retriable


def test_the_answer_to_a_waiting_exclusive_producer_is_not_final():
    command = filled(pb.BaseCommand.PRODUCER_SUCCESS)
    assert not is_interim(command)
    command.producer_success.producer_ready = False
    assert is_interim(command)


def test_requests_expire_in_the_order_of_their_deadlines():
    table = RequestTable()
    table.add(1, 30.0)
    table.add(2, 10.0)
    table.add(3, 20.0)
    table.add(4, INFINITY)
    assert table.next_deadline() == 10.0
    assert table.expire(9.9) == []
    assert table.expire(20.0) == [2, 3]
    assert 2 not in table
    assert table.next_deadline() == 30.0
    assert table.settle(1)
    assert not table.settle(1)
    assert table.next_deadline() == INFINITY
    assert table.drain() == [4]
    assert len(table) == 0


def test_a_requests_deadline_can_be_extended():
    table = RequestTable()
    table.add(1, 10.0)
    table.extend(1, 50.0)
    table.extend(99, 1.0)
    assert table.expire(10.0) == []
    assert table.expire(50.0) == [1]


def test_a_reused_request_id_has_its_own_deadline():
    table = RequestTable()
    table.add(1, 10.0)
    table.settle(1)
    table.add(1, 90.0)
    assert table.expire(80.0) == []
    assert table.next_deadline() == 90.0


def test_an_id_in_flight_cannot_be_used_again():
    table = RequestTable()
    table.add(1, 10.0)
    with pytest.raises(ValueError, match="in flight"):
        table.add(1, 20.0)
