package org.apache.rocketmq.test.base;

import java.io.IOException;
import java.util.Set;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageFilter;

/** A stand-in for the message store of a broker. It answers with requests to that broker. */
final class RemoteStore extends DefaultMessageStore {
    private RemoteAdmin admin;

    private RemoteStore() throws IOException {
        super(null, null, null, null, null);
    }

    static RemoteStore create(RemoteAdmin admin) {
        RemoteStore store = NotPossible.withoutConstructor(RemoteStore.class);
        store.admin = admin;
        return store;
    }

    @Override
    public long getMaxOffsetInQueue(String topic, int queue) {
        MessageQueue address = new MessageQueue(topic, null, queue);
        return admin.call(tool ->
                RemoteAdmin.requests(tool).getMaxOffset(admin.address, address, RemoteAdmin.TIMEOUT_MS));
    }

    @Override
    public long getMinOffsetInQueue(String topic, int queue) {
        MessageQueue address = new MessageQueue(topic, null, queue);
        return admin.call(tool ->
                RemoteAdmin.requests(tool).getMinOffset(admin.address, address, RemoteAdmin.TIMEOUT_MS));
    }

    @Override
    public long dispatchBehindBytes() {
        return Long.parseLong(admin.call(tool -> tool.fetchBrokerRuntimeStats(admin.address))
                .getTable()
                .get("dispatchBehindBytes"));
    }

    @Override
    public int cleanUnusedTopic(Set<String> topics) {
        throw new NotPossible("removes files of queues from the broker's store");
    }

    @Override
    public long estimateMessageCount(String topic, int queue, long from, long to, MessageFilter filter) {
        throw new NotPossible("estimates the number of messages within the broker's store");
    }
}
