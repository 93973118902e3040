"""Differences from ``pulsar-client`` and their reasons: the tables of ``docs/coming-from-pulsar-client.md``.

``NAMES`` has one row for everything that ``tools/compare_clients.py`` finds, ``SEEN`` one for each program of
``tools/client_behaviour.py`` whose results differ; tests fail for a row too many and for one too few.
``BEHAVIOUR`` holds differences that no small program shows, each with the test that shows it.
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
_BOTH_SPELLINGS = "both `id.ledger_id` and `id.ledger_id()` work"
_HELPER = "an undocumented helper of its module"

NAMES = (
    Named(
        "Client(tls_validate_hostname)", "False", "True",
        "a certificate for another host proves nothing; set False if you must",
    ),
    Named(
        "Client.subscribe(batch_index_ack_enabled)", "False", "True",
        "only the unacknowledged messages of a batch are redelivered, also to other consumers",
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
        "asyncio.Client.subscribe(batch_index_ack_enabled)", "False", "True", "as in `Client`",
    ),
    Named(
        "asyncio.Consumer()", "(consumer, schema)", "(context, topics, subscription, name, settings)",
        _MADE_BY_CLIENT,
    ),
    Named("asyncio.Producer()", "(producer, schema)", "(context, publisher)", _MADE_BY_CLIENT),
    Named("asyncio.Producer.send(disable_replication)", "None", "False", "both mean: replicate messages"),
    Named("asyncio.Reader()", "(reader, schema)", "(consumer, start, inclusive)", _MADE_BY_CLIENT),
    Named("ServiceInfo.service_url", "attribute", "(none)", "an attribute of each object, not of the class"),
    Named("schema.definition.is_unicode", "method", "(none)", _HELPER),
    Named("schema.schema.remove_reserved_key", "method", "(none)", _HELPER),
    Named("schema.schema_avro.HAS_AVRO", "attribute", "(none)", _HELPER),
    Named("schema.schema_protobuf.HAS_PROTOBUF", "attribute", "(none)", _HELPER),
)  # fmt: skip

_AS_THERE = "as in pulsar-client's two clients"
_LISTENERS = "coroutines need no listeners: `async for message in consumer`"

FACES = (
    Named(
        "Client.create_producer(batching_enabled)", "positional or keyword, True",
        "positional or keyword, False", _AS_THERE,
    ),
    Named(
        "Client.create_producer(schema)", "positional or keyword, None",
        "positional or keyword, BytesSchema", _AS_THERE,
    ),
    Named("Client.create_reader(failure_listener)", "(none)", "keyword-only, None", _LISTENERS),
    Named("Client.create_reader(reader_listener)", "(none)", "positional or keyword, None", _LISTENERS),
    Named(
        "Client.create_reader(schema)", "positional or keyword, None", "positional or keyword, BytesSchema",
        _AS_THERE,
    ),
    Named(
        "Client.create_table_view(schema)", "positional or keyword, None",
        "positional or keyword, BytesSchema", _AS_THERE,
    ),
    Named("Client.runtime", "(none)", "attribute", "internal: the I/O thread"),
    Named("Client.subscribe(failure_listener)", "(none)", "keyword-only, None", _LISTENERS),
    Named("Client.subscribe(start_paused)", "(none)", "keyword-only, False", _LISTENERS),
    Named("Client.subscribe(initial_position)", "earlier position", "later position", _AS_THERE),
    Named(
        "Client.subscribe(is_pattern_topic)", "positional or keyword, False", "(none)",
        "as in pulsar-client; both accept `re.compile(...)`",
    ),
    Named("Client.subscribe(message_listener)", "(none)", "positional or keyword, None", _LISTENERS),
    Named(
        "Client.subscribe(pattern_auto_discovery_period)", "keyword-only, 60", "positional or keyword, 60",
        "`pulsar.asyncio` does not have this argument",
    ),
    Named("Client.subscribe(schema)", "positional or keyword, None", "positional or keyword, BytesSchema",
          _AS_THERE),
    Named("Consumer.pause_message_listener", "(none)", "method", _LISTENERS),
    Named("Consumer.resume_message_listener", "(none)", "method", _LISTENERS),
    Named(
        "Producer.send_async(callback)", "positional or keyword, None", "positional or keyword, required",
        "`pulsar.asyncio` has no `send_async`: use a task that awaits `send`",
    ),
    Named("Producer.submit_encoded", "(none)", "method", "use a task that awaits `publish_encoded`"),
    Named("Producer.submit_table", "(none)", "method", "use a task that awaits `send_table`"),
    Named("Reader.record_batches", "(none)", "method", "readers of such a stream block a thread"),
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
"""Methods that are no coroutines in asyncio either: they do not wait (`Reader.tables` is iterated)."""

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
        "(asyncio: no effect)",
        "no effect; only a producer of asyncio also raises `AlreadyClosed`",
        "a `finally` block may close a closed object",
        f"{_DETAILS}::test_closing_twice",
    ),
    Behaviour(
        "Ctrl+C while `receive` waits", "`Interrupted`", "`Interrupted`, which is a `KeyboardInterrupt`",
        "both `except` clauses work",
        "tests/client/test_interrupts.py::test_ctrl_c_ends_receive_and_read_next",
    ),
    Behaviour(
        "the classes of errors", "all directly below `PulsarException`",
        "the same classes, also derived from Python's own: `Timeout` is a `TimeoutError`, `ConnectError` "
        "a `ConnectionError`",
        "`except` clauses of both kinds work",
        "tests/test_errors.py::test_errors_are_python_s_own_kinds_too",
    ),
    Behaviour(
        "the text of errors", "`Pulsar error: ConsumerBusy`; in asyncio number and name",
        "what happened and what to do; `error()` always returns the `Result`",
        "messages are for people", f"{_DETAILS}::test_the_text_of_errors",
    ),
    Behaviour(
        "a custom router that returns no valid partition", "`UnknownError`",
        "`InvalidMessage` with the returned value and the range",
        "the error names the cause",
        "tests/producer/test_routing.py::test_a_router_that_names_no_partition_raises_invalid_message",
    ),
    Behaviour(
        "a callback of `send_async` that raises", "logged, and `flush` then hangs",
        "logged, and the producer keeps working", "one faulty callback must not stop a process",
        "tests/client/test_callbacks.py::test_all_callbacks_run_though_one_raises",
    ),
    Behaviour(
        "log lines", "on standard output by default",
        "to the logger `geminga`; nothing is printed",
        "libraries do not print; the `logger` argument works as in pulsar-client",
        f"{_DETAILS}::test_geminga_prints_nothing_and_pulsar_client_does",
    ),
    Behaviour(
        "a handler or filter of `logger` that raises", "the line is printed on standard output",
        "the error is printed on standard error", "a failing log line must not stop sending and receiving",
        "tests/test_loggers.py::test_client_and_broker_work_while_every_log_line_raises",
    ),
    Behaviour(
        "gevent and eventlet (`monkey.patch_all()`, Celery's `-P gevent`, Locust)",
        "a call that waits blocks all greenlets", "a call that waits blocks its own greenlet",
        "the client's I/O thread is a greenlet with asyncio's loop",
        "tests/test_event_loops.py::test_client_works_where_threads_are_greenlets",
    ),
    Behaviour(
        "`io_threads`", "number of threads for connections",
        "one thread, and a warning if more are requested",
        "one thread is enough for a client; further clients have their own",
        "tests/client/test_sync.py::test_arguments_without_effect_say_so",
    ),
    Behaviour(
        "`threading.enumerate()`", "no thread of a client: they are not Python's",
        "one thread `geminga-io` per client; without `close` it ends shortly after the client is dropped",
        "a finalizer that waits would swallow exceptions of signal handlers",
        "tests/client/test_endings.py::test_a_dropped_client_does_not_wait_for_the_garbage_collector",
    ),
    Behaviour(
        "`use_tls=True` with a `pulsar://` URL, `log_conf_file_path`", "ignored silently",
        "ignored with a warning", "a request for encryption must not be ignored silently",
        "tests/client/test_sync.py::test_arguments_without_effect_say_so",
    ),
    Behaviour(
        "an `http://` service URL that answers with an error", "always `ConnectError`",
        "a `ConnectError` that is also `AuthenticationError`, `TopicNotFound`, ...; a server error (5xx) "
        "is retried",
        "the status determines the reaction",
        "tests/connection/test_http_lookup.py::test_error_answers_become_exceptions",
    ),
    Behaviour(
        "`AuthenticationAthenz`", "supported", "`OperationNotSupported`",
        "there is no Athenz library for Python (decisions/athenz.md); `AuthenticationToken` accepts a "
        "function that fetches tokens",
        "tests/client/test_authentication.py::test_what_is_not_supported_says_what_to_use",
    ),
    Behaviour(
        "wrong parameters of `AuthenticationOauth2`", "a log line, and connecting fails",
        "`ValueError` at once",
        "the error is raised at its cause", "tests/client/test_oauth2.py::test_wrong_parameters",
    ),
    Behaviour(
        "a message id compared with something else", "`TypeError`", "not equal",
        "as for Python's own objects", f"{_DETAILS}::test_geminga_ids_are_unequal_to_other_types",
    ),
    Behaviour(
        "an enumeration made from an unknown number", "a member without a name", "`ValueError`",
        "an unknown value is an error", f"{_DETAILS}::test_unknown_choices",
    ),
    Behaviour(
        "a `Bytes` field given a number", "accepted, and refused when encoded",
        "`TypeError` when it is set",
        "the error names the field", f"{_DETAILS}::test_bytes_fields_are_checked",
    ),
    Behaviour(
        "an enumeration field given text", "only names are accepted",
        "names and values are accepted",
        "`JsonSchema` writes values, which must be readable again",
        f"{_DETAILS}::test_geminga_decodes_enumerations_of_texts",
    ),
    Behaviour(
        "a bool in an `Integer` or `Long` field", "`true` in JSON", "the number 0 or 1",
        "other clients' readers refuse `true` for a number", f"{_DETAILS}::test_a_bool_in_a_field_of_numbers",
    ),
    Behaviour(
        "Avro data whose writer's schema is unavailable", "read with the reader's schema, with a warning",
        "`IncompatibleSchema`", "a guess may return wrong values silently",
        "tests/schema/test_avro.py::test_a_message_is_not_read_with_a_guessed_schema",
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
        "the client used in a forked child", "hangs", "`ForkedProcessError`: create a client in the child",
        "threads do not survive a fork",
        "tests/client/test_forks.py::test_a_forked_child_gets_a_clear_error_or_its_own_client",
    ),
)  # fmt: skip

SEEN = (
    Named(
        "members in order", "TypeError", "True", "members are Python's own numbers (`IntEnum`)",
    ),
    Named(
        "properties that are no texts", "['TypeError', 'TypeError', 'UnicodeDecodeError']",
        "['ValueError', 'ValueError', 'ValueError']",
        "`InvalidMessage` names key and value before the message is sent, not where it is read",
    ),
    Named("an ordering key of bytes", "ValueError", "k", "ordering keys are bytes in the protocol"),
    Named("ids as keys", "TypeError", "1", "ids may be kept in sets and dicts"),
    Named(
        "last sequence id after smaller ones", "0", "100",
        "the highest id with a receipt, as in Java: a producer that continues after it repeats none",
    ),
    Named(
        "the initial sequence id 0", "(-1, 0)", "(0, 1)",
        "0 is an id as any other, as in Java and `pulsar.asyncio`",
    ),
    Named(
        "messages pending when a producer is closed", "Result.AlreadyClosed", "Result.Ok",
        "`close` sends accepted messages first, as in Java",
    ),
    Named(
        "half of the arguments of encryption", "[True, True]", "['ValueError', 'ValueError']",
        "messages that should be encrypted are not published as plain text",
    ),
    Named(
        "the position after a batch without an index", "b'first0'", "b'second0'",
        "an id without a batch index is the whole entry: keep ids with `serialize`, or with the index",
    ),
    Named(
        "a producer of an ended loop", "0", "AlreadyClosed",
        "a producer, consumer or reader belongs to the event loop that opened it and is closed with it, "
        "after its pending messages: open it in each `asyncio.run`, or keep one loop (`asyncio.Runner`); "
        "a client may stay",
    ),
)  # fmt: skip
"""Programs of ``tools/client_behaviour.py`` that see something else, with what they see."""

SUITE = {
    "test_seek_timestamp": "sometimes, if an earlier message has the millisecond to which it seeks",
    "test_logger_thread_leaks": "it counts Python's threads right after a client was dropped (see Behaviour)",
}
"""Tests of ``pulsar-client``'s own suite that a difference explains."""
