import java.util.Collections;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Loads of Bench.java by the client of RocketMQ 5, over gRPC: ADDRESS TOPIC SECONDS. It has no batches. */
public final class BenchGrpc {
    private static final byte[] BODY = new byte[1024];
    private static final int IN_FLIGHT = 64;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    /** What a consumer may take for its first message, in ns. */
    private static final long FIRST = 90_000_000_000L;
    private static String topic;
    private static long nanos;
    private static ClientConfiguration configuration;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        nanos = Long.parseLong(arguments[2]) * 1_000_000_000L;
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).build();
        begun(producer);
        many(producer); // warms up
        begin();
        say("sends a second, 64 in flight, over gRPC", many(producer));
        say("messages a second, received and acknowledged, over gRPC", consumed());
        System.exit(0);
    }

    private static void say(String what, long figure) {
        System.out.println("@ " + what + ": " + figure);
        System.out.flush();
    }

    /** A load begins: from here on, its processor time counts. */
    private static void begin() {
        System.out.println("@ begin");
        System.out.flush();
    }

    /** A load has ended: its figure, and the messages since it began. */
    private static void say(String what, long[] measured) {
        System.out.println("@ " + what + ": " + measured[0] + " of " + measured[1] + " messages");
        System.out.flush();
    }

    /** Counts what it gets, and when. */
    private static final class Counting implements AutoCloseable {
        final AtomicLong count = new AtomicLong();
        final AtomicLong first = new AtomicLong();
        final AtomicLong last = new AtomicLong();
        private final PushConsumer consumer;

        Counting() throws Exception {
            consumer = PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup("bench-grpc")
                .setSubscriptionExpressions(Collections.singletonMap(topic, FilterExpression.SUB_ALL))
                .setMessageListener(message -> {
                    first.compareAndSet(0, System.nanoTime());
                    last.set(System.nanoTime());
                    count.incrementAndGet();
                    return ConsumeResult.SUCCESS;
                }).build();
        }

        @Override
        public void close() throws Exception {
            consumer.close();
        }
    }

    /** A group begins where its first consumer finds a queue: what is sent from now on is for it. */
    private static void begun(Producer producer) throws Exception {
        try (Counting consumer = new Counting()) {
            for (long begin = System.nanoTime(); consumer.count.get() < 32 && System.nanoTime() - begin < FIRST;) {
                producer.send(PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).build());
                Thread.sleep(50);
            }
        }
    }

    /** What the others have left: from the first message that comes, for so many seconds. */
    private static long[] consumed() throws Exception {
        try (Counting consumer = new Counting()) {
            long begin = System.nanoTime();
            while (consumer.first.get() == 0 && System.nanoTime() - begin < FIRST) {
                Thread.sleep(5);
            }
            begin();
            long before = consumer.count.get();
            while (consumer.first.get() != 0 && System.nanoTime() - consumer.first.get() < nanos) {
                Thread.sleep(50);
            }
            long rate = consumer.count.get() * 1_000_000_000L / Math.max(1, consumer.last.get() - consumer.first.get());
            return new long[] {rate, consumer.count.get() - before};
        }
    }

    private static long[] many(Producer producer) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicLong done = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        long begin = System.nanoTime();
        while (System.nanoTime() - begin < nanos) {
            room.acquire();
            producer.sendAsync(PROVIDER.newMessageBuilder().setTopic(topic).setBody(BODY).build())
                .whenComplete((receipt, error) -> {
                    (error == null ? done : failed).incrementAndGet();
                    room.release();
                });
        }
        room.acquire(IN_FLIGHT);
        if (failed.get() > 0) {
            say("failed over gRPC", failed.get());
        }
        return new long[] {done.get() * 1_000_000_000L / (System.nanoTime() - begin), done.get()};
    }
}
