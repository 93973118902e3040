"""The compiled loop of `geminga.tuning.batch_model`: a step is a batch, whatever it holds.

Messages come at random with a rate that changes over time. On a clock that runs with the cumulated rate
(the *message clock*) they come at 1 a second, so that a batch needs two random numbers: how far away its
first message is, and how many more come until it closes. `_moment` and `_mark` go from one clock to the
other along the knots of the cumulated rate.

A *stream* fills one batch at a time: a producer without keys, or one partition of a producer with keys. Its
next event is a message that opens a batch, or the end of the batch. A *lane* is one partition of one
producer: its operations without a receipt, oldest first, and the permits they hold.
"""

# numba infers the types of these functions; annotations would neither be read nor checked.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, call-arg"

from __future__ import annotations

import math

import numpy as np

from geminga.wire.columnar_kernels import inlined, kernel

LATENCY_BIN = 0.01
"""Latency bins grow by this part from one to the next."""
LATENCY_FLOOR_SECONDS = 1e-5
LATENCY_BINS = 2400
POINTS = 8
"""Messages of a batch whose latency is looked at; each stands for its share of them."""
INSTANT = 1e-9
"""A sender that finds no room looks again when the batches that it closed have gone out."""

(
    ENTRIES, MESSAGES, PAYLOAD, WIRE, WAITED, REFUSED, STEPPED, PENDING_MAX, BUSY, LATENCY_SUM, SETTLED,
    LATENCY_MAX, TOTALS,
) = range(13)  # fmt: skip
"""Places in the totals that `play` gives back, and their number."""

RUN = np.dtype(
    [
        ("message_bytes", np.float64),
        ("variation", np.float64),
        ("seconds", np.float64),
        ("warmup", np.float64),
        ("delay", np.float64),
        ("stay", np.float64),
        ("count_max", np.float64),
        ("bytes_max", np.float64),
        ("permits", np.float64),
        ("permits_shared", np.float64),
        ("memory_limit", np.float64),
        ("blocked_after", np.float64),
        ("slack", np.float64),
        ("encoding", np.float64),
        ("encoding_byte", np.float64),
        ("encoding_from", np.float64),
        ("tick", np.float64),
        ("lag", np.float64),
        ("telling", np.float64),
        ("network", np.float64),
        ("bandwidth", np.float64),
        ("entry_seconds", np.float64),
        ("byte_seconds", np.float64),
        ("keeping_byte", np.float64),
        ("partitions", np.int64),
        ("steps_over", np.bool_),
        ("blocks", np.bool_),
        ("per_message", np.bool_),
        ("uvloop", np.bool_),
        ("even", np.bool_),
    ],
    align=True,
)
"""What stays the same: one record."""
STREAM = np.dtype(
    [
        ("weight", np.float64),
        ("at", np.float64),
        ("came", np.float64),
        ("position", np.float64),
        ("first_mark", np.float64),
        ("last_mark", np.float64),
        ("count", np.float64),
        ("size", np.float64),
        ("open_at", np.float64),
        ("producer", np.int64),
        ("partition", np.int64),
        ("lane", np.int64),
        ("filling", np.bool_),
        ("follows", np.bool_),
        ("full", np.bool_),
    ],
    align=True,
)
"""``weight``: its share of its producer's rate. ``partition``: -1 goes round all of them. ``at``: its next
event, the end of its batch where it is ``filling`` one. ``position``: on the message clock. ``follows``: the
message that did not fit ends the batch and opens the next one."""
LANE = np.dtype(
    [("head", np.int64), ("tail", np.int64), ("used", np.float64), ("kept_at", np.float64)], align=True
)
PRODUCER = np.dtype(
    [
        ("shared", np.float64),
        ("memory", np.float64),
        ("link_free", np.float64),
        ("switch_at", np.float64),
        ("blocked_at", np.float64),
        ("blocked_by", np.int64),
        ("cursor", np.int64),
    ],
    align=True,
)
OPERATION = np.dtype(
    [
        ("encoded_at", np.float64),
        ("receipt_at", np.float64),
        ("opened_at", np.float64),
        ("count", np.float64),
        ("size", np.float64),
        ("following", np.int64),
    ],
    align=True,
)
FAULT = np.dtype(
    [
        ("partition", np.int64),
        ("stuck", np.bool_),
        ("start", np.float64),
        ("end", np.float64),
        ("extra", np.float64),
    ],
    align=True,
)


