package org.apache.rocketmq.test.base;

import java.util.UUID;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Requests of an administrator to the broker at `address` (host:port). */
final class RemoteAdmin {
    static final long TIMEOUT_MS = 10_000;
    private static DefaultMQAdminExt shared;

    final String address;

    RemoteAdmin(String address) {
        this.address = address;
    }

    interface Call<T> {
        T of(DefaultMQAdminExt tool) throws Exception;
    }

    interface Command {
        void of(DefaultMQAdminExt tool) throws Exception;
    }

    <T> T call(Call<T> call) {
        try {
            return call.of(tool());
        } catch (Exception error) {
            throw new IllegalStateException(address, error);
        }
    }

    void run(Command command) {
        call(tool -> {
            command.of(tool);
            return null;
        });
    }

    static MQClientAPIImpl requests(DefaultMQAdminExt tool) {
        return tool.getDefaultMQAdminExtImpl().getMqClientInstance().getMQClientAPIImpl();
    }

    private static synchronized DefaultMQAdminExt tool() throws Exception {
        if (shared == null) {
            shared = new DefaultMQAdminExt(TIMEOUT_MS);
            shared.setInstanceName("suite-" + UUID.randomUUID());
            shared.setNamesrvAddr(Servers.nameServer());
            shared.start();
        }
        return shared;
    }
}
