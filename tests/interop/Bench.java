import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.LongPredicate;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The same load on any cluster: SERVERS TOPIC SECONDS. Bodies of 1 KiB. Says a figure a line.
 * With a fourth argument: sends so many messages, and says nothing. */
public final class Bench {
    private static final byte[] BODY = new byte[1024];
    private static final int IN_FLIGHT = 64;
    private static final int BATCH = 64;
    /** What a consumer may take for its first message, in ns. */
    private static final long FIRST = 90_000_000_000L;
    private static String topic;
    private static long nanos;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        nanos = Long.parseLong(arguments[2]) * 1_000_000_000L;
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        if (arguments.length > 3) {
            fill(producer, Long.parseLong(arguments[3]));
            System.exit(0);
        }
        many(producer); // warms up
        begin();
        say("sends a second, 64 in flight", many(producer));
        begin();
        say("messages a second, batches of 64, 4 in flight", batches(producer));
        begin();
        say("p50 of a lone send, us", lone(producer));
        producer.shutdown();
        say("messages a second, received and acknowledged", consumed(arguments[0]));
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

    private static long[] many(DefaultMQProducer producer) throws Exception {
        Semaphore room = new Semaphore(IN_FLIGHT);
        AtomicLong done = new AtomicLong();
        AtomicLong failed = new AtomicLong();
        long begin = System.nanoTime();
        while (System.nanoTime() - begin < nanos) {
            room.acquire();
            producer.send(new Message(topic, BODY), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    (result.getSendStatus() == SendStatus.SEND_OK ? done : failed).incrementAndGet();
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed.incrementAndGet();
                    room.release();
                }
            });
        }
        room.acquire(IN_FLIGHT);
        if (failed.get() > 0) {
            say("failed", failed.get());
        }
        return new long[] {done.get() * 1_000_000_000L / (System.nanoTime() - begin), done.get()};
    }

    private static long[] batches(DefaultMQProducer producer) throws Exception {
        long begin = System.nanoTime();
        AtomicLong done = send(producer, count -> System.nanoTime() - begin < nanos);
        return new long[] {done.get() * 1_000_000_000L / (System.nanoTime() - begin), done.get()};
    }

    private static void fill(DefaultMQProducer producer, long messages) throws Exception {
        send(producer, count -> count < messages);
    }

    /** Batches, as long as the number of messages that are sent allows. */
    private static AtomicLong send(DefaultMQProducer producer, LongPredicate goesOn) throws Exception {
        AtomicLong done = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            Thread thread = new Thread(() -> {
                while (goesOn.test(done.get())) {
                    List<Message> batch = new ArrayList<>();
                    for (int one = 0; one < BATCH; one++) {
                        batch.add(new Message(topic, BODY));
                    }
                    try {
                        producer.send(batch);
                        done.addAndGet(BATCH);
                    } catch (Exception error) {
                        say("failed batches", 1);
                    }
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return done;
    }

    private static long[] lone(DefaultMQProducer producer) throws Exception {
        long begin = System.nanoTime();
        List<Long> times = new ArrayList<>();
        while (System.nanoTime() - begin < nanos) {
            long at = System.nanoTime();
            producer.send(new Message(topic, BODY));
            times.add((System.nanoTime() - at) / 1000);
        }
        long[] sorted = times.stream().mapToLong(Long::longValue).sorted().toArray();
        return new long[] {sorted[sorted.length / 2], sorted.length};
    }

    /** What the others have left: from the first message that comes, for so many seconds or until all are read. */
    private static long[] consumed(String servers) throws Exception {
        AtomicLong count = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("bench");
        consumer.setNamesrvAddr(servers);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            first.compareAndSet(0, System.nanoTime());
            last.set(System.nanoTime());
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long begin = System.nanoTime();
        while (first.get() == 0 && System.nanoTime() - begin < FIRST) {
            Thread.sleep(5);
        }
        begin();
        long before = count.get();
        while (first.get() != 0 && System.nanoTime() - first.get() < nanos) {
            Thread.sleep(50);
        }
        long rate = count.get() * 1_000_000_000L / Math.max(1, last.get() - first.get());
        return new long[] {rate, count.get() - before};
    }
}
