// Everyday uses of the Go client. Arguments: service URL, token, a prefix of topics.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

var client pulsar.Client
var prefix string

// within ends the program if something takes a minute.
func within() context.Context {
	soon, _ := context.WithTimeout(context.Background(), time.Minute) //nolint:govet
	return soon
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(found, expected interface{}) {
	if fmt.Sprint(found) != fmt.Sprint(expected) {
		panic(fmt.Sprintf("%v instead of %v", found, expected))
	}
}

func producer(options pulsar.ProducerOptions) pulsar.Producer {
	made, err := client.CreateProducer(options)
	check(err)
	return made
}

func subscribe(options pulsar.ConsumerOptions) pulsar.Consumer {
	if options.SubscriptionName == "" {
		options.SubscriptionName = "s"
	}
	options.SubscriptionInitialPosition = pulsar.SubscriptionPositionEarliest
	made, err := client.Subscribe(options)
	check(err)
	return made
}

// publish sends numbers, two keys in turn, in batches of up to ten.
func publish(topic string, compression pulsar.CompressionType, first, end int) {
	sender := producer(pulsar.ProducerOptions{
		Topic: topic, CompressionType: compression, BatchingMaxMessages: 10, BatchingMaxPublishDelay: time.Second})
	for number := first; number < end; number++ {
		sender.SendAsync(context.Background(), &pulsar.ProducerMessage{
			Payload: []byte(fmt.Sprint(number)), Key: fmt.Sprintf("k%d", number%2),
			Properties: map[string]string{"number": fmt.Sprint(number)}, EventTime: time.UnixMilli(int64(number) + 1)},
			func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { check(err) })
	}
	check(sender.Flush())
	sender.Close()
}

func receive(consumer pulsar.Consumer) pulsar.Message {
	message, err := consumer.Receive(within())
	check(err)
	return message
}

// take receives and acknowledges messages, and returns their payloads in order.
func take(count int, consumers ...pulsar.Consumer) []string {
	found := []string{}
	for turn := 0; len(found) < count; turn++ {
		if turn > 6000 {
			panic(fmt.Sprintf("only %v", found))
		}
		soon, stop := context.WithTimeout(context.Background(), 10*time.Millisecond)
		each := consumers[turn%len(consumers)]
		if message, err := each.Receive(soon); err == nil {
			each.Ack(message)
			found = append(found, string(message.Payload()))
		}
		stop()
	}
	return found
}

func numbers(first, end int) []string {
	found := []string{}
	for number := first; number < end; number++ {
		found = append(found, fmt.Sprint(number))
	}
	return found
}

func sorted(found []string) []string {
	sort.Slice(found, func(one, other int) bool {
		return len(found[one]) < len(found[other]) || len(found[one]) == len(found[other]) && found[one] < found[other]
	})
	return found
}

func compression(topic string) {
	kinds := []pulsar.CompressionType{pulsar.NoCompression, pulsar.LZ4, pulsar.ZLib, pulsar.ZSTD}
	for index, kind := range kinds {
		publish(topic, kind, 10*index, 10*index+10)
	}
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic})
	for number := 0; number < 10*len(kinds); number++ {
		message := receive(consumer)
		equal(string(message.Payload()), number)
		equal(message.Key(), fmt.Sprintf("k%d", number%2))
		equal(message.Properties()["number"], number)
		equal(message.EventTime().UnixMilli(), number+1)
	}
}

func large(topic string) {
	payload := strings.Repeat("x", 4<<20)
	sender := producer(pulsar.ProducerOptions{Topic: topic, DisableBatching: true})
	_, err := sender.Send(within(), &pulsar.ProducerMessage{Payload: []byte(payload)})
	check(err)
	equal(len(receive(subscribe(pulsar.ConsumerOptions{Topic: topic})).Payload()), len(payload))
}

func acknowledgement(topic string) {
	publish(topic, pulsar.LZ4, 0, 20)
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic})
	equal(take(15, consumer), numbers(0, 15))
	consumer.Close()
	consumer = subscribe(pulsar.ConsumerOptions{Topic: topic})
	for first := receive(consumer); string(first.Payload()) < "15"; { // acknowledged in a batch that is not
		first = receive(consumer)
	}
	check(consumer.Unsubscribe())
}

func redelivery(topic string) {
	dead := subscribe(pulsar.ConsumerOptions{Topic: topic + "-dead"})
	consumer := subscribe(pulsar.ConsumerOptions{
		Topic: topic, Type: pulsar.Shared, NackRedeliveryDelay: 100 * time.Millisecond,
		DLQ: &pulsar.DLQPolicy{MaxDeliveries: 2, DeadLetterTopic: topic + "-dead"}})
	publish(topic, pulsar.LZ4, 0, 1)
	for count := 0; count < 2; count++ {
		message := receive(consumer)
		equal(message.RedeliveryCount(), count)
		consumer.Nack(message)
	}
	go consumer.Receive(within())
	equal(take(1, dead), numbers(0, 1))
}

