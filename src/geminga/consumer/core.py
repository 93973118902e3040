"""One consumer on one topic (partition), without I/O.

The caller gives it frames, calls and time; it returns bytes (`take_output`), events (`take_events`), a
deadline (`next_deadline`), and puts messages into the receive queue. All methods run on one thread; only the
queue is read from others.

States: `consumer.state`. Permits: `consumer.flow`. Acknowledgements: `consumer.acknowledgements`.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import Any

from google.protobuf.message import DecodeError

from geminga.consumer import commands
from geminga.consumer.acknowledgements import AckTracker
from geminga.consumer.commands import ACK_INDIVIDUAL, ConsumerIdentity, encode_ack
from geminga.consumer.dead_letters import is_dead
from geminga.consumer.events import (
    AcksSettled,
    ActiveChanged,
    ConsumerEvent,
    DeadLettered,
    EndOfTopic,
    EntryRefused,
    KeysMixed,
)
from geminga.consumer.flow import FlowControl, Release
from geminga.consumer.message import (
    ConsumerOrigin,
    EntryAcks,
    EntryKey,
    Message,
    ReceivedEntry,
    UnbatchedRun,
    indexes_left,
    indexes_of,
)
from geminga.consumer.opening import EntryOpener, OpenedFrame, open_whole, permits_of
from geminga.consumer.queue import ReceiveQueue
from geminga.consumer.seek import NO_FILTER, ConsumerPosition, Queued, seek_ack_set
from geminga.consumer.settings import ConsumerSettings, ConsumerType
from geminga.consumer.settlement import AckedEntries, Settlement
from geminga.consumer.state import ConsumerInput, ConsumerState, next_state
from geminga.consumer.statistics import ConsumerCounters
from geminga.consumer.unacked_entries import UnackedEntries
from geminga.consumer.unbatching import DECOMPRESSION_ERROR, InvalidEntry
from geminga.errors import NotConnected, from_server
from geminga.ids import MessageId
from geminga.wire.frames import MessageFrame, encode_command, encode_flow
from geminga.wire.message_runs import MessageRun
from geminga.wire.proto import pulsar_wire_pb2 as pb

REDELIVER_IDS_MAX = 1000
"""Maximum ids in one REDELIVER_UNACKNOWLEDGED_MESSAGES command."""
BATCHES_LOOKED_AT_MAX = 100
"""Maximum batches whose keys a Key_Shared consumer compares, until it finds several keys in one."""
KEYS_LOOKED_AT_MAX = 10
"""Maximum messages of a batch whose keys are compared."""


class ConsumerCore(Settlement):
    """The state of one subscription on one topic.

    ``queue_size`` is this consumer's share of the receive queue (default: the settings' size)."""

    def __init__(
        self,
        settings: ConsumerSettings,
        identity: ConsumerIdentity,
        queue: ReceiveQueue,
        queue_size: int | None = None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.topic = identity.topic
        self.subscription = identity.subscription
        self.consumer_id = identity.consumer_id
        self.queue = queue
        self.state = ConsumerState.IDLE
        self.error: Exception | None = None
        self.is_active: bool | None = None
        self.reached_end = False
        self.epoch = 0
        self.draining = False
        self.flow = FlowControl(
            settings.receiver_queue_size if queue_size is None else queue_size,
            settings.receiver_queue_bytes_max, settings.stop_at_message_id,
        )  # fmt: skip
        self.origin = ConsumerOrigin(identity.topic, identity.partition, settings.schema)
        keeps = self.origin.keeps
        self.acks = AckTracker(
            identity.consumer_id,
            grouping_seconds=settings.ack_grouping_time_ms / 1000,
            grouping_max=settings.ack_grouping_max,
            batch_index=settings.batch_index_ack_enabled and keeps and settings.durable,
            receipts=settings.ack_receipt_enabled,
        )
        self.awaited_acks = {}
        self.counted = ConsumerCounters()
        timeout, tick = settings.ack_timeout_seconds, settings.unacked_messages_tick_ms / 1000
        self.unsettled = UnackedEntries(timeout if keeps else 0.0, tick, self.counted)
        self._tracks_in_hand = keeps and settings.durable
        self.opener = EntryOpener(settings, self.origin)
        self.new_request_id: Callable[[], int] | None = None
        """Set by the caller while it is attached to a connection."""
        self.output: list[bytes] = []
        """Frames to send, in order; see `take_output`."""
        self.events: list[ConsumerEvent] = []
        self._position = ConsumerPosition(
            settings.start_message_id,
            inclusive=settings.start_message_id_inclusive,
            is_durable=settings.durable,
        )
        self._seek_target: MessageId | int | None = None
        self.awaits_seek = False
        """Whether no permits are granted before a seek."""
        self._aside: list[MessageFrame] = []
        looks_at_keys = settings.consumer_type is ConsumerType.KeyShared
        self._key_looks_left = BATCHES_LOOKED_AT_MAX if looks_at_keys else 0

    # --- the connection --------------------------------------------------------------------------

    def subscribe(self, request_id: int) -> pb.BaseCommand:
        """Return the SUBSCRIBE command for a new connection."""
        self.state = next_state(self.state, ConsumerInput.ATTACH)
        self._end_connection()
        settings, start = self.settings, self._position.attach()
        epoch = None if settings.individual_only else self.epoch
        return commands.subscribe(settings, self.identity, request_id, start_message_id=start, epoch=epoch)

    def subscribed(self, now: float) -> None:
        """Handle SUCCESS of the broker: send pending acknowledgements, then the permits."""
        self.state = next_state(self.state, ConsumerInput.SUBSCRIBED)
        if self.state is not ConsumerState.READY:
            return
        self.flow.reset()
        self.flow.note_start(self._position.start)
        self.reached_end = False
        self.flush_acks()
        self._grant()

    def refused(self) -> None:
        """Handle a SUBSCRIBE that failed, or was not answered."""
        self.state = next_state(self.state, ConsumerInput.REFUSED)

    def disconnected(self, now: float) -> None:
        """Handle a lost connection or a closed consumer. The only consumer may receive its unread messages
        until it is connected again: the broker gets their acknowledgements before it redelivers the others.
        Those of a shared subscription may already be at another consumer."""
        self.state = next_state(self.state, ConsumerInput.DETACHED)
        self.new_request_id = None
        self.output.clear()
        self._aside.clear()
        self.opener.chunks.clear()
        self.unsettled.clear()
        if tokens := self.take_awaited():
            error = NotConnected(f"the connection of {self.topic} ended before the acknowledgement's receipt")
            self.events.append(AcksSettled(tokens, error))
        self.acks.disconnected(now)
        if self.settings.consumer_type is not ConsumerType.Exclusive:
            self._end_connection()

    def _end_connection(self) -> None:
        """Remove what is left of the last connection: it will be redelivered."""
        self._remove_unread()
        self.acks.reopen_batches()

    def _remove_unread(self) -> None:
        self._position.detach(self._take_back())
        self.unsettled.clear()

    def cluster_changed(self, cluster: int) -> None:
        """Prepare for a connection to another cluster, where message ids have no meaning.

        Messages received before are not acknowledged there, since their ids name other messages; pending
        acknowledgements are dropped. A start that was an id of the old cluster is replaced by the start in
        the settings."""
        self._end_connection()
        tokens = self.acks.forget()
        if tokens:
            self.events.append(AcksSettled(tokens))
        whole = self.opener.whole
        self.origin = ConsumerOrigin(self.topic, self.origin.partition, self.settings.schema, cluster)
        self.opener = EntryOpener(self.settings, self.origin)
        self.opener.whole = whole
        self._position.begin_anew()
        self._seek_target = None
        self.epoch = 0

    def failed(self, error: Exception) -> None:
        """Handle the last failed attempt to connect."""
        self.state = next_state(self.state, ConsumerInput.FAILED)
        self._end_connection()
        self.error = error

    def _take_back(self) -> Queued | None:
        """Remove this consumer's unread messages and entries from the queue; their permits are earned.
        Return the first one, if there was any."""
        lots, entries = self.queue.take_back(self.origin)
        self.flow.taken_back(self.counted.withdraw(lots, entries), removed=bool(lots or entries))
        if lots:
            return lots[0][0], lots[0][1][0]
        return (entries[0], -1) if entries else None

    def pin_start(self, marked: MessageId) -> None:
        """Turn the start "latest" into a position: ``marked`` is the cursor's mark-delete position now, or
        `MessageId.earliest` when the topic is empty.

        Without it, a connection lost before the first message would move the start to a later end. Has no
        effect once a message was queued, or for any other start."""
        self._position.pin(marked)

    # --- messages and notifications from the broker ----------------------------------------------

    def receive(self, frame: MessageFrame | MessageRun, now: float, now_ms: int) -> None:
        """Handle MESSAGE frames: queue their messages, or drop or acknowledge them."""
        if not isinstance(frame, MessageRun):
            self._receive_one(frame, now, now_ms)
            return
        if not self._queue_run(frame):
            for each in frame.frames():
                self._receive_one(each, now, now_ms)

    def _queue_run(self, run: MessageRun) -> bool:
        """Queue the entries of a run together, if `_receive_one` would queue each of them."""
        first = run.first
        keys = list(zip(repeat(first.ledger_id), run.entry_ids))
        if (
            self.state is not ConsumerState.READY
            or self.draining
            or self.opener.whole
            or self.unsettled.rewind.awaited
            or 0 <= first.consumer_epoch < self.epoch
            or (self.origin.keeps and self.acks.may_be_duplicate(keys))
            or (self._position.filter is not NO_FILTER and keys[0] <= self._position.filter.key)
            or is_dead(first.redelivery_count, self.settings.dead_letter_policy)
            or (rows := self.opener.open_run(run, keys)) is None
        ):
            return False
        size = sum([len(row[3]) for row in rows])
        queued = UnbatchedRun(self.origin, first.redelivery_count, size)
        self._position.last_queued = (queued, rows[-1])
        self.flow.note_place(keys[-1])
        queued.releases = dict(self.flow.arrived(len(keys), size, len(keys)))
        if self._tracks_in_hand:
            self.unsettled.delivered(first.ledger_id, run.entry_ids)
        self.queue.add(queued, rows)
        return True

    def _receive_one(self, frame: MessageFrame, now: float, now_ms: int) -> None:
        if self.state is not ConsumerState.READY:
            if self.state is ConsumerState.SEEKING:
                # Bounded by the permits granted. Delivered if the seek fails, else dropped.
                self._aside.append(frame)
            return
        if self.draining:
            return  # the message is redelivered, here or to another consumer
        key = (frame.ledger_id, frame.entry_id)
        self.flow.note_place(key)
        if 0 <= frame.consumer_epoch < self.epoch:  # it is redelivered
            self._drop(permits_of(frame))
            return
        opened = self.opener.open(frame, now, now_ms)
        entry = opened.entry
        if opened.acknowledge or opened.dropped:
            self._settle_chunks(opened.acknowledge, opened.dropped, now)
        rewind = self.unsettled.rewind
        if rewind.awaited and frame.consumer_epoch == self.epoch and rewind.skipped(key, now):
            self._drop(opened.permits)
            self._ask_once_more(now)
            return
        if entry is None:
            self._refuse(frame, opened)
            return
        if self.origin.keeps and self.acks.is_duplicate(key):
            self._drop(opened.permits)
            return
        wanted = self._wanted(entry, key, opened.compacted_out)
        if entry.chunk_ids is not None:
            self.acks.parts.chunked(key, entry.chunk_ids)
            self.unsettled.settled(entry.chunk_ids)
        if wanted is not None and not wanted:
            self._drop(opened.permits)
            if entry.acks is None or not entry.acks.remaining:
                self.acks.acknowledge_keys(entry.chunk_ids or [key], now)
            return
        if self._tracks_in_hand:
            self.unsettled.delivered(frame.ledger_id, (frame.entry_id,))
        if self.opener.whole:
            self._queue_entry(entry, wanted, opened.permits)
        else:
            self._queue_messages(entry, wanted, opened.permits)

    def _ask_once_more(self, now: float) -> None:
        if self.unsettled.rewind.asks_at <= now and not self.draining:
            self.redeliver_unacknowledged(is_wish=False)

    def stop_at(self, last: MessageId) -> None:
        """Set the last entry wanted from now on, ``last``, and request the ones before it."""
        self.flow.stop = (last.ledger_id, last.entry_id)
        if self._position.last_queued is not None:
            entry, index = self._position.last_queued
            self.flow.note_place(entry.key(index))
        else:
            self.flow.note_start(self._position.start)
        self._grant()

    def _refuse(self, frame: MessageFrame, opened: OpenedFrame) -> None:
        """Return the permits of an inner chunk, a marker, or an entry that cannot be read."""
        key = (frame.ledger_id, frame.entry_id)
        if opened.invalid is not None:
            self._refuse_invalid(key, opened.invalid)
        elif opened.undecryptable is not None:
            self.events.append(EntryRefused(key, opened.undecryptable, False))
        self._drop(opened.permits)

    def _drop(self, permits: int) -> None:
        self.flow.dropped(permits)
        self._grant()

    def _wanted(self, entry: ReceivedEntry, key: EntryKey, compacted_out: Sequence[int]) -> list[int] | None:
        """Return the indexes to deliver (None: all): unacknowledged, not compacted out, after the start."""
        first, dropped = 0, self._position.filter
        if dropped is not NO_FILTER:
            first = dropped.first_wanted(key)
        count = entry.count
        if count == 1:
            return [] if first > 0 or compacted_out else None
        acks = self.acks.parts.batch_of(key, count) if self.origin.keeps else EntryAcks(count)
        entry.acks = acks
        if entry.ack_set:
            acks.apply_ack_set(entry.ack_set)
        for index in compacted_out:
            acks.settle(index)
        if first > 0:
            acks.settle_through(min(first, count) - 1)
        if acks.remaining == count:
            return None
        flags = acks.flags
        return [index for index in range(count) if flags[index]]

    def _queue_messages(self, entry: ReceivedEntry, wanted: list[int] | None, permits: int) -> None:
        indexes = indexes_of(entry) if wanted is None else wanted
        if is_dead(entry.redelivery_count, self.settings.dead_letter_policy):
            dead = [Message(entry, index) for index in indexes]
            self.events.append(DeadLettered(dead, self.flow.set_aside(permits)))
            return
        body, count = entry.body, len(indexes)
        assert body is not None
        releases = self.flow.arrived(count, len(body))
        if releases:
            entry.releases = {indexes[position]: release for position, release in releases}
        if permits > count:
            self.flow.overcharged(permits - count)
            self._grant()
        self._position.last_queued = (entry, indexes[-1])
        if self._key_looks_left and count > 1:
            self._key_looks_left -= 1
            producer_name = producer_that_mixes_keys(entry, indexes)
            if producer_name is not None:
                self._key_looks_left = 0
                self.events.append(KeysMixed(producer_name))
        self.queue.add(entry, indexes)

    def _queue_entry(self, entry: ReceivedEntry, wanted: list[int] | None, permits: int) -> None:
        assert entry.raw is not None
        if is_dead(entry.redelivery_count, self.settings.dead_letter_policy):
            dead = [Message(entry, index) for index in self.explode(entry)]
            if dead:
                self.events.append(DeadLettered(dead, self.flow.set_aside(permits)))
            else:
                self._drop(permits)  # unreadable, and reported as such
            return
        if wanted is not None and entry.acks is not None:
            entry.ack_set = entry.acks.ack_set()
        delivered = entry.count if wanted is None else len(wanted)
        entry.releases = dict(self.flow.arrived_whole(delivered, len(entry.raw)))
        if permits > delivered:
            self.flow.overcharged(permits - delivered)
            self._grant()
        self._position.last_queued = (entry, -1)
        self.queue.add_entry(entry)
        if self.flow.is_bounded:
            self._grant()

    def explode(self, entry: ReceivedEntry) -> Sequence[int]:
        """Open an entry that was queued whole; return the indexes of its messages, or none if it cannot be
        read, which is reported.

        The last message carries the entry's permits."""
        try:
            for index in open_whole(entry, self.settings.message_bytes_max):
                if entry.acks is not None:
                    entry.acks.settle(index)
        except InvalidEntry as error:
            self.refuse_entry(entry, error)
            return ()
        # Another reader may have taken messages before the entry was closed again.
        indexes = indexes_left(entry)
        releases, entry.releases = entry.releases, None
        for release in (releases or {}).values():
            if indexes and entry.releases is None:
                entry.releases = {indexes[-1]: release}
            else:
                self.flow.released(release)
        return indexes

    def refuse_entry(self, entry: ReceivedEntry, error: InvalidEntry) -> None:
        """Reject an entry that was queued whole and cannot be read."""
        key = (entry.ledger_id, entry.entry_id)
        self._refuse_invalid(key, error)
        self.unsettled.settled((key,))
        releases, entry.releases = entry.releases, None
        for release in (releases or {}).values():
            self.flow.released(release)
        self._grant()

    def _refuse_invalid(self, key: EntryKey, error: InvalidEntry) -> None:
        """Acknowledge damage. Entries rejected by the codec stay: the fault may be this installation's."""
        is_damage = error.validation_error != DECOMPRESSION_ERROR
        if is_damage:
            kind = error.validation_error
            self.output.append(encode_ack(self.consumer_id, ACK_INDIVIDUAL, [key], validation_error=kind))
        self.events.append(EntryRefused(key, error, is_damage))

    def command(self, command: pb.BaseCommand) -> None:
        """Handle any other command addressed to this consumer."""
        if command.type == pb.BaseCommand.ACK_RESPONSE:
            response = command.ackResponse
            error = None
            if response.HasField("error"):
                error = from_server(response.error, response.message)
            tokens = self.acks.receipts.answered(response.request_id, failed=error is not None)
            if response.request_id in self.awaited_acks:
                tokens = [self.awaited_acks.pop(response.request_id)]
            if tokens:
                self.events.append(AcksSettled(tokens, error))
        elif command.type == pb.BaseCommand.ACTIVE_CONSUMER_CHANGE:
            self.is_active = command.active_consumer_change.is_active
            if not self.is_active:
                # Another consumer takes over: the broker delivers its remaining messages, never its
                # acknowledged ones.
                self.acks.reopen_batches()
                self.unsettled.rewind.clear()
                self._grant()
            self.events.append(ActiveChanged(self.is_active))
        elif command.type == pb.BaseCommand.REACHED_END_OF_TOPIC:
            self.reached_end = True
            self.events.append(EndOfTopic())

    # --- permits ---------------------------------------------------------------------------------

    def released(self, release: Release) -> None:
        """Earn the permits of ``release``, whose message the application took."""
        self.flow.released(release)
        self._grant()

    def took(self, entry: ReceivedEntry | UnbatchedRun, indexes: Iterable[Any]) -> None:
        """Earn the permits of messages of an entry that left the queue."""
        for release in entry.take_releases(indexes):
            self.released(release)

    def want_one(self) -> None:
        """Request a message for a waiting receiver, with queue size 0."""
        self.flow.want_one()
        self._grant()

    @property
    def starved(self) -> bool:
        """Return whether the broker has no permit of ours. Thread-safe."""
        return self.flow.outstanding <= 0

    def resize_queue(self, queue_size: int) -> None:
        """Set a new share of the total queue."""
        self.flow.resize(queue_size)
        self._grant()

    def _grant(self) -> None:
        rests = self.draining or self.awaits_seek or self.unsettled.rewind.is_resting
        if self.state is ConsumerState.READY and not rests:
            grant = self.flow.take_grant()
            if grant:
                self.output.append(encode_flow(self.consumer_id, grant))

    # --- acknowledgements ------------------------------------------------------------------------

    def await_receipt(self, token: Any, now: float) -> None:
        """Return ``token`` in `AcksSettled` when earlier acknowledgements are receipted, or else sent."""
        self.acks.add_token(token, now)

    def transaction_aborted(self, acked: AckedEntries) -> None:
        """Have the messages that an aborted transaction acknowledged delivered again: the broker does so for
        shared subscriptions, and moves all others back to the first unacknowledged message."""
        self.flush_acks()
        for key in acked:
            # The broker may have redelivered the batch without these messages.
            batch = self.acks.parts.batches.pop(key, None)
            if batch is not None:
                batch.reopen()
        acked.clear()
        if not self.settings.individual_only:
            self.redeliver_unacknowledged()

    def flush_acks(self) -> None:
        """Send pending acknowledgements without waiting for the grouping time."""
        if self.state not in (ConsumerState.READY, ConsumerState.SEEKING, ConsumerState.CLOSING):
            return
        frames, settled = self.acks.flush(self.new_request_id)
        self.output += frames
        if settled:
            self.events.append(AcksSettled(settled))

    # --- redelivery ------------------------------------------------------------------------------

    def redeliver_unacknowledged(self, due: Sequence[EntryKey] = (), *, is_wish: bool = True) -> None:
        """Have everything unacknowledged redelivered, including unread messages. ``due`` and ``is_wish``: see
        `UnackedEntries.asked_again`.

        Without a connection, only remove the unread messages: the next one begins with a redelivery. No
        effect on non-persistent topics, where queued messages would be lost."""
        if self.state is ConsumerState.IDLE and self.origin.keeps:
            self._remove_unread()
        if self.state is not ConsumerState.READY or not self.origin.keeps:
            return
        if not self.settings.individual_only:
            # MESSAGEs of earlier epochs are dropped when they arrive late (framing.md section 7).
            self.epoch += 1
        self.flush_acks()
        if self._take_back() is not None:
            self._position.last_queued = None
        self.opener.chunks.clear()
        self.unsettled.asked_again(due, in_order=not self.settings.individual_only, is_wish=is_wish)
        epoch = None if self.settings.individual_only else self.epoch
        self.output.append(encode_command(commands.redeliver(self.consumer_id, (), epoch)))
        self._grant()

    def _redeliver(self, keys: list[EntryKey]) -> None:
        if not keys or self.state is not ConsumerState.READY:
            return
        if not self.settings.individual_only:
            self.redeliver_unacknowledged(keys)
            return
        # A chunked message times out by its last chunk: all its chunks are redelivered.
        keys = list(dict.fromkeys(each for key in keys for each in self.acks.parts.entries_of(key)))
        # Queued messages of these entries are redelivered with the rest.
        lots, entries = self.queue.take_out(self.origin, set(keys))
        for release in self.counted.withdraw(lots, entries):
            self.flow.released(release)
        for start in range(0, len(keys), REDELIVER_IDS_MAX):
            part = keys[start : start + REDELIVER_IDS_MAX]
            self.output.append(encode_command(commands.redeliver(self.consumer_id, part, None)))
        self._grant()

    def dead_letters_settled(self, event: DeadLettered, published: bool, now: float) -> None:
        """Handle the result of publishing the messages of ``event`` to the dead letter topic."""
        if published:
            self.counted.dead += len(event.messages)
            self.acknowledge_messages(event.messages, now)
        else:
            self.negative_acknowledge(event.messages[:1], now)
        self.released(event.release)

    # --- seek ------------------------------------------------------------------------------------

    def begin_seek(self, target: MessageId | int, request_id: int) -> pb.BaseCommand:
        """Return the SEEK command. ``target``: a message, or a publish time in milliseconds since 1970."""
        ack_set: list[int] = []
        if isinstance(target, MessageId) and target.batch_index >= 0:
            first = target.batch_index + (0 if self.settings.start_message_id_inclusive else 1)
            # An empty set would be read as "the whole entry".
            ack_set = seek_ack_set(target, first) or seek_ack_set(target, target.batch_index)
        # A target that does not fit into the command is rejected before anything has changed.
        command = commands.seek(self.consumer_id, request_id, target, ack_set)
        self.state = next_state(self.state, ConsumerInput.SEEK)
        self.flush_acks()
        self._seek_target = target
        return command

    def seek_done(self) -> None:
        """Handle a successful seek: forget all acknowledgements."""
        target, self._seek_target, self.awaits_seek = self._seek_target, None, False
        self.state = next_state(self.state, ConsumerInput.SEEK_DONE)
        self._end_connection()
        self._aside.clear()
        self.opener.chunks.clear()
        tokens = self.acks.forget()
        if tokens:
            self.events.append(AcksSettled(tokens))
        self._position.moved(target)
        self._grant()

    def seek_failed(self, now: float, now_ms: int) -> None:
        """Handle a failed seek: the cursor is unchanged; deliver the messages put aside."""
        self._seek_target = None
        self.state = next_state(self.state, ConsumerInput.SEEK_FAILED)
        aside, self._aside = self._aside, []
        for frame in aside:
            self.receive(frame, now, now_ms)

    # --- the end ---------------------------------------------------------------------------------

    def begin_drain(self) -> None:
        """Stop receiving, so that delivered messages can be acknowledged: grant no more permits, and drop
        messages that still arrive for earlier ones."""
        self.draining = True
        self.opener.chunks.clear()

    def begin_close(self) -> bool:
        """Start to close or unsubscribe; first send acknowledgements. Return whether connected."""
        attached = self.state in (ConsumerState.READY, ConsumerState.SEEKING)
        if attached:
            self.flush_acks()
        self.state = next_state(self.state, ConsumerInput.CLOSE)
        return attached

    def close_failed(self) -> None:
        """Continue after the broker rejected an unsubscribe."""
        self.state = next_state(self.state, ConsumerInput.CLOSE_FAILED)

    def closed(self) -> None:
        """Handle the end of the consumer on the broker."""
        self.state = next_state(self.state, ConsumerInput.CLOSED)
        self._take_back()

    # --- time and output -------------------------------------------------------------------------

    def next_deadline(self) -> float:
        """Return when `tick` must be called next; infinite for never."""
        return min(
            self.acks.next_deadline(),
            self.opener.chunks.next_deadline(),
            self.unsettled.next_deadline() if self._asks_again else float("inf"),
            self.unsettled.rewind.asks_at if not self.draining else float("inf"),
        )

    @property
    def _asks_again(self) -> bool:
        """Return whether due entries are requested again. Not during a drain, if that would redeliver
        everything: queued and taken messages are still processed, and closing has the rest redelivered
        anyway."""
        return not self.draining or self.settings.individual_only

    def _settle_chunks(
        self, acknowledge: Sequence[EntryKey], dropped: Sequence[EntryKey], now: float
    ) -> None:
        """Acknowledge entries without delivery; request dropped ones again after the time-out.

        Not those of a message that was delivered whole: it is acknowledged when it has been processed.
        """
        if acknowledge and self.acks.parts.chunks:
            delivered = set(chain.from_iterable(self.acks.parts.chunks.values()))
            acknowledge = [key for key in acknowledge if key not in delivered]
        if acknowledge:
            self.acks.acknowledge_keys(acknowledge, now)
            self.unsettled.settled(acknowledge)
        for key in dropped:
            self.unsettled.ack_timeout.taken(key, now)

    def tick(self, now: float) -> None:
        """Handle what is due. Without a connection, skip time-outs that the reconnect makes irrelevant."""
        expired = self.opener.chunks.expire(now)
        if expired is not None:
            self._settle_chunks(expired.acknowledge, expired.dropped, now)
        if self.state is not ConsumerState.READY:
            return
        if self.acks.due(now):
            self.flush_acks()
        if self._asks_again:
            self._redeliver(self.unsettled.take_due(now))
        self._ask_once_more(now)

    def take_output(self) -> list[bytes]:
        """Return the frames to send, in order."""
        output, self.output = self.output, []
        return output

    def take_events(self) -> list[ConsumerEvent]:
        events, self.events = self.events, []
        return events


def producer_that_mixes_keys(entry: ReceivedEntry, indexes: Sequence[int]) -> str | None:
    """Return the name of the batch's producer if its messages have several keys; else None."""
    messages = [Message(entry, index) for index in indexes[:KEYS_LOOKED_AT_MAX]]
    try:
        # Key_Shared dispatches by this key.
        keys = {message.ordering_key() or message.partition_key() for message in messages}
        return messages[0].producer_name() if len(keys) > 1 else None
    except DecodeError:
        return None  # reading the message reports the error
