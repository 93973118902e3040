"""Messages of one `send_many` call, from its arguments to the submit queue.

Simple messages are submitted in large pieces, each by one atomic step (`SubmitQueue.offer_many`).
"""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from geminga.client.publish.completions import fail_completion
from geminga.client.publish.many import Many, ManySent
from geminga.client.publish.message_building import MessageBuilder
from geminga.client.publish.publisher import Publisher
from geminga.client.publish.submit_queue import Rows
from geminga.errors import AlreadyClosed, InvalidConfiguration, InvalidMessage, MessageTooBig, PulsarException
from geminga.producer.message import OutgoingMessage, SimpleMessage, note_refusal


class ManyRows(Rows):
    """The messages of one call, checked and ready to be submitted. ``callbacks``: one for each, or None."""

    def __init__(
        self,
        publisher: Publisher,
        builder: MessageBuilder,
        values: Sequence[Any],
        keys: Sequence[str | None] | None,
        properties: Any,
        callbacks: Sequence[Any] | None,
        done: Callable[[ManySent], object] | None,
    ) -> None:
        publisher.check_process()
        # Copy the arguments once and use only the copies: another thread may still extend them.
        values = _row("values", values)
        keys = None if keys is None else _row("keys", keys)
        callbacks = None if callbacks is None else _row("callback", callbacks)
        count = len(values)
        of_each = None
        if properties is not None and not isinstance(properties, dict):
            of_each = _row("properties", properties)
        _check_counts(count, keys, of_each, callbacks)
        self._publisher = publisher
        self._many: Many | None = None
        plain = builder.takes_plain and set(map(type, values)) <= {bytes}
        plain = plain and keys is None and properties is None
        items: list[Any] = values
        payloads = values
        if not plain:
            items, payloads = [], []
            # Raise for invalid messages before any is sent.
            prepared = builder.prepare_many(values, keys, properties if of_each is None else of_each)
            try:
                for payload, message in prepared:
                    payloads.append(payload)
                    items.append(payload if message is None else message)
            except (InvalidMessage, TypeError) as error:
                where = f"values[{len(payloads)}], with its key and its properties"
                kind = InvalidMessage if isinstance(error, InvalidMessage) else TypeError
                raise kind(f"{where}: {error}") from error
        self._in_bulk = plain or publisher.takes_rich_in_bulk
        self._bound = builder.bound
        transaction = builder.transaction
        if transaction is not None and not set(map(type, items)) <= {bytes, SimpleMessage}:
            messages = (None if type(item) is bytes else item for item in items)
            items, transaction = list(map(builder.bound, payloads, messages)), None
        if done is not None:
            self._many = Many(count, done)
            tokens = self._many.tokens
        else:
            tokens = [None] * count if callbacks is None else callbacks
        super().__init__(items, payloads, tokens, transaction)
        if builder.interceptors:
            self.tokens = [builder.intercepted(*pair) for pair in zip(items, tokens, strict=True)]
        self._begun = False

    def begin(self) -> None:
        """Start submitting. From here on every message gets an outcome, even if the caller is interrupted;
        see `give_up`."""
        if self._many is not None:
            self._many.open()
        self._begun = True
        if not self.payloads and self._many is not None:
            self._on_loop(self._many.finish_empty)

    def offer(self) -> bool:
        """Submit the messages that need no permit check; return True if those were all. May run on any
        thread."""
        if self._in_bulk:
            self._publisher.submit_queue.offer_many(self)
        return self.done >= len(self.payloads)

    def next(self) -> tuple[bytes, Any, OutgoingMessage | None]:
        """Return the first message that was not submitted."""
        index = self.done
        item, payload = self.items[index], self.payloads[index]
        return payload, self.tokens[index], self._bound(payload, None if type(item) is bytes else item)

    def refuse(self, error: Exception) -> None:
        """Refuse the first message that was not submitted; and all after it, unless only this one is at
        fault: a later message must not be sent without the earlier ones."""
        alone = isinstance(error, (MessageTooBig, InvalidMessage))
        start, end = self.done, self.done + 1 if alone else len(self.payloads)
        note_refusal(self.next()[2], error)
        self.done = end
        tokens = self.tokens[start:end]

        def notify() -> None:
            raised: BaseException | None = None
            for token in tokens:
                try:
                    fail_completion(token, error)
                except BaseException as end:  # the end of the program: raised when all are notified
                    raised = raised or end
            if raised is not None:
                raise raised

        self._on_loop(notify)

    def _on_loop(self, run: Callable[[], None]) -> None:
        """Run a function on the loop, where callbacks of receipts run too."""
        try:
            self._publisher.work(run, run)
        except PulsarException:  # the loop has ended and every caller was notified
            run()

    def give_up(self, error: BaseException) -> None:
        """Fail the remaining messages after the caller was interrupted or cancelled; submitted ones are sent.

        Only the loop knows whether the message being submitted just then was accepted.
        """
        if not self._begun or self.done >= len(self.payloads):
            return
        reason = AlreadyClosed(f"the call of send_many ended before: {type(error).__name__}")
        reason.__cause__ = error
        publisher, many, token, index = self._publisher, self._many, self.tokens[self.done], self.done
        self.done += 1
        if many is not None:

            def fail_if_open() -> None:
                if not many.has_outcome(index) and not publisher.holds(token):
                    fail_completion(token, reason)

            self._on_loop(fail_if_open)
        if self.done < len(self.payloads):
            self.refuse(reason)


def _check_counts(
    count: int, keys: Sequence[Any] | None, properties: Sequence[Any] | None, callbacks: Sequence[Any] | None
) -> None:
    for name, given in (("keys", keys), ("callback", callbacks)):
        if given is not None and len(given) != count:
            raise InvalidConfiguration(
                f"{name} has {len(given)} items for {count} values; allowed: one for each"
            )
    if properties is not None and len(properties) != count:
        raise InvalidConfiguration(
            f"properties has {len(properties)} items for {count} values; allowed: a dict for all, or one "
            "for each"
        )
    for index, each in enumerate(callbacks or ()):
        if each is not None and not callable(each):
            raise TypeError(f"callback[{index}] must be callable or None, not {type(each).__name__}")


def _row(name: str, given: Any) -> list[Any]:
    """Return the items of a list, a tuple or an array in order. Raises `TypeError`."""
    several = hasattr(given, "__len__") and hasattr(given, "__iter__")
    if not several or isinstance(given, (str, bytes, bytearray, memoryview, Mapping, Set)):
        raise TypeError(f"{name} must be a list, with one for each message, not {type(given).__name__}")
    return list(given)


def callbacks_of(callback: Any) -> tuple[Callable[[ManySent], object] | None, Sequence[Any] | None]:
    """Return the callback for all messages, or one for each. Raises `TypeError`."""
    if callback is None or callable(callback):
        return callback, None
    if isinstance(callback, Sequence) and not isinstance(callback, (str, bytes)):
        return None, callback
    raise TypeError(
        f"callback must be callable, a sequence of callables, or None, not {type(callback).__name__}"
    )
