import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.impl.ClientRemotingProcessor;
import org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.producer.RecallMessageHandle;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Requests of RocketMQ's clients and tools whose answers RocketMQ's brokers and this project's have to share. Each fact is a
 * line of words. Arguments: NameServers, address and name of a broker, cluster.
 */
public final class Parity {
    private static final long WAIT = 20_000;
    private static String servers;
    private static String broker;
    private static String name;
    private static DefaultMQProducer producer;
    private static DefaultMQAdminExt admin;

    public static void main(String[] arguments) throws Exception {
        // Threads of the clients would go on without it.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        servers = arguments[0];
        broker = arguments[1];
        name = arguments[2];
        producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(servers);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        admin = new DefaultMQAdminExt(WAIT);
        admin.setNamesrvAddr(servers);
        admin.start();
        create("made-by-cluster", arguments[3]);
        create("made-by-broker", name);
        recalls();
        queuesBetweenTheCounts();
        resets();
        members();
        orderedPops();
        System.exit(0);
    }

    private static void say(String line) {
        System.out.println("@ " + line);
        System.out.flush();
    }

    private static void attempt(String what, Callable<Object> call) {
        try {
            say(what + " " + call.call());
        } catch (MQBrokerException error) {
            say(what + " code " + error.getResponseCode());
        } catch (Exception error) {
            say(what + " " + error.getClass().getSimpleName());
        }
    }

