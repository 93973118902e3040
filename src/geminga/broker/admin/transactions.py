"""``/admin/v3/transactions``: transactions, and what they do in topics, for ``pulsar-admin transactions``."""

from functools import partial
from typing import Any, Final

from aiohttp import web

from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.http import Resource, topic_of
from geminga.broker.admin.routes import LOOK, SUPER_USER, route
from geminga.broker.delivery.subscription import PersistentSubscription
from geminga.broker.topics.persistent import PersistentTopic
from geminga.broker.topics.transactions import COORDINATOR, TransactionRecord
from geminga.transactions import TransactionId

_PATH: Final = "/admin/v3/transactions"
_TOPIC: Final = "/{tenant}/{namespace}/{topic:[^/]+}"
_ID: Final = "/{most}/{least}"

Json = dict[str, Any]


class TransactionsResource(Resource):
    """Transactions of this broker. It has one coordinator, number 0, which is always ready."""

    # --- the coordinator ---
    @route("GET", _PATH + "/coordinators", needs=SUPER_USER)
    async def coordinators(self) -> object:
        """The coordinators: number and address of the broker that has it."""
        return [{"id": COORDINATOR, "brokerServiceUrl": self.server.settings.service_url}]

    @route("GET", _PATH + "/coordinatorStats", needs=SUPER_USER)
    async def coordinator_stats(self, request: web.Request) -> object:
        """Statistics of the coordinators by number, or of ``?coordinatorId=``."""
        coordinator = self.server.broker.coordinator
        found = {
            "state": "Ready",
            "leastSigBits": coordinator.records.last_id,
            "lowWaterMark": min((each.least_bits for each in coordinator.records.by_id), default=0),
            "ongoingTxnSize": len(coordinator.active),
            "recoverStartTime": 0,
            "recoverEndTime": 0,
        }
        number = request.query.get("coordinatorId")
        if number is None:
            return {str(COORDINATOR): found}
        _check_coordinator(number)
        return found

    @route("GET", _PATH + "/slowTransactions/{timeout}", needs=SUPER_USER)
    async def slow(self, request: web.Request, timeout: int) -> object:
        """Metadata of the transactions that are open for ``timeout`` ms or longer, by id."""
        _check_coordinator(request.query.get("coordinatorId", str(COORDINATOR)))
        coordinator = self.server.broker.coordinator
        before_ms = self.server.broker.scheduler.now_ms - timeout
        slow = [each for each in coordinator.active if each.began_ms <= before_ms]
        return {_text(each.id): self._metadata(each) for each in slow}

    @route("GET", _PATH + "/transactionMetadata" + _ID, needs=SUPER_USER)
    async def metadata(self, most: int, least: int) -> object:
        """A transaction: its state, its times, and what it did in which topics."""
        return self._metadata(self._found(most, least))

    @route("POST", _PATH + "/abortTransaction" + _ID, needs=SUPER_USER)
    async def abort(self, most: int, least: int) -> None:
        """Abort an open transaction."""
        end = partial(self.server.broker.coordinator.end, TransactionId(most, least), None, commit=False)
        await self.durable(lambda done: end(answer=done))

    # --- in topics ---
    @route("GET", _PATH + "/transactionBufferStats" + _TOPIC, needs=LOOK)
    async def in_topic(self, request: web.Request) -> object:
        """The transactions in a topic: how many are open, and up to where it is delivered."""
        topic = await self._topic(request)
        part, ledger = topic.transactions, topic.ledger
        at = ledger.position_before(ledger.confirmed)
        return {
            "state": "Ready",
            "maxReadPosition": f"{at[0]}:{at[1]}",
            "lastSnapshotTimestamps": 0,
            "lowWaterMarks": {},
            "ongoingTxnSize": 0 if part is None else len(part.open),
            "recoverStartTime": 0,
            "recoverEndTime": 0,
        }

    @route("GET", _PATH + "/transactionInBufferStats" + _TOPIC + _ID, needs=LOOK)
    async def messages_in(self, request: web.Request, most: int, least: int) -> object:
        """The messages of an open transaction in a topic: where the first one is."""
        return _produced(await self._topic(request), TransactionId(most, least))

    @route("GET", _PATH + "/pendingAckStats" + _TOPIC + "/{subscription}", needs=LOOK)
    async def in_subscription(self, request: web.Request, subscription: str) -> object:
        """The transactions with acknowledgements in a subscription: how many are open."""
        pending = _subscription(await self._topic(request), subscription).pending
        return {
            "state": "None" if pending is None else "Ready",
            "lowWaterMarks": {},
            "ongoingTxnSize": 0 if pending is None else len(pending.owners),
            "recoverStartTime": 0,
            "recoverEndTime": 0,
        }

    @route("GET", _PATH + "/transactionInPendingAckStats" + _TOPIC + "/{subscription}" + _ID, needs=LOOK)
    async def acks_in(self, request: web.Request, subscription: str, most: int, least: int) -> object:
        """The acknowledgements of an open transaction in a subscription: the cumulative one, if any."""
        topic = await self._topic(request)
        _subscription(topic, subscription)
        return _acked(topic, subscription, self._found(most, least))

    # --- parts ---
    def _found(self, most: int, least: int) -> TransactionRecord:
        found = self.server.broker.coordinator.records.by_id.get(TransactionId(most, least))
        if found is None:
            raise AdminRefusal(404, f"Transaction {most}:{least} is not found: it has ended")
        return found

    async def _topic(self, request: web.Request) -> PersistentTopic:
        name = topic_of(request, domain="persistent")
        found = await self.looking(partial(self.topics.find, name))
        if not isinstance(found, PersistentTopic):
            raise AdminRefusal(404, f"Topic {name} not found")
        return found

    def _metadata(self, transaction: TransactionRecord) -> Json:
        produced: Json = {text: {} for text in transaction.entries}
        acked: Json = {}
        for text in transaction.topics:
            topic = self.topics.in_memory(text)
            if not isinstance(topic, PersistentTopic):
                continue
            if text in produced:
                produced[text] = _produced(topic, transaction.id)
            for name in transaction.acks.get(text, ()):
                acked.setdefault(text, {})[name] = _acked(topic, name, transaction)
        for text, name in transaction.announced:
            if name:
                acked.setdefault(text, {}).setdefault(name, {})
            else:
                produced.setdefault(text, {})
        return {
            "txnId": _text(transaction.id),
            "openTimestamp": transaction.began_ms,
            "timeoutAt": transaction.timeout_ms,
            "status": str(transaction.state),
            "owner": transaction.owner or None,
            "producedPartitions": produced,
            "ackedPartitions": acked,
        }


