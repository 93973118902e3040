from functools import reduce

import pytest
from pieces import receive

from geminga.connection.authentication import Credentials
from geminga.connection.core import ClientConnection, RequestAnswered, RequestTimedOut
from geminga.connection.requests import ANSWERS, error_of, explained
from geminga.errors import AuthorizationError, TopicNotFound, UnknownError
from geminga.wire.frames import encode_command
from geminga.wire.proto import pulsar_wire_pb2 as pb

INFINITY = float("inf")
QUESTION = pb.BaseCommand(type=pb.BaseCommand.PING, ping={})


@pytest.fixture
def connection():
    """A connection that is ready at time 0."""
    made = ClientConnection(Credentials("none", b""), now=0.0, peer="peer")
    made.start(0.0)
    connected = pb.BaseCommand(type=pb.BaseCommand.CONNECTED)
    connected.connected.server_version = "test"
    receive(made, encode_command(connected), 0.0)
    return made


def filled(type_: int) -> pb.BaseCommand:
    """An answer with request id 77 and nothing else."""
    command = pb.BaseCommand(type=type_)
    getattr(command, ANSWERS[type_].name).request_id = 77
    return command


def complete(type_: int) -> pb.BaseCommand:
    """An answer with request id 77 and the fields that it must have."""
    command = filled(type_)
    while missing := getattr(command, ANSWERS[type_].name).FindInitializationErrors():
        *parents, name = missing[0].split(".")
        holder = reduce(getattr, parents, getattr(command, ANSWERS[type_].name))
        field = holder.DESCRIPTOR.fields_by_name[name]
        if field.message_type is None:
            setattr(holder, name, field.default_value)
        else:
            getattr(holder, name).SetInParent()
    return command


@pytest.mark.parametrize("type_", ANSWERS, ids=lambda t: pb.BaseCommand.Type.Name(t))
def test_every_answer_has_its_request_id(type_, connection):
    command = complete(type_)
    connection.request(QUESTION, 77, 10.0)
    assert receive(connection, encode_command(command), 1.0) == [RequestAnswered(77, command)]


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


def test_requests_time_out_at_their_deadlines(connection):
    for request_id, deadline in ((1, 25.0), (2, 10.0), (3, 20.0), (4, INFINITY)):
        connection.request(QUESTION, request_id, deadline)
    assert connection.next_deadline() == 10.0
    assert connection.tick(9.9) == []
    assert connection.tick(20.0) == [RequestTimedOut(2), RequestTimedOut(3)]
    assert connection.next_deadline() == 25.0
    connection.abort(1)
    assert connection.tick(25.0) == []
    assert connection.close() == [4]


def test_a_reused_request_id_has_its_own_deadline(connection):
    connection.request(QUESTION, 1, 10.0)
    connection.abort(1)
    connection.request(QUESTION, 1, 25.0)
    assert connection.tick(20.0) == []
    assert connection.next_deadline() == 25.0


def test_an_id_in_flight_cannot_be_used_again(connection):
    connection.request(QUESTION, 1, 10.0)
    with pytest.raises(ValueError, match="in flight"):
        connection.request(QUESTION, 1, 20.0)
