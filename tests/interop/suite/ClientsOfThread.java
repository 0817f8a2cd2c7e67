package org.apache.rocketmq.test.base;

import java.util.AbstractList;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

/**
 * A list with different elements for each test class. `BaseConf.mqClients` contains the clients that the end of
 * a test shuts down. With this list, test classes can run side by side: a thread and the threads that it starts
 * see their own clients only.
 */
final class ClientsOfThread extends AbstractList<Object> {
    private final InheritableThreadLocal<List<Object>> clients = new InheritableThreadLocal<List<Object>>() {
        @Override
        protected List<Object> initialValue() {
            return Collections.synchronizedList(new ArrayList<>());
        }
    };

    @Override
    public Object get(int index) {
        return clients.get().get(index);
    }

    @Override
    public int size() {
        return clients.get().size();
    }

    @Override
    public void add(int index, Object client) {
        clients.get().add(index, client);
    }

    @Override
    public Object remove(int index) {
        return clients.get().remove(index);
    }
}