@inlined
def _moment(mark, clock):
    """When the message clock shows ``mark``; infinity after its end."""
    low, high = 0, clock.shape[1] - 1
    if mark >= clock[1, high]:
        return np.inf
    while high - low > 1:
        middle = (low + high) // 2
        if clock[1, middle] <= mark:
            low = middle
        else:
            high = middle
    share = (mark - clock[1, low]) / (clock[1, high] - clock[1, low])
    return clock[0, low] + share * (clock[0, high] - clock[0, low])


@inlined
def _mark(moment, clock):
    """What the message clock shows at a moment."""
    low, high = 0, clock.shape[1] - 1
    if moment >= clock[0, high]:
        return clock[1, high]
    while high - low > 1:
        middle = (low + high) // 2
        if clock[0, middle] <= moment:
            low = middle
        else:
            high = middle
    share = (moment - clock[0, low]) / (clock[0, high] - clock[0, low])
    return clock[1, low] + share * (clock[1, high] - clock[1, low])


@inlined
def _interpolated(x, curve):
    """The curve at ``x``, linear between its places and beyond the last."""
    last = curve.shape[1] - 1
    if last == 0:
        return curve[1, 0] * x / curve[0, 0]
    high = 1
    while high < last and curve[0, high] < x:
        high += 1
    low = high - 1
    share = (x - curve[0, low]) / (curve[0, high] - curve[0, low])
    return curve[1, low] + (curve[1, high] - curve[1, low]) * share


@inlined
def _drawn(quantiles):
    """A number from the distribution with these evenly spaced quantiles."""
    place = np.random.random() * (len(quantiles) - 1)
    low = min(int(place), max(0, len(quantiles) - 2))
    high = min(low + 1, len(quantiles) - 1)
    return quantiles[low] + (quantiles[high] - quantiles[low]) * (place - low)


# --- operations ------------------------------------------------------------------------------------


@inlined
def _settle(lane, producer, now, operations):
    """Take back what the receipts of a lane until ``now`` free."""
    first = lane.head
    while first >= 0 and operations[first].receipt_at <= now:
        lane.used -= operations[first].count
        producer.shared -= operations[first].count
        producer.memory -= operations[first].size
        first = operations[first].following
    lane.head = first


@inlined
def _settle_all(number, now, run, lanes, producers, operations):
    for lane in range(number * run.partitions, (number + 1) * run.partitions):
        if lanes[lane].head >= 0:
            _settle(lanes[lane], producers[number], now, operations)


@inlined
def _encoding(stream, run):
    """What another thread takes for the stream's batch, on the way there and back too."""
    if stream.size < run.encoding_from:
        return 0.0
    return run.encoding + stream.size * run.encoding_byte


@inlined
def _kept(now, stream, wire, run, lane, producer, servers, keeping, faults, totals):
    """An entry goes to the broker; when it is kept there."""
    producer.link_free = max(producer.link_free, now) + wire / run.bandwidth
    arrived = producer.link_free + run.network
    arrived += _encoding(stream, run)
    server = np.argmin(servers) if len(servers) > 1 else 0
    work = run.entry_seconds + wire * run.byte_seconds
    servers[server] = max(servers[server], arrived) + work
    totals[BUSY] += work
    kept = servers[server] + _drawn(keeping) + wire * run.keeping_byte
    for fault in faults:
        if fault.partition == stream.lane % run.partitions and fault.start <= arrived < fault.end:
            kept = max(kept, fault.end) if fault.stuck else kept + fault.extra
    lane.kept_at = max(kept, lane.kept_at)
    return lane.kept_at


@inlined
def _note_latencies(stream, receipt, run, clock, totals, latencies):
    """How long some of the batch's messages took, each for its share of them."""
    count, span = stream.count, stream.last_mark - stream.first_mark
    points = int(min(count, POINTS))
    for point in range(points):
        part, mark, place = 1.0, stream.first_mark, 0.0
        if point:
            place = (point - np.random.random()) / (points - 1)
            if stream.full or run.even:
                # They come one after the other, the last one at the end; in other batches just evenly.
                place = (1.0 + math.floor(place * (count - 1))) / (count - 1)
            mark += span * place
            part = (count - 1) / (points - 1)
        at = _moment(mark, clock)
        if at < run.warmup or at == np.inf:
            continue
        latency = receipt + place * (count - 1) * run.telling - at
        place = int(math.log(max(latency, LATENCY_FLOOR_SECONDS) / LATENCY_FLOOR_SECONDS) / LATENCY_BIN)
        latencies[min(place, LATENCY_BINS - 1)] += part
        totals[LATENCY_SUM] += latency * part
        totals[SETTLED] += part
        totals[LATENCY_MAX] = max(totals[LATENCY_MAX], latency)


