// Everyday uses of the Java client. Arguments: service URL, token, a prefix of topics.

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import java.util.stream.IntStream;

import org.apache.pulsar.client.api.*;

public class Program {
    public static class Record {
        public int number;
    }

    interface Capability {
        void run(String topic) throws Exception;
    }

    static PulsarClient client;

    static void equal(Object found, Object expected) {
        if (!found.equals(expected)) {
            throw new AssertionError(found + " instead of " + expected);
        }
    }

    static ConsumerBuilder<byte[]> consumer(String topic) {
        return client.newConsumer().topic(topic).subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
    }

    /** Sends numbers, two keys in turn, in batches of up to ten. */
    static void publish(String topic, CompressionType compression, int first, int end) throws Exception {
        Producer<byte[]> producer = client.newProducer().topic(topic).compressionType(compression)
            .batchingMaxMessages(10).batchingMaxPublishDelay(1, TimeUnit.SECONDS).create();
        for (int number = first; number < end; number++) {
            producer.newMessage().value(String.valueOf(number).getBytes()).key("k" + number % 2)
                .property("number", String.valueOf(number)).eventTime(number + 1).sendAsync();
        }
        producer.flush();
        producer.close();
    }

    static <T> Message<T> receive(Consumer<T> consumer) throws Exception {
        Message<T> message = consumer.receive(1, TimeUnit.MINUTES);
        if (message == null) {
            throw new AssertionError("no message in a minute");
        }
        return message;
    }

    /** Receives and acknowledges messages, and returns their numbers in order. */
    @SafeVarargs
    static List<Integer> take(int count, Consumer<byte[]>... consumers) throws Exception {
        List<Integer> found = new ArrayList<>();
        for (int turn = 0; found.size() < count; turn++) {
            if (turn > 6000) {
                throw new AssertionError("only " + found);
            }
            Consumer<byte[]> each = consumers[turn % consumers.length];
            Message<byte[]> message = each.receive(10, TimeUnit.MILLISECONDS);
            if (message != null) {
                each.acknowledge(message);
                found.add(Integer.valueOf(new String(message.getData())));
            }
        }
        return found;
    }

    static List<Integer> numbers(int first, int end) {
        return IntStream.range(first, end).boxed().collect(Collectors.toList());
    }

    static List<Integer> sorted(List<Integer> found) {
        return found.stream().sorted(Comparator.naturalOrder()).collect(Collectors.toList());
    }

    static void compression(String topic) throws Exception {
        CompressionType[] kinds = CompressionType.values();
        for (int index = 0; index < kinds.length; index++) {
            publish(topic, kinds[index], 10 * index, 10 * index + 10);
        }
        Consumer<byte[]> consumer = consumer(topic).subscribe();
        for (int number = 0; number < 10 * kinds.length; number++) {
            Message<byte[]> message = receive(consumer);
            equal(new String(message.getData()), String.valueOf(number));
            equal(message.getKey(), "k" + number % 2);
            equal(message.getProperty("number"), String.valueOf(number));
            equal(message.getEventTime(), number + 1L);
        }
    }

    static void large(String topic) throws Exception {
        byte[] payload = new byte[12 << 20];
        Arrays.fill(payload, (byte) 'x');
        Consumer<byte[]> consumer = consumer(topic).subscribe();
        client.newProducer().topic(topic).enableBatching(false).enableChunking(true).create().send(payload);
        equal(Arrays.equals(receive(consumer).getData(), payload), true);
    }

    static void acknowledgement(String topic) throws Exception {
        publish(topic, CompressionType.LZ4, 0, 20);
        Consumer<byte[]> consumer = consumer(topic).subscribe();
        equal(take(15, consumer), numbers(0, 15));
        consumer.close();
        consumer = consumer(topic).subscribe();
        Message<byte[]> message = receive(consumer);
        while (Integer.parseInt(new String(message.getData())) < 15) { // acknowledged in a batch that is not
            message = receive(consumer);
        }
        consumer.acknowledgeCumulative(message);
        consumer.unsubscribe();
    }

