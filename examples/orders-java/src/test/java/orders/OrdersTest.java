package orders;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.junit.jupiter.api.Test;

class OrdersTest {
    @Test
    void anOrderIsReceived() throws Exception {
        try (DevBroker broker = new DevBroker()) {
            DefaultMQProducer producer = new DefaultMQProducer("shop");
            producer.setNamesrvAddr(broker.nameServer);
            producer.start();
            producer.send(new Message("orders", "two teapots".getBytes(StandardCharsets.UTF_8)));
            producer.shutdown();

            BlockingQueue<String> received = new LinkedBlockingQueue<>();
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("billing");
            consumer.setNamesrvAddr(broker.nameServer);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe("orders", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(one -> received.add(new String(one.getBody(), StandardCharsets.UTF_8)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            assertEquals("two teapots", received.poll(60, TimeUnit.SECONDS));
            consumer.shutdown();
        }
    }
}
