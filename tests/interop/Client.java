import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.zip.CRC32;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;

/** What an application does with RocketMQ's Java client, by its first argument. Each fact is a line of words. */
public final class Client {
    /** Longer than between two looks at the routes (30 s), in ms. */
    private static final long QUIET = 75_000;

    private static String servers;

    public static void main(String[] arguments) throws Exception {
        servers = arguments[1];
        String topic = arguments[2];
        switch (arguments[0]) {
            case "send" -> send(topic, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]), arguments.length > 5 ? arguments[5] : "patient");
            case "kinds" -> kinds(topic);
            case "push" -> push(topic, arguments[3], arguments[4], Integer.parseInt(arguments[5]), false);
            case "orderly" -> push(topic, arguments[3], arguments[4], Integer.parseInt(arguments[5]), true);
            case "retry" -> retry(topic, arguments[3]);
            case "orderly-retry" -> orderlyRetry(topic, arguments[3]);
            case "transactions" -> transactions(topic);
            case "request" -> request(topic, arguments[3]);
            case "reply" -> reply(topic, arguments[3]);
            case "pop" -> pop(topic, arguments[3], Integer.parseInt(arguments[4]));
            case "compressed" -> compressed(topic, arguments[3], arguments[4].split(","));
            case "bodies" -> bodies(topic, arguments[3], Integer.parseInt(arguments[4]));
            case "lite" -> lite(topic, arguments[3], Integer.parseInt(arguments[4]));
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        System.exit(0);
    }

    /** Signs what is asked, if the environment says as whom: access key and secret with a colon. */
    private static RPCHook signing() {
        String[] account = System.getenv().getOrDefault("ROCKETMQ_ACCOUNT", "").split(":");
        return account.length < 2 ? null : new AclClientRPCHook(new SessionCredentials(account[0], account[1]));
    }

    private static synchronized void say(String line) {
        System.out.println("@ " + line);
        System.out.flush();
    }

    private static DefaultMQProducer producer() throws Exception {
        return producer(true);
    }

    private static DefaultMQProducer producer(boolean patient) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("producers", signing());
        producer.setNamesrvAddr(servers);
        producer.setInstanceName("producer" + System.nanoTime());
        if (!patient) {
            producer.start();
            return producer;
        }
        // An election takes longer than the default of 3 s on a machine that has too much to do.
        producer.setSendMsgTimeout(10_000);
        try {
            // Without it the first try, at a node that is paused, takes all of that; 4.9 has no such setting.
            producer.getClass().getMethod("setSendMsgMaxTimeoutPerRequest", int.class).invoke(producer, 3_000);
        } catch (NoSuchMethodException ignored) {
            say("without a time-out for each try");
        }
        producer.start();
        return producer;
    }

    /** `count` messages, one each `pause` ms. `how`: `patient`, or with the client's own time-outs: `default`;
        `selector`, by one of 24 keys, so of all queues; `again`, and if that fails once more to the same queue by another name. */
    private static void send(String topic, int count, int pause, String how) throws Exception {
        DefaultMQProducer producer = producer(how.equals("patient"));
        say("ready");
        for (int number = 0; number < count; number++) {
            long begin = System.currentTimeMillis();
            long next = begin + pause;
            byte[] body = Integer.toString(number).getBytes(StandardCharsets.UTF_8);
            try {
                Message message = new Message(topic, "tag" + number % 2, "key" + number, body);
                SendResult result = how.equals("selector") || how.equals("again")
                    ? selected(producer, message, number % 24, how.equals("again"))
                    : producer.send(message);
                long took = System.currentTimeMillis() - begin;
                say("sent " + number + " " + result.getSendStatus() + " " + result.getMsgId() + " " + took);
            } catch (Exception error) {
                say("failed " + number + " " + error.getClass().getSimpleName() + " " + text(error));
            }
            Thread.sleep(Math.max(0, next - System.currentTimeMillis()));
        }
        producer.shutdown();
    }

    private static SendResult selected(DefaultMQProducer producer, Message message, int key, boolean again) throws Exception {
        MessageQueue[] tried = {null};
        try {
            return producer.send(message, (all, one, arg) -> tried[0] = all.get(key % all.size()), key);
        } catch (Exception error) {
            if (!again || tried[0] == null) {
                throw error;
            }
            // The message keeps its id, so it is stored once, whatever became of the first attempt.
            return producer.send(message, (all, one, arg) -> all.stream()
                .filter(queue -> queue.getQueueId() == tried[0].getQueueId() && !queue.getBrokerName().equals(tried[0].getBrokerName()))
                .findFirst().orElse(tried[0]), key);
        }
    }

    private static String text(Exception error) {
        String why = error.getCause() == null ? "" : " " + error.getCause().getMessage();
        return (error.getMessage() + why).replace('\n', ' ');
    }

    /** One of each kind of sending. */
    private static void kinds(String topic) throws Exception {
        DefaultMQProducer producer = producer();
        Message message = new Message(topic, "a", "k1 k2", "plain".getBytes(StandardCharsets.UTF_8));
        message.putUserProperty("colour", "blue");
        SendResult result = producer.send(message);
        say("plain " + result.getMsgId() + " " + result.getOffsetMsgId());
        byte[] large = "0123456789".repeat(2000).getBytes(StandardCharsets.UTF_8);
        say("compressed " + producer.send(new Message(topic, "b", large)).getSendStatus());
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 3; number++) {
            batch.add(new Message(topic, "batch", ("b" + number).getBytes(StandardCharsets.UTF_8)));
        }
        say("batch " + producer.send(batch).getSendStatus());
        producer.sendOneway(new Message(topic, "oneway", "oneway".getBytes(StandardCharsets.UTF_8)));
        Message late = new Message(topic, "late", "late".getBytes(StandardCharsets.UTF_8));
        late.setDelayTimeLevel(1);
        say("delayed " + producer.send(late).getSendStatus());
        for (int number = 0; number < 4; number++) {
            byte[] body = ("o" + number).getBytes(StandardCharsets.UTF_8);
            SendResult sent = producer.send(new Message(topic, "ordered", body), (all, one, key) -> all.get((int) key % all.size()), 5);
            say("ordered " + sent.getMessageQueue().getQueueId());
        }
        Thread.sleep(500);
        producer.shutdown();
    }

    private static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, signing(), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName("consumer" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        return consumer;
    }

    private static String line(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        String shown = body.length() > 40 ? "large" + body.length() : body;
        return shown + " " + message.getQueueId() + " " + message.getQueueOffset() + " " + message.getTags()
            + " " + message.getReconsumeTimes() + " " + message.getMsgId() + " " + message.getUserProperty("colour");
    }

    /** Until `count` different bodies have come. */
    private static void push(String topic, String group, String filter, int count, boolean orderly) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        if (filter.startsWith("sql:")) {
            consumer.subscribe(topic, MessageSelector.bySql(filter.substring(4)));
        } else {
            consumer.subscribe(topic, filter);
        }
        ConcurrentHashMap<String, Boolean> seen = new ConcurrentHashMap<>();
        if (orderly) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> took(message, seen));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> took(message, seen));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        say("ready");
        // What was lost never comes: who waits for it has to end, too.
        long changed = System.currentTimeMillis();
        for (int before = 0; seen.size() < count && System.currentTimeMillis() - changed < QUIET; Thread.sleep(20)) {
            if (seen.size() != before) {
                before = seen.size();
                changed = System.currentTimeMillis();
            }
        }
        consumer.shutdown();
    }

    private static void took(MessageExt message, ConcurrentHashMap<String, Boolean> seen) {
        say("got " + line(message));
        seen.put(new String(message.getBody(), StandardCharsets.UTF_8), true);
    }

    /** A message fails twice; then its listener takes it. Another one may come again once only. */
    private static void retry(String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        boolean[] done = {false};
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            say("got " + line(message));
            context.setDelayLevelWhenNextConsume(1);
            if (message.getReconsumeTimes() < 2) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            done[0] = true;
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        say("ready");
        while (!done[0]) {
            Thread.sleep(20);
        }
        Thread.sleep(1000);
        consumer.shutdown();
    }

    /** In order: message 0 fails until the consumer gives it up; ends with message 1, which follows it. */
    private static void orderlyRetry(String topic, String group) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.setMaxReconsumeTimes(1);
        consumer.subscribe(topic, "*");
        boolean[] done = {false};
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            say("got " + line(message));
            if (new String(message.getBody(), StandardCharsets.UTF_8).equals("0")) {
                context.setSuspendCurrentQueueTimeMillis(100);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            done[0] = true;
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        say("ready");
        while (!done[0]) {
            Thread.sleep(20);
        }
        Thread.sleep(1000);
        consumer.shutdown();
    }

    /** Asks and waits for the answer. */
    private static void request(String topic, String body) throws Exception {
        DefaultMQProducer producer = producer();
        Message answer = producer.request(new Message(topic, body.getBytes(StandardCharsets.UTF_8)), 20_000);
        say("answer " + new String(answer.getBody(), StandardCharsets.UTF_8));
        producer.shutdown();
    }

    /** Answers one message. */
    private static void reply(String topic, String group) throws Exception {
        DefaultMQProducer producer = producer();
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, "*");
        boolean[] done = {false};
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                byte[] body = ("re: " + new String(messages.get(0).getBody(), StandardCharsets.UTF_8)).getBytes(StandardCharsets.UTF_8);
                say("replied " + producer.send(MessageUtil.createReplyMessage(messages.get(0), body)).getSendStatus());
                done[0] = true;
            } catch (Exception error) {
                say("failed " + text(error));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("ready");
        while (!done[0]) {
            Thread.sleep(20);
        }
        consumer.shutdown();
        producer.shutdown();
    }

    /** The broker assigns, and messages are popped; the first one fails once. For clients of RocketMQ 5. */
    private static void pop(String topic, String group, int count) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        consumer.subscribe(topic, "*");
        ConcurrentHashMap<String, Boolean> seen = new ConcurrentHashMap<>();
        boolean[] failed = {false};
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            say("got " + line(message) + " " + (message.getProperty("POP_CK") != null));
            if (new String(message.getBody(), StandardCharsets.UTF_8).equals("0") && !failed[0]) {
                failed[0] = true;
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            seen.put(new String(message.getBody(), StandardCharsets.UTF_8), true);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        say("ready");
        while (seen.size() < count) {
            Thread.sleep(20);
        }
        Thread.sleep(1000);
        consumer.shutdown();
    }

    /** Three of them: one commits, one rolls back, one says nothing until it is asked. */
    private static void transactions(String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer("transactions" + topic, signing());
        producer.setNamesrvAddr(servers);
        producer.setSendMsgTimeout(10_000);
        boolean[] asked = {false};
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object state) {
                return (LocalTransactionState) state;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                say("asked " + line(message));
                asked[0] = true;
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (LocalTransactionState state : LocalTransactionState.values()) {
            byte[] body = state.name().getBytes(StandardCharsets.UTF_8);
            say("half " + producer.sendMessageInTransaction(new Message(topic, body), state).getSendStatus());
        }
        while (!asked[0]) {
            Thread.sleep(20);
        }
        Thread.sleep(500);
        producer.shutdown();
    }

    /** A body of each size, compressed with LZ4, ZSTD or ZLIB; a half of each is random. */
    private static void compressed(String topic, String type, String[] sizes) throws Exception {
        System.setProperty("rocketmq.message.compressType", type);
        DefaultMQProducer producer = producer();
        for (String size : sizes) {
            byte[] body = new byte[Integer.parseInt(size)];
            new Random(body.length).nextBytes(body);
            Arrays.fill(body, 0, body.length / 2, (byte) 'x');
            say("body " + sum(body) + " " + producer.send(new Message(topic, body)).getSendStatus());
        }
        producer.shutdown();
    }

    private static String sum(byte[] body) {
        CRC32 sum = new CRC32();
        sum.update(body);
        return body.length + ":" + sum.getValue();
    }

    /** Length and CRC32 of each body, until `count` messages have come. */
    private static void bodies(String topic, String group, int count) throws Exception {
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, "*");
        AtomicInteger seen = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> say("body " + sum(message.getBody())));
            seen.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        while (seen.get() < count) {
            Thread.sleep(20);
        }
        consumer.shutdown();
    }

    private static void lite(String topic, String group, int count) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group, signing());
        consumer.setNamesrvAddr(servers);
        consumer.setInstanceName("lite" + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        say("ready");
        for (int taken = 0; taken < count;) {
            for (MessageExt message : consumer.poll(1000)) {
                say("got " + line(message));
                taken++;
            }
        }
        consumer.commitSync();
        consumer.shutdown();
    }
}