    static void redelivery(String topic) throws Exception {
        Consumer<byte[]> dead = consumer(topic + "-dead").subscribe();
        Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared)
            .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
            .deadLetterPolicy(DeadLetterPolicy.builder().maxRedeliverCount(2).deadLetterTopic(topic + "-dead").build())
            .subscribe();
        publish(topic, CompressionType.LZ4, 0, 1);
        for (int count = 0; count < 3; count++) {
            Message<byte[]> message = receive(consumer);
            equal(message.getRedeliveryCount(), count);
            consumer.negativeAcknowledge(message);
        }
        consumer.receiveAsync();
        equal(take(1, dead), numbers(0, 1));
    }

    static void subscriptionTypes(String topic) throws Exception {
        for (SubscriptionType kind : List.of(
                SubscriptionType.Shared, SubscriptionType.Failover, SubscriptionType.Key_Shared)) {
            ConsumerBuilder<byte[]> builder = consumer(topic + "-" + kind).subscriptionType(kind);
            Consumer<byte[]> one = builder.subscribe();
            Consumer<byte[]> other = builder.clone().subscribe();
            publish(topic + "-" + kind, CompressionType.LZ4, 0, 20);
            equal(sorted(take(20, one, other)), numbers(0, 20));
            one.close();
            other.unsubscribe();
        }
    }

    static void delay(String topic) throws Exception {
        Consumer<byte[]> consumer = consumer(topic).subscriptionType(SubscriptionType.Shared).subscribe();
        long begin = System.nanoTime();
        client.newProducer().topic(topic).create().newMessage().value("0".getBytes())
            .deliverAfter(1, TimeUnit.SECONDS).send();
        take(1, consumer);
        equal(System.nanoTime() - begin > 900_000_000L, true);
    }

    static void seek(String topic) throws Exception {
        publish(topic, CompressionType.LZ4, 0, 10);
        Consumer<byte[]> consumer = consumer(topic).subscribe();
        take(10, consumer);
        consumer.seek(MessageId.earliest);
        equal(take(10, consumer), numbers(0, 10));
        consumer.seek(System.currentTimeMillis() - 3_600_000);
        equal(take(10, consumer), numbers(0, 10));
    }

    static void reader(String topic) throws Exception {
        publish(topic, CompressionType.LZ4, 0, 10);
        Reader<byte[]> reader = client.newReader().topic(topic).startMessageId(MessageId.earliest).create();
        List<Integer> found = new ArrayList<>();
        while (reader.hasMessageAvailable()) {
            found.add(Integer.valueOf(new String(reader.readNext(1, TimeUnit.MINUTES).getData())));
        }
        equal(found, numbers(0, 10));
    }

    static void partitions(String topic) throws Exception {
        equal(client.getPartitionsForTopic(topic).get().size(), 3);
        publish(topic, CompressionType.LZ4, 0, 20);
        equal(sorted(take(20, consumer(topic).subscribe())), numbers(0, 20));
    }

    static void pattern(String topic) throws Exception {
        publish(topic + "-1", CompressionType.LZ4, 0, 10);
        publish(topic + "-2", CompressionType.LZ4, 10, 20);
        Consumer<byte[]> consumer = client.newConsumer().topicsPattern(topic + "-.*").subscriptionName("s")
            .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
        equal(sorted(take(20, consumer)), numbers(0, 20));
    }

    static void schema(String topic) throws Exception {
        Record record = new Record();
        record.number = 7;
        for (Schema<Record> each : List.of(Schema.JSON(Record.class), Schema.AVRO(Record.class))) {
            String name = topic + "-" + each.getSchemaInfo().getType();
            client.newProducer(each).topic(name).create().send(record);
            Consumer<Record> consumer = client.newConsumer(each).topic(name).subscriptionName("s")
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
            equal(receive(consumer).getValue().number, 7);
        }
    }

    static void exclusiveProducer(String topic) throws Exception {
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).accessMode(ProducerAccessMode.Exclusive);
        builder.create();
        try {
            builder.clone().create();
        } catch (PulsarClientException.ProducerFencedException | PulsarClientException.ProducerBusyException expected) {
            return;
        }
        throw new AssertionError("a second exclusive producer was accepted");
    }

    /** Reads what Geminga's client has published. */
    static void ours(String topic) throws Exception {
        equal(take(20, consumer(topic).subscribe()), numbers(0, 20));
    }

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0])
            .authentication(AuthenticationFactory.token(arguments[1])).build();
        Map<String, Capability> all = new TreeMap<>(Map.ofEntries(
            Map.entry("compression", Program::compression), Map.entry("large", Program::large),
            Map.entry("acknowledgement", Program::acknowledgement), Map.entry("redelivery", Program::redelivery),
            Map.entry("subscription_types", Program::subscriptionTypes), Map.entry("delay", Program::delay),
            Map.entry("seek", Program::seek), Map.entry("reader", Program::reader),
            Map.entry("partitions", Program::partitions), Map.entry("pattern", Program::pattern),
            Map.entry("schema", Program::schema), Map.entry("exclusive_producer", Program::exclusiveProducer),
            Map.entry("ours", Program::ours)));
        for (Map.Entry<String, Capability> each : all.entrySet()) {
            System.out.println(each.getKey());
            each.getValue().run(arguments[2] + "-" + each.getKey());
        }
        System.out.println("all passed");
        System.exit(0); // clients of some versions leave threads
    }
}
