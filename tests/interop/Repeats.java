import java.nio.charset.StandardCharsets;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.hook.SendMessageContext;
import org.apache.rocketmq.client.hook.SendMessageHook;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Programs that send a message object again, and a client that repeats sends by itself. */
public final class Repeats {
    private static String servers;

    public static void main(String[] arguments) throws Exception {
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1); // threads of producers would go on
        });
        servers = arguments[1];
        String topic = arguments[2];
        switch (arguments[0]) {
            case "objects" -> objects(topic);
            case "resend" -> resend(topic, arguments[3]);
            case "transaction" -> transaction(topic);
            case "stream" -> stream(topic, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]), arguments[5]);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    private static synchronized void say(String line) {
        System.out.println("@ " + line);
        System.out.flush();
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static DefaultMQProducer started(DefaultMQProducer producer) throws Exception {
        producer.setNamesrvAddr(servers);
        producer.setInstanceName("producer" + System.nanoTime());
        producer.setSendMsgTimeout(10_000);
        producer.setRetryTimesWhenSendAsyncFailed(5);
        try {
            producer.getClass().getMethod("setSendMsgMaxTimeoutPerRequest", int.class).invoke(producer, 3_000);
        } catch (NoSuchMethodException ignored) {
            say("without a time-out for each try");
        }
        producer.start();
        return producer;
    }

    /** One object that is filled three times, and one that is sent three times as it is. */
    private static void objects(String topic) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("producers"));
        Message filled = new Message(topic, "a", new byte[0]);
        for (int number = 0; number < 3; number++) {
            filled.setBody(bytes("filled" + number));
            say("filled " + producer.send(filled).getSendStatus());
        }
        Message same = new Message(topic, "a", bytes("same"));
        for (int number = 0; number < 3; number++) {
            say("same " + producer.send(same).getSendStatus());
        }
        producer.shutdown();
    }

    /** A consumer that sends each message it gets to the topic that it came from, three times in all. */
    private static void resend(String topic, String group) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("producers"));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName("consumer" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        AtomicInteger sent = new AtomicInteger();
        Semaphore over = new Semaphore(0);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                say("got " + text(message));
                try {
                    if (sent.getAndIncrement() < 3) {
                        say("resent " + producer.send(message).getSendStatus());
                    } else {
                        over.release();
                    }
                } catch (Exception error) {
                    say("failed " + error);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        producer.send(new Message(topic, "a", bytes("origin")));
        over.acquire();
        consumer.shutdown();
        producer.shutdown();
    }

    /** One object as the half of three transactions: two are rolled back, then one commits. */
    private static void transaction(String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("transactions" + topic);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.UNKNOW;
            }
        });
        started(producer);
        Message message = new Message(topic, "a", bytes("half"));
        LocalTransactionState[] states = {
            LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.COMMIT_MESSAGE
        };
        for (LocalTransactionState state : states) {
            say("half " + producer.sendMessageInTransaction(message, state).getLocalTransactionState());
        }
        Thread.sleep(500);
        producer.shutdown();
    }

    /** `count` messages with several properties, one each `pause` ms. `how`: `sync`; `async`; `traced`, with a span for each try; `batch`. */
    private static void stream(String topic, int count, int pause, String how) throws Exception {
        DefaultMQProducer producer = started(new DefaultMQProducer("producers"));
        AtomicInteger tries = new AtomicInteger();
        producer.getDefaultMQProducerImpl().registerSendMessageHook(new SendMessageHook() {
            @Override
            public String hookName() {
                return "tries";
            }

            @Override
            public void sendMessageBefore(SendMessageContext context) {
                int number = tries.incrementAndGet();
                if (how.equals("traced")) {
                    context.getMessage().putUserProperty("uber-trace-id", "span:" + number);
                    context.getMessage().putUserProperty("X-B3-SpanId", Integer.toString(number));
                }
            }

            @Override
            public void sendMessageAfter(SendMessageContext context) {
            }
        });
        Semaphore answered = new Semaphore(0);
        say("ready");
        for (int number = 0; number < count; number++) {
            long next = System.currentTimeMillis() + pause;
            Message message = message(topic, Integer.toString(number));
            int current = number;
            if (how.equals("async")) {
                producer.send(message, new SendCallback() {
                    @Override
                    public void onSuccess(SendResult result) {
                        say("sent " + current + " " + result.getSendStatus());
                        answered.release();
                    }

                    @Override
                    public void onException(Throwable error) {
                        say("failed " + current + " " + error);
                        answered.release();
                    }
                });
            } else {
                try {
                    SendResult result = how.equals("batch")
                        ? producer.send(java.util.List.of(message, message(topic, number + "b")))
                        : producer.send(message);
                    say("sent " + number + " " + result.getSendStatus());
                } catch (Exception error) {
                    say("failed " + number + " " + error);
                }
                answered.release();
            }
            Thread.sleep(Math.max(0, next - System.currentTimeMillis()));
        }
        answered.acquire(count);
        say("tries " + tries.get());
        producer.shutdown();
    }

    private static Message message(String topic, String body) {
        Message message = new Message(topic, "tag", "key" + body, bytes(body));
        for (String name : new String[] {"colour", "size", "shape", "weight"}) {
            message.putUserProperty(name, name + body);
        }
        return message;
    }
}
