import static java.util.concurrent.TimeUnit.SECONDS;

import java.util.List;
import java.util.concurrent.ExecutionException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/** Transactions of Java's client: arguments are the service URL and the beginning of topics' names. */
public class Transactions {
    static PulsarClient client;

    static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
        System.out.println("ok: " + what);
    }

    static Consumer<String> subscribe(String topic, SubscriptionType kind) throws Exception {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName("s").subscriptionType(kind)
                .enableBatchIndexAcknowledgment(true)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
    }

    static Producer<String> producer(String topic, boolean batched) throws Exception {
        return client.newProducer(Schema.STRING).topic(topic).enableBatching(batched).sendTimeout(0, SECONDS)
                .create();
    }

    static Transaction begin(int seconds) throws Exception {
        return client.newTransaction().withTransactionTimeout(seconds, SECONDS).build().get();
    }

    static String next(Consumer<String> consumer) throws Exception {
        Message<String> message = consumer.receive(20, SECONDS);
        return message == null ? null : message.getValue();
    }

    static void commitAndAbort(String name, SubscriptionType kind, boolean batched) throws Exception {
        String what = " (" + kind + (batched ? ", batched)" : ")");
        Consumer<String> source = subscribe(name + "-in", kind), out = subscribe(name + "-out", kind);
        try (Producer<String> to = producer(name + "-out", batched); Producer<String> feed = producer(name + "-in", batched)) {
            for (int number = 0; number < 4; number++) feed.sendAsync("in " + number);
            feed.flush();
            Transaction aborted = begin(60);
            for (int number = 0; number < 2; number++) {
                Message<String> message = source.receive(20, SECONDS);
                to.newMessage(aborted).value("never").sendAsync();
                source.acknowledgeAsync(message.getMessageId(), aborted).get();
            }
            aborted.abort().get();
            source.close();
            source = subscribe(name + "-in", kind);
            Transaction txn = begin(60);
            for (int number = 0; number < 4; number++) {
                Message<String> message = source.receive(20, SECONDS);
                check(message != null, "an abort has messages delivered again" + what);
                to.newMessage(txn).value("of " + message.getValue()).sendAsync();
                source.acknowledgeAsync(message.getMessageId(), txn).get();
            }
            check(out.receive(2, SECONDS) == null, "nothing is seen before the commit" + what);
            txn.commit().get();
            for (int number = 0; number < 4; number++) {
                check(next(out).startsWith("of in"), "committed messages are seen" + what);
            }
            source.close();
            source = subscribe(name + "-in", kind);
            check(source.receive(2, SECONDS) == null, "acknowledgements are committed" + what);
        }
        source.close();
        out.close();
    }

    static void conflict(String name) throws Exception {
        Consumer<String> source = subscribe(name, SubscriptionType.Shared);
        try (Producer<String> feed = producer(name, false)) {
            feed.send("one");
        }
        Message<String> message = source.receive(20, SECONDS);
        Transaction first = begin(60), second = begin(60);
        source.acknowledgeAsync(message.getMessageId(), first).get();
        try {
            source.acknowledgeAsync(message.getMessageId(), second).get();
            check(false, "a second transaction acknowledges the message");
        } catch (ExecutionException error) {
            check(error.getCause() instanceof PulsarClientException.TransactionConflictException, "a conflict is told");
        }
        first.commit().get();
        second.abort().get();
        source.close();
    }

    static void timeOut(String name) throws Exception {
        Consumer<String> out = subscribe(name, SubscriptionType.Exclusive);
        try (Producer<String> to = producer(name, false)) {
            Transaction late = begin(2);
            to.newMessage(late).value("never").send();
            to.send("seen");
            check("seen".equals(next(out)), "a transaction is aborted at its time limit");
            try {
                late.commit().get();
                check(false, "a late commit succeeds");
            } catch (ExecutionException error) {
                check(true, "a late commit is refused");
            }
        }
        out.close();
    }

    public static void main(String[] arguments) throws Exception {
        client = PulsarClient.builder().serviceUrl(arguments[0]).enableTransaction(true).build();
        for (SubscriptionType kind : List.of(SubscriptionType.Exclusive, SubscriptionType.Shared,
                SubscriptionType.Key_Shared, SubscriptionType.Failover)) {
            commitAndAbort(arguments[1] + "-" + kind, kind, false);
        }
        commitAndAbort(arguments[1] + "-batched", SubscriptionType.Shared, true);
        conflict(arguments[1] + "-conflict");
        timeOut(arguments[1] + "-late");
        client.close();
        System.out.println("done");
        System.exit(0);
    }
}