# --- the end of a batch ----------------------------------------------------------------------------


@inlined
def _await_message(stream, now, run, clock):
    """The stream's next event is its next message."""
    if not stream.follows:
        if run.even:
            stream.position = math.floor(stream.position + 0.5) + 0.5
        else:
            stream.position += np.random.exponential() / stream.weight
    stream.follows = False
    stream.came = _moment(stream.position, clock)
    stream.at = max(stream.came, now)


@inlined
def _enqueue(number, stream, lane, now, receipt, run, operations):
    """The stream's batch is operation ``number`` and waits for its receipt."""
    operation = operations[number]
    operation.encoded_at = now + _encoding(stream, run)
    operation.receipt_at = receipt
    operation.opened_at = stream.open_at
    operation.count = stream.count
    operation.size = stream.size
    operation.following = -1
    if lane.head < 0:
        lane.head = number
    else:
        operations[lane.tail].following = number
    lane.tail = number


# --- the start of a batch --------------------------------------------------------------------------


@inlined
def _choose(stream, held, now, run, lanes, producers, operations, totals):
    """The lane of a batch that opens now; -1 when it finds no permit.

    ``held``: a message that waits for the partition whose turn it was.
    """
    producer = producers[stream.producer]
    base = stream.producer * run.partitions
    if stream.partition >= 0:
        place = base + stream.partition
        _settle(lanes[place], producer, now, operations)
        return place if lanes[place].used + 1 <= run.permits else -1
    _settle_all(stream.producer, now, run, lanes, producers, operations)
    if not held and (run.per_message or now >= producer.switch_at):
        producer.cursor = (producer.cursor + 1) % run.partitions
        producer.switch_at = now + run.stay
    preferred = producer.cursor
    if run.steps_over:
        for step in range(run.partitions):
            place = base + (preferred + step) % run.partitions
            oldest = lanes[place].head
            old = oldest >= 0 and now - operations[oldest].opened_at > run.blocked_after
            if lanes[place].used + 1 <= run.permits and not old:
                if step:
                    producer.cursor = place - base
                    producer.switch_at = now + run.stay
                    totals[STEPPED] += step
                return place
    # Where nothing is stepped over, or all are blocked, it is the preferred one's affair.
    place = base + preferred
    return place if lanes[place].used + 1 <= run.permits else -1


@inlined
def _has_room(number, now, run, lanes, producers, operations):
    """Whether one more message fits the permits over all partitions and the memory limit."""
    producer = producers[number]
    for _ in range(2):
        if (
            producer.shared + 1 <= run.permits_shared
            and producer.memory + run.message_bytes <= run.memory_limit
        ):
            return True
        _settle_all(number, now, run, lanes, producers, operations)
    return False


@inlined
def _next_room(stream, now, run, lanes, operations):
    """The next receipt that could make room for a stream that found none; infinity without any."""
    base, own = stream.producer * run.partitions, stream.partition
    alone = own >= 0 and lanes[base + own].used + 1 > run.permits
    soonest = np.inf
    for partition in range(run.partitions):
        first = lanes[base + partition].head
        if first >= 0 and (not alone or partition == own):
            soonest = min(soonest, max(operations[first].receipt_at, now + INSTANT))
    return soonest


@inlined
def _cut_open_batches(number, now, clock, streams, lanes, producers):
    """A sender that must wait closes what is open: nothing else can come before receipts do."""
    cut = False
    for other in streams:
        if other.producer != number or not other.filling or other.at <= now:
            continue
        mark = min(_mark(now, clock), other.last_mark)
        span = other.last_mark - other.first_mark
        count = 1.0 + math.floor(
            (other.count - 1.0) * ((mark - other.first_mark) / span if span > 0 else 1.0)
        )
        freed = other.size * (1.0 - count / other.count)
        lanes[other.lane].used -= other.count - count
        producers[number].shared -= other.count - count
        producers[number].memory -= freed
        other.size -= freed
        other.count = count
        other.last_mark = other.position = mark
        other.full = other.follows = False
        other.at = now
        cut = True
    return cut