def _check_coordinator(number: str) -> None:
    if number != str(COORDINATOR):
        raise AdminRefusal(404, f"coordinatorId={number!r} is not found; found: {COORDINATOR}")


def _subscription(topic: PersistentTopic, name: str) -> PersistentSubscription:
    found = topic.subscriptions.get(name)
    if found is None:
        raise AdminRefusal(404, f"Subscription {name} not found on topic {topic.text}")
    return found


def _text(transaction_id: TransactionId) -> str:
    return f"({transaction_id.most_bits},{transaction_id.least_bits})"


def _produced(topic: PersistentTopic, transaction_id: TransactionId) -> Json:
    runs = None if topic.transactions is None else topic.transactions.open.get(transaction_id)
    if not runs:
        return {"startPosition": None, "aborted": False}
    ledger_id, entry_id = topic.ledger.position(runs[0][0])
    return {"startPosition": f"{ledger_id}:{entry_id}", "aborted": False}


def _acked(topic: PersistentTopic, subscription: str, transaction: TransactionRecord) -> Json:
    acks = transaction.acks.get(topic.text, {}).get(subscription)
    if acks is None or not acks.below:
        return {}
    ledger_id, entry_id = topic.ledger.position_before(acks.below)
    return {"cumulativeAckPosition": f"{ledger_id}:{entry_id}"}