func subscriptionTypes(topic string) {
	kinds := map[string]pulsar.SubscriptionType{
		"shared": pulsar.Shared, "failover": pulsar.Failover, "key_shared": pulsar.KeyShared}
	for name, kind := range kinds {
		options := pulsar.ConsumerOptions{Topic: topic + "-" + name, Type: kind}
		one, other := subscribe(options), subscribe(options)
		publish(topic+"-"+name, pulsar.LZ4, 0, 20)
		equal(sorted(take(20, one, other)), numbers(0, 20))
		one.Close()
		check(other.Unsubscribe())
	}
}

func delay(topic string) {
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic, Type: pulsar.Shared})
	sender := producer(pulsar.ProducerOptions{Topic: topic})
	begin := time.Now()
	_, err := sender.Send(within(), &pulsar.ProducerMessage{Payload: []byte("0"), DeliverAfter: time.Second})
	check(err)
	take(1, consumer)
	equal(time.Since(begin) >= 900*time.Millisecond, true)
}

func seek(topic string) {
	publish(topic, pulsar.LZ4, 0, 10)
	consumer := subscribe(pulsar.ConsumerOptions{Topic: topic})
	first := receive(consumer)
	take(9, consumer)
	check(consumer.SeekByTime(time.Now().Add(-time.Hour)))
	equal(take(10, consumer), numbers(0, 10))
	check(consumer.Seek(first.ID()))
	for again := receive(consumer); string(again.Payload()) != "9"; { // newer versions leave the first out
		again = receive(consumer)
	}
}

func reader(topic string) {
	publish(topic, pulsar.LZ4, 0, 10)
	reads, err := client.CreateReader(pulsar.ReaderOptions{Topic: topic, StartMessageID: pulsar.EarliestMessageID()})
	check(err)
	found := []string{}
	for reads.HasNext() {
		message, err := reads.Next(within())
		check(err)
		found = append(found, string(message.Payload()))
	}
	equal(found, numbers(0, 10))
}

func partitions(topic string) {
	names, err := client.TopicPartitions(topic)
	check(err)
	equal(len(names), 3)
	publish(topic, pulsar.LZ4, 0, 20)
	equal(sorted(take(20, subscribe(pulsar.ConsumerOptions{Topic: topic}))), numbers(0, 20))
}

func pattern(topic string) {
	publish(topic+"-1", pulsar.LZ4, 0, 10)
	publish(topic+"-2", pulsar.LZ4, 10, 20)
	consumer := subscribe(pulsar.ConsumerOptions{TopicsPattern: topic + "-.*"})
	equal(sorted(take(20, consumer)), numbers(0, 20))
}

type record struct {
	Number int `json:"number" avro:"number"`
}

func schema(topic string) {
	definition := `{"type": "record", "name": "Record", "fields": [{"name": "number", "type": "int"}]}`
	for kind, each := range map[string]pulsar.Schema{
		"json": pulsar.NewJSONSchema(definition, nil), "avro": pulsar.NewAvroSchema(definition, nil)} {
		sender := producer(pulsar.ProducerOptions{Topic: topic + "-" + kind, Schema: each})
		_, err := sender.Send(within(), &pulsar.ProducerMessage{Value: record{7}})
		check(err)
		var found record
		check(receive(subscribe(pulsar.ConsumerOptions{Topic: topic + "-" + kind, Schema: each})).GetSchemaValue(&found))
		equal(found.Number, 7)
	}
}

// ours reads what Geminga's client has published.
func ours(topic string) {
	equal(take(20, subscribe(pulsar.ConsumerOptions{Topic: topic})), numbers(0, 20))
}

func main() {
	var err error
	client, err = pulsar.NewClient(pulsar.ClientOptions{
		URL: os.Args[1], Authentication: pulsar.NewAuthenticationToken(os.Args[2])})
	check(err)
	prefix = os.Args[3]
	for _, each := range []struct {
		name string
		run  func(string)
	}{
		{"compression", compression}, {"large", large}, {"acknowledgement", acknowledgement},
		{"redelivery", redelivery}, {"subscription_types", subscriptionTypes}, {"delay", delay}, {"seek", seek},
		{"reader", reader}, {"partitions", partitions}, {"pattern", pattern}, {"schema", schema}, {"ours", ours},
	} {
		fmt.Println(each.name)
		each.run(prefix + "-" + each.name)
	}
	fmt.Println("all passed")
}
