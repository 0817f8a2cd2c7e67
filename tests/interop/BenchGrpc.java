import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The first load of Bench.java by the client of RocketMQ 5, over gRPC: ADDRESS TOPIC SECONDS. */
public final class BenchGrpc {
    private static final byte[] BODY = new byte[1024];
    private static final int IN_FLIGHT = 64;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static String topic;
    private static long nanos;

    public static void main(String[] arguments) throws Exception {
        topic = arguments[1];
        nanos = Long.parseLong(arguments[2]) * 1_000_000_000L;
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics(topic).build();
        many(producer); // warms up
        System.out.println("@ sends a second, 64 in flight, over gRPC: " + many(producer));
        System.out.flush();
        System.exit(0);
    }

    private static long many(Producer producer) throws Exception {
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
            System.out.println("@ failed over gRPC: " + failed.get());
        }
        return done.get() * 1_000_000_000L / (System.nanoTime() - begin);
    }
}
