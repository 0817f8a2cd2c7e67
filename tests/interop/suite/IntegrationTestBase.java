package org.apache.rocketmq.test.base;

import java.io.File;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.attribute.TopicMessageType;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.test.util.MQAdminTestUtils;

/**
 * Replaces the class of this name in RocketMQ's tests. Instead of RocketMQ's servers in this process, it starts
 * processes of this project and returns stand-ins for RocketMQ's controllers.
 */
public class IntegrationTestBase {
    public static volatile int commitLogSize = 100 << 20;
    protected static final String BROKER_NAME_PREFIX = "TestBrokerName_";
    protected static final AtomicInteger BROKER_INDEX = new AtomicInteger();
    private static final int TOPIC_SECONDS = 30;

    public static String createBaseDir() {
        return System.getProperty("java.io.tmpdir") + File.separator + "suite-" + UUID.randomUUID();
    }

    public static NamesrvController createAndStartNamesrv() {
        return RemoteNameServer.create(Servers.nameServer());
    }

    public static BrokerController createAndStartBroker(String nameServer) {
        BrokerConfig config = new BrokerConfig();
        config.setBrokerName(BROKER_NAME_PREFIX + BROKER_INDEX.incrementAndGet());
        config.setNamesrvAddr(nameServer);
        return createAndStartBroker(new MessageStoreConfig(), config);
    }

    /** Start the broker of this name, which keeps its messages from an earlier start. */
    public static BrokerController createAndStartBroker(MessageStoreConfig store, BrokerConfig config) {
        return RemoteBroker.start(store, config);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, int queues, CQType type) {
        return initTopic(topic, nameServer, cluster, queues, type, TopicMessageType.NORMAL);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, CQType type) {
        return initTopic(topic, nameServer, cluster, BaseConf.QUEUE_NUMBERS, type);
    }

    public static boolean initTopic(String topic, String nameServer, String cluster, TopicMessageType kind) {
        return initTopic(topic, nameServer, cluster, BaseConf.QUEUE_NUMBERS, CQType.SimpleCQ, kind);
    }

    public static boolean initTopic(
            String topic, String nameServer, String cluster, int queues, CQType type, TopicMessageType kind) {
        return initTopic(topic, nameServer, cluster, queues, type, kind, null);
    }

    public static boolean initTopic(
            String topic,
            String nameServer,
            String cluster,
            int queues,
            CQType type,
            TopicMessageType kind,
            Long expiration) {
        Map<String, String> attributes = new HashMap<>();
        if (type != CQType.SimpleCQ) {
            attributes.put("+queue.type", type.toString());
        }
        if (kind != TopicMessageType.NORMAL) {
            attributes.put("+message.type", kind.toString());
        }
        if (kind == TopicMessageType.LITE) {
            attributes.put("+lite.topic.expiration", String.valueOf(expiration));
        }
        return MQAdminTestUtils.createTopic(nameServer, cluster, topic, queues, attributes, TOPIC_SECONDS);
    }

    public static void initMQAdmin(String nameServer) {
        try {
            MQAdminTestUtils.startAdmin(nameServer);
        } catch (MQClientException error) {
            throw new IllegalStateException(error);
        }
    }
}
