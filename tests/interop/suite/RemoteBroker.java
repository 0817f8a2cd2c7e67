package org.apache.rocketmq.test.base;

import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.out.BrokerOuterAPI;
import org.apache.rocketmq.broker.pop.orderly.ConsumerOrderInfoManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.broker.topic.TopicConfigManager;
import org.apache.rocketmq.broker.topic.TopicQueueMappingCleanService;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * A stand-in for RocketMQ's BrokerController. It answers with requests to a broker of this project in another
 * process. A setting that a test changes in {@link #getBrokerConfig} has no effect on that broker.
 */
public final class RemoteBroker extends BrokerController {
    private BrokerConfig config;
    private MessageStoreConfig storeConfig;
    private RemoteAdmin admin;

    private RemoteBroker() {
        super(null, null);
    }

    /** Start the broker with the names in `config`, and set the port there. */
    static RemoteBroker start(MessageStoreConfig storeConfig, BrokerConfig config) {
        String address = Servers.start(config.getBrokerName(), config.getBrokerClusterName());
        config.setBrokerIP1("127.0.0.1");
        config.setListenPort(Integer.parseInt(address.split(":")[1]));
        if (storeConfig.isEnableDLegerCommitLog()) {
            storeConfig.setBrokerRole(BrokerRole.SYNC_MASTER); // as RocketMQ's DLedgerRoleChangeHandler does
        }
        RemoteBroker broker = NotPossible.withoutConstructor(RemoteBroker.class);
        broker.config = config;
        broker.storeConfig = storeConfig;
        broker.admin = new RemoteAdmin(address);
        return broker;
    }

    @Override
    public String getBrokerAddr() {
        return admin.address;
    }

    @Override
    public BrokerConfig getBrokerConfig() {
        return config;
    }

    @Override
    public MessageStoreConfig getMessageStoreConfig() {
        return storeConfig;
    }

    @Override
    public MessageStore getMessageStore() {
        return RemoteStore.create(admin);
    }

    @Override
    public TopicConfigManager getTopicConfigManager() {
        return Topics.create(admin);
    }

    @Override
    public SubscriptionGroupManager getSubscriptionGroupManager() {
        return Groups.create(admin);
    }

    @Override
    public ConsumerOffsetManager getConsumerOffsetManager() {
        return Offsets.create(admin, config.getBrokerName());
    }

    @Override
    public BrokerOuterAPI getBrokerOuterAPI() {
        return NotPossible.withoutConstructor(Registration.class);
    }

    /** Do nothing: the brokers of this project register every change when it is made. */
    @Override
    public synchronized void registerBrokerAll(boolean checkOrder, boolean oneway, boolean force) {}

    @Override
    public void shutdown() {
        Servers.stop(config.getBrokerName());
    }

    /** Host:port at which the broker serves RocketMQ 5 clients, with TLS. */
    public String grpcAddress() {
        return Servers.grpc(config.getBrokerName());
    }

    @Override
    public ConsumerFilterManager getConsumerFilterManager() {
        throw new NotPossible("registers a filter in the broker's ConsumerFilterManager");
    }

    @Override
    public ConsumerOrderInfoManager getConsumerOrderInfoManager() {
        throw new NotPossible("reads the broker's ConsumerOrderInfoManager");
    }

    @Override
    public TopicQueueMappingCleanService getTopicQueueMappingCleanService() {
        throw new NotPossible("wakes the broker's TopicQueueMappingCleanService");
    }

    @Override
    public void registerServerRPCHook(RPCHook hook) {
        throw new NotPossible("registers an RPCHook in the broker");
    }

    private static final class Registration extends BrokerOuterAPI {
        private Registration() {
            super(null, null);
        }

        /** Do nothing: the brokers of this project have no such cache. */
        @Override
        public void refreshMetadata() {}
    }

    private static final class Topics extends TopicConfigManager {
        private RemoteAdmin admin;

        static Topics create(RemoteAdmin admin) {
            Topics topics = NotPossible.withoutConstructor(Topics.class);
            topics.admin = admin;
            return topics;
        }

        @Override
        public ConcurrentMap<String, TopicConfig> getTopicConfigTable() {
            return admin.call(tool -> tool.getAllTopicConfig(admin.address, RemoteAdmin.TIMEOUT_MS))
                    .getTopicConfigTable();
        }

        @Override
        public TopicConfig selectTopicConfig(String topic) {
            return getTopicConfigTable().get(topic);
        }

        @Override
        public void updateTopicConfig(TopicConfig topic) {
            admin.run(tool -> tool.createAndUpdateTopicConfig(admin.address, topic));
        }
    }

    private static final class Groups extends SubscriptionGroupManager {
        private RemoteAdmin admin;

        static Groups create(RemoteAdmin admin) {
            Groups groups = NotPossible.withoutConstructor(Groups.class);
            groups.admin = admin;
            return groups;
        }

        /** Return the settings of the group, which is created if it does not exist, as in RocketMQ. */
        @Override
        public SubscriptionGroupConfig findSubscriptionGroupConfig(String group) {
            SubscriptionGroupConfig config =
                    admin.call(tool -> tool.examineSubscriptionGroupConfig(admin.address, group));
            if (config == null) {
                config = new SubscriptionGroupConfig();
                config.setGroupName(group);
                updateSubscriptionGroupConfig(config);
            }
            return config;
        }

        @Override
        public void updateSubscriptionGroupConfig(SubscriptionGroupConfig group) {
            admin.run(tool -> tool.createAndUpdateSubscriptionGroupConfig(admin.address, group));
        }
    }

    private static final class Offsets extends ConsumerOffsetManager {
        private RemoteAdmin admin;
        private String broker;

        static Offsets create(RemoteAdmin admin, String broker) {
            Offsets offsets = NotPossible.withoutConstructor(Offsets.class);
            offsets.admin = admin;
            offsets.broker = broker;
            return offsets;
        }

        /** Return the offset that the group has committed, or -1 if the group's statistics lack the queue. */
        @Override
        public long queryOffset(String group, String topic, int queue) {
            OffsetWrapper offsets = offsetsOf(group, topic, queue);
            return offsets == null ? -1 : offsets.getConsumerOffset();
        }

        /** Return the offset up to which members have pulled, or -1 if the statistics lack the queue. */
        @Override
        public long queryPullOffset(String group, String topic, int queue) {
            OffsetWrapper offsets = offsetsOf(group, topic, queue);
            return offsets == null ? -1 : offsets.getPullOffset();
        }

        private OffsetWrapper offsetsOf(String group, String topic, int queue) {
            MessageQueue key = new MessageQueue(topic, broker, queue);
            return admin.call(tool -> tool.examineConsumeStats(admin.address, group, topic, RemoteAdmin.TIMEOUT_MS))
                    .getOffsetTable()
                    .get(key);
        }
    }
}
