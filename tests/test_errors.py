"""The error tree: every class pickles, and every code of the protocol has its class."""

import builtins
import pickle
from collections.abc import Iterator

import pytest
from interpreter import run_python

from geminga import errors
from geminga.errors import Result, result_of
from geminga.wire.proto import pulsar_wire_pb2 as pb


def classes(
    root: type[errors.PulsarException] = errors.PulsarException,
) -> Iterator[type[errors.PulsarException]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from classes(child)


ALL = sorted(set(classes()), key=lambda cls: cls.__name__)
BRANCHES = (
    errors.UsageError, errors.PeerError, errors.ServerReportedError, errors.TransientError, errors.StoreError,
)  # fmt: skip


@pytest.mark.parametrize("cls", ALL)
def test_every_class_pickles_and_keeps_its_message(cls):
    error = cls("topic 'x' is not there; create it first")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert again.retriable is cls.retriable


@pytest.mark.parametrize("cls", ALL)
def test_every_class_is_on_a_branch(cls):
    assert getattr(errors, cls.__name__) is cls
    # The error of many messages at once may be of every branch.
    assert cls in (errors.PulsarException, errors.SendManyFailed) or issubclass(cls, BRANCHES)
    assert isinstance(cls.retriable, bool)


@pytest.mark.parametrize("value", list(pb.ServerError.DESCRIPTOR.values), ids=lambda value: value.name)
def test_every_code_has_its_class(value):
    number = value.number
    error = errors.from_server(number, "what the broker said")
    assert type(error) is errors.SERVER_ERRORS[number]
    assert error.code == number
    assert str(error) == "what the broker said"


def test_codes_are_neither_shared_nor_invented():
    codes = {value.number for value in pb.ServerError.DESCRIPTOR.values}
    assert set(errors.SERVER_ERRORS) == codes
    assert len(set(errors.SERVER_ERRORS.values())) == len(codes)


def test_a_code_that_is_newer_than_ours():
    error = errors.from_server(999, "")
    assert type(error) is errors.UnknownError
    assert str(error) == "UnknownError"


@pytest.mark.parametrize(
    ("cls", "kind"),
    [
        (errors.Timeout, TimeoutError),
        (errors.ConnectError, ConnectionError),
        (errors.InvalidConfiguration, ValueError),
        (errors.InvalidUrl, ValueError),
        (errors.InvalidTopicName, ValueError),
        (errors.MessageTooBig, ValueError),
        (errors.SERVER_ERRORS[17], errors.InvalidTopicName),
    ],
)
def test_errors_are_python_s_own_kinds_too(cls, kind):
    assert issubclass(cls, kind)


def test_a_lookup_error_is_not_python_s():
    assert not issubclass(errors.LookupError, builtins.LookupError)


def test_an_error_may_be_made_from_a_result():
    error = errors.PulsarException(errors.Result.Timeout, "no answer")
    assert error.error() is errors.Result.Timeout
    assert str(error) == "3 Timeout: no answer"
    assert str(errors.PulsarException(errors.Result.Timeout)) == "3 Timeout"
    assert str(errors.PulsarException(errors.Result.Timeout, msg="why")) == "3 Timeout: why"
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.error(), str(copy)) == (error.error(), str(error))


def test_names_that_are_asked_for_while_another_thread_loads_the_errors():
    program = """
import sys, threading
from importlib.machinery import SourceFileLoader
begun, go_on = threading.Event(), threading.Event()
load = SourceFileLoader.exec_module
def slowly(self, module):
    if module.__name__ == "geminga._util.choices":  # the first import of the errors
        begun.set()
        assert go_on.wait(60)
    load(self, module)
SourceFileLoader.exec_module = slowly
import geminga
other = threading.Thread(target=lambda: __import__("geminga.errors"))
other.start()
assert begun.wait(60)
geminga.Function
go_on.set()
other.join()
assert geminga.Timeout is geminga.errors.Timeout
"""
    run_python(program)


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