@inlined
def _wait(index, now, run, clock, streams, lanes, producers, operations, totals):
    """No room: the sender stands still until there is some, or the messages until then are refused."""
    stream = streams[index]
    producer = producers[stream.producer]
    if run.blocks:
        if producer.blocked_by < 0:
            producer.blocked_by = index
            producer.blocked_at = now
        cut = _cut_open_batches(stream.producer, now, clock, streams, lanes, producers)
        stream.at = min(now + INSTANT if cut else np.inf, _next_room(stream, now, run, lanes, operations))
        return
    soonest = _next_room(stream, now, run, lanes, operations)
    until = max(stream.position, min(_mark(soonest, clock), clock[1, -1]))
    if now >= run.warmup:
        totals[REFUSED] += max(1.0, (until - stream.position) * stream.weight)
    stream.position = until
    _await_message(stream, now, run, clock)


@inlined
def _unblock(index, now, run, streams, producers, totals):
    """The sender goes on; so do the messages behind the one that waited."""
    number = streams[index].producer
    totals[WAITED] += now - max(producers[number].blocked_at, min(now, run.warmup))
    producers[number].blocked_by = -1
    for other in range(len(streams)):
        if streams[other].producer == number and not streams[other].filling and other != index:
            streams[other].at = max(streams[other].came, now)


@inlined
def _rounded_sleep(timer, now, uvloop):
    """See `geminga.tuning.event_loops.EventLoop.wakes_at`."""
    if uvloop:
        return now + max(0.0, round(timer * 1000.0) - math.floor(now * 1000.0 + 1e-6)) / 1000.0
    return now + math.ceil(max(0.0, timer - now) * 1000.0 - 1e-6) / 1000.0


@inlined
def _closing_time(number, now, run, lanes, operations):
    """When the delay of a batch that opens now is over.

    The loop rounds its timer and its sleep, from when it last woke up; receipts and encoded batches wake it.
    It closes what is due within its slack with whatever wakes it shortly before. (The timer that such a
    batch leaves behind wakes it a millisecond after the next one has opened, and changes nothing.)
    """
    handed = math.ceil(now / run.tick) * run.tick if run.tick > 0.0 else now
    opened = handed + run.lag
    deadline = opened + run.delay
    timer = deadline
    if run.uvloop:
        timer = (math.floor(opened * 1000.0 + 1e-6) + math.floor(run.delay * 1000.0 + 0.5)) / 1000.0
    early = max(opened, deadline - run.slack)
    woke, closing = opened, np.inf
    for lane in range(number * run.partitions, (number + 1) * run.partitions):
        first = lanes[lane].head
        while first >= 0:
            encoded, receipt = operations[first].encoded_at, operations[first].receipt_at
            if encoded > early:
                closing = min(closing, encoded)
            else:
                woke = max(woke, encoded)
            if receipt > early:
                closing = min(closing, receipt)
                if encoded > early:
                    break
            else:
                woke = max(woke, receipt)
            first = operations[first].following
    fires = _rounded_sleep(timer, woke, run.uvloop) + run.lag
    if fires < deadline - run.slack:
        # Too early: the rest is slept anew.
        rest = math.floor((deadline - fires) * 1000.0 + 0.5)
        timer = (math.floor(fires * 1000.0 + 1e-6) + rest) / 1000.0
        fires = _rounded_sleep(timer, fires, run.uvloop) + run.lag
    return min(closing, fires)


@inlined
def _limit_by_bytes(run):
    """Messages after which the next one does not fit a batch that opens now."""
    by_bytes = run.bytes_max / run.message_bytes
    if run.variation > 0.0:
        # It leaves room unused, and it is rather a large one that does not fit.
        by_bytes = max(1.0, by_bytes - (1.0 + run.variation**2) / 2)
        by_bytes += run.variation * math.sqrt(by_bytes) * np.random.normal() + np.random.random()
    return max(1.0, math.floor(by_bytes))


