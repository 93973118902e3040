"""Why Geminga differs from ``pulsar-client``: the tables of ``docs/coming-from-pulsar-client.md``.

``NAMES`` has one row for everything that ``tools/compare_clients.py`` finds; a test fails for a row too many
and for one too few. ``BEHAVIOUR`` holds what names cannot show, each with the test that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Named:
    """A difference of names; the texts are those of the walk."""

    where: str
    theirs: str
    ours: str
    why: str


@dataclass(frozen=True)
class Behaviour:
    """A difference of behaviour, and the test (file and function) that shows it."""

    what: str
    theirs: str
    ours: str
    why: str
    test: str


_MADE_BY_CLIENT = "made by the client, never by programs"
_BOTH_SPELLINGS = "a number that may also be called: `id.ledger_id` and `id.ledger_id()` are the same"
_HELPER = "a helper of its module, not documented"

NAMES = (
    Named(
        "Client(tls_validate_hostname)", "False", "True",
        "a certificate for another host proves nothing; switch it off where you must",
    ),
    Named(
        "Client.subscribe(batch_index_ack_enabled)", "False", "True",
        "of a batch only what is not done comes again, to other consumers and after a reconnect, too",
    ),
    Named("Consumer()", "()", "(runtime, consumer, threads)", _MADE_BY_CLIENT),
    Named("EncryptionContext()", "(context)", "(metadata, decryption_failed)", _MADE_BY_CLIENT),
    Named("EncryptionKey()", "(key)", "(key, value, metadata)", _MADE_BY_CLIENT),
    Named("Message()", "()", "(entry, index)", _MADE_BY_CLIENT),
    Named("MessageId.batch_index", "method", "attribute", _BOTH_SPELLINGS),
    Named("MessageId.entry_id", "method", "attribute", _BOTH_SPELLINGS),
    Named("MessageId.ledger_id", "method", "attribute", _BOTH_SPELLINGS),
    Named("MessageId.partition", "method", "attribute", _BOTH_SPELLINGS),
    Named("Producer()", "()", "(runtime, producer)", _MADE_BY_CLIENT),
    Named("Reader()", "()", "(runtime, reader, threads)", _MADE_BY_CLIENT),
    Named("TableView()", "(table_view, topic, subscription, schema)", "(runtime, view)", _MADE_BY_CLIENT),
    Named(
        "asyncio.Client.create_producer(batching_enabled)", "True", "False",
        "as in `Client`: in batches Key_Shared consumers get keys of others, and Shared ones share by batch",
    ),
    Named(
        "asyncio.Client.subscribe(batch_index_ack_enabled)", "False", "True", "as in `Client`",
    ),
    Named(
        "asyncio.Consumer()", "(consumer, schema)", "(context, topics, subscription, name, settings)",
        _MADE_BY_CLIENT,
    ),
    Named("asyncio.Producer()", "(producer, schema)", "(context, publisher)", _MADE_BY_CLIENT),
    Named("asyncio.Producer.send(disable_replication)", "None", "False", "both mean: replicate"),
    Named("asyncio.Reader()", "(reader, schema)", "(consumer, start, inclusive)", _MADE_BY_CLIENT),
    Named("schema.definition.is_unicode", "method", "(none)", _HELPER),
    Named("schema.schema.remove_reserved_key", "method", "(none)", _HELPER),
    Named("schema.schema_avro.HAS_AVRO", "attribute", "(none)", _HELPER),
    Named("schema.schema_protobuf.HAS_PROTOBUF", "attribute", "(none)", _HELPER),
)  # fmt: skip

_AS_THERE = "as in pulsar-client's two clients"
_LISTENERS = "coroutines need no listeners: `async for message in consumer`"

FACES = (
    Named(
        "Client.create_producer(schema)", "positional or keyword, None",
        "positional or keyword, BytesSchema", _AS_THERE,
    ),
    Named("Client.create_reader(reader_listener)", "(none)", "positional or keyword, None", _LISTENERS),
    Named(
        "Client.create_reader(schema)", "positional or keyword, None", "positional or keyword, BytesSchema",
        _AS_THERE,
    ),
    Named(
        "Client.create_table_view(schema)", "positional or keyword, None",
        "positional or keyword, BytesSchema", _AS_THERE,
    ),
    Named("Client.runtime", "(none)", "attribute", "for the modules of the package: the I/O thread"),
    Named("Client.subscribe(start_paused)", "(none)", "keyword-only, False", _LISTENERS),
    Named("Client.subscribe(initial_position)", "stands earlier", "stands later", _AS_THERE),
    Named(
        "Client.subscribe(is_pattern_topic)", "positional or keyword, False", "(none)",
        "as there; both take `re.compile(...)`",
    ),
    Named("Client.subscribe(message_listener)", "(none)", "positional or keyword, None", _LISTENERS),
    Named(
        "Client.subscribe(pattern_auto_discovery_period)", "keyword-only, 60", "positional or keyword, 60",
        "`pulsar.asyncio` has none",
    ),
    Named("Client.subscribe(schema)", "positional or keyword, None", "positional or keyword, BytesSchema",
          _AS_THERE),
    Named("Consumer.pause_message_listener", "(none)", "method", _LISTENERS),
    Named("Consumer.resume_message_listener", "(none)", "method", _LISTENERS),
    Named(
        "Producer.send_async(callback)", "positional or keyword, None", "positional or keyword, required",
        "`pulsar.asyncio` has no `send_async`; there a task waits for `send`",
    ),
    Named("Producer.submit_encoded", "(none)", "method", "a task waits for `publish_encoded`"),
    Named("Producer.submit_table", "(none)", "method", "a task waits for `send_table`"),
    Named("Reader.record_batches", "(none)", "method", "whoever reads such a stream waits in a thread"),
)  # fmt: skip
"""Differences of the synchronous API (``ours``) from the asyncio API (``theirs``)."""

PLAIN_CALLS = frozenset({
    "Client.get_service_info", "Client.shutdown",
    "Consumer.consumer_name", "Consumer.has_reached_end_of_topic", "Consumer.is_connected",
    "Consumer.redeliver_unacknowledged_messages", "Consumer.subscription_name", "Consumer.topic",
    "Producer.is_connected", "Producer.last_sequence_id", "Producer.producer_name", "Producer.send_async",
    "Producer.statistics", "Producer.topic",
    "Reader.is_connected", "Reader.tables", "Reader.topic",
    "TableView.get",
})  # fmt: skip
"""What is no coroutine in asyncio either: it waits for nothing (`Reader.tables` is iterated)."""

_DETAILS = "tests/client/test_dropin_details.py"

BEHAVIOUR = (
    Behaviour(
        "an argument of the wrong type or value", "`ValueError` with the expected type",
        "`InvalidConfiguration`, which is a `ValueError`, with field, value and what is allowed",
        "`except ValueError` catches both",
        f"{_DETAILS}::test_wrong_arguments_are_value_errors",
    ),
    Behaviour(
        "closing twice", "producers and clients: `AlreadyClosed`; consumers and readers: `ValueError` "
        "(asyncio: nothing happens)",
        "nothing happens; only a producer of asyncio raises `AlreadyClosed`, too",
        "a `finally` may close what is closed",
        f"{_DETAILS}::test_closing_twice",
    ),
    Behaviour(
        "Ctrl+C while `receive` waits", "`Interrupted`", "`Interrupted`, which is a `KeyboardInterrupt`",
        "both `except` clauses work",
        f"{_DETAILS}::test_a_signal_ends_receive",
    ),
    Behaviour(
        "the classes of errors", "one flat list under `PulsarException`",
        "the same classes, which are also Python's own kinds: `Timeout` is a `TimeoutError`, `ConnectError` "
        "a `ConnectionError`",
        "`except` clauses of both kinds work",
        "tests/test_errors.py::test_errors_are_python_s_own_kinds_too",
    ),
    Behaviour(
        "the text of errors", "`Pulsar error: ConsumerBusy`; in asyncio the number and the name",
        "what happened and what to do; `error()` gives the `Result` everywhere",
        "a message is for the person who reads it", f"{_DETAILS}::test_the_text_of_errors",
    ),
    Behaviour(
        "a custom router that names no partition", "`UnknownError`",
        "`InvalidMessage` with the answer and the range",
        "the mistake is the router's", f"{_DETAILS}::test_a_router_that_names_no_partition",
    ),
    Behaviour(
        "a callback of `send_async` that raises", "logged, and `flush` then waits for ever",
        "logged, and the producer goes on", "one bad callback is not worth a process",
        f"{_DETAILS}::test_a_callback_that_raises",
    ),
    Behaviour(
        "log lines", "on standard output, unless told otherwise",
        "to the logger `geminga`; nothing is printed",
        "a library is quiet; the `logger` argument does what it does in pulsar-client",
        f"{_DETAILS}::test_a_library_is_quiet",
    ),
    Behaviour(
        "a handler or filter of `logger` that raises", "the line is printed on standard output",
        "the error is printed on standard error", "a log line decides nothing about sending and receiving",
        "tests/test_loggers.py::test_client_and_broker_work_while_every_log_line_raises",
    ),
    Behaviour(
        "gevent and eventlet (`monkey.patch_all()`, Celery's `-P gevent`, Locust)",
        "a call that waits blocks all greenlets", "a call that waits blocks its own greenlet",
        "the client's I/O thread is a greenlet with asyncio's loop",
        "tests/test_event_loops.py::test_client_works_where_threads_are_greenlets",
    ),
    Behaviour(
        "`io_threads`", "so many threads for connections",
        "one thread, and a warning where more are asked for",
        "one carries what a client sends and receives; more clients have more",
        "tests/client/test_sync.py::test_arguments_without_effect_say_so",
    ),
    Behaviour(
        "`threading.enumerate()`", "nothing of a client: its threads are not Python's",
        "one `geminga-io` for each client; that of one that is dropped without `close` ends a moment later",
        "a finalizer that waited would swallow what a signal's handler raises",
        "tests/client/test_endings.py::test_a_dropped_client_does_not_wait_for_the_garbage_collector",
    ),
    Behaviour(
        "`use_tls=True` with a `pulsar://` URL, `log_conf_file_path`", "no effect, without a word",
        "no effect, with a warning", "who asks for encryption should know that there is none",
        "tests/client/test_sync.py::test_arguments_without_effect_say_so",
    ),
    Behaviour(
        "an `http://` service URL that answers with an error", "`ConnectError`, whatever the status",
        "a `ConnectError` that is also `AuthenticationError`, `TopicNotFound`, ...; a server's fault (5xx) "
        "is tried again",
        "the status says what to do", "tests/connection/test_http_lookup.py::test_refusals",
    ),
    Behaviour(
        "`AuthenticationAthenz`", "supported", "`OperationNotSupported`",
        "there is no Athenz library for Python (decisions/athenz.md); `AuthenticationToken` takes a function "
        "that gets tokens",
        "tests/client/test_authentication.py::test_what_is_not_supported_says_what_to_use",
    ),
    Behaviour(
        "wrong parameters of `AuthenticationOauth2`", "a log line, and connecting fails",
        "`ValueError` at once",
        "a mistake shows where it was made", "tests/client/test_oauth2.py::test_wrong_parameters",
    ),
    Behaviour(
        "a message id compared with something else", "`TypeError`", "not equal",
        "as Python's own objects", f"{_DETAILS}::test_ids_compared_with_other_things",
    ),
    Behaviour(
        "an enumeration made from an unknown number", "a member without a name", "`ValueError`",
        "an unknown choice is a mistake", f"{_DETAILS}::test_unknown_choices",
    ),
    Behaviour(
        "a `Bytes` field given a number", "kept, and refused when it is encoded",
        "`TypeError` when it is set",
        "the refusal names the field", f"{_DETAILS}::test_bytes_fields_are_checked",
    ),
    Behaviour(
        "an enumeration's field given a value that is a text", "refused unless it is a name",
        "names and values",
        "`JsonSchema` writes values, so reading what one has written needs them",
        f"{_DETAILS}::test_enumerations_with_texts_come_back",
    ),
    Behaviour(
        "a bool in an `Integer` or `Long` field", "kept: `true` in JSON", "the number 0 or 1",
        "other clients' readers refuse `true` for a number", f"{_DETAILS}::test_a_bool_in_a_field_of_numbers",
    ),
    Behaviour(
        "Avro data whose writer's schema cannot be had", "read with the reader's schema, with a warning",
        "`IncompatibleSchema`", "a guess may give wrong values without a word",
        "tests/schema/test_avro.py::test_nothing_is_read_with_a_guess",
    ),
    Behaviour(
        "messages in the receive queue while there is no connection",
        "received, and again after the reconnect, also if they were acknowledged",
        "Exclusive consumers and readers receive them; after the reconnect only those without "
        "acknowledgement are redelivered. Shared, Key_Shared and Failover consumers wait for the reconnect",
        "an acknowledgement is sent before the permits; of a shared subscription another consumer may have "
        "received them meanwhile",
        "tests/consumer/test_core.py::"
        "test_queued_messages_are_received_without_a_connection_and_only_unacknowledged_ones_again",
    ),
    Behaviour(
        "the client used in a forked child", "waits for ever", "`ForkedProcessError`: make one in the child",
        "threads do not survive a fork", "tests/client/test_sync.py::test_calls_in_a_forked_child_raise",
    ),
)  # fmt: skip

SUITE = {
    "test_batch_end_to_end": "it takes for granted that `pulsar.asyncio` sends in batches (see Names)",
    "test_flush": "as `test_batch_end_to_end`",
    "test_seek_timestamp": "now and then, when what was sent before carries the very millisecond it seeks",
    "test_logger_thread_leaks": "it counts Python's threads, just when a client was dropped (see Behaviour)",
}
"""Tests of ``pulsar-client``'s own suite that a difference explains."""
