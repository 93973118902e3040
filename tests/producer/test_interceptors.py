from geminga.producer.interceptors import InterceptorChain, ProducerInterceptor
from geminga.producer.message import OutgoingMessage


class Recorder(ProducerInterceptor):
    def __init__(self, mark):
        self.mark = mark
        self.seen = []

    def before_send(self, producer, message):
        return message.replace(payload=message.payload + self.mark)

    def on_send_acknowledgement(self, producer, message, message_id, error):
        self.seen.append((message.payload, message_id, error))

    def on_partitions_change(self, topic, partitions):
        self.seen.append((topic, partitions))

    def close(self):
        self.seen.append("closed")


class Broken(ProducerInterceptor):
    def before_send(self, producer, message):
        raise RuntimeError("before")

    def on_send_acknowledgement(self, producer, message, message_id, error):
        raise RuntimeError("after")

    def on_partitions_change(self, topic, partitions):
        raise RuntimeError("change")

    def close(self):
        raise RuntimeError("close")


class ReturnsNothing(ProducerInterceptor):
    def before_send(self, producer, message):
        return None


class Ineligible(Recorder):
    def eligible(self, message):
        return False


def test_a_chain_runs_in_order_and_one_that_fails_harms_nothing():
    first, last = Recorder(b"1"), Recorder(b"2")
    chain = InterceptorChain([first, Broken(), ReturnsNothing(), last])
    message = chain.before_send("producer", OutgoingMessage(b"x"))
    assert message.payload == b"x12"
    chain.on_send_acknowledgement("producer", message, "id", None)
    chain.on_partitions_change("topic", 3)
    chain.close()
    for recorder in (first, last):
        assert recorder.seen == [(b"x12", "id", None), ("topic", 3), "closed"]


def test_an_interceptor_that_is_not_eligible_is_left_out():
    recorder = Ineligible(b"1")
    chain = InterceptorChain([recorder])
    message = OutgoingMessage(b"x")
    assert chain.before_send(None, message) is message
    chain.on_send_acknowledgement(None, message, None, None)
    assert recorder.seen == []