@inlined
def _fill(stream, now, run, clock, lanes, producers, operations):
    """How many messages join a batch that opens now, and when it closes."""
    producer, lane = producers[stream.producer], lanes[stream.lane]
    mark = stream.position
    deadline = _closing_time(stream.producer, now, run, lanes, operations)
    handed = math.floor(deadline / run.tick) * run.tick if run.tick > 0.0 else deadline
    end = max(mark, _mark(handed, clock))
    expected = (end - mark) * stream.weight
    if run.even:
        more = math.floor(expected)
        step = 1.0
    else:
        more = np.random.poisson(expected) if expected > 0 else 0
        step = (end - mark) / (more + 1.0)
    room = 1.0 if run.per_message else run.count_max
    by_bytes = _limit_by_bytes(run)
    # A batch that its last message fills to the byte is as full as one that is full by count.
    misfit = by_bytes < room and (run.variation > 0.0 or by_bytes * run.message_bytes < run.bytes_max)
    room = min(room, by_bytes)
    filled = more >= room if misfit else 1.0 + more >= room
    misfit = misfit and filled
    count = min(1.0 + more, room)
    free = min(run.permits - lane.used, run.permits_shared - producer.shared)
    free = min(free, math.floor((run.memory_limit - producer.memory) / run.message_bytes))
    first = lane.head
    while free < count and first >= 0:
        # Permits that come back before the last free one is used serve the same batch.
        if operations[first].receipt_at > max(now, _moment(mark + step * free, clock)):
            break
        free += operations[first].count
        first = operations[first].following
    short = free < count
    count = min(count, max(1.0, free))
    last, closes = end, deadline
    stream.follows = misfit and not short
    stream.full = filled or short
    if stream.full:
        last = mark + step * (count - 1.0)
        if stream.follows:
            closes = min(deadline, max(now, _moment(last + step, clock)))
        else:
            closes = min(deadline, max(now, _moment(last, clock)))
            if not short and stream.partition < 0:
                producer.switch_at = closes
    elif run.even:
        last = mark + more
    stream.first_mark = mark
    stream.last_mark = last
    stream.position = last + step if stream.follows else (last if stream.full else end)
    stream.count = count
    stream.size = count * run.message_bytes
    stream.open_at = now
    stream.at = closes
    stream.filling = True
    lane.used += count
    producer.shared += count
    producer.memory += stream.size


# --- a run -----------------------------------------------------------------------------------------


@inlined
def _next_event(streams):
    soonest = 0
    for index in range(1, len(streams)):
        if streams[index].at < streams[soonest].at:
            soonest = index
    return soonest


@kernel
def play(seed, run, clock, streams, lanes, producers, operations, servers, keeping, curve, faults, latencies):
    """One run on fresh records (see the types above): the totals. ``latencies`` is filled.

    ``clock`` holds times and the messages of a producer that are expected until then; ``curve`` counts of
    messages and the bytes of entries that hold them. Ends early, with fewer totals, when there are more
    operations than records for them.
    """
    np.random.seed(seed)
    totals = np.zeros(TOTALS)
    for producer in producers:
        producer.cursor = int(np.random.random() * run.partitions)
    for stream in streams:
        _await_message(stream, 0.0, run, clock)
    number = 0
    while True:
        index = _next_event(streams)
        stream = streams[index]
        now = stream.at
        if now == np.inf:
            return totals
        producer = producers[stream.producer]
        if stream.filling:
            if number >= len(operations):
                return totals[:0]
            wire = _interpolated(stream.count, curve)
            lane = lanes[stream.lane]
            receipt = run.network + _kept(
                now, stream, wire, run, lane, producer, servers, keeping, faults, totals
            )
            _enqueue(number, stream, lane, now, receipt, run, operations)
            number += 1
            if run.warmup <= now <= run.seconds:
                totals[ENTRIES] += 1
                totals[MESSAGES] += stream.count
                totals[PAYLOAD] += stream.size
                totals[WIRE] += wire
            if producer.shared > totals[PENDING_MAX]:
                _settle_all(stream.producer, now, run, lanes, producers, operations)
                totals[PENDING_MAX] = max(totals[PENDING_MAX], producer.shared)
            _note_latencies(stream, receipt, run, clock, totals, latencies)
            stream.filling = False
            _await_message(stream, now, run, clock)
            continue
        if producer.blocked_by >= 0 and producer.blocked_by != index:
            stream.at = np.inf  # behind the one that waits
            continue
        held = producer.blocked_by == index and not run.steps_over
        stream.lane = _choose(stream, held, now, run, lanes, producers, operations, totals)
        if stream.lane < 0 or not _has_room(stream.producer, now, run, lanes, producers, operations):
            _wait(index, now, run, clock, streams, lanes, producers, operations, totals)
            continue
        if producer.blocked_by == index:
            _unblock(index, now, run, streams, producers, totals)
        _fill(stream, now, run, clock, lanes, producers, operations)
