"""The package's names, compared with pulsar-client's where that is installed."""

import importlib
import inspect
import pickle
import subprocess
import sys

import pytest

import geminga
from geminga import errors

pulsar = pytest.importorskip("pulsar")
importlib.import_module("pulsar.asyncio")
importlib.import_module("pulsar.exceptions")

NOT_OURS = {
    # What pulsar-client's module imports for itself.
    "Callable", "List", "Optional", "Tuple", "Union", "logging", "re", "timedelta", "tableview",
    # Pulsar Functions run inside a function worker.
    "Context", "Function", "IdentitySerDe", "PickleSerDe", "SerDe", "functions",
    # Its C++ classes behind ConsumerBatchReceivePolicy, ConsumerKeySharedPolicy, ConsumerDeadLetterPolicy.
    "BatchReceivePolicy", "DeadLetterPolicyBuilder", "KeySharedPolicy",
}  # fmt: skip

OTHER_DEFAULTS = {
    # On, unless chunking is: a waiting sender closes its batch at once, so batching costs it nothing.
    "batching_enabled": None,
    "tls_validate_hostname": True,  # a certificate for another host proves nothing
    "disable_replication": False,  # pulsar.asyncio has None, which means the same
}


def public(module):
    return [name for name in dir(module) if not name.startswith("_")]


@pytest.mark.parametrize("name", sorted(set(public(pulsar)) - NOT_OURS))
def test_every_name_exists(name):
    assert getattr(geminga, name) is not None
    assert name in dir(geminga)


@pytest.mark.parametrize("name", public(pulsar.exceptions))
def test_every_exception_exists(name):
    ours = getattr(geminga.exceptions, name)
    assert issubclass(ours, errors.PulsarException)
    assert ours is getattr(geminga, name)


ENUMS = [
    "BatchingType", "CompressionType", "ConsumerCryptoFailureAction", "ConsumerType", "InitialPosition",
    "KeySharedMode", "LoggerLevel", "PartitionsRoutingMode", "ProducerAccessMode", "RegexSubscriptionMode",
    "Result",
]  # fmt: skip


@pytest.mark.parametrize("name", ENUMS)
def test_enums_have_the_same_members(name):
    theirs = {member: int(value) for member, value in getattr(pulsar, name).__members__.items()}
    ours = {member: value.value for member, value in getattr(geminga, name).__members__.items()}
    assert ours == theirs


def same_default(ours, theirs):
    if ours is theirs or ours == theirs:
        return True
    named = getattr(theirs, "name", None)
    if named is not None:
        return getattr(ours, "name", None) == named
    return type(ours).__name__ == type(theirs).__name__


def compare(ours, theirs, label):
    our_parameters = inspect.signature(ours).parameters
    positional = [p.name for p in our_parameters.values() if p.kind is not p.KEYWORD_ONLY]
    their_parameters = [
        p for p in inspect.signature(theirs).parameters.values() if p.kind is not p.VAR_KEYWORD
    ]
    assert positional[: len(their_parameters)] == [p.name for p in their_parameters], label
    for parameter in their_parameters:
        expected = OTHER_DEFAULTS.get(parameter.name, parameter.default)
        if expected is inspect.Parameter.empty:
            continue  # a default of ours where theirs has none
        assert same_default(our_parameters[parameter.name].default, expected), f"{label}: {parameter.name}"
    # What we add can always be left out.
    for name in set(our_parameters) - {p.name for p in their_parameters}:
        assert our_parameters[name].default is not inspect.Parameter.empty, f"{label}: {name}"


def methods(cls):
    return [
        name
        for name, value in vars(cls).items()
        if callable(value) and (not name.startswith("_") or name == "__init__")
    ]


@pytest.mark.parametrize("name", methods(pulsar.Client))
def test_client(name):
    compare(getattr(geminga.Client, name), getattr(pulsar.Client, name), name)


@pytest.mark.parametrize("name", methods(pulsar.asyncio.Client))
def test_asyncio_client(name):
    compare(getattr(geminga.asyncio.Client, name), getattr(pulsar.asyncio.Client, name), name)


HANDLES = [
    ("Producer", "Producer"),
    ("Consumer", "Consumer"),
    ("Reader", "Reader"),
    ("TableView", "TableView"),
]
MADE_BY_THE_CLIENT = {"__init__"}


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (cls, name)
        for cls in ("Producer", "Consumer", "Reader", "TableView", "Message")
        for name in methods(getattr(pulsar, cls))
        if name not in MADE_BY_THE_CLIENT
    ],
)
def test_handles(cls, name):
    compare(getattr(getattr(geminga, cls), name), getattr(getattr(pulsar, cls), name), f"{cls}.{name}")


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (cls, name)
        for cls in ("Producer", "Consumer", "Reader")
        for name in methods(getattr(pulsar.asyncio, cls))
        if name not in MADE_BY_THE_CLIENT
    ],
)
def test_asyncio_handles(cls, name):
    ours, theirs = getattr(getattr(geminga.asyncio, cls), name), getattr(getattr(pulsar.asyncio, cls), name)
    compare(ours, theirs, f"asyncio {cls}.{name}")
    if inspect.iscoroutinefunction(theirs):
        assert inspect.iscoroutinefunction(ours)


@pytest.mark.parametrize(
    "name",
    [
        "AuthenticationBasic", "AuthenticationTLS", "AuthenticationToken", "AutoClusterFailover",
        "ConsumerBatchReceivePolicy", "ConsumerDeadLetterPolicy", "ConsumerKeySharedPolicy",
        "CryptoKeyReader", "ConsoleLogger", "FileLogger", "ServiceInfo",
    ],
)  # fmt: skip
def test_constructors(name):
    compare(getattr(geminga, name).__init__, getattr(pulsar, name).__init__, name)


@pytest.mark.parametrize("name", [n for n in public(pulsar.schema) if n[0].isupper()])
def test_schema_names(name):
    assert getattr(geminga.schema, name) is not None


@pytest.mark.parametrize("name", public(pulsar.exceptions))
def test_errors_pickle(name):
    cls = getattr(geminga, name)
    copy = pickle.loads(pickle.dumps(cls("what to do")))
    assert type(copy) is cls
    assert str(copy) == "what to do"


def test_all_names_load():
    for name in geminga.__all__:
        if name != "spark":  # needs pyspark
            assert getattr(geminga, name) is not None, name
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = geminga.no_such_name


def test_importing_is_light():
    program = (
        "import sys, time; t = time.perf_counter(); import geminga; t = time.perf_counter() - t;"
        "heavy = {'google.protobuf', 'pyarrow', 'numpy', 'numba', 'aiohttp', 'pyspark', 'asyncio', 'click'};"
        "print(t, sorted(heavy & set(sys.modules)))"
    )
    best, loaded = 1.0, ""
    for _ in range(3):  # the best of three: other processes share the machine
        output = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        seconds, _, loaded = output.partition(" ")
        best = min(best, float(seconds))
    assert loaded.strip() == "[]"
    assert best < 0.05
