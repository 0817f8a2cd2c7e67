package org.apache.rocketmq.test.grpc.v2;

import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.proxy.config.ConfigurationManager;
import org.apache.rocketmq.test.base.RemoteBroker;
import org.junit.After;
import org.junit.Before;
import org.junit.FixMethodOrder;
import org.junit.Ignore;
import org.junit.Test;
import org.junit.runners.MethodSorters;

/**
 * Replaces the class of this name in RocketMQ's tests, which starts RocketMQ's proxy within a broker. The tests,
 * which it inherits, use the gRPC port of the first broker. The same tests are ignored as in RocketMQ's class.
 */
@FixMethodOrder(MethodSorters.NAME_ASCENDING)
public class LocalGrpcIT extends GrpcBaseIT {
    @Before
    public void setUp() throws Exception {
        super.setUp();
        System.setProperty(MixAll.NAMESRV_ADDR_PROPERTY, NAMESRV_ADDR); // for a client without an address
        String address = ((RemoteBroker) brokerController1).grpcAddress();
        int port = Integer.parseInt(address.split(":")[1]);
        ConfigurationManager.getProxyConfig().setGrpcServerPort(port); // the tests expect it in routes
        blockingStub = createBlockingStub(createChannel(port));
        stub = createStub(createChannel(port));
    }

    @After
    public void clean() {
        shutdown();
    }

    /** A node routes to its own broker, and not to the others of the cluster. */
    @Test
    public void testQueryRoute() throws Exception {
        assertQueryRoute(blockingStub.queryRoute(buildQueryRouteRequest(initTopic())), DEFAULT_QUEUE_NUMS);
    }

    @Test
    public void testQueryAssignment() throws Exception {
        super.testQueryAssignment();
    }

    @Test
    public void testQueryFifoAssignment() throws Exception {
        super.testQueryFifoAssignment();
    }

    @Test
    @Ignore
    public void testTransactionCheckThenCommit() {
        super.testTransactionCheckThenCommit();
    }

    @Test
    @Ignore
    public void testSimpleConsumerSendAndRecvDelayMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvDelayMessage();
    }

    @Test
    public void testSimpleConsumerSendAndRecallDelayMessage() throws Exception {
        super.testSimpleConsumerSendAndRecallDelayMessage();
    }

    @Test
    public void testSimpleConsumerSendAndRecvBigMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvBigMessage();
    }

    @Test
    public void testSimpleConsumerSendAndRecv() throws Exception {
        super.testSimpleConsumerSendAndRecv();
    }

    @Test
    public void testSimpleConsumerToDLQ() throws Exception {
        super.testSimpleConsumerToDLQ();
    }

    @Test
    public void testConsumeOrderly() throws Exception {
        super.testConsumeOrderly();
    }

    @Test
    public void testSimpleConsumerSendAndRecvPriorityMessage() throws Exception {
        super.testSimpleConsumerSendAndRecvPriorityMessage();
    }
}