    private static Message message(String topic, String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    private static void topic(String topic, int read, int write, int permission) throws Exception {
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, read, write, permission));
        until(() -> admin.examineTopicRouteInfo(topic).getQueueDatas().stream()
            .anyMatch(one -> one.getBrokerName().equals(name) && one.getPerm() == permission));
    }

    private static void group(String group) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(group);
        admin.createAndUpdateSubscriptionGroupConfig(broker, config);
    }

    private static void until(Callable<Boolean> condition) throws Exception {
        while (true) {
            try {
                if (condition.call()) {
                    return;
                }
            } catch (Exception notYet) {
                // a NameServer learns of a topic later than its broker
            }
            TimeUnit.MILLISECONDS.sleep(50);
        }
    }

    /** As all tests of RocketMQ itself create their topics. */
    private static void create(String topic, String key) {
        attempt("created by " + key, () -> {
            producer.createTopic(key, topic, 3, new HashMap<>());
            TopicConfig found = admin.examineTopicConfig(broker, topic);
            return found.getReadQueueNums() + " " + found.getWriteQueueNums();
        });
    }

    private static void recalls() throws Exception {
        topic("recalled", 1, 1, 6);
        topic("other", 1, 1, 6);
        Message late = message("recalled", "late");
        late.setDelayTimeMs(600_000);
        SendResult sent = producer.send(late);
        String handle = sent.getRecallHandle();
        RecallMessageHandle.HandleV1 found = (RecallMessageHandle.HandleV1) RecallMessageHandle.decodeHandle(handle);
        long left = Long.parseLong(found.getTimestampStr()) - System.currentTimeMillis();
        say("handle " + found.getVersion() + " " + found.getTopic() + " " + found.getBrokerName().equals(name)
            + " " + found.getMessageId().equals(sent.getMsgId()) + " " + (left > 500_000 && left < 700_000));
        attempt("recall from another topic", () -> producer.recallMessage("other", handle));
        attempt("recall by no handle", () -> producer.recallMessage("recalled", "none"));
        attempt("recall", () -> producer.recallMessage("recalled", handle).equals(sent.getMsgId()));
    }

    private static void queuesBetweenTheCounts() throws Exception {
        topic("shrinking", 4, 2, 6);
        for (int queue : new int[] {1, 3}) {
            attempt("to queue " + queue, () -> toQueue("shrinking", queue));
        }
        try {
            say("beyond both " + toQueue("shrinking", 4));
        } catch (MQBrokerException refused) {
            say("beyond both refused");
        }
    }

    private static Object toQueue(String topic, int queue) throws Exception {
        return producer.send(message(topic, "x"), new MessageQueue(topic, name, queue)).getSendStatus();
    }

    private static void resets() throws Exception {
        group("resetters");
        topic("written", 2, 4, 6);
        for (int queue = 0; queue < 4; queue++) {
            toQueue("written", queue);
        }
        attempt("reset to the end", () -> reset("written", -1));
        attempt("reset to a time", () -> reset("written", 1));
        topic("written", 2, 4, 2);
        attempt("reset without read permission", () -> reset("written", 1));
        // At the broker's name alone: write-only names of a route are another matter.
        attempt("searched", () -> admin.searchOffset(new MessageQueue("written", name, 1), 1));
        attempt("searched beyond", () -> admin.searchOffset(new MessageQueue("written", name, 3), 1));
    }

    private static Object reset(String topic, long time) throws Exception {
        Map<Integer, Long> found = new TreeMap<>();
        admin.resetOffsetByTimestamp(topic, "resetters", time, true)
            .forEach((queue, offset) -> found.put(queue.getQueueId(), offset));
        found.keySet().removeIf(queue -> queue > 1);
        return found;
    }

    private static void members() throws Exception {
        topic("watched", 1, 1, 6);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("watchers");
        consumer.setNamesrvAddr(servers);
        consumer.subscribe("watched", "a || b || ");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        consumer.start();
        until(() -> !admin.examineConsumerConnectionInfo("watchers").getConnectionSet().isEmpty());
        SubscriptionData found = admin.examineConsumerConnectionInfo("watchers").getSubscriptionTable().get("watched");
        say("codes " + new TreeSet<>(found.getCodeSet()) + " tags " + new TreeSet<>(found.getTagsSet()));
        say("groups " + new TreeSet<>(admin.queryTopicConsumeByWho("watched").getGroupList()));
        say("groups of the retry topic " + new TreeSet<>(admin.queryTopicConsumeByWho("%RETRY%watchers").getGroupList()));
        consumer.shutdown();
    }

    private static void orderedPops() throws Exception {
        group("poppers");
        topic("popped", 1, 1, 6);
        ClientConfig config = new ClientConfig();
        config.setNamesrvAddr(servers);
        MQClientAPIExt api = new MQClientAPIExt(config, new NettyClientConfig(), new ClientRemotingProcessor(null), null);
        api.start();
        pop(api, 1, 1_000);
        for (String body : List.of("0", "1", "2")) {
            producer.send(message("popped", body));
        }
        List<MessageExt> first = pop(api, 2, WAIT);
        say("popped " + bodies(first));
        say("popped before the acknowledgement " + bodies(pop(api, 2, 0)));
        for (MessageExt one : first) {
            AckMessageRequestHeader header = new AckMessageRequestHeader();
            header.setConsumerGroup("poppers");
            header.setTopic("popped");
            header.setQueueId(one.getQueueId());
            header.setOffset(one.getQueueOffset());
            header.setExtraInfo(one.getProperty(MessageConst.PROPERTY_POP_CK));
            say("acknowledged " + api.ackMessageAsync(broker, header, WAIT).get().getStatus());
        }
        say("popped " + bodies(pop(api, 2, WAIT)));
    }

    private static List<MessageExt> pop(MQClientAPIExt api, int most, long wait) throws Exception {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup("poppers");
        header.setTopic("popped");
        header.setQueueId(-1);
        header.setMaxMsgNums(most);
        header.setInvisibleTime(60_000);
        header.setPollTime(wait);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        header.setOrder(true);
        PopResult found = api.popMessageAsync(broker, name, header, wait + 10_000).get();
        return found.getMsgFoundList() == null ? List.of() : found.getMsgFoundList();
    }

    private static List<String> bodies(List<MessageExt> messages) {
        List<String> found = new ArrayList<>();
        messages.forEach(one -> found.add(new String(one.getBody(), StandardCharsets.UTF_8)));
        return found;
    }
}
