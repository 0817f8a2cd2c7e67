package org.apache.rocketmq.test.base;

import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;

/** A stand-in for RocketMQ's NamesrvController that knows the address of a NameServer in another process. */
final class RemoteNameServer extends NamesrvController {
    private NettyServerConfig address;
    private NamesrvConfig settings;

    private RemoteNameServer() {
        super(null, null);
    }

    static RemoteNameServer create(String address) {
        RemoteNameServer server = NotPossible.withoutConstructor(RemoteNameServer.class);
        server.address = new NettyServerConfig();
        server.address.setListenPort(Integer.parseInt(address.split(":")[1]));
        server.settings = new NamesrvConfig();
        return server;
    }

    @Override
    public NettyServerConfig getNettyServerConfig() {
        return address;
    }

    /** Settings whose changes have no effect on the server. */
    @Override
    public NamesrvConfig getNamesrvConfig() {
        return settings;
    }
}
