import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.impl.ClientRemotingProcessor;
import org.apache.rocketmq.client.impl.mqclient.MQClientAPIExt;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.NotificationRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PeekMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PollingInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/** What RocketMQ's own proxy asks a broker about POP, with its classes. Each fact is a line of words. */
public final class Pops {
    private static final int COUNT = 8;
    private static final long WAIT = 20_000;
    private static String broker;
    private static String group;
    private static String topic;
    private static MQClientAPIExt api;

    public static void main(String[] arguments) throws Exception {
        // Threads of the clients would go on without it.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        broker = arguments[1];
        topic = arguments[2];
        group = arguments[3];
        ClientConfig config = new ClientConfig();
        config.setNamesrvAddr(arguments[0]);
        api = new MQClientAPIExt(config, new NettyClientConfig(), new ClientRemotingProcessor(null), null);
        api.start();
        DefaultMQProducer producer = new DefaultMQProducer("producers");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        // A group of RocketMQ's own broker begins at the end of a queue that has something before its first pop.
        popped(0, 1_000);
        for (int number = 0; number < COUNT; number++) {
            producer.send(message(Integer.toString(number)));
        }
        say("notified " + notified(WAIT).get());
        say("peeked " + peeked());
        Set<String> bodies = new TreeSet<>();
        while (bodies.size() < COUNT) {
            List<String> receipts = new ArrayList<>();
            for (MessageExt one : popped(WAIT, 60_000).get().getMsgFoundList()) {
                bodies.add(new String(one.getBody(), StandardCharsets.UTF_8));
                receipts.add(one.getProperty(MessageConst.PROPERTY_POP_CK));
            }
            say("acknowledged " + api.batchAckMessageAsync(broker, topic, group, receipts, WAIT).get().getStatus());
        }
        say("popped " + bodies);
        say("peeked " + peeked());
        say("notified " + notified(0).get());
        say("waiting " + waiting());
        CompletableFuture<PopResult> late = popped(WAIT, 60_000);
        while (waiting() == 0) {
            TimeUnit.MILLISECONDS.sleep(50);
        }
        say("waiting " + waiting());
        producer.send(message("late"));
        say("popped late " + late.get().getMsgFoundList().size());
        System.exit(0);
    }

    private static void say(String line) {
        System.out.println("@ " + line);
        System.out.flush();
    }

    private static Message message(String body) {
        return new Message(topic, body.getBytes(StandardCharsets.UTF_8));
    }

    private static CompletableFuture<PopResult> popped(long wait, long invisible) {
        PopMessageRequestHeader header = new PopMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(32);
        header.setInvisibleTime(invisible);
        header.setPollTime(wait);
        header.setBornTime(System.currentTimeMillis());
        header.setInitMode(0);
        header.setExpType("TAG");
        header.setExp("*");
        return api.popMessageAsync(broker, "broker-a", header, wait + 10_000);
    }

    private static CompletableFuture<Boolean> notified(long wait) {
        NotificationRequestHeader header = new NotificationRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setPollTime(wait);
        header.setBornTime(System.currentTimeMillis());
        return api.notification(broker, header, wait + 10_000);
    }

    private static String peeked() throws Exception {
        PeekMessageRequestHeader header = new PeekMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        header.setMaxMsgNums(32);
        RemotingCommand answer = ask(RemotingCommand.createRequestCommand(RequestCode.PEEK_MESSAGE, header));
        byte[] body = answer.getBody();
        int count = body == null ? 0 : MessageDecoder.decodes(java.nio.ByteBuffer.wrap(body)).size();
        return answer.getCode() + " " + answer.getRemark() + " " + count;
    }

    private static int waiting() throws Exception {
        PollingInfoRequestHeader header = new PollingInfoRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(topic);
        header.setQueueId(-1);
        RemotingCommand answer = ask(RemotingCommand.createRequestCommand(RequestCode.POLLING_INFO, header));
        return Integer.parseInt(answer.getExtFields().get("pollingNum"));
    }

    private static RemotingCommand ask(RemotingCommand request) throws Exception {
        return api.getRemotingClient().invokeSync(broker, request, WAIT);
    }
}
